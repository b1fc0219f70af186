"""Policies of finished or interrupted jobs: score them, take them away."""

from pathlib import Path
from typing import Any

import numpy as np

from c4rl.data.tasks import get_task
from c4rl.environments.evaluation import EvaluationPool
from c4rl.errors import InputError
from c4rl.files import replacing
from c4rl.numpy_policy import NumpyPolicy
from c4rl.training.checkpoint import load_policies
from c4rl.training.run_directory import RunDirectory, check_new_file, job_config


def load_policy(folder: str | Path, checkpoint: str = "last", seed: int | None = None) -> NumpyPolicy:
    """The policy of a run folder; `act(observation)` takes raw observations and gives actions in the task's units."""
    folder = Path(folder)
    job_config(folder)
    policies = load_policies(RunDirectory(folder).policy(checkpoint))
    seed = next(iter(policies)) if seed is None else seed
    if seed not in policies:
        raise InputError(f"{folder}: found no run of seed {seed}, expected one of {sorted(policies)}")
    return policies[seed]


def score_folder(folder: Path, episodes: int, checkpoint: str, seed: int) -> dict[str, Any]:
    config = job_config(folder)
    task = get_task(config.task)
    if task.name == "none":
        raise InputError(f"{folder}: was trained with --task none, expected a task with a simulator")
    for flag, value, least in (("episodes", episodes, 1), ("seed", seed, 0)):
        if value < least:
            raise InputError(f"--{flag}: found {value}, expected {least} or more")
    policies = load_policies(RunDirectory(folder).policy(checkpoint))
    with EvaluationPool(task) as pool:
        returns = pool.evaluate(list(policies.values()), episodes, seed)
    normalised = task.reference_min is not None
    scores = task.normalise(returns) if normalised else returns
    return {
        "task": config.task,
        "score": "normalised" if normalised else "raw return",
        "checkpoint": checkpoint,
        "seed": seed,
        "runs": [
            {
                "seed": run_seed,
                "mean": float(run_scores.mean()),
                "std": float(run_scores.std(ddof=1)) if episodes > 1 else 0.0,
                "return": float(run_returns.mean()),
                "returns": [float(r) for r in run_returns],
            }
            for run_seed, run_scores, run_returns in zip(policies, scores, returns, strict=True)
        ],
    }


def export_policy(folder: Path, checkpoint: str, seed: int | None, output: Path | None) -> Path:
    policy = load_policy(folder, checkpoint, seed)
    if output is None:
        chosen = seed if seed is not None else job_config(folder).seeds[0]
        output = folder / f"policy_{checkpoint}_seed_{chosen}.npz"
    check_new_file("output", output)
    with replacing(output) as temporary, open(temporary, "wb") as file:
        np.savez(file, allow_pickle=False, **policy.arrays())
    return output
