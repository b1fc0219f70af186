"""Training on clustered buffers, and its appendix: lower bounds of the CQL target, cluster-wise training, and what a KL
term stabilises.

Holds with a correction or only under more than is printed (counterexamples in tests/theory/test_policy_bounds.py):
- Global freeze: the bound holds for Q = Q^pi, where V^pi = E_pi Q. With a critic that overestimates, it fails.
- The cluster-decomposed bound writes the penalty at s. The step before it has the supremum over all s', and with the
  penalty at s alone it is no lower bound of the CQL target; it is one of the per-state surrogate with nu inside.
- "Does not bias the direction": cluster sampling is unbiased for the gradient of sum_z w_z J_z, whose gradient can be
  opposite to that of the mixture objective, and whose maximiser can lie far from every cluster.
- Isotropic penalty: uniqueness needs psi' non-decreasing (not only psi increasing), c > 0 and g != 0. The Lambert
  formula is right; the line before it should read y e^(2y) = R/(4 lambda^2).
- KL stabilisation: strong concavity and the step cap |g|/(m beta rho) need KL m-strongly convex, E_pi[Q] concave in
  theta and, where alpha > 0, chi^2 convex in theta. From the quadratic lower bound, with E_pi[Q] concave, follows twice
  that cap (`step_cap`), whatever chi^2 is.
- chi^2 <= beta/(2 alpha) - 1 is false in general: for beta < 2 alpha it is negative, and no bound free of
  R = g^T Sigma g exists. It holds exactly when R <= 4 beta^2 rho^2 log(beta/(2 alpha)). `chi_square_cap` is a true one.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from c4rl.theory.mixture_bound import chi_square, kl

# ---------------------------------------------------------------------------------------------------------------------
# Finite MDPs: transitions P [S, A, S], rewards r [S, A], policies pi [S, A]
# ---------------------------------------------------------------------------------------------------------------------


def resolvent(transitions: Tensor, pi: Tensor, gamma: float, h: Tensor) -> Tensor:
    """(I - gamma P^pi)^-1 h for h [S], the discounted sum of h along pi."""
    P_pi = torch.einsum("sa,sat->st", pi, transitions)
    return torch.linalg.solve(torch.eye(len(h), dtype=h.dtype) - gamma * P_pi, h)


def action_values(transitions: Tensor, rewards: Tensor, pi: Tensor, gamma: float) -> Tensor:
    """Q^pi [S, A]."""
    V = resolvent(transitions, pi, gamma, (pi * rewards).sum(-1))
    return rewards + gamma * transitions @ V


def penalty(pi: Tensor, nu: Tensor, alpha: float, beta: float) -> Tensor:
    """alpha chi^2(pi || nu) + beta KL(pi || nu) per state, [..., A] -> [...]."""
    return alpha * chi_square(pi, nu) + beta * kl(pi, nu)


def cql_target(
    transitions: Tensor, rewards: Tensor, pi: Tensor, nu: Tensor, gamma: float, alpha: float, beta: float = 0.0
) -> Tensor:
    """U(pi; s) = V^pi(s) - ((I - gamma P^pi)^-1 [alpha chi^2 + beta KL])(s), [S]."""
    return resolvent(transitions, pi, gamma, (pi * rewards).sum(-1) - penalty(pi, nu, alpha, beta))


def frozen_lower_bound(Q: Tensor, pi: Tensor, nu: Tensor, gamma: float, alpha: float, beta: float = 0.0) -> Tensor:
    """Lemma (global freeze): E_pi[Q(s, .)] - 1/(1-gamma) sup_s' [alpha chi^2 + beta KL](s'), [S]; needs Q = Q^pi."""
    return (pi * Q).sum(-1) - penalty(pi, nu, alpha, beta).max() / (1 - gamma)


def surrogate(Q: Tensor, pi: Tensor, nu: Tensor, gamma: float, alpha: float, beta: float) -> Tensor:
    """J(pi; nu) = E_pi[Q] - 1/(1-gamma) [alpha chi^2(pi || nu) + beta KL(pi || nu)] at a state, [..., A] -> [...].

    With nu = nu_z it is the per-cluster objective J_z; sum_z w_z J_z <= J(pi; sum_z w_z nu_z) by the mixture bound.
    """
    return (pi * Q).sum(-1) - penalty(pi, nu, alpha, beta) / (1 - gamma)


# ---------------------------------------------------------------------------------------------------------------------
# The mean of a Gaussian policy with the behaviour's covariance Sigma, Q linear with gradient g
# ---------------------------------------------------------------------------------------------------------------------


def _increasing_root(function: Callable[[float], float], target: float) -> float:
    """kappa > 0 with function(kappa) = target for a continuous, unbounded, increasing function; bisection."""
    low, high = 0.0, 1.0
    while function(high) < target:
        low, high = high, 2 * high
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if function(middle) < target else (low, middle)
    return 0.5 * (low + high)


def isotropic_step(psi_prime: Callable[[float], float], R: float, penalty_weight: float) -> float:
    """kappa* with 2 lambda psi'(kappa^2 R) kappa = 1; the maximiser is mu* = mu_beta + kappa* Sigma g.

    psi' positive and non-decreasing, lambda > 0: the left side then grows from 0 without bound.
    """
    return _increasing_root(lambda kappa: 2 * penalty_weight * psi_prime(kappa * kappa * R) * kappa, 1.0)


def lambert_w(z: float) -> float:
    """The principal branch for z >= 0: W e^W = z."""
    return 0.0 if z == 0 else _increasing_root(lambda w: math.log(w) + w if w > 0 else -math.inf, math.log(z))


def pearson_step(R: float, penalty_weight: float) -> float:
    """kappa* = sqrt(W(R / (2 lambda^2)) / (2R)) for psi(r) = e^r - 1, as printed."""
    return math.sqrt(lambert_w(R / (2 * penalty_weight**2)) / (2 * R))


def kl_step(penalty_weight: float) -> float:
    """kappa* = 1/lambda for psi(r) = r/2."""
    return 1 / penalty_weight


def stabilised_step(R: float, alpha: float, beta: float, gamma: float) -> float:
    """kappa* of chi^2 and KL together: (2 alpha rho e^(kappa^2 R) + beta rho) kappa = 1, rho = 1/(1-gamma)."""
    rho = 1 / (1 - gamma)

    def left_side(kappa: float) -> float:
        exponent = min(kappa * kappa * R, 700.0)  # e^700 is far above any target
        return (2 * alpha * rho * math.exp(exponent) + beta * rho) * kappa

    return _increasing_root(left_side, 1.0)


def kappa_cap(alpha: float, beta: float, gamma: float) -> float:
    """kappa* <= (1-gamma)/(2 alpha + beta); the paper's (1-gamma)/beta without the free factor e^(...) >= 1."""
    return (1 - gamma) / (2 * alpha + beta)


