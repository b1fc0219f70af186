"""An update's metrics, summed and checked in one launch."""

import triton
import triton.language as tl
from torch import Tensor

RUNS = 32  # of one program


@triton.jit
def _add_kernel(VALUES, SUMS, FAILED_AT, STEP, metrics, runs, METRICS: tl.constexpr, RUNS: tl.constexpr):
    m, r = tl.arange(0, METRICS)[:, None], tl.program_id(0) * RUNS + tl.arange(0, RUNS)
    inside = (m < metrics) & (r < runs)[None, :]
    place = m * runs + r[None, :]
    values = tl.load(VALUES + place, mask=inside, other=0.0)
    tl.store(SUMS + place, tl.load(SUMS + place, mask=inside, other=0.0) + values, mask=inside)
    finite = tl.abs(values) < float("inf")  # false for NaN too
    failed = tl.max(tl.where(finite, 0, 1), axis=0) > 0
    before = tl.load(FAILED_AT + r, mask=r < runs, other=0)
    tl.store(FAILED_AT + r, tl.where(failed & (before < 0), tl.load(STEP), before), mask=r < runs)


def add_metrics(values: Tensor, sums: Tensor, failed_at: Tensor, step: Tensor) -> None:
    """sums += values, [metrics, R]; failed_at [R] becomes step where it is negative and a value is not finite."""
    metrics, runs = values.shape
    block = max(triton.next_power_of_2(metrics), 2)
    _add_kernel[(triton.cdiv(runs, RUNS),)](values, sums, failed_at, step, metrics, runs, block, RUNS)
