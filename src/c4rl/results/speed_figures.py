"""Figures of measured speeds."""

import itertools
from pathlib import Path

from matplotlib.figure import Figure

from c4rl.core.errors import InputError
from c4rl.results.figure_parts import AS_PRINTED, PAPERS, add_legend, new_figure, styled
from c4rl.results.speed_tables import UPDATES, Case, SpeedTable, read_speeds, repeats_of


def speed_figure(table: SpeedTable, speeds: Path) -> Figure:
    """Lines over the number of rows, or bars."""
    measured = read_speeds(speeds)
    wanted = {case.name for case in table.cases}
    some = {machine: cases for machine, cases in measured.items() if wanted & set(cases)}
    if not some:
        raise InputError(f"figure {table.name}: nothing was measured; `c4rl bench table {table.name}` does")
    foot = f"4x256 networks, made-up rows; {repeats_of(table, some)}; {'; '.join(some)}"
    if table.quantity == "share":
        figure, (axis,) = new_figure(1, table.title, foot, height=3.2)
        lines = list(itertools.product(some, table.methods))
        for (machine, method), (_, style) in zip(lines, styled([str(line) for line in lines]), strict=True):
            cases = [Case(method, *column) for column in table.columns]
            points = [(c.rows, table.value(c, some[machine][c.name])) for c in cases if c.name in some[machine]]
            label = method.label if len(some) == 1 else f"{method.label}, {machine}"
            axis.plot(*zip(*points, strict=True), label=label, **style)
        theirs = [(rows, value) for rows, _ in table.columns if (value := table.printed(table.methods[0], rows))]
        axis.plot(*zip(*theirs, strict=True), label=f"CQL + C4, HalfCheetah, {AS_PRINTED}", **PAPERS)
        axis.set_xscale("log")
        axis.set_xlabel("rows of data")
        axis.set_ylabel("clustering, % of training time")
        axis.set_ylim(bottom=0)
    else:
        figure, (axis,) = new_figure(1, table.title, foot, height=0.8 + 0.32 * len(table.methods))
        cases_of = next(iter(some.values()))
        hatches = ("", "//")
        for i, ((rows, runs), head) in enumerate(zip(table.columns, table.heads(), strict=True)):
            found = [
                (y + 0.38 * (i - 0.5), table.value(case, cases_of[case.name]))
                for y, case in enumerate(Case(method, rows, runs) for method in table.methods)
                if case.name in cases_of
            ]
            if not found:
                continue
            color = ("#0072b2", "#e69f00")[i]
            y, width = zip(*found, strict=True)
            axis.barh(y, width, height=0.36, label=head, color=color, hatch=hatches[i], edgecolor="w")
        axis.set_yticks(range(len(table.methods)), [method.label for method in table.methods], fontsize=8)
        axis.invert_yaxis()
        axis.set_xlabel(f"minutes per run of {UPDATES:,} updates")
    add_legend(figure, [axis])
    return figure
