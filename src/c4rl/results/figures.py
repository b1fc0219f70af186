"""The figures of the results store: ours with 95% intervals, the paper's where it prints numbers.

Lines differ by colour, dashes and markers, so that they can be told apart in grey and by colour-blind readers.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from c4rl.core.errors import InputError
from c4rl.core.files import replacing
from c4rl.plugins.c4.monitor import DISPLACEMENT
from c4rl.results.catalogue import get_table
from c4rl.results.catalogue.methods import CONTROLLED, PAPER
from c4rl.results.speed_tables import SPEED_TABLES, UPDATES, Case, SpeedTable, read_speeds
from c4rl.results.statistics import (
    bootstrap_interval,
    mean,
    mean_interval,
    performance_profile,
    probability_of_improvement,
    rank_correlation,
)
from c4rl.results.store import Store
from c4rl.results.tables import OF_A_RUN, QUANTITIES, Cell, Filled, Method, ResultTable, fill, overall

# the colours of Okabe and Ito that are dark enough for lines, in an order of changing lightness
STYLES: tuple[tuple[str, Any, str], ...] = (
    ("#000000", "-", "o"), ("#e69f00", "--", "s"), ("#0072b2", "-.", "^"), ("#cc79a7", (0, (1, 1)), "D"),
    ("#009e73", "-", "v"), ("#d55e00", "--", "P"), ("#56b4e9", "-.", "X"), ("#7f7f7f", (0, (5, 1, 1, 1, 1, 1)), "<"),
)  # fmt: skip
PAPERS: dict[str, Any] = {"color": "#555555", "linestyle": ":", "marker": "o", "markerfacecolor": "white"}
Axes = Any  # of matplotlib, which names more types than it means
Draw = Callable[["Drawing", ResultTable, Filled], Figure]


@dataclass(frozen=True)
class Drawing:
    """A figure: how it is drawn, of which table and which of its methods."""

    name: str
    draw: Draw
    table: str
    methods: tuple[str, ...] | None = None
    pairs: tuple[tuple[str, str], ...] = ()  # of which the first is asked to be better
    quantity: str = ""  # what it is about, whatever its table is; default: what that is


def draw(name: str, output: Path, table: str | None, store: Path, speeds: Path) -> None:
    """Draw one figure into a new file; table: another than its own."""
    if name not in (*FIGURES, *SPEED_TABLES):
        raise InputError(f"figure: found '{name}', expected one of {', '.join((*FIGURES, *SPEED_TABLES))}")
    if name in SPEED_TABLES:
        if table is not None:
            raise InputError(f"--table: found {table}, expected none: figure {name} is of measured speeds")
        _save(speed_figure(SPEED_TABLES[name], speeds), output)
        return
    drawing = FIGURES[name]
    if table is not None:
        drawing = replace(drawing, table=table, methods=None, pairs=())
    chosen = get_table(drawing.table)
    chosen = replace(chosen, quantity=drawing.quantity or chosen.quantity)
    filled = fill(chosen, Store(store))
    shown = [m.label for m in chosen.methods if drawing.methods is None or m.label in drawing.methods]
    if not any(label in shown for label, _ in filled):
        raise InputError(
            f"figure {name}: the store has no run of it, expected some; see c4rl bench table {chosen.name}"
        )
    _save(drawing.draw(drawing, chosen.only(shown), filled), output)


def _save(figure: Figure, output: Path) -> None:
    with replacing(output) as temporary:
        figure.savefig(temporary, format=output.suffix[1:], dpi=150)


# -- what the figures share


def _figure(panels: int, title: str, foot: str, height: float = 2.6) -> tuple[Figure, list[Axes]]:
    columns = min(panels, 3 if panels > 4 else 2)
    rows = -(-panels // columns)
    figure = Figure(figsize=(max(3.6 * columns, 7.6), height * rows + 1.2), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes:
        axis.grid(alpha=0.25, linewidth=0.6)
        axis.tick_params(which="both", labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[panels:]:
        axis.set_visible(False)
    figure.suptitle(title, fontsize=11, wrap=True)
    figure.supxlabel(foot, fontsize=7.5, color="#333333", wrap=True)
    return figure, axes[:panels]


def _foot(table: ResultTable, filled: Filled, intervals: str) -> str:
    labels = {method.label for method in table.methods}
    found = sum(len(cell.entries) for (label, _), cell in filled.items() if label in labels)
    seeds = " or ".join(map(str, sorted({len(table.seeds_of(method)) for method in table.methods})))
    without = [m.label for m in table.methods if not any(m.label == label for label, _ in filled)]
    gaps = f"; not measured: {'; '.join(without)}" if without else ""
    budget = f"{seeds} seeds each, {table.updates:,} updates"
    return f"{found} of {table.runs} runs are in the store; {budget}; {intervals}{gaps}"


def _styled(labels: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The look of each line; past the eighth, dashes move on by one, so that no two are the same."""
    for i, label in enumerate(labels):
        color, _, marker = STYLES[i % len(STYLES)]
        line = STYLES[(i + i // len(STYLES)) % len(STYLES)][1]
        yield label, {"color": color, "linestyle": line, "marker": marker, "markersize": 4, "linewidth": 1.4}


def _legend(figure: Figure, axes: Sequence[Axes]) -> None:
    found: dict[str, Any] = {}
    for axis in axes:
        found |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    figure.legend(found.values(), found.keys(), loc="outside right center", fontsize=8, frameon=False, handlelength=3.2)


def _title(task: str) -> str:
    return task.removesuffix("-v2")


def _panels(table: ResultTable, filled: Filled) -> list[str]:
    """Sets with any run, and a last panel for the mean over them all."""
    return [task for task in table.measured if any(t == task for _, t in filled)]


# -- during training


def curves(drawing: Drawing, table: ResultTable, filled: Filled) -> Figure:
    """A panel for each set and one for the mean of several, a line for each method."""
    tasks, logarithmic = _panels(table, filled), "trace" in table.quantity
    bands = "from the lowest to the highest seed" if logarithmic else "95% intervals over seeds (sets: Student, mean: "
    foot = _foot(table, filled, f"bands: {bands}" + ("" if logarithmic else "bootstrap), cut at the axes"))
    several = len(tasks) > 1
    figure, axes = _figure(len(tasks) + several, table.title, foot)
    for label, style in _styled([method.label for method in table.methods]):
        cells = [filled.get((label, task)) for task in tasks]
        of_sets: list[dict[float, np.ndarray]] = []
        for axis, cell in zip(axes, cells, strict=False):
            whole = _points(cell, table.quantity) if cell else {}
            of_sets.append(whole)
            _line(axis, whole, _extent if logarithmic else mean_interval, label, style)
        counts = {len(v) for one in of_sets for v in one.values()}
        if several and len(counts) == 1 and len(of_sets) == len(table.measured) and all(of_sets):
            common = sorted(set.intersection(*map(set, of_sets)))
            stacked = {x: np.stack([one[x] for one in of_sets], axis=1) for x in common}
            _line(axes[-1], stacked, _extent if logarithmic else partial(bootstrap_interval, mean), label, style)
    titles = [*map(_title, tasks), *([f"mean of {len(tasks)} sets"] if several else [])]
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
    _legend(figure, axes)
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
COSINES = {"cosine_with_variance": "with ∇Var[δ]", "cosine_with_mean": "with ∇(E[δ])²"}


def terms(drawing: Drawing, table: ResultTable, filled: Filled) -> Figure:
    """A, B and C of Theorem 1, and the score, during training on the table's first set."""
    task = _panels(table, filled)[0]
    panels = {name: f"{letter} (k = {DISPLACEMENT:g})" for name, letter in TERMS.items()}
    panels["score"] = QUANTITIES["score"]
    words = "lines: means over seeds, bands: from the lowest to the highest seed"
    foot = f"{_foot(table, filled, words)}. {_with_the_score(table, filled, task)}"
    figure, axes = _figure(len(panels), f"Var[δ] ≈ A + B - C, and the score: {_title(task)}", foot)
    for axis, (quantity, title) in zip(axes, panels.items(), strict=True):
        for label, style in _styled([method.label for method in table.methods]):
            if (label, task) in filled:
                _line(axis, _points(filled[label, task], quantity), _extent, label, style)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("thousand updates", fontsize=8)
        if quantity != "score":
            axis.set_yscale("log")
    _legend(figure, axes)
    return figure


def _with_the_score(table: ResultTable, filled: Filled, task: str) -> str:
    """How A, B and C go with the score over the runs of each algorithm: algorithms differ in both."""
    parts = []
    for algorithm in dict.fromkeys(method.algorithm for method in table.methods):
        methods = [method for method in table.methods if method.algorithm == algorithm]
        cells = [cell for method in methods if (cell := filled.get((method.label, task)))]
        late = {name: np.concatenate([cell.values("late", name) for cell in cells]) for name in ("score", *TERMS)}
        if len(late["score"]) > 2 and len({len(values) for values in late.values()}) == 1:
            found = (f"{TERMS[name]} {rank_correlation(list(late['score']), list(late[name])):+.2f}" for name in TERMS)
            parts.append(f"{algorithm}, {len(late['score'])} runs: {', '.join(found)}")
    return f"Rank correlation of late means with the late score: {'; '.join(parts)}" if parts else ""


def cosines(drawing: Drawing, table: ResultTable, filled: Filled) -> Figure:
    """Which part of E[δ²] = Var[δ] + (E[δ])² an update of the critic follows, a panel for each method."""
    task = _panels(table, filled)[0]
    methods = [method.label for method in table.methods if (method.label, task) in filled]
    foot = _foot(table, filled, "lines: means over seeds, bands: from the lowest to the highest seed")
    figure, axes = _figure(len(methods), f"Cosine of ∇E[δ²] with the gradients of its parts: {_title(task)}", foot)
    for axis, label in zip(axes, methods, strict=True):
        for (quantity, words), (_, style) in zip(COSINES.items(), _styled(list(COSINES)), strict=True):
            _line(axis, _points(filled[label, task], quantity), _extent, words, style)
        axis.set_title(label, fontsize=9)
        axis.set_xlabel("thousand updates", fontsize=8)
        axis.set_ylim(min([-0.05, *(float(min(line.get_ydata())) - 0.05 for line in axis.lines)]), 1.05)
    _legend(figure, axes)
    return figure


# -- over all runs


def profiles(drawing: Drawing, table: ResultTable, filled: Filled) -> Figure:
    """How many runs score above each threshold."""
    foot = _foot(table, filled, f"{OF_A_RUN['late']}; bands: 95% bootstrap")
    figure, (axis,) = _figure(1, f"Performance profiles: {table.title}", foot, height=3.6)
    thresholds = np.linspace(0, 110, 56)
    for method, (label, style) in zip(table.methods, _styled([m.label for m in table.methods]), strict=True):
        scores = overall(table, filled, method, "late")
        if scores is None:
            continue
        low, high = bootstrap_interval(lambda s: performance_profile(s, thresholds), scores)
        axis.plot(thresholds, performance_profile(scores, thresholds), label=label, markevery=7, **style)
        axis.fill_between(thresholds, low.clip(0, 1), high.clip(0, 1), color=style["color"], alpha=0.12, linewidth=0)
    axis.set_xlabel("D4RL-normalised score τ")
    axis.set_ylabel("share of runs with a score above τ")
    axis.set_ylim(0, 1)
    _legend(figure, [axis])
    return figure


def improvement(drawing: Drawing, table: ResultTable, filled: Filled) -> Figure:
    """P(a run of the first scores higher than a run of the second)."""
    first = table.methods[0].label
    pairs = drawing.pairs or tuple((method.label, first) for method in table.methods[1:])
    methods = {method.label: method for method in table.methods}
    found = [tuple(overall(table, filled, methods[label], "late") for label in pair) for pair in pairs]
    foot = _foot(table, filled, f"{OF_A_RUN['late']}; averaged over sets; bars: 95% bootstrap")
    figure, (axis,) = _figure(1, f"Probability of improvement: {table.title}", foot, height=0.8 + 0.35 * len(found))
    for y, (ours, others) in enumerate(found):
        if ours is None or others is None:
            axis.text(0.5, y, "not measured", ha="center", va="center", fontsize=8, color="#777777")
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
    tasks = _panels(table, filled)
    foot = _foot(table, filled, f"means over seeds, {OF_A_RUN['late']}; intervals: c4rl table {table.name}")
    figure = Figure(figsize=(8.4, 6), layout="constrained")
    axis: Any = figure.add_subplot(projection="polar")
    angles = np.linspace(0, 2 * np.pi, len(tasks), endpoint=False)

    def ring(values: Sequence[float], **style: Any) -> None:
        closed = np.clip([*values, values[0]], 0, None)
        axis.plot([*angles, angles[0]], closed, **style)

    for label, style in _styled([method.label for method in table.methods]):
        cells = [filled.get((label, task)) for task in tasks]
        if all(cells):
            ring([float(cell.values("late").mean()) for cell in cells if cell], label=label, **style)
    theirs = {m.paper: [table.printed(m, task) for task in tasks] for m in table.methods if m.paper == PAPER.paper}
    for name, found in theirs.items():
        if all(found):
            ring([one[0] for one in found if one], label=f"{name}, as the paper prints it", **PAPERS)
    axis.set_xticks(angles, [_title(task).replace("-", "\n", 1) for task in tasks], fontsize=8)
    axis.tick_params(axis="x", pad=12)
    axis.set_rlabel_position(90 / len(tasks))
    axis.set_ylim(0, 115)
    axis.set_yticks((25, 50, 75, 100), ("25", "50", "75", "100"), fontsize=8)
    axis.grid(alpha=0.4)
    figure.suptitle("D4RL-normalised scores; below 0 drawn as 0", fontsize=11)
    figure.supxlabel(foot, fontsize=7.5, color="#333333", wrap=True)
    _legend(figure, [axis])
    return figure


# -- by an option


def series(drawing: Drawing, table: ResultTable, filled: Filled) -> Figure:
    """Scores by the value of an option: a panel for each set and one for their mean."""
    tasks = list(table.measured)
    foot = _foot(table, filled, f"{OF_A_RUN['late']}; bars: 95% intervals (sets: Student, mean: bootstrap)")
    figure, axes = _figure(len(tasks) + 1, table.title, foot, height=3)
    of_series: dict[str, list[Method]] = {}
    for method in (method for method in table.methods if method.x is not None):
        of_series.setdefault(method.series, []).append(method)
    values = sorted({method.x for method in table.methods if method.x is not None})
    place = {value: float(i) for i, value in enumerate(values)}
    for shift, (label, style) in enumerate(_styled(list(of_series))):
        off = 0.06 * (shift - (len(of_series) - 1) / 2)  # bars of two series side by side
        for axis, task in zip(axes, [*tasks, None], strict=True):
            points = []
            for method in of_series[label]:
                if task is None:
                    scores, interval = overall(table, filled, method, "late"), bootstrap_interval
                    found = None if scores is None else (mean(scores), *interval(mean, scores))
                else:
                    cell = filled.get((method.label, task))
                    found = None if cell is None else _with_interval(cell.values("late", table.quantity))
                if found is not None:
                    points.append((place[method.x or 0.0] + off, *found))
            if points:
                x, y, low, high = np.array(points, dtype=float).T
                axis.errorbar(x, y, yerr=[y - low, high - y], label=label, capsize=2, elinewidth=0.8, **style)
    for axis, task in zip(axes, tasks, strict=False):
        theirs = [(place[m.x], one[0]) for m in table.methods if m.x is not None and (one := table.printed(m, task))]
        if theirs:
            axis.plot(*zip(*theirs, strict=True), label="CQL + C4, as the paper prints it", markersize=4, **PAPERS)
    for axis, title in zip(axes, [*map(_title, tasks), f"mean of {len(tasks)} sets"], strict=True):
        axis.set_title(title, fontsize=9)
        axis.set_xticks(list(place.values()), [f"{value:g}" for value in values], fontsize=8)
        axis.set_xlim(-0.4, len(values) - 0.6)
        axis.set_xlabel(table.x, fontsize=8)
        axis.set_ylabel(QUANTITIES[table.quantity], fontsize=8)
        if not axis.has_data():
            axis.text(0.5, 0.5, "not measured", ha="center", transform=axis.transAxes, color="#777777")
    _legend(figure, axes)
    return figure


def _with_interval(values: np.ndarray) -> tuple[float, float, float]:
    centre = float(values.mean())
    return (centre, *mean_interval(values)) if len(values) > 1 else (centre, centre, centre)


# -- speed


def speed_figure(table: SpeedTable, speeds: Path) -> Figure:
    """Lines over the number of rows, or bars."""
    measured = read_speeds(speeds)
    wanted = {case.name for case in table.cases}
    some = {machine: cases for machine, cases in measured.items() if wanted & set(cases)}
    if not some:
        raise InputError(f"figure {table.name}: nothing was measured; `c4rl bench table {table.name}` does")
    foot = f"4x256 networks, made-up rows; medians of three measurements; {'; '.join(some)}"
    if table.quantity == "share":
        figure, (axis,) = _figure(1, table.title, foot, height=3.2)
        lines = list(itertools.product(some, table.methods))
        for (machine, method), (_, style) in zip(lines, _styled([str(line) for line in lines]), strict=True):
            cases = [Case(method, *column) for column in table.columns]
            points = [(c.rows, table.value(c, some[machine][c.name])) for c in cases if c.name in some[machine]]
            label = method.label if len(some) == 1 else f"{method.label}, {machine}"
            axis.plot(*zip(*points, strict=True), label=label, **style)
        theirs = [(rows, value) for rows, _ in table.columns if (value := table.printed(table.methods[0], rows))]
        axis.plot(*zip(*theirs, strict=True), label="CQL + C4, HalfCheetah, as the paper prints it", **PAPERS)
        axis.set_xscale("log")
        axis.set_xlabel("rows of data")
        axis.set_ylabel("clustering, % of training time")
        axis.set_ylim(bottom=0)
    else:
        figure, (axis,) = _figure(1, table.title, foot, height=0.8 + 0.32 * len(table.methods))
        cases_of = next(iter(some.values()))
        hatches = ("", "//")
        for i, ((rows, runs), head) in enumerate(zip(table.columns, table.heads(), strict=True)):
            found = [
                (y + 0.38 * (i - 0.5), table.value(case, cases_of[case.name]))
                for y, case in enumerate(Case(method, rows, runs) for method in table.methods)
                if case.name in cases_of
            ]
            color = ("#0072b2", "#e69f00")[i]
            y, width = zip(*found, strict=True)
            axis.barh(y, width, height=0.36, label=head, color=color, hatch=hatches[i], edgecolor="w")
        axis.set_yticks(range(len(table.methods)), [method.label for method in table.methods], fontsize=8)
        axis.invert_yaxis()
        axis.set_xlabel(f"minutes per run of {UPDATES:,} updates")
    _legend(figure, [axis])
    return figure


SHOWN = ("BC", "TD3+BC", "TSRL", "CQL", *(c4.label for c4, _ in CONTROLLED), CONTROLLED[0][1].label)
BASES = ("TD3+BC", "CQL", "BPPO", "A2PR")
FIGURES = {
    drawing.name: drawing
    for drawing in (
        Drawing("curves", curves, "main", SHOWN),
        *(
            Drawing(f"curves-{name}", curves, "c4-plugin", (base, *(f"{base} + {p}" for p in ("LN", "DR3", "C4"))))
            for name, base in (("cql", "CQL"), ("td3_bc", "TD3+BC"))
        ),
        Drawing("profiles", profiles, "main", SHOWN),
        Drawing(
            "improvement",
            improvement,
            "c4-plugin",
            pairs=tuple((f"{base} + {plugin}", base) for base in BASES for plugin in ("LN", "DR3", "C4")),
        ),
        Drawing(
            "improvement-on-controls",
            improvement,
            "main",
            tuple(method.label for pair in CONTROLLED for method in pair),
            tuple((c4.label, control.label) for c4, control in CONTROLLED),
        ),
        *(Drawing(name, series, name) for name in ("clusters", "lambda", "alpha", "frequency", "rows")),
        Drawing("effective-k", curves, "effective-k", quantity="c4_effective_K"),
        Drawing("trace", curves, "trace", quantity="cross_covariance_trace_exact"),
        Drawing("terms", terms, "inside"),
        Drawing("cosines", cosines, "inside"),
        Drawing("radar", radar, "main", SHOWN),
    )
}
