"""`c4rl ope`: what policies are worth by the logged data alone, with intervals, a ranking and warnings."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from c4rl.core.errors import InputError
from c4rl.core.numpy_policy import NumpyPolicy
from c4rl.data.dataset import Dataset
from c4rl.data.loading import load_for_task
from c4rl.data.subsets import trajectory_slices
from c4rl.diagnostics.fitted_q import FittedQConfig, fitted_q_evaluation
from c4rl.environments.tasks import get_task
from c4rl.jobs.config import TrainConfig
from c4rl.jobs.runs import Run, file_name
from c4rl.results.policies import Job, open_job
from c4rl.results.provenance import Records, evaluation_of, evaluations
from c4rl.results.statistics import rank_correlation, student_quantile
from c4rl.results.worth_of_estimates import worth
from c4rl.training.preparation import choose_device

CORRELATED = 3  # policies with scores, before a correlation is shown
# a policy leaves the data if its actions lie so many times as far from the logged ones as their mean does: a clone of
# purely random actions plays that mean, and is no outlier
FAR = 1.5
SETTLED = 0.05  # of the spread of all values: the most that a value may move over the last tenth of the updates


def judge(
    folders: Sequence[Path],
    config: FittedQConfig,
    checkpoint: str | None,
    dataset: Path | None,
    device: str,
    watch: Callable[[int], Any],
    allow_import: bool,
) -> dict[str, Any]:
    """Every policy of these folders that did not fail, in the order of their estimated values.

    Those that leave the data come last, without a rank: their values are extrapolated. Of a job on several datasets,
    only the runs on `dataset` are judged.
    """
    if not folders:
        raise InputError("FOLDERS: found none, expected at least one folder made by c4rl train")
    if len({os.path.realpath(folder) for folder in folders}) < len(folders):
        raise InputError(f"FOLDERS: found {' '.join(map(str, folders))}, expected each folder once")
    found: list[tuple[str, NumpyPolicy, float | None]] = []
    jobs: list[TrainConfig] = []
    checkpoints: dict[str, None] = {}
    for folder in folders:
        job = open_job(folder, checkpoint, allow_import)
        jobs.append(job.config)
        checkpoints[job.checkpoint] = None
        own, logged = _trained_on(dataset, job.config), evaluations(folder, job.config)
        for run in (run for run in job.sound if own is None or run.dataset == own):
            name = file_name(run.key) if len(folders) == 1 else f"{folder}: {file_name(run.key)}"
            found.append((name, job.policies[run.key], _score(job, logged, run)))
    if not found:
        raise InputError(f"{' '.join(map(str, folders))}: found only runs that failed, expected one that did not")
    data = _data(folders, jobs, dataset)
    for name, policy, _ in found:
        takes, gives = policy.observation_mean.size, policy.action_low.size
        if (takes, gives) != (data.observation_dim, data.action_dim):
            raise InputError(
                f"{data.source}: found {data.observation_dim} observations and {data.action_dim} actions, expected "
                f"{takes} and {gives} as in {name}"
            )
    names, policies, scores = zip(*found, strict=True)
    estimates = fitted_q_evaluation(data, policies, config, choose_device(device), watch=watch)
    spread = estimates.resampled.std(1, ddof=1)
    count = len(trajectory_slices(data)[0])
    # resamples of n trajectories vary less than n new ones would, by sqrt((n - 1) / n); those of one not at all
    wider = np.sqrt(count / (count - 1)) if count > 1 else np.nan
    half = student_quantile(0.975, config.resamples - 1) * spread * wider
    moved_much = SETTLED * max(float(np.ptp(estimates.values)), float(np.abs(estimates.values).max()) / 10)
    rows: list[dict[str, Any]] = []
    left = estimates.distance > FAR * estimates.mean_action_distance
    for i in np.lexsort([-estimates.values, left]).tolist():
        warnings = []
        if np.isnan(estimates.distance[i]):
            warnings.append("may leave the data: no row has a logged next action to compare its actions with")
        if left[i]:
            warnings.append("leaves the data, not ranked: a constant action is much nearer to the logged ones")
        if count == 1:
            warnings.append("has no interval: the data are one trajectory, which begins in one state")
        if abs(estimates.moved[i]) > moved_much:
            warnings.append(f"not settled: moved by {estimates.moved[i]:.3g} in the last tenth; use more --updates")
        rows.append(
            {
                "rank": None if left[i] else len(rows) + 1,
                "policy": names[i],
                "value": float(estimates.values[i]),
                "interval": None if count == 1 else [float(estimates.values[i] + end * half[i]) for end in (-1, 1)],
                "action_distance": _known(estimates.distance[i]),
                "score": scores[i],
                "warnings": warnings,
            }
        )
    return {
        "method": "fqe",
        "dataset": {"path": data.source, "sha256": data.sha256, "rows": len(data)},
        "checkpoint": " and ".join(checkpoints),
        "settings": vars(config),
        "logged_value": estimates.logged_value,
        "mean_action_distance": _known(estimates.mean_action_distance),
        "policies": rows,
        "rank_correlation": _correlation([row for row in rows if row["rank"] is not None]),
        "rank_correlation_of_all": _correlation(rows),
        "measured_elsewhere": worth(),
    }


def _known(distance: float) -> float | None:
    """None where there was nothing to measure it from."""
    return None if np.isnan(distance) else float(distance)


def _correlation(rows: Sequence[dict[str, Any]]) -> float | None:
    """Of values and simulator scores, where enough policies have some."""
    scored = [(row["value"], row["score"]) for row in rows if row["score"] is not None]
    return rank_correlation(*zip(*scored, strict=True)) if len(scored) >= CORRELATED else None


def _score(job: Job, logged: Records, run: Run) -> float | None:
    """In the simulator, where the job has one."""
    record = evaluation_of(run, logged, job.updates)
    return None if record is None else record.get("score")


def _data(folders: Sequence[Path], jobs: Sequence[TrainConfig], dataset: Path | None) -> Dataset:
    """All rows of the file that every job was trained on, or of the given one."""
    first, logs = jobs[0], {path for job in jobs for path in job.dataset}
    if dataset is None and len(logs) > 1:
        several = " ".join(sorted(map(str, logs)))
        raise InputError(
            f"{' '.join(map(str, folders))}: found the datasets {several}, expected one, or --dataset FILE"
        )
    path = dataset or first.dataset[0]
    task = get_task(first.tasks[_trained_on(dataset, first) or 0])
    return load_for_task(path, task, first)


def _trained_on(dataset: Path | None, config: TrainConfig) -> int | None:
    """Which of a job's several datasets is the given one; None where all its runs have the same."""
    if len(config.dataset) == 1 or dataset is None:
        return None
    found = [path.resolve() for path in config.dataset]
    if dataset.resolve() not in found:
        names = " ".join(map(str, config.dataset))
        raise InputError(f"--dataset: found {dataset}, expected one of those that a job was trained on: {names}")
    return found.index(dataset.resolve())
