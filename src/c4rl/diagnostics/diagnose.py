"""`c4rl diagnose`: what happens inside the critic of a finished or interrupted job, and when a run blew up."""

import math
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from c4rl.core.files import write_json
from c4rl.core.typed_json import jsonable
from c4rl.diagnostics.cluster_structure import describe_clusters, find_clusters, row_facts
from c4rl.diagnostics.divergence import first_warning
from c4rl.diagnostics.gradients import critics_of, gradient_pairs, sample_rows
from c4rl.diagnostics.metrics import metrics_by_run
from c4rl.diagnostics.page import number
from c4rl.diagnostics.q_health import ACTIONS, describe_q, value_bound
from c4rl.diagnostics.spectra import describe_spectrum
from c4rl.diagnostics.td_terms import describe_td_terms
from c4rl.jobs.runs import file_name
from c4rl.training.gradient_cosines import gradient_cosines
from c4rl.training.restore import restore

FILE = "diagnostics.json"  # in the run folder; `c4rl report` shows it
TERMS = ("A", "B", "C", "variance", "cross_share", "base_variance")


def diagnose(folder: Path, run: str | None = None, size: int = 1024, allow_import: bool = False) -> dict[str, Any]:
    """Diagnose every run of the job, or one by its name in files, on the same `size` rows."""
    launch, preparation, config = restore(folder, run, allow_import=allow_import)
    critics_of(launch)  # refuses algorithms without one
    sample = sample_rows(launch, size)
    facts = row_facts(preparation.train, sample.rows)
    terms, cosines = describe_td_terms(launch, sample.batch), gradient_cosines(launch, sample.batch)
    values = describe_q(launch, sample.batch)
    g_next, g = gradient_pairs(launch, sample.batch)
    lines, bounds = metrics_by_run(folder, config), value_bound(launch)
    runs = []
    for i, one in enumerate(launch.runs):
        warning = first_warning(lines.get(one.key, []), bounds[i])
        runs.append(
            {
                "run": file_name(one.key),
                "terms": terms[i],
                "cosines": cosines[i],
                "q": values[i],
                "spectrum": describe_spectrum(g_next[i, 0], g[i, 0]),
                "clusters": describe_clusters(find_clusters(g_next[i, 0], g[i, 0]), facts),
                "warning": None if warning is None else warning._asdict(),
            }
        )
    return {
        "folder": str(folder),
        "algorithm": config.algorithm,
        "plugins": config.active_plugins,
        "update": int(launch.step),
        "rows": len(sample.rows),
        "runs": runs,
    }


def save(found: dict[str, Any], folder: Path) -> Path:
    path = folder / FILE
    write_json(path, jsonable(found))
    return path


def warning_sentence(one: dict[str, Any]) -> str:
    if one["warning"] is None:
        return f"{one['run']}: no sign of divergence."
    return f"{one['run']}: would have been stopped at update {one['warning']['update']:,}: {one['warning']['reason']}."


def order_sentence(order: float | None) -> str:
    if order is None:
        return "The gap to the linear model is zero."
    kind = "as on a smooth network" if order > 1.5 else "as where gradients jump, which those of ReLU networks do"
    return f"The gap to the linear model falls with the power {order:.1f} of k, {kind}."


def render(found: dict[str, Any]) -> RenderableType:
    title = " + ".join([found["algorithm"], *found["plugins"]])
    parts: list[RenderableType] = [
        Text(f"{found['folder']}: {title} at update {found['update']:,}, {found['rows']:,} rows", overflow="fold"),
        "",
    ]
    runs = found["runs"]

    def table(heading: str, columns: list[str], rows: list[list[Any]]) -> None:
        made = Table(title=Text(heading), title_justify="left", box=None, padding=(0, 2, 0, 0), header_style="dim")
        made.add_column("run", overflow="fold")
        for column in columns:
            made.add_column(Text(column), justify="right")
        for row in rows:
            made.add_row(*(number(value) for value in row))
        parts.extend([made, ""])

    table(
        f"Theorem 1, k = {runs[0]['terms']['k']:g}: Var[delta] ~ A + B - C",
        ["A", "B", "C", "A + B - C", "C / (A + B)", "of the base residual"],
        [[r["run"], *(r["terms"][name] for name in TERMS)] for r in runs],
    )
    first = runs[0]["terms"]
    table(
        "A check by perturbing (first run)",
        ["measured", "A + B - C", "gap"],
        [[f"k = {p['k']:g}", p["measured"], p["linear"], f"{p['gap']:.1%}"] for p in first["by_step"]],
    )
    parts.extend([Text(order_sentence(first["gap_order"])), ""])
    table(
        "What moves the critic: cosine of grad E[delta^2] with",
        ["grad Var[delta]", "grad (E[delta])^2", "Var / E[delta^2]"],
        [[r["run"], *r["cosines"].values()] for r in runs],
    )
    table(
        "Q",
        [*(f"{name} actions" for name in ACTIONS), "most that rewards allow", "critics differ by"],
        [
            [r["run"], *(r["q"][n]["mean"] for n in ACTIONS), r["q"]["bound"], r["q"]["data"]["disagreement"]]
            for r in runs
        ],
    )
    table(
        "Cross-covariance of successive gradients",
        ["tr C / m", "normalised", "effective rank", "clusters", "tr within", "tr between"],
        [
            [
                r["run"],
                *(r["spectrum"][n] for n in ("trace_per_feature", "normalised_trace", "effective_rank")),
                r["clusters"]["effective_clusters"],
                *(r["clusters"]["split"][n] for n in ("within_trace", "between_trace")),
            ]
            for r in runs
        ],
    )
    for one in runs:
        style = "red" if one["warning"] is not None or not math.isfinite(one["q"]["data"]["mean"]) else "green"
        parts.append(Text(warning_sentence(one), style=style))
    return Group(*parts)
