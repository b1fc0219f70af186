"""The typed, frozen description of a training job: what the command line parses and config.json stores."""

import dataclasses
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from c4rl.algorithms.algorithm import AlgorithmConfig, Stage
from c4rl.core.errors import InputError
from c4rl.core.ops import OFFERED
from c4rl.core.typed_json import from_dict, jsonable, typed
from c4rl.environments.tasks import get_task
from c4rl.jobs.presets.c4 import NO_PRESET, PRESETS, preset, values_of
from c4rl.jobs.registry import PLUGINS, algorithm_class, plugin_names
from c4rl.jobs.sweeps import Swept, differences, parse_by_dataset, parse_sweep, with_values

CONFIG_VERSION = 1
PUBLISHED = "published"  # the preset of an algorithm's own publication


@dataclass(frozen=True)
class TrainConfig:
    """Train R runs of one algorithm: one per dataset, point of the sweep and seed."""

    algorithm: str
    """bc, td3_bc, cql, iql, doge, tsrl, bppo, a2pr or sorl."""
    dataset: tuple[Path, ...]
    """npz, D4RL hdf5, or a local Minari dataset (its folder, or minari:ID); several of one shape train together."""
    task: tuple[str, ...]
    """A name from `c4rl tasks`, gym:ID for any Gymnasium environment, or none for no simulator; one for all datasets,
    or one each."""
    output: Path
    """Folder of this job; must not exist."""
    preset: str = NO_PRESET
    """The defaults of the other flags: published (the algorithm's own publication), paper, authors or authors-fixed;
    flags given beside it win."""
    plugins: tuple[str, ...] = ("none",)
    """none, or any of c4, layer_norm, dr3 and sorl."""
    seeds: tuple[int, ...] = (0,)
    """One run per seed; they train together."""
    sweep: tuple[str, ...] = ()
    """Options with several values each, as lambda=0.05,0.1,0.3 K=1,5: every combination is trained with every seed."""
    by_dataset: tuple[str, ...] = ()
    """Options with one value for each of several datasets, in their order, as lambda=0.1,0.3,0.5."""
    updates: int = 100_000
    """Gradient updates of each run's critic (of its policy, where there is none); other stages have options of their
    own."""
    size: int | None = None
    """Rows to train on; all if not given."""
    subset: Literal["trajectories", "rows", "with_replacement", "authors"] = "trajectories"
    """How --size rows are chosen: whole trajectories, single rows, trajectories with replacement, or those with the
    index drift of the authors' release."""
    subset_seed: int = 0
    """Seed of that choice, the same for all runs so that methods compare on the same rows."""
    normalize_observations: bool = True
    """Centre and scale observations (std + 1e-3)."""
    observation_statistics: Literal["subset", "full"] = "subset"
    """Rows that the normaliser sees: those trained on, or the whole file."""
    reward_scale: float = 1.0
    """Training rewards are reward_scale * r + reward_shift; scores always use raw rewards."""
    reward_shift: float = 0.0
    """See --reward-scale."""
    normalize_returns: bool = False
    """Scale rewards by 1000 / (best - worst trajectory return) first."""
    action_low: tuple[float, ...] | None = None
    """Lower action bounds: one number, or one per action. Default: the task's, the file's, or -1."""
    action_high: tuple[float, ...] | None = None
    """Upper action bounds."""
    clip_actions: bool = False
    """Clip logged actions to the bounds instead of refusing them."""
    eval_every: int = 5000
    """Updates between evaluations, counted through all stages."""
    eval_episodes: int = 10
    """Episodes per run and evaluation."""
    eval_seed: int = 10_000
    """Episode e is reset with seed eval_seed + e, the same for every run and evaluation."""
    eval_in_background: Literal["auto", "yes", "no"] = "auto"
    """Whether training goes on while policies are evaluated; auto: on a GPU, since a CPU's cores would be shared."""
    hold_out: float = 0.1
    """With --task none: share of the trajectories (of one long log: its end) kept for the held-out report; 0: none."""
    log_every: int = 500
    """Updates between lines of metrics.jsonl, counted through all stages."""
    checkpoint_every: int = 1000
    """Updates between checkpoints: what a killed job may lose."""
    checkpoint_seconds: float | None = None
    """Seconds that must have passed since the last checkpoint: what a fast job may lose when killed. Default: 10 on a
    GPU, 0 on a CPU."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, ..."""
    threads: int | None = None
    """CPU threads, and processes that evaluate; default: all cores."""
    cuda_graph: bool = True
    """On a GPU: replay each update as one CUDA graph instead of launching its kernels one by one."""
    fused_kernels: bool = True
    """On a GPU: use this package's Triton kernels where they apply, PyTorch's own otherwise."""
    precision: str = "fp32"
    """Of matrix products on a GPU: fp32, or bf16x3, faster where products are large (benchmarks/speed.md)."""
    monitor: bool = False
    """Log the cross-covariance diagnostics, also without the c4 plug-in."""
    options: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    """The algorithm's own options."""
    plugin_options: tuple[Any, ...] = ()
    """The plug-ins' own options, in the order of `plugins`."""

    def __post_init__(self) -> None:
        if isinstance(self.dataset, str | Path):  # one may be given as it is
            object.__setattr__(self, "dataset", (Path(self.dataset),))
        if isinstance(self.task, str):
            object.__setattr__(self, "task", (self.task,))

        def require(flag: str, holds: bool, found: Any, expected: str) -> None:
            if not holds:
                raise InputError(f"--{flag}: found {found}, expected {expected}")

        presets = (PUBLISHED, *PRESETS)
        require("preset", self.preset in (NO_PRESET, *presets), f"'{self.preset}'", f"one of {', '.join(presets)}")
        if isinstance(self.dataset, tuple) and isinstance(self.task, tuple):  # tyro asks for defaults without them
            require("dataset", len(self.dataset) > 0, "none", "at least one")
            once = len(set(self.dataset)) == len(self.dataset)
            require("dataset", once, " ".join(map(str, self.dataset)), "each dataset once")
            counts = {1, len(self.dataset)}
            require("task", len(self.task) in counts, " ".join(self.task), "one for all datasets, or one for each")
            some = "none" in self.task and set(self.task) != {"none"}
            require("task", not some, " ".join(self.task), "a simulator for all datasets, or none for all")
        require("seeds", len(self.seeds) > 0, "none", "at least one")
        require("seeds", len(set(self.seeds)) == len(self.seeds), list(self.seeds), "each seed once")
        require("seeds", all(seed >= 0 for seed in self.seeds), list(self.seeds), "seeds of 0 or more")
        require("updates", self.updates > 0, self.updates, "1 or more")
        for name in ("subset_seed", "eval_seed"):
            require(name.replace("_", "-"), getattr(self, name) >= 0, getattr(self, name), "0 or more")
        for name in ("reward_scale", "reward_shift"):
            value = getattr(self, name)
            require(name.replace("_", "-"), math.isfinite(value), value, "a finite number")
        require("size", self.size is None or self.size > 0, self.size, "1 or more rows")
        for name in ("eval_every", "eval_episodes", "log_every", "checkpoint_every"):
            require(name.replace("_", "-"), getattr(self, name) > 0, getattr(self, name), "1 or more")
        require(
            "normalize-returns",
            not (self.normalize_returns and self.subset == "rows" and self.size is not None),
            "it beside --subset rows",
            "whole trajectories: a single row has no return",
        )
        seconds = self.checkpoint_seconds
        require("checkpoint-seconds", seconds is None or 0 <= seconds < math.inf, seconds, "0 or more")
        why = "no other mode has been shown to be harmless (benchmarks/speed.md)"
        require("precision", self.precision in OFFERED, f"'{self.precision}'", f"{' or '.join(OFFERED)}: {why}")
        require("hold-out", 0 <= self.hold_out < 1, self.hold_out, "a share between 0 and 1")
        require("threads", self.threads is None or self.threads > 0, self.threads, "1 or more")
        for name, plugin_options in zip(plugin_names(self.plugins, self.algorithm), self.plugin_options, strict=False):
            PLUGINS[name][1].check(plugin_options, algorithm_class(self.algorithm), self.options)
        options = self.options
        require("batch-size", options.batch_size > 1, options.batch_size, "2 or more")
        require("hidden-layers", options.hidden_layers > 0, options.hidden_layers, "1 or more")
        require("hidden-width", options.hidden_width > 0, options.hidden_width, "1 or more")
        require("actor-lr", options.actor_lr > 0, options.actor_lr, "a positive number")
        for task in self.task if isinstance(self.task, tuple) else ():
            algorithm_class(self.algorithm).check(options, task)
        both = {s.flag for s in self._sweep} & {s.flag for s in self._by_dataset}
        require("by-dataset", not both, f"{' '.join(sorted(both))} beside --sweep", "an option in one of them")
        if isinstance(self.dataset, tuple):
            for dataset in range(len(self.dataset)) if self.by_dataset else range(1):
                for point in self.points(dataset) if self.swept else ():
                    self._check_point(point)

    @property
    def tasks(self) -> tuple[str, ...]:
        """One for each dataset."""
        return self.task * len(self.dataset) if len(self.task) == 1 else self.task

    @property
    def _sweep(self) -> tuple[Swept, ...]:
        return parse_sweep(self.sweep, (self.options, self.plugin_options), field_names())

    @property
    def _by_dataset(self) -> tuple[Swept, ...]:
        if not isinstance(self.dataset, tuple):  # tyro asks for defaults without them
            return ()
        options = self.options, self.plugin_options
        return parse_by_dataset(self.by_dataset, options, field_names(), len(self.dataset))

    @property
    def swept(self) -> tuple[Swept, ...]:
        """Options that differ between runs."""
        return (*self._by_dataset, *self._sweep)

    def points(self, dataset: int) -> list[tuple[Any, ...]]:
        """The values of the swept options that runs on this dataset take."""
        own = tuple(s.values[dataset] for s in self._by_dataset)
        return [(*own, *point) for point in itertools.product(*(s.values for s in self._sweep))]

    def at_point(self, values: tuple[Any, ...]) -> "TrainConfig":
        """The config of the runs that take these values of the sweep."""
        options, plugin_options = with_values((self.options, self.plugin_options), self.swept, values)
        return dataclasses.replace(self, sweep=(), by_dataset=(), options=options, plugin_options=plugin_options)

    def _check_point(self, values: tuple[Any, ...]) -> None:
        """Refuse what the flags would refuse, and what would make runs of different length."""
        try:
            point = self.at_point(values)
        except InputError as error:
            flag = "--sweep" if self.sweep else "--by-dataset"
            raise InputError(f"{flag} {' '.join(self.sweep or self.by_dataset)}: {error}") from None
        plan = algorithm_class(self.algorithm).plan
        if _lengths(plan(point.options, self.updates)) != _lengths(plan(self.options, self.updates)):
            words = " ".join(f"{s.flag}={value}" for s, value in zip(self.swept, values, strict=True))
            raise InputError(f"--sweep: {words} changes the length of a stage, expected runs that all take as long")


