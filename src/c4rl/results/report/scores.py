"""Scores with intervals, and learning curves."""

import math
from typing import Any

import numpy as np

from c4rl.diagnostics.page import Page, Plot, Series, number
from c4rl.results.report.curves import PLOTTED, curve_plot
from c4rl.results.report.jobs import Method
from c4rl.results.statistics import mean_interval
from c4rl.training.summary import MARK


def add_scores(page: Page, methods: list[Method]) -> None:
    page.section(
        "Scores",
        "Late: the mean over the second half of a run's evaluations, then over runs, with Student's 95% interval. Best "
        "is chosen by the same evaluations, so it is too good.",
    )
    for kind in dict.fromkeys(method.kind for method in methods):
        _add_kind(page, kind, [method for method in methods if method.kind == kind])
    if any(method.mark for method in methods):
        page.text(f"{MARK}: some runs failed and are scored as of their last good state.", kind="fault")
    page.text("Lines are means over seeds, bands reach from the lowest to the highest seed.", kind="faint")


def _add_kind(page: Page, kind: str, methods: list[Method]) -> None:
    """Of methods whose scores compare."""
    rows: list[list[Any]] = []
    bars: list[tuple[str, float, float | None, float | None]] = []
    digits = 1 if kind == "normalised score" else 9  # errors and raw returns may be of any size

    def mean(values: list[float]) -> float:
        return round(float(np.mean(values)), digits)

    for method in methods:
        curves, late = method.curves, method.late()
        if not late:
            rows.append([method.name + method.mark, len(method.runs), None, "–", None, None, None])
            continue
        low, high = mean_interval(np.array(late))
        finite = math.isfinite(low)
        best = max if method.score == "score" else min
        rows.append(
            [
                method.name + method.mark,
                len(late),
                mean(late),
                f"{number(round(low, digits))} to {number(round(high, digits))}" if finite else "one run: unknown",
                mean([values[-1] for _, values in curves]),
                mean([best(values) for _, values in curves]),
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
    plots = [curve_plot(methods[:PLOTTED], methods[0].score, f"Learning curves: {kind}")]
    if len(shown) > 1:
        plots.append(Plot(f"Late {kind}", "setting", [series], kind="bars", names=[b[0] for b in shown], table=False))
    page.plots(*plots)
    if len(methods) > PLOTTED:
        page.text(f"Plots show the {PLOTTED} best settings; the table has all {len(methods)}.", kind="faint")
