"""summary.json: a finished job's results, per run and over the seeds of each setting."""

import platform
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from c4rl.core.curves import late_mean
from c4rl.core.extras import installed, version_of
from c4rl.core.version import __version__
from c4rl.environments.tasks import Task, simulator
from c4rl.jobs.config import TrainConfig
from c4rl.jobs.runs import Run, RunKey, by_group, file_name, key_of
from c4rl.training.checkpoint import Progress
from c4rl.training.preparation import Preparation
from c4rl.training.records import CRITERIA, Record, best_records

SELECTED_RULE = "per seed, the evaluation with the least error on held-out trajectories (uses no simulator)"
MARK = "†"  # behind the scores of runs that failed, in tables


def describe_failure(failure: dict[str, Any]) -> str:
    return f"{failure['reason']} at update {failure['failed_at']:,}; stopped, kept as of update {failure['update']:,}"


def failed_runs(summary: dict[str, Any]) -> str | None:
    """A sentence that names the runs that failed."""
    failed = [run["name"] for run in summary["runs"] if run["failed"]]
    return f"{len(failed)} of {len(summary['runs'])} runs failed: {', '.join(failed)}" if failed else None


def show_score(value: float | None, name: str) -> str:
    """name: `Task.score_name`, or several; a raw return may be of any size. One run has no standard deviation."""
    if value is None:
        return "-"
    return f"{value:.4g}" if "raw return" in name and abs(value) < 100 else f"{value:.1f}"


def summarise(
    config: TrainConfig,
    runs: Sequence[Run],
    preparations: Sequence[Preparation],
    records: Sequence[Record],
    selected: Mapping[RunKey, Record],
    ensembles: Mapping[str, Sequence[Record]],
    progress: Progress,
    device: torch.device,
) -> dict[str, Any]:
    """The settings of the job, then the results: `last` and `best` of a job with one setting, else a list `groups`.

    selected: with --select, each run's record of held-out errors that was chosen.
    ensembles: the scores of several seeds acting together, by the setting they have in common.
    """
    last, best = {key_of(record): record for record in records}, best_records(records)
    grouped, stopped = by_group(runs), progress.frozen
    groups = [_group(config, own, preparations[own[0].data].task, last, best, stopped) for own in grouped.values()]
    for group, own in zip(groups, grouped.values(), strict=True):
        group |= _curves([[record for record in records if key_of(record) == run.key] for run in own])
        if selected:
            group["selected"] = _selected(own, selected, CRITERIA[config.select], records)
        if found := ensembles.get(group["name"]):
            group["ensemble"] = {"members": config.ensemble, **_scores(found)}
            group["ensemble"] |= {"checkpoint": "selected"} if selected else {}
    single = groups[0] if len(groups) == 1 else {}
    kinds = ("failed", "last", "late", "best", "selected", "curve", "ensemble")
    return {
        "task": _one_or_all(list(dict.fromkeys(config.tasks))),
        "environment": simulator(*(preparation.task for preparation in preparations)),
        "algorithm": config.algorithm,
        "plugins": config.active_plugins,
        "seeds": list(dict.fromkeys(run.seed for run in runs)),
        "updates": config.updates,
        "dataset": _one_or_all([preparation.facts for preparation in preparations]),
        "score": " and ".join(dict.fromkeys(group["score"] for group in groups)),
        **({kind: single[kind] for kind in kinds if kind in single} if single else {"groups": groups}),
        "late_rule": "per seed, the mean over the second half of its evaluations",
        "best_rule": "per seed, the evaluation with the highest mean score (uses the simulator)",
        **({"selected_rule": SELECTED_RULE} if selected else {}),
        "stopped": stopped,
        "runs": [
            _run(config, run, last[run.key], best.get(run.key), stopped.get(str(run.key)))
            | ({"selected": selected[run.key]["update"]} if selected else {})
            for run in runs
        ],
        "timing": {
            "run_updates_per_second": progress.run_updates / max(progress.training_seconds, 1e-9),
            "clustering_seconds": progress.clustering_seconds,
            "evaluation_seconds": progress.evaluation_seconds,
            "total_seconds": progress.training_seconds + progress.evaluation_seconds,
        },
        "device": device.type,
        "versions": versions(),
    }


