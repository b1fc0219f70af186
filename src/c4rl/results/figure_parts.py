"""What the figures share: a look that works in grey and for colour-blind readers, panels, legends, a line at the foot.

Lines differ by colour, dashes and markers.
"""

import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from c4rl.results.tables import Filled, ResultTable, left_out

# the colours of Okabe and Ito that are dark enough for lines, in an order of changing lightness
STYLES: tuple[tuple[str, Any, str], ...] = (
    ("#000000", "-", "o"), ("#e69f00", "--", "s"), ("#0072b2", "-.", "^"), ("#cc79a7", (0, (1, 1)), "D"),
    ("#009e73", "-", "v"), ("#d55e00", "--", "P"), ("#56b4e9", "-.", "X"), ("#7f7f7f", (0, (5, 1, 1, 1, 1, 1)), "<"),
)  # fmt: skip
VALUE, UNBREAKABLE = re.compile(r"(?<=\b\w) (?=\d)"), "\N{NO-BREAK SPACE}"  # as in λ 0.3
AS_PRINTED = "as the paper prints it"
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
    theirs: str | None = None  # the paper's method whose printed numbers are drawn too


def new_figure(panels: int, title: str, foot: str, height: float = 2.6) -> tuple[Figure, list[Axes]]:
    columns = min(panels, 3 if panels > 4 else 2)
    rows = -(-panels // columns)
    figure = Figure(figsize=(max(3.6 * columns, 7.6), height * rows + 1.2), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes:
        axis.grid(alpha=0.25, linewidth=0.6)
        axis.tick_params(which="both", labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_axisbelow(True)
    for axis in axes[panels:]:
        axis.set_visible(False)
    add_words(figure, title, foot)
    return figure, axes[:panels]


def add_words(figure: Figure, title: str, foot: str) -> None:
    """Title and foot, in lines that leave a margin (matplotlib's own wrap fills a figure from edge to edge)."""
    width = figure.get_figwidth()
    title, foot = (VALUE.sub(UNBREAKABLE, words) for words in (title, foot))
    figure.suptitle(textwrap.fill(title, int(11 * width)), fontsize=11)
    figure.supxlabel(textwrap.fill(foot, int(14 * width)), fontsize=7.5, color="#333333")


def foot_of(table: ResultTable, filled: Filled, intervals: str) -> str:
    labels = {method.label for method in table.methods}
    found = sum(len(cell.entries) for (label, _), cell in filled.items() if label in labels)
    seeds = " or ".join(map(str, sorted({len(table.seeds_of(method)) for method in table.methods})))
    sets = {m.label: sum((m.label, task) in filled for task in table.measured) for m in table.methods}
    gaps = _named("not measured", [label for label, some in sets.items() if not some])
    partly = [label for label, some in sets.items() if 0 < some < len(table.measured)]
    gaps += _named("measured on some sets only, in no mean or ring", partly)
    budget = f"{seeds} seeds each, {table.updates:,} updates"
    parts = [f"{found} of {table.runs} runs are in the store", budget, intervals, left_out(table, filled)]
    return "; ".join(part for part in parts if part) + gaps


def _named(what: str, labels: Sequence[str]) -> str:
    return f"; {what}: {'; '.join(labels)}" if labels else ""


def styled(labels: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The look of each line; past the eighth, dashes move on by one and markers by three, so that no two are the same,
    nor two series of one point, which show no dashes."""
    for i, label in enumerate(labels):
        color, again = STYLES[i % len(STYLES)][0], i // len(STYLES)
        line, marker = STYLES[(i + again) % len(STYLES)][1], STYLES[(i + 3 * again) % len(STYLES)][2]
        yield label, {"color": color, "linestyle": line, "marker": marker, "markersize": 4, "linewidth": 1.4}


def add_legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """Of all panels, the paper's line last."""
    found: dict[str, Any] = {}
    for axis in axes:
        found |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    labels = sorted(found, key=lambda label: label.endswith(AS_PRINTED))
    figure.legend(
        [found[label] for label in labels],
        labels,
        loc="outside right center",
        fontsize=8,
        frameon=False,
        handlelength=3.2,
    )


def title_of(task: str) -> str:
    return task.removesuffix("-v2")


def panels_of(table: ResultTable, filled: Filled) -> list[str]:
    """Sets with any run."""
    return [task for task in table.measured if any(t == task for _, t in filled)]