def chi_square_cap(R: float, alpha: float, beta: float, gamma: float) -> float:
    """A true cap on chi^2(pi_mu* || pi_beta) = e^(kappa*^2 R) - 1, instead of beta/(2 alpha) - 1.

    The smaller of e^(kappa_cap^2 R) - 1, tight for small R, and e^(W(R/(2 alpha^2 rho^2))/2) - 1 = chi^2 without the
    KL term, which grows only like sqrt(R / (2 log R)) / (alpha rho).
    """
    exponent = kappa_cap(alpha, beta, gamma) ** 2 * R
    if alpha > 0:
        exponent = min(exponent, 0.5 * lambert_w(R * (1 - gamma) ** 2 / (2 * alpha**2)))
    return math.expm1(exponent) if exponent < 700 else math.inf


def printed_chi_square_cap_holds(R: float, alpha: float, beta: float, gamma: float) -> bool:
    """Exactly when chi^2 <= beta/(2 alpha) - 1: beta >= 2 alpha and R <= 4 beta^2 rho^2 log(beta/(2 alpha)).

    The cap says kappa* >= 1/(2 beta rho), and the left side of kappa's equation is increasing.
    """
    rho = 1 / (1 - gamma)
    steepest = 4 * (beta * rho) ** 2 * math.log(beta / (2 * alpha))
    return beta >= 2 * alpha and steepest >= R


def step_cap(gradient_norm: float, m: float, beta: float, gamma: float, strongly_convex: bool) -> float:
    """A cap on |theta* - theta_beta| for E_pi[Q] concave in theta: |g|/(m beta rho) if KL is m-strongly convex, and
    chi^2 convex or without weight; twice that if only KL >= m/2 |theta - theta_beta|^2 is known (compare the objective
    at theta* with that at theta_beta)."""
    return (1 if strongly_convex else 2) * gradient_norm * (1 - gamma) / (m * beta)


def poor_coverage_chi_square(delta: float, epsilon: float) -> float:
    """Remark (poor coverage): the least chi^2 when pi puts delta on a set A that nu gives epsilon.

    The paper's delta^2/epsilon - 1 and the complement's share (1-delta)^2/(1-epsilon); attained by two-point policies.
    """
    return delta**2 / epsilon + (1 - delta) ** 2 / (1 - epsilon) - 1
