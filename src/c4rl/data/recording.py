"""Record datasets in D4RL's style, so that an experiment needs no download: Maze2D with its scripted controller,
Kitchen with a scripted arm, locomotion and AntMaze with the agents that ship with the package, every task with policies
from files (docs/recording.md)."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from c4rl.core.errors import InputError
from c4rl.core.version import __version__
from c4rl.data import maze_recording, policy_recording
from c4rl.data.behaviour_agents import locomotion_sets, set_of, shipped_policies
from c4rl.data.loading import environment_bounds, load_dataset
from c4rl.data.writing import write_npz
from c4rl.environments.tasks import Task, missing, simulator

LONGEST = 10_000_000  # hours of recording
# sets that several policies make; all others are made by one
MIXTURES = ("medium-replay", "medium-expert", "full-replay")


def record(
    task_name: str,
    size: int,
    seed: int,
    path: str | Path,
    policies: Sequence[str] = (),
    workers: int | None = None,
    progress: Callable[[int, int], None] = lambda done, expected: None,
) -> dict[str, Any]:
    """Write `size` transitions of a task as npz; equal arguments and versions give equal bytes. Returns the metadata.

    task_name: a task, or ROBOT-random. policies: for all tasks but Maze2D, policy files in the order of their rows: a
    file of snapshots stands for all of them, FILE@2-5 for some, `random` for uniform actions; none: the package's own
    agents. A recording that was killed continues where it was.
    """
    path, (task, kind) = Path(path), set_of(task_name)
    if not 1 <= size <= LONGEST:
        raise InputError(f"size: found {size}, expected at least 1 and at most {LONGEST:,} transitions")
    if seed < 0:
        raise InputError(f"seed: found {seed}, expected 0 or more")
    if path.suffix != ".npz" or not str(path).isprintable():
        raise InputError(f"{path}: expected a printable file name that ends in .npz")
    if path.exists():
        raise InputError(f"{path} exists already and is not overwritten; choose another name")
    if (absent := missing(task)) is not None:
        raise InputError(f"task '{task.name}' cannot be recorded here: {absent}")
    facts = {"task": task.name, "size": size, "seed": seed, "c4rl": __version__, "environment": simulator(task)}
    if task.domain == "maze2d":
        if policies:
            raise InputError(
                f"policy: found {policies[0]}, expected none: task '{task.name}' has a scripted controller"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays = maze_recording.transitions(task, size, seed, progress)
        metadata = {"name": _name(task), "behaviour": "waypoint controller"} | facts
        write_npz(path, arrays, metadata)
        return metadata
    if kind == policy_recording.RANDOM and policies:
        raise InputError(f"policy: found {policies[0]}, expected none: {task_name} has uniform actions")
    own, words = ([], "") if policies else shipped_policies(task, kind)
    behaviours = policy_recording.find_behaviours(policies or own, task)
    _check_number(task, behaviours)
    random = [behaviour.file == policy_recording.RANDOM for behaviour in behaviours]
    bounds = environment_bounds(task) if any(random) and task.domain == "gym" else []
    if any(bound is None or np.isinf(bound).any() for bound in bounds):
        raise InputError(f"policy: found random, expected a file: the actions of task '{task.name}' have no bounds")
    path.parent.mkdir(parents=True, exist_ok=True)
    with policy_recording.blocks(path, task, behaviours, facts, workers, progress) as folder:
        arrays, behaviour = policy_recording.join(folder, behaviours, size)
        chosen = {"chosen": words} if words else {}
        metadata = {"name": _name(task, all(random)), "behaviour": behaviour} | chosen | facts
        write_npz(path, arrays, metadata)
    return metadata


def record_all_locomotion(
    size: int,
    seed: int,
    folder: Path,
    workers: int | None = None,
    progress: Callable[[str, int, int], None] = lambda name, done, expected: None,
) -> list[Path]:
    """Write every locomotion set of the paper's table as FOLDER/SET.npz; those that are there already are kept."""
    paths = {name: folder / f"{name}.npz" for name in locomotion_sets()}
    for name, path in paths.items():
        if not path.exists():
            continue
        task, _ = set_of(name)
        expected = {"size": size, "seed": seed, "c4rl": __version__, "environment": simulator(task)}
        metadata = load_dataset(path, task=task).metadata
        found = {key: metadata.get(key) for key in expected}
        if found != expected or metadata.get("name") != f"c4rl/{name}":
            raise InputError(f"{path}: found {metadata.get('name')} with {found}, expected c4rl/{name} with {expected}")
    for name, path in paths.items():
        if not path.exists():
            record(name, size, seed, path, (), workers, partial(progress, name))
    return list(paths.values())


def _name(task: Task, random: bool = False) -> str:
    """c4rl/...: the rows are not D4RL's."""
    stem = re.sub(r"-v\d+$", "", task.name.removeprefix("gym:"))  # a gymnasium id may have no version
    if random:
        stem = f"{stem.partition('-')[0] if task.domain in ('locomotion', 'adroit') else stem}-random"
    return f"c4rl/{stem}"


def _check_number(task: Task, behaviours: Sequence[policy_recording.Behaviour]) -> None:
    """Refuse a set whose name says something else than its policies."""
    count, stem = len(behaviours), task.name.rpartition("-v")[0]
    if task.domain == "adroit" and stem.endswith("-human"):
        raise InputError(f"task '{task.name}' holds demonstrations by people and cannot be recorded")
    if task.domain != "locomotion" or all(behaviour.file == policy_recording.RANDOM for behaviour in behaviours):
        return
    mixture = stem.partition("-")[2] in MIXTURES
    if mixture and count < 2:
        expected = "several, in the order of their rows (a file of snapshots, or weaker policies first)"
        raise InputError(f"policy: found 1 for '{task.name}', expected {expected}")
    if not mixture and count > 1:
        raise InputError(f"policy: found {count} for '{task.name}', expected 1")
