"""Figures that compare methods: over all their runs, and by the value of an option."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from c4rl.core.errors import InputError
from c4rl.results.figure_parts import (
    AS_PRINTED,
    PAPERS,
    Drawing,
    add_legend,
    add_words,
    foot_of,
    new_figure,
    styled,
    title_of,
)
from c4rl.results.statistics import (
    bootstrap_interval,
    mean_interval,
    performance_profile,
    probability_of_improvement,
)
from c4rl.results.tables import OF_A_RUN, QUANTITIES, Filled, Method, ResultTable, overall


def profiles(drawing: Drawing, table: ResultTable, filled: Filled) -> Figure:
    """How many runs score above each threshold."""
    foot = foot_of(table, filled, f"{OF_A_RUN['late']}; bands: 95% bootstrap")
    figure, (axis,) = new_figure(1, f"Performance profiles: {table.title}", foot, height=3.6)
    found = [overall(table, filled, method, "late") for method in table.methods]
    most = max([110, *(float(scores.max()) for scores in found if scores is not None)])  # mazes give hundreds
    thresholds = np.linspace(0, most, 221)
    for scores, (label, style) in zip(found, styled([m.label for m in table.methods]), strict=True):
        if scores is None:
            continue
        low, high = bootstrap_interval(lambda s: performance_profile(s, thresholds), scores)
        axis.plot(thresholds, performance_profile(scores, thresholds), label=label, markevery=28, **style)
        axis.fill_between(thresholds, low.clip(0, 1), high.clip(0, 1), color=style["color"], alpha=0.12, linewidth=0)
    axis.set_xlabel("D4RL-normalised score τ")
    axis.set_ylabel("share of runs with a score above τ")
    axis.set_ylim(0, 1)
    if not axis.has_data():
        axis.text(0.5, 0.5, "not measured on all sets", ha="center", transform=axis.transAxes, color="#777777")
    add_legend(figure, [axis])
    return figure


def improvement(drawing: Drawing, table: ResultTable, filled: Filled) -> Figure:
    """P(a run of the first scores higher than a run of the second)."""
    first = table.methods[0].label
    pairs = drawing.pairs or tuple((method.label, first) for method in table.methods[1:])
    if not pairs:
        raise InputError(f"figure {drawing.name}: found one method, expected two or more to compare")
    methods = {method.label: method for method in table.methods}
    found = [tuple(overall(table, filled, methods[label], "late") for label in pair) for pair in pairs]
    foot = foot_of(table, filled, f"{OF_A_RUN['late']}; averaged over sets; bars: 95% bootstrap")
    figure, (axis,) = new_figure(1, f"Probability of improvement: {table.title}", foot, height=0.8 + 0.35 * len(found))
    for y, (ours, others) in enumerate(found):
        if ours is None or others is None:
            axis.text(0.52, y, "not measured on all sets", va="center", fontsize=8, color="#777777")
            continue
        centre = float(probability_of_improvement(ours, others))
        low, high = bootstrap_interval(probability_of_improvement, ours, others)
        reach = [[centre - max(low, 0)], [min(high, 1) - centre]]
        axis.errorbar(centre, y, xerr=reach, fmt="o", color="#000000", capsize=3, markersize=5)
    axis.axvline(0.5, color="#777777", linestyle="--", linewidth=1)
    axis.set_yticks(range(len(found)), [f"{a}  >  {b}" for a, b in pairs], fontsize=8)
    axis.set_ylim(len(found) - 0.5, -0.5)
    axis.set_xlim(0, 1)
    axis.set_xlabel("probability of a higher score")
    return figure


def radar(drawing: Drawing, table: ResultTable, filled: Filled) -> Figure:
    """A spoke for each set, a ring for each method; the paper's C4 as it prints it."""
    tasks = list(table.measured)
    foot = foot_of(table, filled, f"means over seeds, {OF_A_RUN['late']}; intervals: c4rl table {table.name}")
    figure = Figure(figsize=(10.4, 6), layout="constrained")
    axis: Any = figure.add_subplot(projection="polar")
    angles = np.linspace(0, 2 * np.pi, len(tasks), endpoint=False)

    def ring(values: Sequence[float], **style: Any) -> None:
        closed = np.clip([*values, values[0]], 0, None)
        axis.plot([*angles, angles[0]], closed, **style)

    for label, style in styled([method.label for method in table.methods]):
        cells = [filled.get((label, task)) for task in tasks]
        if all(cells):
            ring([float(cell.values("late").mean()) for cell in cells if cell], label=label, **style)
    theirs = {m.paper: [table.printed(m, task) for task in tasks] for m in table.methods if m.paper == drawing.theirs}
    for name, found in theirs.items():
        if all(found):
            ring([one[0] for one in found if one], label=f"{name}, {AS_PRINTED}", **PAPERS)
    axis.set_xticks(angles, [title_of(task).replace("-", "\n", 1) for task in tasks], fontsize=8)
    for angle, label in zip(angles, axis.get_xticklabels(), strict=True):  # outside of the outer ring
        label.set_horizontalalignment(("right", "center", "left")[int(np.sign(np.cos(angle).round(1))) + 1])
    axis.set_rlabel_position(90 / len(tasks))
    size = max([1, *(math.ceil(max(line.get_ydata()) / 115) for line in axis.lines)])  # mazes give scores of hundreds
    axis.set_ylim(0, 115 * size)
    rings = [quarter * size for quarter in (25, 50, 75, 100)]
    axis.set_yticks(rings, [str(ring) for ring in rings], fontsize=8)
    axis.grid(alpha=0.4)
    add_words(figure, "D4RL-normalised scores; below 0 drawn as 0", foot)
    add_legend(figure, [axis])
    return figure


