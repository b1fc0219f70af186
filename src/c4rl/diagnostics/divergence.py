"""When did a run blow up? The update at which watching its log would have stopped it."""

import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from c4rl.training.records import FAILED

BEYOND = 2.0  # times the largest value that rewards allow; function approximation overshoots a little
GROWTH = 100.0  # times the median so far
IN_A_ROW = 3  # a single line may be an outlier
HISTORY = 5  # lines before the median means anything


class Divergence(NamedTuple):
    update: int
    reason: str


def first_warning(lines: Sequence[dict[str, Any]], bound: float = math.inf) -> Divergence | None:
    """The first sign of divergence in a run's lines of metrics.jsonl, in their order.

    The run failed; a number is not finite; a mean Q is over twice `bound` = max|r| / (1 - gamma); or a critic loss is a
    hundred times its median so far, three lines in a row.
    """
    losses: list[float] = []
    high = 0
    telling = (line for line in lines if {"critic_loss", "q", FAILED} & line.keys())
    for line in sorted(telling, key=lambda one: one["update"]):
        update, q, loss = line["update"], line.get("q"), line.get("critic_loss")
        if FAILED in line:  # it was stopped before it logged what was not finite
            return Divergence(line[FAILED], "the run failed, and is kept as of its last good state")
        for name, value in (("Q", q), ("the critic's loss", loss)):
            if value is not None and not math.isfinite(float(value)):
                return Divergence(update, f"{name} is not finite")
        if q is not None and abs(float(q)) > BEYOND * bound > 0:  # without any reward, all values are above
            return Divergence(update, f"the mean Q is {float(q):.3g}, and rewards allow at most {bound:.3g}")
        if loss is not None:
            median = statistics.median(losses) if len(losses) >= HISTORY else math.inf
            high = high + 1 if loss > GROWTH * median > 0 else 0
            if high == IN_A_ROW:
                return Divergence(update, f"the critic's loss is {loss:.3g}, its median before {median:.3g}")
            if not high:
                losses.append(loss)
    return None