def _lengths(stages: tuple[Stage, ...]) -> list[Stage]:
    return [stage._replace(batch_size=0) for stage in stages]


def empty_config(algorithm: str, plugins: tuple[str, ...], **values: Any) -> TrainConfig:
    """A config of this algorithm and these plug-ins, other fields at their defaults or as given."""
    chosen = plugin_names(plugins, algorithm)
    options = values.pop("options", algorithm_class(algorithm).config_type())
    plugin_options = values.pop("plugin_options", tuple(PLUGINS[name][0]() for name in chosen))
    return TrainConfig(
        algorithm=algorithm, plugins=chosen or ("none",), options=options, plugin_options=plugin_options, **values
    )


def published_fields(algorithm: str, plugins: tuple[str, ...], task: str) -> dict[str, Any]:
    """The fields of TrainConfig that --preset published gives: the settings of the algorithm's own publication."""
    kind = algorithm_class(algorithm)
    task = task if task.startswith("gym:") else get_task(task).name  # with its version
    matching = kind.published_for(task)
    if not matching:
        known = ", ".join(dict.fromkeys(pattern for p in kind.published for pattern in p.tasks)) or "none"
        raise InputError(f"--preset {PUBLISHED}: '{algorithm}' has no settings for '{task}', expected one of: {known}")
    options: dict[str, Any] = {}
    training: dict[str, Any] = {}
    for published in matching:
        options |= published.options
        training |= published.training
    chosen = plugin_names(plugins, algorithm)
    return {
        "preset": PUBLISHED,
        "plugins": chosen or ("none",),
        "options": kind.config_type(**options),
        "plugin_options": tuple(PLUGINS[name][0]() for name in chosen),
        **training,
    }


