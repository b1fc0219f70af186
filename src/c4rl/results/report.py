"""`c4rl report`: one page for a job or a comparison of jobs, from their folders."""

import io
import json
import math
import os
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from c4rl.core.curves import late_mean
from c4rl.core.errors import InputError
from c4rl.core.extras import installed
from c4rl.core.files import read_json
from c4rl.data.info import describe
from c4rl.data.loading import load_for_task
from c4rl.diagnostics.diagnose import FILE as DIAGNOSTICS
from c4rl.diagnostics.diagnose import TERMS, order_sentence
from c4rl.diagnostics.divergence import first_warning
from c4rl.diagnostics.metrics import read_metrics, values_of
from c4rl.diagnostics.page import Page, Plot, Series
from c4rl.diagnostics.q_health import ACTIONS
from c4rl.environments.tasks import Task, get_task, missing
from c4rl.jobs.config import TrainConfig, to_json
from c4rl.jobs.runs import RunKey, dataset_labels, file_name, runs_of
from c4rl.results.statistics import mean_interval, rank_correlation
from c4rl.training.run_directory import NOT_FINITE, job_config, job_summary

PLOTTED = 60  # methods; tables have all
POINTS = 100  # of a curve
NUMBERS = 16_000  # of a plot, so that the page of a large sweep stays small
CORRELATED = 5  # runs, before a correlation is shown
MAZES = 4  # side by side
LARGEST_CARD = 300 * 2**20  # bytes of a dataset that is read for its card
TIMINGS = ("total_seconds", "evaluation_seconds", "clustering_seconds", "run_updates_per_second")
COSINES = {"cosine_with_variance": "with grad Var", "cosine_with_mean": "with grad mean^2"}
NEEDED = (  # of each run in the file of `c4rl diagnose --save`
    ("run",),
    *(("terms", name) for name in (*TERMS, "by_step", "gap_order")),
    *(("cosines", name) for name in COSINES),
    *(("q", kind, "mean") for kind in ACTIONS),
    ("q", "bound"),
)
CURVES = {  # metric -> (title, log scale)
    "q": ("Mean Q of the batch", False),
    "critic_loss": ("Critic loss", True),
    "actor_loss": ("Actor loss", False),
}
TRACES = {
    "cross_covariance_trace_exact_normalised": "tr C / sqrt(tr Sigma' tr Sigma), exact gradients",
    "cross_covariance_trace_proxy_normalised": "tr C / sqrt(tr Sigma' tr Sigma), penultimate features",
    "cross_covariance_trace_exact": "tr C / m, exact gradients",
    "cross_covariance_trace_proxy": "tr C / m, penultimate features",
}
CLUSTERS = {
    "c4_effective_K": "Clusters with 2% of the rows or more",
    "c4_cluster_0": "Share of the largest cluster",
    "c4_within_trace": "Trace within clusters",
    "c4_between_trace": "Trace between clusters",
}


