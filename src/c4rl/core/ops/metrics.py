"""What is left of an update for the log."""

import torch
from torch import Tensor

from c4rl.core import ops


def add_metrics(values: Tensor, sums: Tensor, failed_at: Tensor, step: Tensor) -> None:
    """sums += values, [metrics, R]; failed_at [R] becomes step where it is negative and a value is not finite."""
    if own := ops.kernels_for(values, "metrics"):
        own.add_metrics(values, sums, failed_at, step)
    else:
        sums += values
        note_failures(values, failed_at, step)


def note_failures(values: Tensor, failed_at: Tensor, step: Tensor) -> None:
    """failed_at [R] becomes step where it is negative and one of values [..., R] is not finite."""
    bad = ~values.isfinite().flatten(0, -2).all(0) & (failed_at < 0)
    failed_at.copy_(torch.where(bad, step, failed_at))
