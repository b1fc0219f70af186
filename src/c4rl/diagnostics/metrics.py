"""metrics.jsonl of a job, running or finished, by run."""

import math
from pathlib import Path
from typing import Any

from c4rl.jobs.config import TrainConfig
from c4rl.jobs.runs import RunKey, key_of, runs_of
from c4rl.training.records import read_metrics


def metrics_by_run(folder: Path, config: TrainConfig) -> dict[RunKey, list[dict[str, Any]]]:
    """The lines of each run, in the order of their updates; a line still being written is left out."""
    runs = {run.key for run in runs_of(config)}
    found: dict[RunKey, list[dict[str, Any]]] = {}
    for line in read_metrics(folder / "metrics.jsonl", runs):
        found.setdefault(key_of(line), []).append(line)
    for lines in found.values():
        lines.sort(key=lambda line: line["update"])  # scores may come late
    return found


def values_of(lines: list[dict[str, Any]], name: str) -> tuple[list[int], list[float | None]]:
    """Updates and values of one metric; None where it was not finite."""
    some = [(line["update"], line[name]) for line in lines if name in line]
    return [u for u, _ in some], [v if isinstance(v, float | int) and math.isfinite(v) else None for _, v in some]
