"""What a table of the results store lacks, as jobs that train it in stacks; and whether their data are the table's."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from c4rl.core.declarations import plain_name
from c4rl.core.errors import InputError
from c4rl.core.files import sha256_of
from c4rl.data.loading import load_dataset
from c4rl.environments.tasks import get_task
from c4rl.jobs.config import TrainConfig
from c4rl.jobs.config_file import to_json
from c4rl.jobs.runs import data_configs, launch_groups, runs_of
from c4rl.jobs.sweeps import differences
from c4rl.results.store import Store
from c4rl.results.table_text import short
from c4rl.results.tables import RECORDED, Method, ResultTable, datasets, identities, recording_of, task_of
from c4rl.training.preparation import choose_device

SCRIPTED = ("maze2d", "kitchen")  # domains that no network records: their bytes are the same on every processor


class Job(NamedTuple):
    config: TrainConfig
    runs: int
    launches: int

    @property
    def run_updates(self) -> int:
        return self.runs * self.config.total_updates


def missing_jobs(table: ResultTable, store: Store, data: Path, output: Path, **how: Any) -> list[Job]:
    """The jobs that fill the table's gaps: runs of one shape and length together. how: device, precision, ..."""
    known = set(store.by_identity())
    groups: dict[tuple[Any, ...], dict[tuple[str, TrainConfig], list[int]]] = {}
    ensembles_first = sorted(table.wanted(data), key=lambda cell: cell[0].members == 1)  # they score each member too
    for method, task, config in ensembles_first:
        every = table.seeds_of(method)
        found = identities(config, task, every)
        lacking = [seed for seed, name in zip(every, found, strict=True) if name not in known]
        if not lacking:
            continue
        seeds = [seed + i for seed in lacking for i in range(method.members)]
        known |= {*found, *identities(replace(config, ensemble=0), task, seeds)}  # methods may share runs
        shape, own = get_task(config.task[0]), ("dataset", "task", "options", "plugin_options")
        common = repr({name: value for name, value in to_json(config).items() if name not in own}), config.stages
        group = method.label, shape.observation_dim, shape.action_dim, common
        groups.setdefault(group, {})[task, config] = seeds
    jobs = []
    for (label, *_), wanted in groups.items():
        for same in dict.fromkeys(map(tuple, wanted.values())):  # sets that lack the same seeds
            some = [config for (_, config), lacking in wanted.items() if tuple(lacking) == same]
            words = differences([(config.options, config.plugin_options) for config in some])
            parts = [some] if words is not None else [[config] for config in some]
            for part in parts:
                job = replace(
                    part[0],
                    dataset=tuple(config.dataset[0] for config in part),
                    task=tuple(config.task[0] for config in part),
                    seeds=same,
                    by_dataset=tuple(words or ()) if len(part) > 1 else (),
                    **how,
                )
                jobs.append((label, job))
    swept = {method.label: method for method in table.methods if method.swept}
    known_rows = {data / f"{name}.npz": facts["rows"] for name, facts in datasets().items()}
    made = []
    for label, job in _together(jobs, swept):
        runs, sizes = runs_of(job), [(one.size, known_rows[one.dataset[0]]) for one in data_configs(job)]
        launches = launch_groups(job, runs, [min(size or rows, rows) for size, rows in sizes], device_of(job))
        made.append(Job(replace(job, output=output / _folder_name(label, job)), len(runs), len(launches)))
    return made


def device_of(job: TrainConfig) -> torch.device:
    """Where it would train; a GPU by name may be another machine's, which --dry plans for."""
    return torch.device("cuda") if job.device.startswith("cuda") else choose_device(job.device)


def _together(jobs: Sequence[tuple[str, TrainConfig]], swept: Mapping[str, Method]) -> list[tuple[str, TrainConfig]]:
    """Jobs of a series that differ in the swept option alone become one job that sweeps it."""
    groups: dict[str, list[tuple[str, TrainConfig]]] = {}
    for label, job in jobs:
        method = swept.get(label)
        stored = to_json(job)
        if method is not None:
            for owner in (stored["options"], *stored["plugin_options"]):
                owner.pop(method.swept, None)
        groups.setdefault(f"{method.series if method else label} {stored}", []).append((label, job))
    found = []
    for some in groups.values():
        label, job = some[0]
        if len(some) > 1:
            method = swept[label]
            values = ",".join(str(swept[one].options[method.swept]) for one, _ in some)
            label, job = method.series, replace(job, sweep=(f"{plain_name(method.swept)}={values}",))
        found.append((label, job))
    return found


def _folder_name(label: str, job: TrainConfig) -> str:
    """Of the job that this is: another job has another name, this one the same on any machine."""
    how = {"device": "", "precision": "", "threads": None, "runs_per_launch": None}
    what = to_json(job) | {"dataset": "", "output": ""} | how
    words = re.sub(r"\W+", "_", label, flags=re.ASCII).strip("_").lower()
    sets = "+".join(short(task) for task in job.tasks)
    return f"{words}-{sets}-{hashlib.sha256(repr(what).encode()).hexdigest()[:8]}"


def check_data(jobs: Sequence[Job], data: Path) -> None:
    """Refuse files that are not those the tables are about; data: the folder of SET.npz."""
    for path in dict.fromkeys(path for job in jobs for path in job.config.dataset):
        name = str(path.relative_to(data).with_suffix(""))
        if not path.exists():
            hint = f": {_recorded_by(name, path)}" if name.startswith(RECORDED) else ""
            raise InputError(f"--data: found no '{name}.npz' in {data}, expected a file for each set{hint}")
        found, expected = sha256_of(path), datasets()[name]["sha256"]
        if found != expected:
            why = _recorded_otherwise(name, path) if name.startswith(RECORDED) else ""
            raise InputError(f"{path}: its sha256 is {found[:12]}..., expected {expected[:12]}...{why}")


def _recorded_by(name: str, path: Path) -> str:
    """The command that records a set, and the simulator that gives it the same bytes."""
    task, wanted = get_task(task_of(name)), recording_of(name)
    policy = " --policy FILE" if task.domain == "adroit" else ""
    settings = f"--size {wanted['size']} --seed {wanted['seed']}{policy} --output {path}"
    return f"c4rl data record {task.name} {settings} with {wanted['environment']}"


def _recorded_otherwise(name: str, path: Path) -> str:
    """What gave a recording other bytes than the set's: settings and versions that it names, else the processor."""
    found = load_dataset(path).metadata
    others = [
        f"{key} {found.get(key)} instead of {value}"
        for key, value in recording_of(name).items()
        if found.get(key) != value
    ]
    if not others and get_task(task_of(name)).domain not in SCRIPTED:
        return "; with equal settings and versions, a network that acts rounds differently on another kind of processor"
    return f"; it was recorded with {' and '.join(others)}, which gives other bytes" if others else ""
