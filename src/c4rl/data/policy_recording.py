"""Whole episodes of policies, recorded by worker processes on all cores.

The work is cut into blocks: block b of policy k is a fixed number of rows, rounded up to whole episodes, and a function
of (seed, k, b) alone. Blocks lie in a hidden folder next to the output until all are there, so that a killed recording
continues, and the bytes depend neither on the number of workers nor on interruptions.
"""

import json
import queue
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from c4rl.core.array import Array
from c4rl.core.errors import InputError, WorkFailed
from c4rl.core.files import locked, sha256_of, write_json
from c4rl.core.worker_process import Message, WorkerDied, WorkerProcess
from c4rl.data import block_recording
from c4rl.data.assembly import number_trajectories
from c4rl.data.behaviour_agents import ARM, RANDOM
from c4rl.data.block_recording import PER_ROW, Recorder, block_file
from c4rl.data.policy_files import read_policies
from c4rl.environments.evaluation import MAX_WORKERS, available_cores
from c4rl.environments.tasks import Task

BLOCK = 2000  # rows: a second or two, which is what a killed recording loses


@dataclass(frozen=True)
class Behaviour:
    """One policy of a recording."""

    file: str
    snapshot: int | None = None
    sha256: str = ""


def find_behaviours(given: Sequence[str], task: Task) -> list[Behaviour]:
    """The policies of FILE, FILE@3, FILE@2-5 and `random`, in their order; all are read, to refuse bad ones now."""
    found = []
    for word in given:
        if word == RANDOM or (word == ARM and task.domain == "kitchen"):
            found.append(Behaviour(word))
            continue
        file, chosen = word, None
        match = re.fullmatch(r"(.+)@(\d{1,6})(?:-(\d{1,6}))?", word)
        if match is not None and not Path(word).exists():
            file, first, last = match[1], int(match[2]), int(match[3] or match[2])
            chosen = range(first, last + 1)
        count = len(read_policies(Path(file), task))
        if chosen is not None and (not chosen or chosen[-1] >= count):
            raise InputError(f"policy: found {word}, expected snapshots from 0 to {count - 1} of this file")
        sha256, snapshots = sha256_of(Path(file)), chosen or range(count)
        found += [Behaviour(file, k if count > 1 else None, sha256) for k in snapshots]
    if not found:
        raise InputError(
            f"policy: found none, expected at least one file for '{task.name}', or {RANDOM}; only Maze2D, AntMaze, "
            "Kitchen and locomotion tasks have a behaviour of their own"
        )
    return found


