"""Losses of small tensors."""

import torch
import torch.nn.functional as F
from torch import Tensor

from c4rl.core import ops


def clipped_target(rewards: Tensor, continues: Tensor, discount: float | Tensor, next_q: Tensor) -> Tensor:
    """r + γ min_m Q_m of [R, B] and [R, M, B] -> [R, B], without Q where the episode ended; discount: γ, or [R, 1]."""
    if own := ops.kernels_for(next_q, "losses"):
        return own.clipped_target(rewards, continues, discount, next_q)
    return rewards + discount * continues * next_q.amin(1)


def squared_error(x: Tensor, y: Tensor) -> Tensor:
    """(x - y)², broadcast: three kernels less, there and back, than by operators."""
    x, y = torch.broadcast_tensors(x, y)
    return F.mse_loss(x, y, reduction="none")


def mean_squared_error(x: Tensor, y: Tensor, keep: int = 1) -> Tensor:
    """(x - y)², y broadcast, averaged over all but the first `keep` axes: runs [R], or runs and members [R, M].

    Nothing flows back into y.
    """
    if own := ops.kernels_for(x, "losses"):
        return own.mean_squared_error(x, y.detach().expand_as(x), keep)
    return squared_error(x, y.detach()).mean(tuple(range(keep, x.dim())))


def relative_mean(q: Tensor, weight: float | Tensor) -> Tensor:
    """weight · E[q] / E|q| of each run, the divisor without gradient, [R, B] -> [R]."""
    if own := ops.kernels_for(q, "losses"):
        return own.relative_mean(q, weight)
    return weight / q.detach().abs().mean(1) * q.mean(1)
