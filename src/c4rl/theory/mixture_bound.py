"""Corollary 1: which divergences obey D(pi || sum_z w_z nu_z) <= sum_z w_z D(pi || nu_z)?

All of appendix A's, and more than it says:
- KL in both directions, chi^2, JSD: f-divergences, jointly convex.
- Renyi: for every order, also alpha > 1, where the paper says otherwise. For alpha > 1 each q -> p^alpha q^(1-alpha) is
  log-convex, sums and integrals of log-convex functions are log-convex, so log int p^alpha q^(1-alpha) is convex in q,
  and 1/(alpha-1) > 0. (van Erven and Harremoes 2014, "Renyi divergence and Kullback-Leibler divergence", Theorem 12:
  convex in the second argument for all orders in [0, inf]. Only *joint* convexity is lost above 1.)
- W1, MMD and MMD^2, MSE of probability vectors: norms, or squares of norms, of something linear in nu.
- Parameter-space MSE of Gaussians: a mixture of Gaussians is none, so its parameters must be said to be its moments.
  On (mean, std) the bound then holds: the left side is Gelbrich's lower bound of W2^2, and W2^2 is convex. On
  (mean, variance) and (mean, log std) it fails.
On states: a clustered buffer has nu(a|s) = sum_z w_z(s) nu_z(a|s) with weights that depend on s. The bound holds state
by state with w(s), and averaged over the data it reads E_s D(pi||nu) <= sum_z p_z E_{s|z} D(pi||nu_z): each cluster's
term over that cluster's own states, which is what single-cluster minibatches sample. With constant weights p_z it is
a bound for another mixture.

How much it says: the right side also measures how far the clusters are from each other. With disjoint supports
KL(pi || .), chi^2 and Renyi of order 1 and more make it infinite for every policy, pi = nu included, where the left
side is 0. For two unit Gaussians at -d and d it is about d^2 - log 2 at pi = nu.

Discrete distributions are rows on the last axis, [..., A] -> [...].
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor


def _plogp_over_q(p: Tensor, q: Tensor) -> Tensor:
    return torch.where(p > 0, p * (p / q).log(), 0.0)


def kl(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q); infinite where q misses mass of p."""
    return _plogp_over_q(p, q).sum(-1)


def renyi(p: Tensor, q: Tensor, alpha: float) -> Tensor:
    """D_alpha(p || q), alpha > 0, alpha != 1."""
    terms = torch.where(p > 0, alpha * p.log() + (1 - alpha) * q.log(), -math.inf)
    return torch.logsumexp(terms, -1) / (alpha - 1)


def chi_square(p: Tensor, q: Tensor) -> Tensor:
    """Pearson's chi^2(p || q) = sum p^2/q - 1."""
    return torch.where(p > 0, p.square() / q, 0.0).sum(-1) - 1


def jsd(p: Tensor, q: Tensor) -> Tensor:
    """JSD = 1/2 KL(p || m) + 1/2 KL(q || m), m = (p + q)/2 (the paper prints the first term without its m)."""
    half = 0.5 * (p + q)
    return 0.5 * (kl(p, half) + kl(q, half))


def w1(p: Tensor, q: Tensor) -> Tensor:
    """W1 of distributions on the points 0, 1, 2, ... of a line."""
    return (p - q).cumsum(-1).abs().sum(-1)


def mse(p: Tensor, q: Tensor) -> Tensor:
    """Mean squared difference of the probability vectors."""
    return (p - q).square().mean(-1)


def mmd(p: Tensor, q: Tensor) -> Tensor:
    """MMD (not squared) with the Laplacian kernel exp(-|i - j|) on a line."""
    index = torch.arange(p.shape[-1], dtype=p.dtype)
    gram = torch.exp(-(index[:, None] - index).abs())
    difference = p - q
    return ((difference @ gram) * difference).sum(-1).clamp_min(0).sqrt()


DIVERGENCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "kl": kl,
    "kl_data": lambda p, q: kl(q, p),
    "chi_square": chi_square,
    "jsd": jsd,
    "w1": w1,
    "mse": mse,
    "mmd": mmd,
    "mmd_squared": lambda p, q: mmd(p, q).square(),
}


def mixture_gap(divergence: Callable[[Tensor, Tensor], Tensor], p: Tensor, components: Tensor, w: Tensor) -> Tensor:
    """sum_z w_z D(p || nu_z) - D(p || sum_z w_z nu_z) for p [A], components [K, A], w [K]; the bound says >= 0."""
    return w @ divergence(p, components) - divergence(p, w @ components)


def mixture_moments(mean: Tensor, std: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of sum_z w_z N(mean_z, std_z^2), each [K] -> scalar."""
    overall = w @ mean
    return overall, (w @ (std.square() + (mean - overall).square())).sqrt()
