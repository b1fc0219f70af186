"""The runs of a job: datasets x points of the sweep x seeds; which of them share a launch, and with what options."""

import itertools
import os
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from c4rl.core.errors import InputError
from c4rl.core.options import declaration, may_differ, stacked
from c4rl.jobs.config import ONE_SETTING, TrainConfig
from c4rl.jobs.registry import PLUGINS, algorithm_class, plugin_names
from c4rl.jobs.sweeps import RunOptions

RunKey = int | str  # what a run is called in files and tables: its seed where that is enough, else its name
SUFFIXES = (".npz", ".hdf5", ".h5")
MOST_BYTES = 255  # of a name: runs have folders that are called so


@dataclass(frozen=True)
class Run:
    key: RunKey
    seed: int
    dataset: int = 0  # which of the job's
    data: int = 0  # which of the job's prepared data: options that choose rows may make several of one dataset
    label: str = ""  # of the dataset, where there are several
    values: tuple[tuple[str, Any], ...] = ()  # of the swept options

    @property
    def title(self) -> str:
        """For messages."""
        return f"seed {self.key}" if isinstance(self.key, int) else self.key

    @property
    def group(self) -> str:
        """What runs that differ only by seed have in common; empty if all runs do."""
        return ",".join([*([self.label] if self.label else []), *(f"{flag}={value}" for flag, value in self.values)])

    @property
    def facts(self) -> dict[str, Any]:
        """What distinguishes this run from the others, as stored in files."""
        if isinstance(self.key, int):
            return {"seed": self.seed}
        dataset = {"dataset": self.label} if self.label else {}
        return {"run": self.key, "seed": self.seed, **dataset, "values": dict(self.values)}


def key_of(record: dict[str, Any]) -> RunKey:
    """The key of the run in a line of metrics.jsonl."""
    return record.get("run", record["seed"])


def file_name(key: RunKey) -> str:
    """A run's name in files."""
    return f"seed_{key}" if isinstance(key, int) else key


def key_from(name: str) -> RunKey:
    """The reverse of `file_name`."""
    seed = name.removeprefix("seed_")
    return int(seed) if seed.isdecimal() and len(seed) < 20 else name


def as_runs(runs: Sequence[Run | int]) -> tuple[Run, ...]:
    """A seed stands for a run of the job's first dataset, without swept options."""
    return tuple(Run(run, run) if isinstance(run, int) else run for run in runs)


def runs_of(config: TrainConfig) -> tuple[Run, ...]:
    """Datasets outermost, seeds innermost."""
    runs = _all_runs(config)
    if not config.only:
        return runs
    names, wanted = [file_name(run.key) for run in runs], set(config.only)
    if (unknown := wanted - set(names)) or len(wanted) < len(config.only):
        found = f"no run '{min(unknown)}'" if unknown else "a run twice"
        raise InputError(f"--only: found {found}, expected some of {', '.join(names)}, each once")
    kept = [run for run, name in zip(runs, names, strict=True) if name in wanted]
    if config.ensemble and not ensembles_of(kept, config.ensemble):
        found = f"found fewer than {config.ensemble} runs that differ only by seed"
        raise InputError(f"--only: {found}, expected as many for --ensemble {config.ensemble}")
    data = {old: new for new, old in enumerate(dict.fromkeys(run.data for run in kept))}  # others are not prepared
    return tuple(replace(run, data=data[run.data]) for run in kept)


def _all_runs(config: TrainConfig) -> tuple[Run, ...]:
    plain = len(config.dataset) == 1 and not config.swept
    if plain:
        return tuple(Run(seed, seed) for seed in config.seeds)
    labels = dataset_labels(config.dataset) if len(config.dataset) > 1 else [""]
    swept, runs = config.swept, []
    data: dict[Hashable, int] = {}  # what decides on a run's rows -> its number
    points = [(dataset, point) for dataset in range(len(labels)) for point in config.settings(dataset)]
    for (dataset, point), seed in itertools.product(points, config.seeds):
        pairs = list(zip(swept, point, strict=True))
        rows = dataset, *(value for s, value in pairs if declaration(s.field).chooses_rows)
        values = tuple((s.name, value) for s, value in pairs)
        run = Run("", seed, dataset, data.setdefault(rows, len(data)), labels[dataset], values)
        runs.append(replace(run, key=",".join(part for part in (run.group, f"seed={seed}") if part)))
    longest = max((len(os.fsencode(file_name(run.key))), run.key) for run in runs)
    if longest[0] > MOST_BYTES:
        raise InputError(f"found a run whose name has {longest[0]} bytes, expected at most {MOST_BYTES}: {longest[1]}")
    return tuple(runs)


