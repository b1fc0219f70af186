"""What the losses of many algorithms are made of."""

import torch
import torch.nn.functional as F
from torch import Tensor

from c4rl.core.buffer import Batch
from c4rl.core.networks import per_row
from c4rl.core.ops import fused


def td_target(batch: Batch, discount: float | Tensor, next_value: Tensor) -> Tensor:
    """y = r + γ V(s') [R, B], without V where the episode ended. discount: γ, or one per run [R]."""
    return batch.rewards + per_row(discount) * batch.continues * next_value


def clipped_target(batch: Batch, discount: float | Tensor, next_q: Tensor) -> Tensor:
    """The same with the smallest of next_q [R, M, B] for V(s'). Nothing can be differentiated."""
    if fused(next_q):
        from c4rl.core.triton import losses  # needs Triton

        return losses.clipped_target(batch.rewards, batch.continues, discount, next_q)
    return td_target(batch, discount, next_q.amin(1))


def squared_error(x: Tensor, y: Tensor) -> Tensor:
    """(x - y)², broadcast: three kernels less, there and back, than by operators."""
    x, y = torch.broadcast_tensors(x, y)
    return F.mse_loss(x, y, reduction="none")


def mean_squared_error(x: Tensor, y: Tensor, keep: int = 1) -> Tensor:
    """(x - y)², y broadcast, averaged over all but the first `keep` axes: runs [R], or runs and members [R, M].

    Nothing flows back into y.
    """
    if fused(x):
        from c4rl.core.triton.losses import mean_square  # needs Triton

        def with_four_axes(t: Tensor) -> Tensor:
            t = t if keep == 2 else t.unsqueeze(1)
            return t if t.dim() == 4 else t.unsqueeze(3)

        mean = mean_square(with_four_axes(x), with_four_axes(y.detach().expand_as(x)))
        return mean if keep == 2 else mean.squeeze(1)
    return squared_error(x, y.detach()).mean(tuple(range(keep, x.dim())))


def relative_mean(q: Tensor, weight: float | Tensor) -> Tensor:
    """weight · E[q] / E|q| of each run, the divisor without gradient, [R, B] -> [R]."""
    if fused(q):
        from c4rl.core.triton import losses  # needs Triton

        return losses.relative_mean(q, weight)
    return weight / q.detach().abs().mean(1) * q.mean(1)