@contextmanager
def blocks(
    output: Path,
    task: Task,
    behaviours: Sequence[Behaviour],
    facts: dict[str, Any],
    workers: int | None,
    progress: Callable[[int, int], None],
) -> Iterator[Path]:
    """The folder with all blocks, deleted once they were used. progress: (blocks recorded, blocks to record)."""
    folder = output.with_name(f".{output.name}.recording")
    request = facts | {"policies": [asdict(behaviour) | {"file": _base(behaviour)} for behaviour in behaviours]}
    share = -(-facts["size"] // len(behaviours))
    rows = min(BLOCK, share)
    jobs = [(k, b) for k in range(len(behaviours)) for b in range(-(-share // rows))]
    folder.mkdir(exist_ok=True)
    with locked(folder):
        _open(folder, request)
        todo = [job for job in jobs if not block_file(folder, *job).exists()]
        _run(task, behaviours, facts["seed"], rows, folder, todo, workers, lambda done: progress(done, len(todo)))
        yield folder
        shutil.rmtree(folder)


def _base(behaviour: Behaviour) -> str:
    return Path(behaviour.file).name


def _open(folder: Path, request: dict[str, Any]) -> None:
    """Start a recording, or go on with this very one."""
    note = folder / "request.json"
    if note.exists():
        if json.loads(note.read_text()) != request:
            raise InputError(f"{folder}: holds the blocks of another recording; delete it, or choose another output")
        return
    write_json(note, request)


def _run(
    task: Task,
    behaviours: Sequence[Behaviour],
    seed: int,
    rows: int,
    folder: Path,
    todo: Sequence[tuple[int, int]],
    workers: int | None,
    progress: Callable[[int], None],
) -> None:
    """Record these blocks; one thread of this process waits on each worker. No workers: this process does it."""

    def message(k: int, b: int) -> Message:
        return asdict(behaviours[k]) | {"rows": rows, "seed": seed, "folder": str(folder), "k": k, "b": b}

    if workers == 0:
        recorder = Recorder(task)
        for done, job in enumerate(todo, start=1):
            recorder.record(message(*job))
            progress(done)
        return
    count = max(1, min(workers or min(available_cores(), MAX_WORKERS), len(todo)))
    processes = [WorkerProcess(block_recording.__name__, asdict(task)) for _ in range(min(count, len(todo)))]
    idle: queue.SimpleQueue[WorkerProcess] = queue.SimpleQueue()
    for worker in processes:
        idle.put(worker)

    def record(k: int, b: int) -> None:
        worker = idle.get()
        try:
            worker.request(message(k, b))
            error = worker.reply()[0].get("error")  # the same rows would meet it again
        except WorkerDied as death:
            error = f"{death}; run the same command again to resume"
        finally:
            idle.put(worker)
        if error is not None:
            raise WorkFailed(f"recording {task.name}: {error}")

    threads = ThreadPoolExecutor(count)
    try:
        for done, finished in enumerate(as_completed([threads.submit(record, *job) for job in todo]), start=1):
            finished.result()
            progress(done)
    finally:
        for worker in processes:
            worker.kill()  # a thread that waits for it notices
        threads.shutdown(cancel_futures=True)
        for worker in processes:
            worker.stop()


def join(folder: Path, behaviours: Sequence[Behaviour], size: int) -> tuple[dict[str, Array], list[dict[str, Any]]]:
    """The dataset's arrays, `size` rows in equal shares, and what each policy did.

    Episodes are whole but for the very last one, and one that would take up the next policy's share as well.
    """
    pieces: list[dict[str, Array]] = []
    summaries: list[dict[str, Any]] = []
    total, bounds = 0, dict[str, Array]()
    targets = [-(-(k + 1) * size // len(behaviours)) for k in range(len(behaviours))]
    for k, behaviour in enumerate(behaviours):
        returns, before = [], min(total, size)
        for episode in _episodes(folder, k):
            if total >= targets[k]:
                break
            for name, wider in (("action_low", np.minimum), ("action_high", np.maximum)):
                bound = episode.pop(name)
                bounds[name] = wider(bounds.get(name, bound), bound)  # policies may have bounds of their own
            returns.append(float(episode["rewards"].sum(dtype=np.float64)))
            if k + 1 < len(targets) and total + len(episode["rewards"]) >= targets[k + 1]:
                kept = {name: episode[name][: targets[k] - total] for name in PER_ROW}
                episode = kept | {"terminated": np.array(False)}
            pieces.append(episode)
            total += len(episode["rewards"])
        summaries.append(
            {
                "policy": _base(behaviour),
                "snapshot": behaviour.snapshot,
                "sha256": behaviour.sha256,
                "rows": min(total, size) - before,
                "episodes": len(returns),
                "mean_return": float(np.mean(returns)) if returns else None,
            }
        )
    lengths = np.array([len(piece["rewards"]) for piece in pieces])
    stops = np.minimum(np.cumsum(lengths), size)
    terminals, timeouts = np.zeros(size, bool), np.zeros(size, bool)
    terminals[stops - 1] = [bool(piece["terminated"]) for piece in pieces]
    if total > size:
        terminals[-1] = False  # its end was cut off
    timeouts[stops - 1] = ~terminals[stops - 1]
    ends = terminals | timeouts
    arrays = {name: np.concatenate([piece[name] for piece in pieces])[:size] for name in PER_ROW}
    next_actions = np.roll(arrays["actions"], -1, axis=0)
    next_actions[ends] = 0
    return arrays | {
        "terminals": terminals,
        "timeouts": timeouts,
        "trajectory_ids": number_trajectories(ends),
        "next_actions": next_actions,
        "next_action_valid": ~ends,
        **bounds,
    }, summaries


def _episodes(folder: Path, k: int) -> Iterator[dict[str, Array]]:
    b = 0
    while (path := block_file(folder, k, b)).exists():
        with np.load(path, allow_pickle=False) as file:
            block = dict(file)
        stops = np.cumsum(block["lengths"])
        for i, stop in enumerate(stops):
            rows = slice(stop - block["lengths"][i], stop)
            episode = {name: block[name][rows] for name in PER_ROW}
            bounds = {name: block[name] for name in ("action_low", "action_high")}
            yield episode | bounds | {"terminated": block["terminated"][i]}
        b += 1