def series(drawing: Drawing, table: ResultTable, filled: Filled) -> Figure:
    """Scores by the value of an option: a panel for each set and one for their mean."""
    tasks = list(table.measured)
    foot = foot_of(table, filled, f"{OF_A_RUN['late']}; bars: 95% intervals (Student)")
    figure, axes = new_figure(len(tasks) + 1, table.title, foot, height=3)
    of_series: dict[str, list[Method]] = {}
    for method in (method for method in table.methods if method.x is not None):
        of_series.setdefault(method.series, []).append(method)
    values = sorted({method.x for method in table.methods if method.x is not None})
    place = {value: float(i) for i, value in enumerate(values)}
    for shift, (label, style) in enumerate(styled(list(of_series))):
        off = 0.06 * (shift - (len(of_series) - 1) / 2)  # bars of two series side by side
        for axis, task in zip(axes, [*tasks, None], strict=True):
            points = []
            for method in of_series[label]:
                if task is None:
                    scores = overall(table, filled, method, "late")
                else:
                    cell = filled.get((method.label, task))
                    scores = None if cell is None else cell.values("late", table.quantity)
                if scores is not None:
                    points.append((place[method.x or 0.0] + off, *_with_interval(scores)))
            if points:
                x, y, low, high = np.array(points, dtype=float).T
                axis.errorbar(x, y, yerr=[y - low, high - y], label=label, capsize=2, elinewidth=0.8, **style)
    for axis, task in zip(axes, tasks, strict=False):
        theirs = [(place[m.x], one[0]) for m in table.methods if m.x is not None and (one := table.printed(m, task))]
        if theirs:
            axis.plot(*zip(*theirs, strict=True), label=f"CQL + C4, {AS_PRINTED}", markersize=4, **PAPERS)
    for axis, title in zip(axes, [*map(title_of, tasks), f"mean of {len(tasks)} sets"], strict=True):
        axis.set_title(title, fontsize=9)
        axis.set_xticks(list(place.values()), [f"{value:g}" for value in values], fontsize=8)
        axis.set_xlim(-0.4, len(values) - 0.6)
        axis.set_xlabel(table.x, fontsize=8)
        axis.set_ylabel(QUANTITIES[table.quantity], fontsize=8)
        if not axis.has_data():
            axis.text(0.5, 0.5, "not measured", ha="center", transform=axis.transAxes, color="#777777")
    add_legend(figure, axes)
    return figure


def _with_interval(values: np.ndarray) -> tuple[float, float, float]:
    centre = float(values.mean())
    return (centre, *mean_interval(values)) if len(values) > 1 else (centre, centre, centre)
