"""`c4rl bench table`: train what a table lacks, in stacks, and add it to the store; stoppable at any point."""

import hashlib
import math
import re
import signal
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console

from c4rl.core.declarations import plain_name
from c4rl.core.errors import InputError, Interrupted
from c4rl.core.files import sha256_of
from c4rl.data.loading import load_dataset
from c4rl.environments.tasks import get_task
from c4rl.jobs.config import TrainConfig
from c4rl.jobs.config_file import to_json
from c4rl.jobs.runs import data_configs, launch_groups, runs_of
from c4rl.jobs.sweeps import differences
from c4rl.results.entries import entries_of
from c4rl.results.speed_tables import Rate
from c4rl.results.store import Entry, Store
from c4rl.results.table_text import short
from c4rl.results.tables import RECORDED, Method, ResultTable, datasets, identities, recording_of, task_of
from c4rl.training import ray_engine
from c4rl.training.loop import resume, train
from c4rl.training.preparation import choose_device
from c4rl.training.ray_engine import RayOptions
from c4rl.training.run_directory import was_begun
from c4rl.training.summary import failed_runs

RETRY_SECONDS = 0.002
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


class Speed(NamedTuple):
    """Run-updates per second that were reached, with what."""

    algorithm: str
    plugins: list[str]
    precision: str
    device: str
    rate: float
    networks: tuple[int, int] | None = None  # layers and their width; None: of a usual size


def known_speeds(job: Job, entries: Iterable[Entry], measured: Iterable[Rate]) -> list[Speed]:
    """Of runs in the store, and measured, on the job's kind of device: a GPU's say nothing of a CPU."""
    found = []
    for entry in entries:
        run, made = entry.data["run"], entry.data["made"]
        networks = run["options"]["hidden_layers"], run["options"]["hidden_width"]
        rate = made["timing"]["run_updates_per_second"]
        found.append(Speed(run["algorithm"], run["plugins"], entry.precision, made["device"], rate, networks))
    stages = {stage.name: stage.updates for stage in job.config.stages}
    for one in measured:
        shares = {name: stages.get(name, 0) / rate for name, rate in one.stages.items()}
        seconds = sum(shares.values()) if one.algorithm == job.config.algorithm else 0
        rate = job.config.total_updates / seconds if seconds else min(one.stages.values())
        found.append(Speed(one.algorithm, one.plugins, one.precision, one.device, rate))
    return [speed for speed in found if speed.device == device_of(job.config).type]


class Minutes(NamedTuple):
    least: float
    most: float
    guessed_from: str = ""  # nothing: known


def minutes_of(job: Job, entries: Iterable[Entry], measured: Iterable[Rate]) -> Minutes | None:
    """How long: by the best speed known of the algorithm with these plug-ins in this precision, else between those of
    the fastest and the slowest runs of the algorithm, else of all, which may be wrong tenfold; of networks of the job's
    size, where there are any; None without any."""
    config = job.config
    wanted = config.algorithm, config.active_plugins, config.precision
    similar, others = config.algorithm, "others"
    kinds = "", similar, others, f"{similar} with other networks", f"{others} with other networks"
    networks = config.options.hidden_layers, config.options.hidden_width
    speeds: dict[str, list[float]] = {}
    for speed in known_speeds(job, entries, measured):
        kind = "" if speed[:3] == wanted else similar if speed.algorithm == config.algorithm else others
        if speed.networks not in (None, networks):
            kind = f"{kind or similar} with other networks"
        speeds.setdefault(kind, []).append(speed.rate)
    for kind in kinds:
        if kind in speeds:
            slowest, fastest = (pick(speeds[kind]) for pick in (min if kind else max, max))
            return Minutes(job.run_updates / fastest / 60, job.run_updates / slowest / 60, kind)
    return None


def cheap_first(jobs: Sequence[Job], store: Store, measured: Sequence[Rate]) -> list[Job]:
    """Jobs that were begun, then those that take the least time; so a stop leaves the fewest gaps."""
    entries = list(store)

    def order(job: Job) -> tuple[bool, float]:
        begun = (job.config.output / "config.json").exists()  # --dry must not clean up, as was_begun does
        return not begun, (minutes_of(job, entries, measured) or Minutes(math.inf, math.inf)).most

    return sorted(jobs, key=order)


def list_jobs(jobs: Sequence[Job], store: Store, measured: Sequence[Rate]) -> str:
    """A line per job, and the sum."""
    lines, entries = [], list(store)
    found = [minutes_of(job, entries, measured) for job in jobs]
    for job, minutes in zip(jobs, found, strict=True):
        how = f" (guessed from {minutes.guessed_from})" if minutes is not None and minutes.guessed_from else ""
        what = f"{job.runs} runs in {_launches([job])}, {job.run_updates:,} updates in all"
        lines.append(f"{job.config.output.name}: {what}, {_duration([minutes])}{how}")
    if not jobs:
        return "nothing is missing"
    return "\n".join([*lines, f"{len(jobs)} jobs in {_launches(jobs)}: {_duration(found)}"])


