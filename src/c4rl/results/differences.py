"""What each row of a table adds to the row that it was made from."""

import numpy as np

from c4rl.results.statistics import difference_interval, mean
from c4rl.results.table_text import MISSING, Rows, number, short, with_interval
from c4rl.results.tables import Cell, Filled, Method, ResultTable, overall

WHICH = "late"


def difference_rows(table: ResultTable, filled: Filled) -> Rows:
    """A line for each method that is compared with another: the differences on each set and of the means."""
    rows = [["", "against", *map(short, table.tasks), f"difference of means, {len(table.measured)} sets [95%]", "mean"]]
    methods = {method.label: method for method in table.methods}
    for method in (method for method in table.methods if method.against in methods):
        pairs = [[filled.get((label, task)) for label in (method.label, method.against)] for task in table.tasks]
        words = [_of_cells(table, *pair) for pair in pairs]
        rows.append([method.label, method.against, *words, *_of_means(table, filled, method, methods[method.against])])
    return rows


def _of_cells(table: ResultTable, cell: Cell | None, other: Cell | None) -> str:
    """As in +16.8 ± 8.1."""
    if cell is None or other is None:
        return MISSING
    values, others = (one.values(WHICH, table.quantity) for one in (cell, other))
    low, high = difference_interval(values, others)
    half = f" ± {number(table, (high - low) / 2)}" if np.isfinite(high) else ""
    return f"{number(table, values.mean() - others.mean(), '+')}{half}"


def _of_means(table: ResultTable, filled: Filled, method: Method, other: Method) -> list[str]:
    """The difference, and the method's own mean."""
    found = [overall(table, filled, one, WHICH) for one in (method, other)]
    scores = [one for one in found if one is not None]
    own = MISSING if found[0] is None else number(table, float(mean(found[0])))
    if len(scores) < 2:
        return [MISSING, own]
    difference = float(mean(scores[0]) - mean(scores[1]))
    return [with_interval(table, difference, difference_interval(*scores), "+"), own]
