"""The cross-covariance of two sets of rows, and its size."""

import torch
from torch import Tensor

from c4rl.core import ops

MOST_FUSED_ROWS = 1024  # what one program of the covariance's kernels can hold


def cross_covariance(g_next: Tensor, g: Tensor, valid: Tensor) -> Tensor:
    """C_hat = Cov_B(g', g) = 1/(n-1) sum_i (g'_i - mean g') (g_i - mean g)^T over the valid rows, [..., m, m].

    No gradient flows through g'. The centred g' sums to zero, so the mean of g drops out of C_hat and of its
    gradient; it is subtracted (detached) only to keep float32 sums small, and costs nothing in the backward pass.
    """
    weight = valid.to(g.dtype).unsqueeze(-1)
    n = weight.sum(-2, keepdim=True)
    with torch.no_grad():
        mean_next, mean = ((rows * weight).sum(-2, keepdim=True) / n.clamp_min(1) for rows in (g_next, g))
        centred_next = (g_next - mean_next) * weight / (n - 1).clamp_min(1)
    return centred_next.mT @ (g - mean)


def cross_covariance_size(g_next: Tensor, g: Tensor, valid: Tensor, beta: float | Tensor) -> Tensor:
    """||C||_F^2 + beta (tr C)^2 of C = Cov(g', g), [...]; see `cross_covariance`. beta broadcasts to [...]."""
    fits = g.dim() == 4 and g.shape[2] <= MOST_FUSED_ROWS and valid.shape == (len(g), 1, g.shape[2])
    if fits and (own := ops.kernels_for(g, "covariance")):
        return own.cross_covariance_size(g_next, g, valid, beta)
    C = cross_covariance(g_next, g, valid)
    size = C.square().sum((-2, -1))
    if not isinstance(beta, Tensor) and beta == 0:
        return size
    return size + beta * C.diagonal(dim1=-2, dim2=-1).sum(-1).square()
