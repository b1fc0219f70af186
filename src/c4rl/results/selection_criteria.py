"""What each way to choose a checkpoint is worth: the last, the one that held-out trajectories prefer, the best."""

import numpy as np

from c4rl.core.curves import late_mean
from c4rl.results.store import Entry
from c4rl.results.table_text import MISSING, Rows, mean_words, number, overall_heads, short
from c4rl.results.tables import Filled, ResultTable
from c4rl.training.records import CRITERIA

RULES = {
    "last": "last",
    "late": "mean of the second half",
    "held-out": "least held-out action error",
    "held-out-td": "least held-out TD error",
    "best": "best in the simulator",
}


def criteria_rows(table: ResultTable, filled: Filled) -> Rows:
    """A line for each method and rule: scores of the sets, their mean, and its share of the gap from last to best."""
    rows = [["", "checkpoint", *map(short, table.measured), overall_heads(table)[0], "of the gap"]]
    for method in table.methods:
        cells = [filled.get((method.label, task)) for task in table.measured]
        if not all(cells):
            continue
        entries = [cell.entries for cell in cells if cell]
        runs = min(map(len, entries))  # as many of each set, the first ones
        found = {rule: [[score_by(rule, entry) for entry in some[:runs]] for some in entries] for rule in RULES}
        scores = {
            rule: np.array(values, dtype=float).T  # [runs, sets]
            for rule, values in found.items()
            if all(v is not None for one in values for v in one)
        }
        for rule, own in scores.items():
            words = [number(table, float(own[:, i].mean())) for i in range(own.shape[1])]
            label = method.label if rule == "last" else ""
            rows.append([label, RULES[rule], *words, mean_words(table, own), _recovered(rule, scores)])
    return rows


def score_by(rule: str, entry: Entry) -> float | None:
    """The score of the checkpoint that a rule chooses; None where the run did not log what it needs."""
    if rule == "last":
        return float(entry.scores[-1])
    if rule == "late":
        return late_mean(entry.scores)
    if rule == "best":
        return float(entry.scores.max())
    updates, errors = entry.curve(CRITERIA[rule])
    if not len(errors):
        return None
    chosen = entry.data.get("selected", {})
    update = chosen["update"] if chosen.get("criterion") == CRITERIA[rule] else updates[np.argmin(errors)]
    return float(entry.scores[entry.updates.index(int(update))])


def _recovered(rule: str, scores: dict[str, np.ndarray]) -> str:
    """The share of the mean gap between last and best."""
    gap = float((scores["best"] - scores["last"]).mean())
    if rule in ("last", "best") or gap <= 0:
        return MISSING
    return f"{float((scores[rule] - scores['last']).mean()) / gap:.0%}"
