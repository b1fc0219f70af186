"""The cross-covariance of two sets of rows, and its size."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from c4rl.core import ops

MOST_FUSED_ROWS = 1024  # what one program of the covariance's kernels can hold


def cross_covariance(g_next: Tensor, g: Tensor, valid: Tensor) -> Tensor:
    """C_hat = Cov_B(g', g) = 1/(n-1) sum_i (g'_i - mean g') (g_i - mean g)^T over the valid rows, [..., m, m].

    No gradient flows through g'. The centred g' sums to zero, so the mean of g drops out of C_hat and of its
    gradient; it is subtracted (detached) only to keep float32 sums small, and costs nothing in the backward pass.
    """
    scaled_next, _, mean = _centred(g_next, g, valid)
    return scaled_next.mT @ (g - mean)


@torch.no_grad()
def _centred(g_next: Tensor, g: Tensor, valid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(g' - mean g') / (n-1), 0 in rows that are not valid; g - mean g; and mean g.

    On the CPU fresh memory costs as much as the arithmetic: what was weighted is written over.
    """
    weight = valid.to(g.dtype).unsqueeze(-1)
    n = weight.sum(-2, keepdim=True)
    scaled_next, centred = g_next * weight, g * weight
    mean_next, mean = (rows.sum(-2, keepdim=True) / n.clamp_min(1) for rows in (scaled_next, centred))
    torch.sub(g_next, mean_next, out=scaled_next).mul_(weight / (n - 1).clamp_min(1))
    return scaled_next, torch.sub(g, mean, out=centred), mean


def cross_covariance_size(g_next: Tensor, g: Tensor, valid: Tensor, beta: float | Tensor) -> Tensor:
    """||C||_F^2 + beta (tr C)^2 of C = Cov(g', g), [...]; see `cross_covariance`. beta broadcasts to [...]."""
    fits = g.dim() == 4 and g.shape[2] <= MOST_FUSED_ROWS and valid.shape == (len(g), 1, g.shape[2])
    if fits and (own := ops.kernels_for(g, "covariance")):
        return own.cross_covariance_size(g_next, g, valid, beta)
    return _Size.apply(g_next, g, valid, beta)


class _Size(torch.autograd.Function):
    """Written out, since half of autograd's own time would go into copies: dR/dC = 2 (C + beta tr(C) I) is at hand."""

    @staticmethod
    def forward(ctx: Any, g_next: Tensor, g: Tensor, valid: Tensor, beta: float | Tensor) -> Tensor:
        scaled_next, centred, _ = _centred(g_next, g, valid)
        C = scaled_next.mT @ centred
        diagonal = C.diagonal(dim1=-2, dim2=-1)
        trace = diagonal.sum(-1)
        size = C.square().sum((-2, -1)) + beta * trace.square()
        diagonal += (beta * trace).unsqueeze(-1)
        ctx.save_for_backward(scaled_next, C)
        return size

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        scaled_next, slope = ctx.saved_tensors
        return None, (scaled_next @ slope).mul_(2 * gradient[..., None, None]), None, None
