"""The typed, frozen description of a training job: what the command line parses and config.json stores."""

import dataclasses
import itertools
import math
from collections import ChainMap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from c4rl.algorithms.algorithm import AlgorithmConfig, Stage
from c4rl.core.action_bounds import ActionBounds
from c4rl.core.errors import InputError
from c4rl.core.ops import OFFERED
from c4rl.core.options import Options, option
from c4rl.core.subset_kinds import SubsetKind
from c4rl.data.subsets import CUTS_TRAJECTORIES
from c4rl.jobs.presets.best import BEST
from c4rl.jobs.presets.c4 import NO_PRESET, PRESETS
from c4rl.jobs.registry import ALGORITHMS, PLUGINS, algorithm_class, plugin_names
from c4rl.jobs.sweeps import Swept, parse_by_dataset, parse_points, parse_sweep, with_values

PUBLISHED = "published"  # the preset of an algorithm's own publication
MOST = 10**9  # updates, rows
MOST_SEED = 2**63 - 1
MOST_RUNS = 10_000
LONGEST_NAME = 200
RESUMABLE = ("dataset", "updates", "device", "threads")  # what may change when a job is resumed

ONE_SETTING: dict[str, Any] = {"sweep": (), "points": (), "by_dataset": (), "only": ()}  # for a config of one run


