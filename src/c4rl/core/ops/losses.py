"""Losses of small tensors."""

import torch
import torch.nn.functional as F
from torch import Tensor

from c4rl.core import ops

MOST_FUSED_ACTIONS = 1024  # per state, that one program of the gap's kernels can hold


def clipped_target(rewards: Tensor, continues: Tensor, discount: float | Tensor, next_q: Tensor) -> Tensor:
    """r + γ min_m Q_m of [R, B] and [R, M, B] -> [R, B], without Q where the episode ended; discount: γ, or [R, 1]."""
    if own := ops.kernels_for(next_q, "losses"):
        return own.clipped_target(rewards, continues, discount, next_q)
    return rewards + discount * continues * next_q.amin(1)


def squared_error(x: Tensor, y: Tensor) -> Tensor:
    """(x - y)², broadcast: three kernels fewer, forward and backward, than with operators."""
    x, y = torch.broadcast_tensors(x, y)
    return F.mse_loss(x, y, reduction="none")


def mean_squared_error(x: Tensor, y: Tensor, keep: int = 1) -> Tensor:
    """(x - y)², y broadcast, averaged over all but the first `keep` axes: runs [R], or runs and members [R, M].

    No gradient flows into y.
    """
    if own := ops.kernels_for(x, "losses"):
        return own.mean_squared_error(x, y.detach().expand_as(x), keep)
    return squared_error(x, y.detach()).mean(tuple(range(keep, x.dim())))


def soft_actor_loss(alpha: Tensor, log_prob: Tensor, q: Tensor) -> Tensor:
    """E[α log π - min_m Q_m] of alpha [R], log_prob [R, B] and q [R, M, B] -> [R]. No gradient flows into alpha."""
    if own := ops.kernels_for(q, "losses"):
        return own.soft_actor_loss(alpha, log_prob, q)
    return (alpha.unsqueeze(1) * log_prob - q.amin(1)).mean(1)


def soft_maximum_gap(q: Tensor, log_density: Tensor, q_data: Tensor) -> Tensor:
    """E[log Σ_n exp(q_n - log μ_n) - q_data] of q [R, M, B, N], log_density [R, B, N], q_data [R, M, B] -> [R, M].

    No gradient flows into log_density.
    """
    if q.shape[-1] <= MOST_FUSED_ACTIONS and (own := ops.kernels_for(q, "losses")):
        return own.soft_maximum_gap(q, log_density, q_data)
    return ((q - log_density.unsqueeze(1)).logsumexp(-1) - q_data).mean(2)


def relative_mean(q: Tensor, weight: float | Tensor) -> Tensor:
    """weight · E[q] / E|q| of each run, the divisor without gradient, [R, B] -> [R]."""
    if own := ops.kernels_for(q, "losses"):
        return own.relative_mean(q, weight)
    return weight / q.detach().abs().mean(1) * q.mean(1)