def preset_fields(name: str, algorithm: str, plugins: tuple[str, ...] | None, task: str) -> dict[str, Any]:
    """The fields of TrainConfig that a preset gives; plugins: those to be used instead of the preset's own."""
    if name == PUBLISHED:
        return published_fields(algorithm, plugins or ("none",), task)
    chosen = preset(name, algorithm, task)
    names = plugin_names(plugins if plugins is not None else chosen.plugins, algorithm)
    return {
        "preset": name,
        "plugins": names or ("none",),
        "options": algorithm_class(algorithm).config_type(**values_of(chosen.options)),
        "plugin_options": tuple(PLUGINS[n][0](**(values_of(chosen.c4) if n == "c4" else {})) for n in names),
        **values_of(chosen.training),
    }


def fields_by_dataset(fields: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The fields of one job on several datasets, from those that a preset gives each of them: options of the algorithm
    and its plug-ins that differ go to `by_dataset`. None where anything else differs."""
    first, per_dataset = dict(fields[0]), ("options", "plugin_options")
    for other in fields:
        if {k: v for k, v in other.items() if k not in per_dataset} != {
            k: v for k, v in first.items() if k not in per_dataset
        }:
            return None
    words = differences([(other["options"], other["plugin_options"]) for other in fields])
    return None if words is None else first | ({"by_dataset": tuple(words)} if words else {})


def command_line_type(algorithm: str, plugins: tuple[str, ...]) -> type[TrainConfig]:
    """TrainConfig with the algorithm's and plug-ins' options as flags of their own, for tyro."""
    chosen = plugin_names(plugins, algorithm)
    option_types = [PLUGINS[name][0] for name in chosen]
    option_type = algorithm_class(algorithm).config_type
    plugin_default = tuple(kind() for kind in option_types)
    fields: list[Any] = [
        ("options", Annotated[option_type, tyro.conf.arg(name="")], field(default_factory=option_type)),
        (
            "plugin_options",
            Annotated[tuple[tuple(option_types)], tyro.conf.arg(name="")]  # type: ignore[misc]
            if option_types
            else tyro.conf.Suppress[tuple],
            field(default=plugin_default),
        ),
    ]
    return dataclasses.make_dataclass("TrainConfig", fields, bases=(TrainConfig,), frozen=True)


def to_json(config: TrainConfig) -> dict[str, Any]:
    out = dataclasses.asdict(config)
    out["dataset"], out["output"] = [str(path) for path in config.dataset], str(config.output)
    for name in ("dataset", "task"):
        out[name] = out[name][0] if len(out[name]) == 1 else out[name]
    return {"version": CONFIG_VERSION, **jsonable(out)}


def from_json(data: dict[str, Any], origin: str) -> TrainConfig:
    """Read back what `to_json` wrote; unknown or missing fields are named."""
    data = dict(data)
    version = data.pop("version", None)
    if version != CONFIG_VERSION:
        raise InputError(f"{origin}: field 'version' is {version}, expected {CONFIG_VERSION}")
    algorithm = data.get("algorithm")
    if not isinstance(algorithm, str):
        raise InputError(f"{origin}: field 'algorithm' is {algorithm!r}, expected a name")
    chosen = plugin_names(typed(tuple[str, ...], data.get("plugins", []), "plugins", origin), algorithm)
    options = from_dict(algorithm_class(algorithm).config_type, data.pop("options", {}), origin)
    stored = data.pop("plugin_options", [])
    if not isinstance(stored, list | tuple) or len(stored) != len(chosen):
        raise InputError(f"{origin}: field 'plugin_options' is {stored}, expected one object for each of {chosen}")
    plugin_options = tuple(
        from_dict(PLUGINS[name][0], values, origin) for name, values in zip(chosen, stored, strict=True)
    )
    for name in ("dataset", "task"):  # one is stored as it is
        data |= {name: [data[name]]} if isinstance(data.get(name), str) else {}
    return from_dict(TrainConfig, data, origin, options=options, plugin_options=plugin_options)


def read_config(path: Path) -> TrainConfig:
    if path.is_dir():
        path = path / "config.json"
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"{path}: no such file, expected a config.json") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise InputError(f"{path}: not JSON, expected a config.json written by c4rl train") from None
    if not isinstance(data, dict):
        raise InputError(f"{path}: found a {type(data).__name__}, expected the object written by c4rl train")
    return from_json(data, str(path))


def field_names() -> list[str]:
    return [f.name for f in dataclasses.fields(TrainConfig)]