@dataclass(frozen=True)
class TrainConfig(ActionBounds):
    """Train R runs of one algorithm: one per dataset, point of the sweep and seed."""

    algorithm: str = option(choices=ALGORITHMS)
    """The algorithm to train."""
    dataset: tuple[Path, ...] = option(incidental=True)
    """npz, D4RL hdf5, a d3rlpy dump, or a local Minari dataset (its folder, or minari:ID); several of one shape train
    together."""
    task: tuple[str, ...] = option(("none",))
    """A name from `c4rl tasks`, gym:ID for any Gymnasium environment (gym:MODULE:ID if MODULE registers it), or none
    for no simulator; one for all datasets, or one each."""
    output: Path = option(Path("runs/job"), incidental=True)
    """Folder of this job; must not exist. On the command line its default is runs/DATASET-PRESET (or -ALGORITHM)."""
    preset: str = option(NO_PRESET, choices=(NO_PRESET, BEST, PUBLISHED, *PRESETS), incidental=True)
    """Sets the defaults of the other flags; flags that you give win. best: what scored most on small data, the
    algorithm included; published: the settings of the algorithm's own publication."""
    plugins: tuple[str, ...] = option(("none",), choices=ChainMap[str, Any]({"none": None}, PLUGINS))
    """Plug-ins for the algorithm."""
    seeds: tuple[int, ...] = option((0,), at_least=0, at_most=MOST_SEED)
    """One run per seed; they train together."""
    sweep: tuple[str, ...] = option((), incidental=True)
    """Options with several values each, such as lambda=0.05,0.1,0.3 K=1,5. Every combination is trained with every
    seed."""
    points: tuple[str, ...] = option((), incidental=True)
    """Settings to train, such as lambda=0.1,K=5. Each is trained with every combination of --sweep and every seed. On
    the command line, a file holds them."""
    by_dataset: tuple[str, ...] = option((), incidental=True)
    """Options with one value for each dataset, in their order, such as lambda=0.1,0.3,0.5."""
    only: tuple[str, ...] = option((), incidental=True)
    """Train only these runs of the job, by their names in files. Default: all."""
    updates: int = option(100_000, at_least=1, at_most=MOST)
    """Gradient updates of each run's critic, or of its policy if it has no critic. Other stages have options of their
    own."""
    size: int | None = option(None, at_least=1, at_most=MOST)
    """Rows to train on. Default: all."""
    subset: SubsetKind = "trajectories"
    """How --size rows are chosen. trajectories: whole ones; rows: single rows; with_replacement: trajectories with
    replacement; authors: the same with the index drift of the authors' release; thinned: fewer rows where states are
    well covered; low_return: trajectories of low return only; narrow: rows near one state only."""
    subset_seed: int = option(0, at_least=0, at_most=MOST_SEED)
    """Seed of that choice, the same for all runs so that methods compare on the same rows."""
    normalize_observations: bool = True
    """Centre and scale observations (std + 1e-3)."""
    observation_statistics: Literal["subset", "full"] = "subset"
    """Rows that the normaliser is computed from: those trained on, or the whole file."""
    reward_scale: float = option(1.0, at_least=-1e6, at_most=1e6)
    """Training rewards are reward_scale * r + reward_shift; scores always use raw rewards."""
    reward_shift: float = option(0.0, at_least=-1e6, at_most=1e6)
    """See --reward-scale."""
    normalize_returns: bool = False
    """Scale rewards by 1000 / (best - worst return of a whole trajectory) first."""
    eval_every: int = option(5000, at_least=1, at_most=MOST, incidental=True)
    """Updates between evaluations, counted through all stages."""
    eval_episodes: int = option(10, at_least=1, at_most=10**6)
    """Episodes per run and evaluation."""
    eval_seed: int = option(10_000, at_least=0, at_most=MOST_SEED)
    """Episode e is reset with seed eval_seed + e, the same for every run and evaluation."""
    eval_in_background: Literal["auto", "yes", "no"] = option("auto", incidental=True)
    """Whether training continues while policies are evaluated. auto: only on a GPU, because on a CPU the two share
    cores."""
    ensemble: int = option(0, at_least=0, at_most=10**6, incidental=True)
    """Also score ensembles of this many seeds each, which play the mean of their actions; 0: none. Needs a
    simulator."""
    hold_out: float = option(0.1, at_least=0, below=1)
    """With --task none or --select: share of the trajectories held out from training to measure errors on (of one long
    log, its end); 0: none."""
    select: Literal["none", "held-out", "held-out-td"] = "none"
    """Also keep each run's checkpoint with the lowest error on held-out trajectories. held-out: the policy's action
    error (good for cloning); held-out-td: the critic's TD error (scored worse than no selection). evaluate, export and
    ope then use it by default."""
    log_every: int = option(500, at_least=1, at_most=MOST, incidental=True)
    """Updates between lines of metrics.jsonl, counted through all stages."""
    checkpoint_every: int = option(1000, at_least=1, at_most=MOST, incidental=True)
    """Updates between checkpoints: what a killed job may lose."""
    keep_checkpoints: int = option(0, at_least=0, at_most=1000, incidental=True)
    """Also keep this many checkpoints, evenly spread over all updates, as checkpoint_UPDATE.safetensors. `c4rl
    clusters` draws them."""
    checkpoint_seconds: float | None = option(None, at_least=0, at_most=1e6, incidental=True)
    """Least seconds between two checkpoints: what a fast job may lose when killed. Default: 10 on a GPU, 0 on a CPU."""
    device: str = option("auto", incidental=True)
    """auto, cpu, cuda, cuda:1, ..."""
    runs_per_launch: int | None = option(None, at_least=1, at_most=MOST_RUNS, incidental=True)
    """The most runs of one launch (runs that train as one batch). Default: on a GPU, all that can share a launch; on a
    CPU, as many as is fastest. With --engine ray one node trains a launch, so fewer runs per launch occupy more
    nodes."""
    threads: int | None = option(None, at_least=1, at_most=4096, incidental=True)
    """CPU threads, and evaluation processes. Default: as many threads as cores are free, and one process per core."""
    cuda_graph: bool = option(True, incidental=True)
    """On a GPU: replay each update as one CUDA graph instead of launching its kernels one by one."""
    fused_kernels: bool = option(True, incidental=True)
    """On a GPU: use this package's Triton kernels where they apply, and PyTorch's own elsewhere."""
    precision: str = option("fp32", choices=OFFERED, incidental=True)
    """Precision of matrix products on a GPU; bf16x3 is faster if they are large. No other mode has been shown to be
    harmless (benchmarks/speed.md)."""
    monitor: bool = option(False, incidental=True)
    """Log the cross-covariance and Theorem 1's terms A, B and C, and at evaluations the cosines of the TD loss's
    gradient, with or without C4. Costs under 2% of the time."""
    options: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    """The algorithm's own options."""
    plugin_options: tuple[Any, ...] = ()
    """The plug-ins' own options, in the order of `plugins`."""

    def __post_init__(self) -> None:
        if isinstance(self.dataset, str | Path):  # a single one needs no tuple
            object.__setattr__(self, "dataset", (Path(self.dataset),))
        if isinstance(self.task, str):
            object.__setattr__(self, "task", (self.task,))
        if isinstance(self.plugins, str):
            object.__setattr__(self, "plugins", (self.plugins,))
        if isinstance(self.plugin_options, Options):
            object.__setattr__(self, "plugin_options", (self.plugin_options,))
        super().__post_init__()

    def check(self) -> None:
        def require(flag: str, holds: bool, found: Any, expected: str) -> None:
            if not holds:
                raise InputError(f"--{flag}: found {found}, expected {expected}")

        require("dataset", len(self.dataset) > 0, "none", "at least one")
        once = len(set(self.dataset)) == len(self.dataset)
        require("dataset", once, " ".join(map(str, self.dataset)), "each dataset once")
        counts = {1, len(self.dataset)}
        require("task", len(self.task) in counts, " ".join(self.task), "one for all datasets, or one for each")
        some = "none" in self.task and set(self.task) != {"none"}
        require("task", not some, " ".join(self.task), "a simulator for all datasets, or none for all")
        members, enough = self.ensemble, self.ensemble <= len(self.seeds)
        require("ensemble", enough, f"{members} with {len(self.seeds)} seeds", "at most as many as seeds")
        require("ensemble", members == 0 or "none" not in self.task, "it with --task none", "a task with a simulator")
        require("select", self.select == "none" or self.hold_out > 0, "it with --hold-out 0", "a share to hold out")
        require("seeds", len(set(self.seeds)) == len(self.seeds), list(self.seeds), "each seed once")
        single_rows = self.normalize_returns and self.subset in CUTS_TRAJECTORIES and self.size is not None
        why = "whole trajectories: a single row has no return"
        require("normalize-returns", not single_rows, f"it with --subset {self.subset}", why)
        algorithm = algorithm_class(self.algorithm)
        needs_critic = self.select == "held-out-td" and not algorithm.has_critic
        require("select", not needs_critic, f"held-out-td with {self.algorithm}", "held-out: it has no critic")
        names, every = plugin_names(self.plugins, self.algorithm), (self.options, *self.plugin_options)
        kinds = [algorithm.config_type, *(PLUGINS[name][0] for name in names)]
        if [type(one) for one in every] != kinds:
            found, wanted = (" and ".join(kind.__name__ for kind in some) for some in (map(type, every), kinds))
            raise InputError(f"options, plugin_options: found {found}, expected {wanted}")
        for name, plugin_options in zip(names, self.plugin_options, strict=True):
            PLUGINS[name][1].check(plugin_options, algorithm, self.options)
        for task in self.task:
            algorithm.check(self.options, task)
        points = max(1, len(self.points))
        runs = len(self.dataset) * points * math.prod(len(swept.values) for swept in self._sweep) * len(self.seeds)
        flag = "points" if self.points else "sweep"
        require(flag, runs <= MOST_RUNS, f"{runs:,} runs", f"at most {MOST_RUNS:,}")
        taken = {"sweep": self._sweep, "points": self._points, "by-dataset": self._by_dataset}
        for flag, other in (("by-dataset", "sweep"), ("points", "sweep"), ("by-dataset", "points")):
            both = {s.name for s in taken[flag]} & {s.name for s in taken[other]}
            require(flag, not both, f"{' '.join(sorted(both))} in --{other} too", "an option in one of them")
        for dataset in range(len(self.dataset)) if self.by_dataset else range(1):
            for point in self.settings(dataset) if self.swept else ():
                self._check_point(point)

    @property
    def tasks(self) -> tuple[str, ...]:
        """One for each dataset."""
        return self.task * len(self.dataset) if len(self.task) == 1 else self.task

    @property
    def active_plugins(self) -> list[str]:
        """Without the word none."""
        return [name for name in self.plugins if name != "none"]

    @property
    def method(self) -> str:
        """As in cql + c4."""
        return " + ".join([self.algorithm, *self.active_plugins])

    @property
    def stages(self) -> tuple[Stage, ...]:
        return algorithm_class(self.algorithm).plan(self.options, self.updates)

    @property
    def total_updates(self) -> int:
        """Updates of all stages together."""
        return sum(stage.updates for stage in self.stages)

    @property
    def _sweep(self) -> tuple[Swept, ...]:
        return parse_sweep(self.sweep, (self.options, self.plugin_options), tuple(field_names()))

    @property
    def _by_dataset(self) -> tuple[Swept, ...]:
        options = self.options, self.plugin_options
        return parse_by_dataset(self.by_dataset, options, field_names(), len(self.dataset))

    @property
    def _points(self) -> tuple[Swept, ...]:
        return parse_points(self.points, (self.options, self.plugin_options), tuple(field_names()))

    @property
    def swept(self) -> tuple[Swept, ...]:
        """Options that differ between runs."""
        return (*self._by_dataset, *self._points, *self._sweep)

    def settings(self, dataset: int) -> list[tuple[Any, ...]]:
        """The values of the swept options that runs on this dataset take: every point with every combination."""
        own = tuple(s.values[dataset] for s in self._by_dataset)
        points = list(zip(*(s.values for s in self._points), strict=True)) or [()]
        product = list(itertools.product(*(s.values for s in self._sweep)))
        return [(*own, *point, *swept) for point in points for swept in product]

    def at_point(self, values: tuple[Any, ...]) -> "TrainConfig":
        """The config of the runs that take these values of the sweep."""
        options, plugin_options = with_values((self.options, self.plugin_options), self.swept, values)
        return dataclasses.replace(self, **ONE_SETTING, options=options, plugin_options=plugin_options)

    def _check_point(self, values: tuple[Any, ...]) -> None:
        """Refuse values that the flags would refuse, and values that change the length of a stage."""
        words = ",".join(f"{s.name}={value}" for s, value in zip(self.swept, values, strict=True))
        if len(words) > LONGEST_NAME:  # runs and their folders are called so
            raise InputError(f"found settings of {len(words)} characters, expected at most {LONGEST_NAME}: {words}")
        try:
            point = self.at_point(values)
        except InputError as error:
            by_dataset = f"--by-dataset {' '.join(self.by_dataset)}"
            given = (
                f"--sweep {' '.join(self.sweep)}" if self.sweep else f"--points {words}" if self.points else by_dataset
            )
            raise InputError(f"{given}: {error}") from None
        if _lengths(point.stages) != _lengths(self.stages):
            flag = "--points" if self.points else "--sweep"
            raise InputError(f"{flag}: {words} changes the length of a stage, expected runs of equal length")


def _lengths(stages: tuple[Stage, ...]) -> list[Stage]:
    return [stage._replace(batch_size=0) for stage in stages]


def empty_config(algorithm: str, plugins: tuple[str, ...], **values: Any) -> TrainConfig:
    """A config of this algorithm and these plug-ins, other fields at their defaults or as given.

    Their own options: `options=TD3BCConfig(alpha=10)` of `c4rl.algorithms.td3_bc`, and one for each plug-in,
    `plugin_options=(C4Config(K=1),)` of `c4rl.plugins.c4.plugin`.
    """
    chosen = plugin_names((plugins,) if isinstance(plugins, str) else plugins, algorithm)
    kinds = algorithm_class(algorithm).config_type, *(PLUGINS[name][0] for name in chosen)
    options = values.pop("options", kinds[0]())
    plugin_options = values.pop("plugin_options", tuple(kind() for kind in kinds[1:]))
    return TrainConfig(
        algorithm=algorithm, plugins=chosen or ("none",), options=options, plugin_options=plugin_options, **values
    )


def field_names() -> list[str]:
    return [f.name for f in dataclasses.fields(TrainConfig)]
