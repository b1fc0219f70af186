"""`c4rl bench table`: train what a table lacks, in stacks, and add it to the store; stoppable at any point."""

import hashlib
import signal
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from c4rl.algorithms.algorithm import Stage
from c4rl.core.errors import InputError
from c4rl.environments.tasks import get_task
from c4rl.jobs.config import TrainConfig, to_json
from c4rl.jobs.registry import algorithm_class
from c4rl.jobs.sweeps import differences
from c4rl.results.store import Store, entries_of
from c4rl.results.tables import ResultTable, datasets, identity_of
from c4rl.training.loop import Interrupted, resume, train
from c4rl.training.summary import failed_runs

RETRY_SECONDS = 0.002


class Job(NamedTuple):
    config: TrainConfig
    runs: int

    @property
    def run_updates(self) -> int:
        return self.runs * sum(stage.updates for stage in stages(self.config))


def stages(config: TrainConfig) -> tuple[Stage, ...]:
    return algorithm_class(config.algorithm).plan(config.options, config.updates)


def missing_jobs(table: ResultTable, store: Store, data: Path, output: Path, **how: Any) -> list[Job]:
    """The jobs that fill the table's gaps: runs of one shape and length together. how: device, precision, ..."""
    known = set(store.by_identity())
    groups: dict[tuple[Any, ...], dict[tuple[str, TrainConfig], list[int]]] = {}
    for method, task, seed, config in table.wanted(data):
        if identity_of(config) in known:
            continue
        shape, plain = get_task(task), replace(config, seeds=(0,))
        own = ("dataset", "task", "options", "plugin_options")
        common = repr({name: value for name, value in to_json(plain).items() if name not in own}), stages(config)
        group = method.label, shape.observation_dim, shape.action_dim, common
        groups.setdefault(group, {}).setdefault((task, plain), []).append(seed)
    jobs = []
    for (label, *_), wanted in groups.items():
        for seeds in dict.fromkeys(map(tuple, wanted.values())):  # sets that lack the same seeds
            some = [config for (_, config), lacking in wanted.items() if tuple(lacking) == seeds]
            words = differences([(config.options, config.plugin_options) for config in some])
            parts = [some] if words is not None else [[config] for config in some]
            for part in parts:
                tasks = tuple(config.task[0] for config in part)
                name = f"{_file_name(label)}-{'+'.join(tasks)}-{'_'.join(map(str, seeds))}"
                job = replace(
                    part[0],
                    dataset=tuple(config.dataset[0] for config in part),
                    task=tasks,
                    seeds=seeds,
                    by_dataset=tuple(words or ()) if len(part) > 1 else (),
                    output=output / name[:200],
                    **how,
                )
                jobs.append(Job(job, len(part) * len(seeds)))
    return jobs


def _file_name(label: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in label).strip("_").lower()


def check_data(jobs: Sequence[Job]) -> None:
    """Refuse files that are not those the tables are about."""
    for path, task in {pair for job in jobs for pair in zip(job.config.dataset, job.config.tasks, strict=True)}:
        if not path.exists():
            raise InputError(f"--data: found no '{path.name}' in {path.parent}, expected a file for each set")
        with open(path, "rb") as file:
            found, expected = hashlib.file_digest(file, "sha256").hexdigest(), datasets()[task]["sha256"]
        if found != expected:
            raise InputError(f"{path}: its sha256 is {found[:12]}..., expected {expected[:12]}...")


def minutes_of(job: Job, store: Store) -> float | None:
    """At the best speed that the store has seen of the algorithm with these plug-ins; None where it has seen none."""
    config = job.config
    like = [config.algorithm, [name for name in config.plugins if name != "none"]]
    speeds = [
        entry.data["made"]["timing"]["run_updates_per_second"]
        for entry in store
        if [entry.data["run"]["algorithm"], entry.data["run"]["plugins"]] == like
    ]
    return job.run_updates / max(speeds) / 60 if speeds else None


def list_jobs(jobs: Sequence[Job], store: Store) -> str:
    """A line per job, and the sum."""
    lines, known, unknown = [], 0.0, 0
    for job in jobs:
        minutes = minutes_of(job, store)
        known, unknown = known + (minutes or 0), unknown + (minutes is None)
        guess = "speed not known" if minutes is None else f"about {minutes:.1f} minutes"
        lines.append(f"{job.config.output.name}: {job.runs} runs, {job.run_updates:,} updates in all, {guess}")
    return "\n".join([*lines, f"{len(jobs)} jobs: about {known:.1f} minutes, and {unknown} of unknown speed"])


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
                    summary = resume(output) if output.exists() else train(job.config)
                if (sentence := failed_runs(summary)) is not None:
                    print(f"{output.name}: {sentence}")
        except (Interrupted, KeyboardInterrupt) as stop:
            print(str(stop) or "interrupted")
            return 3 if time.monotonic() >= deadline else 130
        except Exception:  # other jobs may well succeed
            traceback.print_exc()
            print(f"{output.name}: failed, going on with the next")
            failed = True
            continue
        written = store.add(entries_of(output))
        print(f"{output.name}: {len(written)} runs added to the store")
    return 1 if failed else 0


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