def _launches(jobs: Sequence[Job]) -> str:
    count = sum(job.launches for job in jobs)
    return f"{count} launch{'' if count == 1 else 'es'}"


def _duration(found: Sequence[Minutes | None]) -> str:
    known = [minutes for minutes in found if minutes is not None]
    if len(known) < len(found):  # of a device, all speeds are guessed or none
        return "speed not known"
    ends = sum(one.least for one in known), sum(one.most for one in known)
    least, most = (f"{end:,.0f}" if end >= 10 else f"{end:.1f}" for end in ends)
    return f"about {least if least == most else f'{least} to {most}'} minutes"


def add_finished(folder: Path, store: Store) -> None:
    """Store the runs of finished jobs that a kill kept from it: without some of them, the rest would be other jobs."""
    for summary in sorted(folder.glob("*/summary.json")):
        try:
            if written := store.add(entries_of(summary.parent)):
                print(f"{summary.parent.name}: {len(written)} runs added to the store")
        except (InputError, ValueError) as error:  # other jobs may well succeed
            print(f"{summary.parent.name}: cannot be added to the store: {error}")


def run_jobs(jobs: Sequence[Job], store: Store, minutes: float) -> int:
    """Exit code: 0 all done, 1 a job failed, 3 time was up, 130 interrupted."""
    deadline, failed = time.monotonic() + 60 * minutes, False
    for job in jobs:
        if time.monotonic() >= deadline:
            return 3
        output = job.config.output
        try:
            if not (output / "summary.json").exists():
                with stopped_after(deadline - time.monotonic()):
                    summary = resume(output) if was_begun(output) else train(job.config)
                if (sentence := failed_runs(summary)) is not None:
                    print(f"{output.name}: {sentence}")
            print(f"{output.name}: {len(store.add(entries_of(output)))} runs added to the store")
        except (Interrupted, KeyboardInterrupt) as stop:
            print(str(stop) or "interrupted")
            return 3 if time.monotonic() >= deadline else 130
        except Exception as error:  # other jobs may well succeed
            if not isinstance(error, InputError):
                traceback.print_exc()
            print(f"{output.name}: failed, continuing with the next: {error}")
            failed = True
    return 1 if failed else 0


def run_jobs_on_ray(jobs: Sequence[Job], store: Store, minutes: float, options: RayOptions) -> int:
    """All launches of all jobs at once on a cluster; exit codes as above."""
    deadline, code, console, begun = time.monotonic() + 60 * minutes, 0, Console(), []

    def add(output: Path, summary: dict[str, Any]) -> int:
        if (sentence := failed_runs(summary)) is not None:
            print(f"{output.name}: {sentence}")
        try:
            print(f"{output.name}: {len(store.add(entries_of(output)))} runs added to the store")
        except (InputError, ValueError) as error:
            print(f"{output.name}: failed, continuing with the next: {error}")
            return 1
        return 0

    with ray_engine.cluster(options, console) as ray:
        for job in jobs:
            output = job.config.output
            try:
                old = was_begun(output)
                found = ray_engine.begun_job(output, options) if old else ray_engine.new_job(job.config, options)
            except InputError as error:
                print(f"{output.name}: failed, continuing with the next: {error}")
                code = 1
                continue
            if isinstance(found, dict):
                code = max(code, add(output, found))
            else:
                begun.append(found)
        for one, end in ray_engine.run_jobs(begun, options, console, ray, deadline) if begun else ():
            if isinstance(end, dict):
                code = max(code, add(one.config.output, end))
                continue
            print(f"{one.config.output.name}: {str(end).partition('; continue')[0]}; run it again to resume")
            stopped = 3 if time.monotonic() >= deadline else 130
            code = max(code, stopped if isinstance(end, Interrupted) else 1)
    return code


@contextmanager
def stopped_after(seconds: float) -> Iterator[None]:
    """After so many seconds, what Ctrl-C does to a job: it finishes its update, saves everything and stops."""
    outside = signal.getsignal(signal.SIGINT)

    def ring(number: int, frame: Any) -> None:
        listening = signal.getsignal(signal.SIGINT)
        if listening is outside:  # the job is being prepared, and does not listen yet
            signal.setitimer(signal.ITIMER_REAL, RETRY_SECONDS)
        elif callable(listening):
            listening(signal.SIGINT, frame)

    previous = signal.signal(signal.SIGALRM, ring)
    signal.siginterrupt(signal.SIGALRM, False)  # system calls of libraries go on
    signal.setitimer(signal.ITIMER_REAL, max(seconds, RETRY_SECONDS))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
