"""Theorem 2: C = E[C_Z] + Cov(mu'_Z, mu_Z), the bound on a single-cluster batch, and the alignment lemma.

The identity and the bounds hold as printed, for soft responsibilities too: drawing z ~ p and rows ~ r_iz draws (i, Z)
with Z | i ~ r_i. What does not follow is that ||C_z|| is below ||C||: a cross-covariance has no sign, and the two
parts can cancel. What does shrink on average is the bound:
sum_z p_z sqrt(tr Sigma'_z tr Sigma_z) <= sqrt(tr Sigma' tr Sigma).
The global objective L_TD + lambda sum_z p_z ||C_z||_F^2 over (phi, p, mu, Omega) lacks the mixture's likelihood: as
printed, Omega_z with C_z = 0 minimises it whatever the data. Algorithm 1 takes p, mu and Omega from EM instead.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class TotalCovariance(NamedTuple):
    """Moments of (g', g) under a soft clustering; population moments (1/n)."""

    C: Tensor  # [m, m] of all rows
    p: Tensor  # [K]
    C_z: Tensor  # [K, m, m] of each cluster
    Sigma_next_z: Tensor  # [K, m, m]
    Sigma_z: Tensor  # [K, m, m]
    within: Tensor  # [m, m] E[C_Z]
    between: Tensor  # [m, m] Cov(mu'_Z, mu_Z)


def total_covariance(g_next: Tensor, g: Tensor, responsibilities: Tensor) -> TotalCovariance:
    """Each term from its own definition, for g', g [n, m] and responsibilities [n, K] with rows that sum to 1."""
    n = g.shape[0]
    p = responsibilities.mean(0)
    share = responsibilities / responsibilities.sum(0)  # the law of a row drawn from cluster z
    mu_next, mu = share.T @ g_next, share.T @ g
    x, y = g_next - mu_next.unsqueeze(1), g - mu.unsqueeze(1)  # [K, n, m]
    weight = share.T.unsqueeze(-1)
    C_z = (weight * x).mT @ y
    offset_next, offset = mu_next - p @ mu_next, mu - p @ mu
    return TotalCovariance(
        C=(g_next - g_next.mean(0)).T @ (g - g.mean(0)) / n,
        p=p,
        C_z=C_z,
        Sigma_next_z=(weight * x).mT @ x,
        Sigma_z=(weight * y).mT @ y,
        within=torch.einsum("k,kab->ab", p, C_z),
        between=(p.unsqueeze(-1) * offset_next).T @ offset,
    )


def within_bound_chain(C: Tensor, Sigma_next: Tensor, Sigma: Tensor, w_next: Tensor, w: Tensor) -> list[Tensor]:
    """The bound on a single-cluster batch, link by link, for unit w', w, increasing from left to right:
    |w'^T C w| <= ||C||_2 <= sqrt(||Sigma'||_2 ||Sigma||_2) <= sqrt(tr Sigma' tr Sigma)."""
    norm = torch.linalg.matrix_norm
    return [
        (w_next @ C @ w).abs(),
        norm(C, 2),
        (norm(Sigma_next, 2) * norm(Sigma, 2)).sqrt(),
        (Sigma_next.trace() * Sigma.trace()).sqrt(),
    ]


def alignment_lower_bound(C: Tensor, w_next: Tensor, w: Tensor) -> Tensor:
    """Lemma (alignment): w'^T C w >= sigma_1 cos t' cos t - sigma_2 sin t' sin t, angles in [0, pi] to u_1 and v_1.

    At w' = u_1, w = v_1 the covariance is sigma_1 >= 0. The lemma then calls "the cross term" nonpositive: that is
    the term -2 gamma k k' Cov of the variance, not the covariance it points to.
    """
    U, S, Vh = torch.linalg.svd(C)
    cos_next, cos = U[:, 0] @ w_next, Vh[0] @ w
    sin_next, sin = (1 - cos_next.square()).clamp_min(0).sqrt(), (1 - cos.square()).clamp_min(0).sqrt()
    second = S[1] if len(S) > 1 else S.new_zeros(())
    return S[0] * cos_next * cos - second * sin_next * sin
