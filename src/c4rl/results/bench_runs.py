"""Runs the jobs of `c4rl bench table` and adds them to the store; stoppable at any point."""

import signal
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from c4rl.core.errors import InputError, Interrupted
from c4rl.results.bench_tables import Job
from c4rl.results.entries import entries_of
from c4rl.results.store import Store
from c4rl.training import ray_engine
from c4rl.training.loop import resume, train
from c4rl.training.ray_engine import RayOptions
from c4rl.training.run_directory import was_begun
from c4rl.training.summary import failed_runs

RETRY_SECONDS = 0.002


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
            except (InputError, OSError) as error:
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