def by_group(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """What runs that differ only by seed have in common -> those runs."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(run)
    return groups


def ensembles_of(runs: Sequence[Run], members: int) -> dict[str, list[tuple[Run, ...]]]:
    """Runs that act together, by what they have in common: as many as `members`, in the order of their seeds."""
    together = {
        group: [tuple(own[i : i + members]) for i in range(0, len(own) - members + 1, members)]
        for group, own in by_group(runs).items()
    }
    return {group: found for group, found in together.items() if found}


def dataset_labels(paths: Sequence[Path]) -> list[str]:
    """File names without their endings, with as many folders before them as tell them apart; safe in file names."""
    names = [[*path.parts[:-1], path.stem if path.suffix in SUFFIXES else path.name] for path in paths]
    for length in range(1, max(map(len, names)) + 1):
        labels = [re.sub(r"[^\w.+-]+", "_", "-".join(name[-length:])).strip("_") for name in names]
        if len(set(labels)) == len(labels):
            return labels
    return [f"dataset_{i}" for i in range(len(paths))]


def run_config(config: TrainConfig, run: Run) -> TrainConfig:
    """The config of a job of this run alone."""
    dataset, task = config.dataset[run.dataset], config.tasks[run.dataset]
    point = config.at_point(tuple(value for _, value in run.values)) if run.values else config
    return replace(point, dataset=(dataset,), task=(task,), seeds=(run.seed,), ensemble=0, **ONE_SETTING)


def data_configs(config: TrainConfig) -> list[TrainConfig]:
    """A config for each of the job's prepared data."""
    first = {run.data: run for run in reversed(runs_of(config))}
    return [run_config(config, first[data]) for data in sorted(first)]


# -- which runs share a launch, and what differs between them there


def launch_groups(
    config: TrainConfig, runs: Sequence[Run], rows: Sequence[int], device: torch.device
) -> list[tuple[Run, ...]]:
    """Runs grouped into launches: those that differ only in options that may differ, as many as is fastest.

    rows: of each of the job's prepared data. Grouping changes the speed, never a result.
    """
    width, groups = _width(config, runs, device), alike(config, runs, rows)
    return [tuple(group[i : i + width]) for group in groups for i in range(0, len(group), width)]


def _width(config: TrainConfig, runs: Sequence[Run], device: torch.device) -> int:
    """The most runs of a launch."""
    if config.runs_per_launch is not None:
        return config.runs_per_launch
    return max(1, len(runs)) if device.type == "cuda" else algorithm_class(config.algorithm).runs_together_on_cpu


def explain_launches(config: TrainConfig, runs: Sequence[Run], rows: Sequence[int], device: torch.device) -> str | None:
    """Into how many launches the runs were split and why; None if they share one."""
    launches, groups = launch_groups(config, runs, rows, device), alike(config, runs, rows)
    if len(launches) < 2:
        return None
    reasons = []
    if len(groups) > 1:
        kinds = [{"the data": run.data} | dict(run.values) for run in runs]
        own = [[{"the data": run.data} | dict(run.values) for run in group] for group in groups]
        splitting = [name for name in kinds[0] if any(_count(name, part) < _count(name, kinds) for part in own)]
        reasons.append(f"runs that differ in {' or '.join(splitting)} do not always share one")
    if len(launches) > len(groups):
        width, fastest = _width(config, runs, device), f"on a CPU {config.algorithm} is fastest with"
        reasons.append(f"{fastest if config.runs_per_launch is None else '--runs-per-launch has'} {width} at a time")
    return f"{len(runs)} runs in {len(launches)} launches: {', and '.join(reasons)}"


def _count(name: str, kinds: Sequence[dict[str, Any]]) -> int:
    return len({kind[name] for kind in kinds})


def alike(config: TrainConfig, runs: Sequence[Run], rows: Sequence[int]) -> list[list[Run]]:
    """Runs grouped by whether one launch could update them."""
    groups: dict[Hashable, list[Run]] = {}
    for run in runs:
        groups.setdefault(_launch_key(config, run, rows), []).append(run)
    return list(groups.values())


def _launch_key(config: TrainConfig, run: Run, rows: Sequence[int]) -> Hashable:
    own, count = run_config(config, run) if run.values else config, rows[run.data]
    key = [algorithm_class(config.algorithm).launch_key(own.options, count, run.data)]
    for name, plugin_options in zip(plugin_names(own.plugins, own.algorithm), own.plugin_options, strict=True):
        key.append(PLUGINS[name][1].launch_key(plugin_options, count, run.data))
    for swept, (_, value) in zip(config.swept if run.values else (), run.values, strict=True):
        stacks = may_differ(swept.field) and isinstance(value, float | int)
        key.append(value == 0 if stacks else (swept.name, value))  # 0 often switches a term off altogether
    return tuple(key)


def stacked_options(config: TrainConfig, runs: Sequence[Run], device: torch.device, dtype: torch.dtype) -> RunOptions:
    """The options of runs that share a launch: numbers, or tensors [R] where they differ."""
    own = [run_config(config, run) for run in runs] if runs[0].values else [config]
    of_plugins = zip(*(one.plugin_options for one in own), strict=True)
    return (
        stacked([one.options for one in own], device, dtype),
        tuple(stacked(options, device, dtype) for options in of_plugins),
    )
