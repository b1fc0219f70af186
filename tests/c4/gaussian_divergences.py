"""Closed forms of appendix A's divergences for diagonal Gaussians P = N(mean_p, std_p^2), Q = N(mean_q, std_q^2), the
oracle of the sample forms: [..., a] -> [...]."""

import math
from collections.abc import Callable

import torch
from torch import Tensor


def gaussian_kl(mean_p: Tensor, std_p: Tensor, mean_q: Tensor, std_q: Tensor) -> Tensor:
    """KL(P || Q)."""
    ratio, shift = std_p / std_q, (mean_p - mean_q) / std_q
    return 0.5 * (ratio.square() + shift.square() - 1 - 2 * ratio.log()).sum(-1)


def gaussian_renyi(mean_p: Tensor, std_p: Tensor, mean_q: Tensor, std_q: Tensor, alpha: float) -> Tensor:
    """D_alpha(P || Q), alpha > 0, alpha != 1; infinite where alpha std_q^2 <= (alpha - 1) std_p^2 in a dimension."""
    variance = alpha * std_q.square() + (1 - alpha) * std_p.square()
    finite = variance > 0
    safe = torch.where(finite, variance, 1.0)  # keeps the gradient of the finite dimensions free of NaN
    per_dimension = (std_q / std_p).log() + (std_q.square() / safe).log() / (2 * (alpha - 1))
    per_dimension = per_dimension + 0.5 * alpha * (mean_p - mean_q).square() / safe
    return torch.where(finite, per_dimension, math.inf).sum(-1)


def gaussian_chi_square(mean_p: Tensor, std_p: Tensor, mean_q: Tensor, std_q: Tensor) -> Tensor:
    """Pearson's chi^2(P || Q) = exp(D_2(P || Q)) - 1; infinite where std_p^2 >= 2 std_q^2 in a dimension."""
    order_two = gaussian_renyi(mean_p, std_p, mean_q, std_q, 2.0)
    finite = order_two.isfinite()  # expm1's gradient at infinity would be NaN
    return torch.where(finite, torch.expm1(torch.where(finite, order_two, 0.0)), math.inf)


def gaussian_w1(mean_p: Tensor, std_p: Tensor, mean_q: Tensor, std_q: Tensor) -> Tensor:
    """W1(P, Q) for the ground metric |a - b|_1, where it is the sum of the dimensions' own W1.

    In one dimension the quantile coupling is optimal: W1 = E|d + e Z| for d, e the differences of means and stds.
    std may be 0 (a deterministic policy).
    """
    d, e = (mean_p - mean_q).abs(), (std_p - std_q).abs()
    spread = e.clamp_min(torch.finfo(e.dtype).tiny ** 0.25)
    folded = spread * math.sqrt(2 / math.pi) * torch.exp(-0.5 * (d / spread).square())
    return (folded + d * torch.erf(d / (spread * math.sqrt(2)))).sum(-1)


def gaussian_mse(mean_p: Tensor, std_p: Tensor, mean_q: Tensor, std_q: Tensor) -> Tensor:
    """Parameter-space MSE, the mean over dimensions of (difference of means)^2 + (difference of stds)^2.

    On means and standard deviations the mixture bound holds; on variances or log stds it does not
    (theory/mixture_bound.py).
    """
    return ((mean_p - mean_q).square() + (std_p - std_q).square()).mean(-1)


GAUSSIAN: dict[str, Callable[..., Tensor]] = {
    "kl": gaussian_kl,
    "kl_data": lambda mean_p, std_p, mean_q, std_q: gaussian_kl(mean_q, std_q, mean_p, std_p),
    "renyi": gaussian_renyi,
    "chi_square": gaussian_chi_square,
    "w1": gaussian_w1,
    "mse": gaussian_mse,
}
