"""Figures of what happens during training, and inside the critic (the paper's first figure)."""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from c4rl.plugins.c4.monitor import DISPLACEMENT
from c4rl.results.figure_parts import Axes, Drawing, add_legend, foot_of, new_figure, panels_of, styled, title_of
from c4rl.results.statistics import mean_interval, rank_correlation
from c4rl.results.tables import QUANTITIES, Cell, Filled, ResultTable, overall


def curves(drawing: Drawing, table: ResultTable, filled: Filled) -> Figure:
    """A panel for each set and one for the mean of several, a line for each method."""
    tasks, logarithmic = panels_of(table, filled), "trace" in table.quantity
    whole = [method.label for method in table.methods if overall(table, filled, method, "last") is not None]
    bands = "from the lowest to the highest seed" if logarithmic else "95% intervals (Student), cut at the axes"
    foot = foot_of(table, filled, f"bands: {bands}")
    interval = _extent if logarithmic else mean_interval
    several = len(tasks) > 1 and bool(whole)
    figure, axes = new_figure(len(tasks) + several, table.title, foot)
    for label, style in styled([method.label for method in table.methods]):
        cells = [filled.get((label, task)) for task in tasks]
        of_sets = [_points(cell, table.quantity) if cell else {} for cell in cells]
        for axis, points in zip(axes, of_sets, strict=False):
            _line(axis, points, interval, label, style)
        if several and label in whole:
            common = sorted(set.intersection(*map(set, of_sets)))
            runs = min(len(cell.entries) for cell in cells if cell)  # as many of each set, as in the table
            stacked = {x: np.stack([one[x][:runs] for one in of_sets], axis=1) for x in common}
            _line(axes[-1], stacked, interval, label, style)
    titles = [*map(title_of, tasks), *([f"mean of {len(tasks)} sets"] if several else [])]
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("thousand updates", fontsize=8)
        axis.set_ylabel(QUANTITIES[table.quantity], fontsize=8)
        heights = [y for line in axis.lines for y in line.get_ydata()]
        if logarithmic:
            axis.set_yscale("log" if all(y > 0 for y in heights) else "symlog")
        elif heights:
            room = 0.15 * (max(heights) - min(heights)) + 2
            axis.set_ylim(min(heights) - room, max(heights) + room)
    add_legend(figure, axes)
    return figure


def _points(cell: Cell, quantity: str) -> dict[float, np.ndarray]:
    """Thousand updates -> the values of all runs, where all have one."""
    points: dict[float, list[float]] = {}
    for entry in cell.entries:
        for update, value in zip(*entry.curve(quantity), strict=True):
            points.setdefault(update / 1000, []).append(value)
    return {x: np.array(values) for x, values in points.items() if len(values) == len(cell.entries)}


def _line(
    axis: Axes, points: dict[float, np.ndarray], interval: Callable[[np.ndarray], Any], label: str, style: Any
) -> None:
    """The mean of each point's values, [runs] or [runs, sets], and a band where there are several runs."""
    if not points:
        return
    axis.plot(list(points), [float(v.mean()) for v in points.values()], label=label, **style)
    if all(len(v) > 1 for v in points.values()):
        low, high = zip(*map(interval, points.values()), strict=True)
        axis.fill_between(list(points), low, high, color=style["color"], alpha=0.12, linewidth=0)


def _extent(values: np.ndarray) -> tuple[float, float]:
    """Over runs: an interval of the mean would reach below zero, where a logarithm ends."""
    of_runs = values.reshape(len(values), -1).mean(1)
    return float(of_runs.min()), float(of_runs.max())


# -- inside the critic (the paper's first figure)

TERMS = {"td_A": "A", "td_B": "B", "td_C": "C"}
COSINES = {"td_cosine_with_variance": "with ∇Var[δ]", "td_cosine_with_mean": "with ∇(E[δ])²"}


def terms(drawing: Drawing, table: ResultTable, filled: Filled) -> Figure:
    """A, B and C of Theorem 1, and the score, during training on the table's first set."""
    task = panels_of(table, filled)[0]
    panels = {name: f"{letter} (k = {DISPLACEMENT:g})" for name, letter in TERMS.items()}
    panels["score"] = QUANTITIES["score"]
    foot = f"{_foot(table, filled)} {_with_the_score(table, filled, task)}"
    figure, axes = new_figure(len(panels), f"Var[δ] ≈ A + B - C, and the score: {title_of(task)}", foot)
    for axis, (quantity, title) in zip(axes, panels.items(), strict=True):
        for label, style in styled([method.label for method in table.methods]):
            if (label, task) in filled:
                _line(axis, _points(filled[label, task], quantity), _extent, label, style)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("thousand updates", fontsize=8)
        if quantity != "score":
            axis.set_yscale("log")
    add_legend(figure, axes)
    return figure


def _foot(table: ResultTable, filled: Filled) -> str:
    words = foot_of(table, filled, "lines: means over seeds, bands: from the lowest to the highest seed")
    return f"{words}. {table.note}".rstrip()


def _with_the_score(table: ResultTable, filled: Filled, task: str) -> str:
    """How A, B and C go with the score over the runs of each algorithm: algorithms differ in both."""
    parts = []
    for algorithm in dict.fromkeys(method.algorithm for method in table.methods):
        methods = [method for method in table.methods if method.algorithm == algorithm]
        cells = [cell for method in methods if (cell := filled.get((method.label, task)))]
        if not cells:
            continue
        late = {name: np.concatenate([cell.values("late", name) for cell in cells]) for name in ("score", *TERMS)}
        if len(late["score"]) > 2 and len({len(values) for values in late.values()}) == 1:
            found = (f"{TERMS[name]} {rank_correlation(list(late['score']), list(late[name])):+.2f}" for name in TERMS)
            parts.append(f"{algorithm}, {len(late['score'])} runs: {', '.join(found)}")
    return f"Rank correlation of late means with the late score: {'; '.join(parts)}" if parts else ""


def cosines(drawing: Drawing, table: ResultTable, filled: Filled) -> Figure:
    """Which part of E[δ²] = Var[δ] + (E[δ])² an update of the critic follows, a panel for each method."""
    task = panels_of(table, filled)[0]
    methods = [method.label for method in table.methods if (method.label, task) in filled]
    title = f"Cosine of ∇E[δ²] with the gradients of its parts: {title_of(task)}"
    figure, axes = new_figure(len(methods), title, _foot(table, filled))
    for axis, label in zip(axes, methods, strict=True):
        for (quantity, words), (_, style) in zip(COSINES.items(), styled(list(COSINES)), strict=True):
            _line(axis, _points(filled[label, task], quantity), _extent, words, style)
        axis.set_title(label, fontsize=9)
        axis.set_xlabel("thousand updates", fontsize=8)
        axis.set_ylabel("cosine", fontsize=8)
        axis.set_ylim(min([-0.05, *(float(min(line.get_ydata())) - 0.05 for line in axis.lines)]), 1.05)
    add_legend(figure, axes)
    return figure