def _one_or_all(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values


def datasets_of(summary: dict[str, Any]) -> list[Any]:
    """The facts of each dataset; the summary of a job with one has no list of them."""
    found = summary.get("dataset", [])
    return found if isinstance(found, list) else [found]


def _group(
    config: TrainConfig,
    runs: Sequence[Run],
    task: Task,
    last: dict[RunKey, Record],
    best: dict[RunKey, Record],
    stopped: dict[str, dict[str, Any]],
) -> dict[str, Any]:
    """Runs that differ only by seed."""
    first, final = runs[0], [last[run.key] for run in runs]
    return {
        "name": first.group,
        "task": config.tasks[first.dataset],
        "dataset": str(config.dataset[first.dataset]),
        "values": dict(first.values),
        "seeds": [run.seed for run in runs],
        "score": task.score_name,
        "failed": [run.seed for run in runs if str(run.key) in stopped],
        "last": _result(final) if best else _held_out(final),
        "best": _result([best[run.key] for run in runs]) if best else None,
    }


def _run(
    config: TrainConfig, run: Run, last: Record, best: Record | None, failed: dict[str, Any] | None
) -> dict[str, Any]:
    if best is not None:
        result = {"last": last["score"], "best": best["score"]}
    else:
        result = {"last": {name: value[0] for name, value in _held_out([last]).items()}, "best": None}
    return {
        "name": file_name(run.key),
        "seed": run.seed,
        "task": config.tasks[run.dataset],
        "dataset": str(config.dataset[run.dataset]),
        "values": dict(run.values),
        **result,
        "failed": failed,
    }


def _result(records: Sequence[Record]) -> dict[str, Any]:
    return _scores(records) | {"updates": [record["update"] for record in records]}


def _selected(
    runs: Sequence[Run], selected: Mapping[RunKey, Record], criterion: str, records: Sequence[Record]
) -> dict[str, Any]:
    """The chosen update of each seed, its held-out error and, with a simulator, its score."""
    chosen = [selected[run.key] for run in runs]
    at = {(key_of(record), record["update"]): record for record in records if "score" in record}
    scored = [at[run.key, own["update"]] for run, own in zip(runs, chosen, strict=True)] if at else []
    facts = {"criterion": criterion, "values": [own[criterion] for own in chosen]}
    return facts | {"updates": [own["update"] for own in chosen]} | (_scores(scored) if scored else {})


def _scores(records: Sequence[Record]) -> dict[str, Any]:
    scores = [record["score"] for record in records]
    return {
        "scores": scores,
        "mean": float(np.mean(scores)),
        "std": float(np.std(scores, ddof=1)) if len(scores) > 1 else None,
        "returns": [record["returns"] for record in records],
    }


def _curves(of_runs: Sequence[Sequence[Record]]) -> dict[str, Any]:
    """The late mean and the curve of every seed; None without a simulator."""
    scores = [[record["score"] for record in records if "score" in record] for records in of_runs]
    if not all(scores):
        return {"late": None, "curve": None}
    late = [late_mean(np.array(curve)) for curve in scores]
    std = float(np.std(late, ddof=1)) if len(late) > 1 else None
    updates = [record["update"] for record in of_runs[0]]
    return {
        "late": {"scores": late, "mean": float(np.mean(late)), "std": std},
        "curve": {"updates": updates, "scores": scores},
    }


def _held_out(records: Sequence[Record]) -> dict[str, Any]:
    names = [name for name in records[0] if name.endswith("_rmse")]
    return {name: [record[name] for record in records] for name in names}


def versions() -> dict[str, str]:
    found = {
        "c4rl": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
    return found | {name: version_of(name) for name in ("gymnasium", "mujoco", "gymnasium_robotics") if installed(name)}
