"""The jobs of a report, read from their folders."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from c4rl.core.curves import late_mean
from c4rl.core.errors import InputError
from c4rl.core.files import read_json
from c4rl.diagnostics.diagnose import FILE as DIAGNOSTICS
from c4rl.diagnostics.diagnose import TERMS
from c4rl.diagnostics.metrics import metrics_by_run, values_of
from c4rl.diagnostics.q_health import ACTIONS
from c4rl.environments.tasks import get_task
from c4rl.jobs.config import TrainConfig
from c4rl.jobs.runs import RunKey, dataset_labels, runs_of
from c4rl.training.records import CRITERIA, FAILED, NOT_FINITE
from c4rl.training.run_directory import job_config, job_summary
from c4rl.training.summary import MARK

TIMINGS = ("total_seconds", "evaluation_seconds", "clustering_seconds", "run_updates_per_second")
COSINES = {"td_cosine_with_variance": "with grad Var", "td_cosine_with_mean": "with grad mean^2"}
NEEDED = (  # of each run in the file of `c4rl diagnose --save`
    ("run",),
    *(("terms", name) for name in (*TERMS, "by_step", "gap_order")),
    *(("cosines", name) for name in COSINES),
    *(("q", kind, "mean") for kind in ACTIONS),
    ("q", "bound"),
)


@dataclass
class Method:
    """Runs of one job that differ by seed alone."""

    name: str
    folder: Path
    score: str  # the metric that is its score
    kind: str  # what that is called; other kinds do not compare
    value_bound: float = math.inf  # on Q, where `c4rl diagnose --save` stored one
    runs: dict[RunKey, list[dict[str, Any]]] = field(default_factory=dict)
    place: int = 0  # among all methods: its colour in every plot

    @property
    def curves(self) -> list[tuple[list[int], list[float]]]:
        """Finite scores of each run that has some."""
        found = []
        for lines in self.runs.values():
            pairs = [(u, v) for u, v in zip(*values_of(lines, self.score), strict=True) if v is not None]
            if pairs:
                found.append(([u for u, _ in pairs], [float(v) for _, v in pairs]))
        return found

    def late(self) -> list[float]:
        found = (late_of(lines, self.score) for lines in self.runs.values())
        return [value for value in found if value is not None]

    @property
    def mark(self) -> str:
        """Behind its name, where runs failed."""
        return f" {MARK}" if any(FAILED in line for lines in self.runs.values() for line in lines) else ""

    @property
    def rank(self) -> float:
        """Larger is better: the mean of late scores, or of errors below zero; last without any."""
        late = self.late()
        return float(np.mean(late)) * (1 if self.score == "score" else -1) if late else -math.inf


def late_of(lines: list[dict[str, Any]], metric: str) -> float | None:
    """Of one run's finite values; None without any."""
    values = [value for value in values_of(lines, metric)[1] if value is not None]
    return late_mean(np.array(values)) if values else None


@dataclass(frozen=True)
class Job:
    folder: Path
    label: str
    config: TrainConfig
    summary: dict[str, Any] | None  # None: not finished
    diagnostics: dict[str, Any] | None
    methods: list[Method]


def read_jobs(folders: Sequence[Path], allow_import: bool) -> list[Job]:
    if len({os.path.realpath(folder) for folder in folders}) < len(folders):
        raise InputError("found a folder twice, expected each once")
    labels = dataset_labels([folder.absolute() for folder in folders])
    several = len(folders) > 1
    return [_read_job(folder, label, several, allow_import) for folder, label in zip(folders, labels, strict=True)]


def _read_job(folder: Path, label: str, several: bool, allow_import: bool) -> Job:
    config = job_config(folder, allow_import)
    lines = metrics_by_run(folder, config)
    summary, saved = _with_floats(job_summary(folder, config)), folder / DIAGNOSTICS
    diagnostics = _with_floats(read_json(saved, "a file of c4rl")) if saved.exists() else None
    if summary is not None:
        _need(folder / "summary.json", summary, ("device",), ("dataset",), *(("timing", name) for name in TIMINGS))
    if diagnostics is not None:
        _need(saved, diagnostics, ("runs",))
        for one in diagnostics["runs"]:
            _need(saved, one, *NEEDED)
            if not isinstance(bound := one["q"]["bound"], int | float):
                raise InputError(f"{saved}: field 'q.bound' is {bound!r}, expected a number")
    bounds = [one["q"]["bound"] for one in diagnostics["runs"]] if diagnostics is not None else []
    methods: dict[str, Method] = {}
    for run in runs_of(config):
        own = lines.get(run.key, [])
        name = ": ".join(part for part in (label if several else "", run.group) if part) or label
        task = config.tasks[run.dataset]
        score = _score_of(own, task)
        kind = _kind_of(score, task)
        method = Method(name, folder, score, kind, max(bounds, default=math.inf))
        methods.setdefault(name, method).runs[run.key] = own
    return Job(folder, label, config, summary, diagnostics, list(methods.values()))


def _score_of(lines: list[dict[str, Any]], task: str) -> str:
    """The metric that evaluations log: the simulator's score, or without one the error of held-out actions."""
    names = {name: None for line in lines for name in line}
    errors = (name for name in names if name.endswith("action_rmse"))
    return "score" if "score" in names else next(errors, "score" if task != "none" else CRITERIA["held-out"])


def _kind_of(score: str, task: str) -> str:
    if score != "score":
        return score.replace("_", " ").replace("rmse", "error")
    return "normalised score" if get_task(task).score_name == "normalised" else "raw return"


def _need(path: Path, data: Any, *places: tuple[str, ...]) -> None:
    """Refuse a file that was edited, or is of another version."""
    for place in places:
        inner = data
        for name in place:
            if not isinstance(inner, dict) or name not in inner:
                again = " (c4rl diagnose --save writes it anew)" if path.name == "diagnostics.json" else ""
                raise InputError(
                    f"{path}: field '{'.'.join(place)}' is missing, expected the file as this c4rl writes it{again}"
                )
            inner = inner[name]


def _with_floats(value: Any) -> Any:
    """Numbers that JSON lacks are stored by their names."""
    if isinstance(value, dict):
        return {name: _with_floats(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_with_floats(one) for one in value]
    return float(value) if value in NOT_FINITE else value
