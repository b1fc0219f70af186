"""Theorem 1, Var[delta] ~ gamma^2 k'^2 A + k^2 B - 2 gamma k k' C: the TD residual under small displacements.

What the statement needs, beyond what is printed (tests/theory/test_td_variance.py has the counterexamples):
- k and k' are fixed. Taken as random, as the theorem's first line says, they stay inside the moments (block form).
- The base residual r + gamma Q'(x') - Q(x) is constant: true when (x, x') is fixed and only the displacement is
  random; over a dataset two more terms appear (`dataset_variance`).
- With random directions the cross term is not Cov(g', g) of the batch: for one shared isotropic direction it is the
  uncentred E<g', g> / m, for independent ones it is 0. The bound |Cov| <= ||C||_2 that follows the theorem is about
  fixed directions and random gradients.
- Gradients are Lipschitz (`deviation_error_bound`). Those of a ReLU critic, the paper's own, jump: its error falls with
  k instead of k^2, and is 23% of the variance at k = 0.4 where that of a tanh critic is 0.8% (test_td_variance.py).
The figure's caption drops gamma from the cross term.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class TDTerms(NamedTuple):
    """A = Var<w', g'>, B = Var<w, g>, C = Cov(<w', g'>, <w, g>)."""

    A: Tensor
    B: Tensor
    C: Tensor

    def variance(self, gamma: float, k: float, k_next: float) -> Tensor:
        """Var[delta_lin] = gamma^2 k'^2 A + k^2 B - 2 gamma k k' C."""
        return gamma**2 * k_next**2 * self.A + k**2 * self.B - 2 * gamma * k * k_next * self.C


def td_terms(g_next: Tensor, g: Tensor, w_next: Tensor, w: Tensor) -> TDTerms:
    """The three terms over the sample axis: all arguments broadcast to [..., samples, m] -> [...].

    Directions sampled around one transition (the theorem): w', w [samples, m], g', g [m].
    Transitions sampled at fixed directions (the section on C4): w', w [m], g', g [samples, m].
    """
    projected_next, projected = torch.broadcast_tensors((w_next * g_next).sum(-1), (w * g).sum(-1))
    centred_next = projected_next - projected_next.mean(-1, keepdim=True)
    centred = projected - projected.mean(-1, keepdim=True)
    return TDTerms(centred_next.square().mean(-1), centred.square().mean(-1), (centred_next * centred).mean(-1))


def block_form(g_next: Tensor, g: Tensor, S_next: Tensor, S: Tensor, N: Tensor, gamma: float) -> Tensor:
    """Proposition (block form): Var[delta] from S' = Cov(k'w'), S = Cov(kw), N = Cov(k'w', kw); k, k' may be random."""
    quadratic = gamma**2 * g_next @ S_next @ g_next + g @ S @ g
    return quadratic - 2 * gamma * g_next @ N @ g


def equal_direction_variance(g_next: Tensor, g: Tensor, gamma: float, k: float) -> Tensor:
    """Corollary (equal directions, isotropic on the sphere): k^2/m |gamma g' - g|^2, for g', g [..., m]."""
    return k**2 / g.shape[-1] * (gamma * g_next - g).square().sum(-1)


def dataset_variance(base: Tensor, linear: Tensor) -> Tensor:
    """Var[delta] over transitions [..., samples], exactly: Var(base) + Var(linear) + 2 Cov(base, linear).

    The theorem keeps the middle term; the others vanish only where the base residual is constant.
    """
    base, linear = base - base.mean(-1, keepdim=True), linear - linear.mean(-1, keepdim=True)
    return base.square().mean(-1) + linear.square().mean(-1) + 2 * (base * linear).mean(-1)


def deviation_error_bound(lipschitz: float, gamma: float, k: float, k_next: float) -> float:
    """|std(delta) - std(delta_lin)| <= L/2 (gamma k'^2 + k^2) for L-Lipschitz gradients.

    The Taylor remainders are at most that large, and a standard deviation never exceeds the largest magnitude.
    """
    return 0.5 * lipschitz * (gamma * k_next**2 + k**2)
