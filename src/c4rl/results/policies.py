"""Policies of finished or interrupted jobs: score them, take them away."""

from pathlib import Path
from typing import Any

import numpy as np

from c4rl.core.errors import InputError
from c4rl.core.files import replacing
from c4rl.core.numpy_policy import NumpyPolicy
from c4rl.environments.evaluation import EvaluationPool
from c4rl.environments.tasks import get_task, simulator
from c4rl.jobs.runs import Run, file_name, key_from, runs_of
from c4rl.training.checkpoint import load_policies
from c4rl.training.run_directory import RunDirectory, check_new_file, job_config


def load_policy(
    folder: str | Path, checkpoint: str = "last", seed: int | None = None, run: str | None = None
) -> NumpyPolicy:
    """The policy of a run folder; `act(observation)` takes raw observations and gives actions in the task's units.

    A run is found by its seed where no other has it, or by its name; without either it is the first.
    """
    return _load_one(Path(folder), checkpoint, seed, run)[1]


def _load_one(folder: Path, checkpoint: str, seed: int | None, name: str | None) -> tuple[Run, NumpyPolicy]:
    config = job_config(folder)
    policies = load_policies(RunDirectory(folder).policy(checkpoint))
    runs = [run for run in runs_of(config) if run.key in policies]
    found = _named(folder, runs, name) if name is not None else _of_seed(folder, runs, seed)
    return found, policies[found.key]


def _named(folder: Path, runs: list[Run], name: str) -> Run:
    for run in runs:
        if run.key == key_from(name):
            return run
    raise InputError(f"{folder}: found no run '{name}', expected one of {_names(runs)}")


def _of_seed(folder: Path, runs: list[Run], seed: int | None) -> Run:
    if seed is None:
        return runs[0]
    found = [run for run in runs if run.seed == seed]
    if not found:
        seeds = sorted({run.seed for run in runs})
        raise InputError(f"{folder}: found no run of seed {seed}, expected one of {seeds}")
    if len(found) > 1:
        several = f"{len(found)} runs of seed {seed}"
        raise InputError(f"{folder}: found {several}, expected --run NAME, one of {_names(found)}")
    return found[0]


def _names(runs: list[Run]) -> str:
    return " ".join(file_name(run.key) for run in runs)


def score_folder(folder: Path, episodes: int, checkpoint: str, seed: int, name: str | None = None) -> dict[str, Any]:
    """Score all policies of a folder, or that of one run, each in its own task."""
    config = job_config(folder)
    if "none" in config.task:
        raise InputError(f"{folder}: was trained with --task none, expected a task with a simulator")
    policies = load_policies(RunDirectory(folder).policy(checkpoint))
    runs = [run for run in runs_of(config) if run.key in policies]
    runs = [_named(folder, runs, name)] if name is not None else runs
    rows: dict[Any, dict[str, Any]] = {}
    tasks = list(dict.fromkeys(config.tasks[run.dataset] for run in runs))
    kinds = {}
    for task_name in tasks:
        task, own = get_task(task_name), [run for run in runs if config.tasks[run.dataset] == task_name]
        kinds[task_name] = task.score_name
        with EvaluationPool(task) as pool:
            returns = pool.evaluate([policies[run.key] for run in own], episodes, seed)
        for run, run_scores, run_returns in zip(own, task.normalise(returns), returns, strict=True):
            rows[run.key] = {
                **run.facts,
                **({"task": task_name} if len(tasks) > 1 else {}),
                "mean": float(run_scores.mean()),
                "std": float(run_scores.std(ddof=1)) if episodes > 1 else 0.0,
                "return": float(run_returns.mean()),
                "returns": [float(r) for r in run_returns],
            }
    return {
        "task": tasks[0] if len(tasks) == 1 else tasks,
        "environment": simulator(*map(get_task, tasks)),
        "score": " and ".join(dict.fromkeys(kinds.values())),
        "checkpoint": checkpoint,
        "seed": seed,
        "runs": [rows[run.key] for run in runs],
    }


def export_policy(
    folder: Path, checkpoint: str, seed: int | None, output: Path | None, name: str | None = None
) -> Path:
    run, policy = _load_one(folder, checkpoint, seed, name)
    output = output or folder / f"policy_{checkpoint}_{file_name(run.key)}.npz"
    check_new_file("output", output)
    with replacing(output) as temporary, open(temporary, "wb") as file:
        np.savez(file, allow_pickle=False, **policy.arrays())
    return output