@dataclass
class Method:
    """Runs of one job that differ by seed alone."""

    name: str
    folder: Path
    score: str  # the metric that is its score
    runs: dict[RunKey, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def curves(self) -> list[tuple[list[int], list[float]]]:
        """Finite scores of each run that has some."""
        found = []
        for lines in self.runs.values():
            points = zip(*values_of(lines, self.score), strict=True)
            pairs = [(u, v) for u, v in points if v is not None and math.isfinite(v)]
            if pairs:
                found.append(([u for u, _ in pairs], [float(v) for _, v in pairs]))
        return found

    def late(self) -> list[float]:
        return [late_mean(np.array(values)) for _, values in self.curves]


@dataclass(frozen=True)
class Job:
    folder: Path
    label: str
    config: TrainConfig
    summary: dict[str, Any] | None  # None: not finished
    diagnostics: dict[str, Any] | None
    methods: list[Method]


def read_jobs(folders: Sequence[Path]) -> list[Job]:
    if len({os.path.realpath(folder) for folder in folders}) < len(folders):
        raise InputError("found a folder twice, expected different ones")
    labels = dataset_labels([folder.absolute() for folder in folders])
    return [_read_job(folder, label, len(folders) > 1) for folder, label in zip(folders, labels, strict=True)]


def _read_job(folder: Path, label: str, several: bool) -> Job:
    config = job_config(folder)
    lines = read_metrics(folder)
    methods: dict[str, Method] = {}
    for run in runs_of(config):
        own = lines.get(run.key, [])
        name = ": ".join(part for part in (label if several else "", run.group) if part) or label
        methods.setdefault(name, Method(name, folder, _score_of(own))).runs[run.key] = own
    summary, diagnostics = _with_floats(job_summary(folder, config)), _json(folder / DIAGNOSTICS)
    if summary is not None:
        _need(folder / "summary.json", summary, ("device",), ("dataset",), *(("timing", name) for name in TIMINGS))
    if diagnostics is not None:
        _need(folder / DIAGNOSTICS, diagnostics, ("runs",))
        for one in diagnostics["runs"]:
            _need(folder / DIAGNOSTICS, one, *NEEDED)
    return Job(folder, label, config, summary, diagnostics, list(methods.values()))


def _score_of(lines: list[dict[str, Any]]) -> str:
    """The metric that evaluations log: the simulator's score, or without one the error of held-out actions."""
    names = (name for line in lines for name in line if name == "score" or name.endswith("action_rmse"))
    return next(names, "score")


def _need(path: Path, data: Any, *places: tuple[str, ...]) -> None:
    """Refuse a file that was edited, or is of another version."""
    for place in places:
        inner = data
        for name in place:
            if not isinstance(inner, dict) or name not in inner:
                raise InputError(f"{path}: field '{'.'.join(place)}' is missing, expected the file as c4rl wrote it")
            inner = inner[name]


def _json(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    return _with_floats(read_json(path, "a file of c4rl"))


def _with_floats(value: Any) -> Any:
    """Numbers that JSON lacks are stored by their names."""
    if isinstance(value, dict):
        return {name: _with_floats(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_with_floats(one) for one in value]
    return float(value) if value in NOT_FINITE else value


def write_report(folders: Sequence[Path], path: Path, pictures: Sequence[tuple[Path, str]] = ()) -> None:
    """pictures: PNG files to show, with their captions."""
    jobs = read_jobs(folders)
    methods = [method for job in jobs for method in job.methods]
    higher = methods[0].score == "score"
    methods.sort(key=lambda m: (np.mean(m.late()) if m.curves else -math.inf) * (1 if higher else -1), reverse=True)
    tasks = ", ".join(dict.fromkeys(task for job in jobs for task in job.config.tasks))
    runs = sum(len(method.runs) for method in methods)
    title = jobs[0].label if len(jobs) == 1 else f"{len(jobs)} jobs compared"
    page = Page(f"c4rl report: {title}", f"{tasks}; {len(methods)} settings, {runs} runs")
    _scores(page, methods)
    _pictures(page, jobs, pictures)
    shown = methods[:PLOTTED]
    _curves(page, "Cross-covariance", shown, {name: (title, False) for name, title in TRACES.items()})
    _inside(page, jobs)
    _curves(page, "Clusters over time", shown, {name: (title, False) for name, title in CLUSTERS.items()})
    _curves(page, "Q health", shown, CURVES, warnings=methods)
    _timings(page, jobs)
    _differences(page, jobs)
    _cards(page, jobs)
    page.write(path)


def _scores(page: Page, methods: list[Method]) -> None:
    score = methods[0].score
    kind = "score" if score == "score" else score.replace("_", " ").replace("rmse", "error")
    page.section(
        "Scores",
        f"Late: the mean {kind} over the second half of a run's evaluations, then over runs, with Student's 95% "
        "interval. Best is chosen by the same evaluations, so it is too good.",
    )
    rows: list[list[Any]] = []
    bars: list[tuple[str, float, float | None, float | None]] = []
    for method in methods:
        curves, late = method.curves, method.late()
        if not late:
            rows.append([method.name, len(method.runs), None, "–", None, None, None])
            continue
        low, high = mean_interval(np.array(late))
        finite = math.isfinite(low)
        best = max if method.score == "score" else min
        rows.append(
            [
                method.name,
                len(late),
                float(np.mean(late)),
                f"{low:.1f} to {high:.1f}" if finite else "one run: unknown",
                float(np.mean([values[-1] for _, values in curves])),
                float(np.mean([best(values) for _, values in curves])),
                max(updates[-1] for updates, _ in curves),
            ]
        )
        bars.append((method.name, float(np.mean(late)), low if finite else None, high if finite else None))
    headings = ("setting", "runs", f"late {kind}", "95% interval", "last", "best", "updates")
    page.table(headings, rows)
    shown = bars[:PLOTTED]
    series = Series(
        f"late {kind}", list(range(len(shown))), [b[1] for b in shown], [b[2] for b in shown], [b[3] for b in shown]
    )
    plots = [_plot(methods[:PLOTTED], methods[0].score, f"Learning curves: {kind}")]
    if len(shown) > 1:
        plots.append(Plot(f"Late {kind}", "setting", [series], kind="bars", names=[b[0] for b in shown], table=False))
    page.plots(*plots)
    page.text("Lines are means over seeds, bands reach from the lowest to the highest seed.", kind="faint")
    if len(methods) > PLOTTED:
        page.text(f"Plots show the {PLOTTED} best settings; the table has all {len(methods)}.", kind="faint")


def _plot(methods: Sequence[Method], metric: str, title: str, log: bool = False) -> Plot:
    """Means over seeds at common updates, with the band of the seeds."""
    series, most = [], max(8, min(POINTS, NUMBERS // max(len(methods), 1) // 3))
    for place, method in enumerate(methods):
        by_update: dict[int, list[float]] = {}
        for lines in method.runs.values():
            for update, value in zip(*values_of(lines, metric), strict=True):
                if value is not None:
                    by_update.setdefault(update, []).append(value)
        updates = _thinned(sorted(by_update), most)
        if updates:
            values = [by_update[update] for update in updates]
            band = any(len(some) > 1 for some in values)
            low, high = ([f(some) for some in values] if band else None for f in (min, max))
            means = [fmean(some) for some in values]
            series.append(Series(method.name, updates, means, low, high, place))
    return Plot(title, "update", series, log_y=log)


def _thinned(values: list[int], most: int) -> list[int]:
    if len(values) <= most:
        return values
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def _curves(
    page: Page,
    section: str,
    methods: Sequence[Method],
    metrics: dict[str, tuple[str, bool]],
    warnings: Sequence[Method] = (),
) -> None:
    plots = [_plot(methods, metric, title, log) for metric, (title, log) in metrics.items()]
    plots = [plot for plot in plots if plot.series]
    if not plots:
        return
    page.section(section)
    found = []
    for method in warnings:
        bound = _bound(method.folder)
        for key, lines in method.runs.items():
            if (warning := first_warning(lines, bound)) is not None:
                where = f"{method.name}, {file_name(key)}" if len(method.runs) > 1 else method.name
                found.append(("fault", "diverged:", f"{where} at update {warning.update:,}: {warning.reason}."))
    if found:
        page.listing(found[:50])
    elif warnings:
        page.text("No sign of divergence in the logs.", kind="fine")
    page.plots(*plots)


def _bound(folder: Path) -> float:
    """Of Q, as `c4rl diagnose --save` stored it."""
    diagnostics = _json(folder / DIAGNOSTICS)
    bounds = [float(run["q"]["bound"]) for run in diagnostics["runs"]] if diagnostics else []
    return max(bounds, default=math.inf)


def _inside(page: Page, jobs: Sequence[Job]) -> None:
    """What `c4rl diagnose --save` found."""
    runs = [(job.label, run) for job in jobs if job.diagnostics for run in job.diagnostics["runs"]]
    if not runs:
        return
    page.section(
        "Inside the critic",
        "Theorem 1 at the last checkpoint: Var[delta] ~ A + B - C for small displacements of the critic's input.",
        order_sentence(runs[0][1]["terms"]["gap_order"]),
    )
    headings = ("run", "late score", "A", "B", "C", "A + B - C", "C / (A + B)", "variance of the base residual")
    late = _late_scores(jobs)
    rows = [[f"{label}, {r['run']}", late.get((label, r["run"])), *(r["terms"][n] for n in TERMS)] for label, r in runs]
    page.table(headings, rows)
    scored = [row for row in rows if row[1] is not None]
    if len(scored) >= CORRELATED:
        found = {
            name: rank_correlation([row[1] for row in scored], [row[i] for row in scored])
            for i, name in ((2, "A"), (3, "B"), (4, "C"))
        }
        words = ", ".join(f"{name} {value:+.2f}" for name, value in found.items())
        page.text(f"Rank correlation with the score over {len(scored)} runs: {words}. Few runs say little.")
    steps = [(f"{label}, {r['run']}", r["terms"]["by_step"]) for label, r in runs[:PLOTTED]]
    gaps = [Series(name, [p["k"] for p in points], [p["gap"] for p in points]) for name, points in steps]
    places, names = list(range(len(runs))), [f"{label}, {r['run']}" for label, r in runs]
    cosines = [Series(title, places, [r["cosines"][name] for _, r in runs]) for name, title in COSINES.items()]
    values = [Series(f"{kind} actions", places, [r["q"][kind]["mean"] for _, r in runs]) for kind in ACTIONS]
    page.plots(
        Plot("Gap between measured and linear variance", "k", gaps, log_x=True, log_y=True),
        Plot("Cosine of grad E[delta^2]", "run", cosines, kind="bars", names=names),
        Plot("Mean Q", "run", values, kind="bars", names=names),
    )


def _late_scores(jobs: Sequence[Job]) -> dict[tuple[str, str], float]:
    """(job, run) -> late score."""
    found = {}
    for job in jobs:
        for method in job.methods:
            for key, lines in method.runs.items():
                if scores := Method("", job.folder, method.score, {key: lines}).late():
                    found[job.label, file_name(key)] = scores[0]
    return found


def _pictures(page: Page, jobs: Sequence[Job], pictures: Sequence[tuple[Path, str]]) -> None:
    if pictures:
        found = [(path.read_bytes(), caption) for path, caption in pictures]
    else:
        found = [
            (picture, caption)
            for task in _mazes(jobs)
            if (picture := _maze(task, jobs)) is not None
            for caption in [f"{task.name}: trajectories of each job's first run over its value function"]
        ]
    if found:
        page.section("Policies")
    for png, caption in found:
        page.picture(f"data:image/png;base64,{b64encode(png).decode()}", caption, caption)


def _mazes(jobs: Sequence[Job]) -> list[Task]:
    names = dict.fromkeys(job.config.tasks[0] for job in jobs)
    return [task for name in names if (task := get_task(name)).domain == "maze2d"]


def _maze(task: Task, jobs: Sequence[Job]) -> bytes | None:
    """A PNG of up to four jobs on this maze; None where one of them cannot be drawn."""
    if missing(task) is not None or not installed("matplotlib"):
        return None
    from c4rl.results.maze_panel import draw_policies

    shown = [job for job in jobs if get_task(job.config.tasks[0]) == task][:MAZES]
    picture = io.BytesIO()
    try:
        draw_policies(task, {job.label: job.folder for job in shown}, picture)
    except (InputError, OSError):  # no checkpoint yet, no critic, or data that are gone
        return None
    return picture.getvalue()


def _timings(page: Page, jobs: Sequence[Job]) -> None:
    rows = []
    for job in jobs:
        if job.summary is not None:
            timing = job.summary["timing"]
            rows.append([job.label, job.summary["device"], *(float(timing[name]) for name in TIMINGS)])
        else:
            rows.append([job.label, "not finished", None, None, None, None])
    page.section("Timings")
    page.table(("job", "device", "seconds", "of them evaluating", "of them clustering", "run-updates per second"), rows)


def _flat(value: Any, prefix: str = "") -> dict[str, str]:
    if isinstance(value, dict):
        return {k: v for name, one in value.items() for k, v in _flat(one, f"{prefix}{name}.").items()}
    if isinstance(value, list) and any(isinstance(one, dict) for one in value):
        return {k: v for i, one in enumerate(value) for k, v in _flat(one, f"{prefix}{i}.").items()}
    return {prefix.rstrip("."): json.dumps(value) if not isinstance(value, str) else value}


def _differences(page: Page, jobs: Sequence[Job]) -> None:
    page.section("Settings")
    flat = [_flat(to_json(job.config)) for job in jobs]
    names = list(dict.fromkeys(name for one in flat for name in one))
    if len(jobs) > 1:
        differ = [name for name in names if len({one.get(name) for one in flat}) > 1 and name != "output"]
        rows = [[name, *(one.get(name, "–") for one in flat)] for name in differ]
        if rows:
            page.table(("option", *(job.label for job in jobs)), rows, "Options that differ between the jobs")
        else:
            page.text("The jobs have the same options.")
    page.table(
        ("option", "value"),
        [[name, flat[0][name]] for name in names if name in flat[0]],
        f"All options of {jobs[0].label}",
        folded=f"all options of {jobs[0].label}",
    )


def _cards(page: Page, jobs: Sequence[Job]) -> None:
    page.section("Datasets")
    seen = set()
    for job in jobs:
        facts = (job.summary or {}).get("dataset", [])
        digests = {one["path"]: one["sha256"] for one in (facts if isinstance(facts, list) else [facts])}
        for dataset, task_name in zip(job.config.dataset, job.config.tasks, strict=True):
            if (str(dataset), task_name) not in seen:
                seen.add((str(dataset), task_name))
                _card(page, job, str(dataset), task_name, digests.get(str(dataset)))


def _card(page: Page, job: Job, dataset: str, task_name: str, digest: str | None) -> None:
    name, config = Path(dataset).name, job.config
    path = Path(dataset)
    if path.is_file() and path.stat().st_size > LARGEST_CARD:
        page.text(f"{name}: too large to be read for this page.")
        return
    try:
        task = get_task(task_name)
        d = describe(load_for_task(dataset, task, config.action_low, config.action_high, config.clip_actions), task)
    except (InputError, OSError):
        page.text(f"{name}: no longer readable where the job found it.")
        return
    if digest is not None and digest != d["sha256"]:
        page.text(f"{name}: its bytes changed since the job.", kind="fault")
    shown = {
        "rows": d["rows"],
        "trajectories": d["trajectories"],
        "observations": d["observation_dim"],
        "actions": d["action_dim"],
        "terminals": d["terminals"],
        "time-outs": d["timeouts"],
        "action numbers at a bound": d["action_saturation"],
    }
    page.table(("fact", name), [[key, value] for key, value in shown.items()], f"{name}, task {task_name}")
    ranges = {"length": d["lengths"], "return": d["returns"]}
    if d["normalised_returns"] is not None:
        ranges["normalised return"] = d["normalised_returns"]
    ranges |= {key.replace("_", " "): value for key, value in d["ranges"].items()}
    rows = [[key, value["min"], value["mean"], value["max"]] for key, value in ranges.items()]
    page.table(("of a trajectory or number", "min", "mean", "max"), rows, folded=f"ranges of {name}")
    page.listing([("faint", "warning:", sentence) for sentence in d["warnings"]])
