"""Every proximity constraint of the paper's appendix A between a policy pi and a behaviour policy nu, per state.

Two forms: closed ones for diagonal Gaussians (`GAUSSIAN`), and sample ones for everything else (tanh-squashed
policies, mixtures, deterministic policies) behind `divergence_term`, which is differentiable in the policy through
its reparametrised actions. Names: 'kl' is KL(pi || nu); 'kl_data' is KL(nu || pi), the behaviour-sample form.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from c4rl.core.errors import InputError

Kernel = Literal["gaussian", "laplacian"]

# ---------------------------------------------------------------------------------------------------------------------
# Diagonal Gaussians P = N(mean_p, std_p^2), Q = N(mean_q, std_q^2): [..., a] -> [...]
# ---------------------------------------------------------------------------------------------------------------------


def gaussian_kl(mean_p: Tensor, std_p: Tensor, mean_q: Tensor, std_q: Tensor) -> Tensor:
    """KL(P || Q)."""
    ratio, shift = std_p / std_q, (mean_p - mean_q) / std_q
    return 0.5 * (ratio.square() + shift.square() - 1 - 2 * ratio.log()).sum(-1)


def gaussian_renyi(mean_p: Tensor, std_p: Tensor, mean_q: Tensor, std_q: Tensor, alpha: float) -> Tensor:
    """D_alpha(P || Q), alpha > 0, alpha != 1; infinite where alpha std_q^2 <= (alpha - 1) std_p^2 in a dimension."""
    check_order(alpha)
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

# ---------------------------------------------------------------------------------------------------------------------
# Samples
# ---------------------------------------------------------------------------------------------------------------------


def w1_from_samples(x: Tensor, y: Tensor) -> Tensor:
    """Sum over dimensions of the W1 between the samples' marginals; x [..., n, a], y [..., n or 1, a] -> [...].

    This is W1 for the ground metric |a - b|_1 when dimensions are independent and below it otherwise. Against one
    behaviour sample it is mean |x - y|_1, exact for a deterministic policy. It is convex in y's distribution.
    """
    return (x.sort(-2).values - y.sort(-2).values).abs().mean(-2).sum(-1)


def mmd_squared(x: Tensor, y: Tensor, kernel: Kernel = "gaussian", bandwidth: float = 1.0) -> Tensor:
    """MMD^2 from samples x [..., n, a] and y [..., k, a] -> [...]; unbiased for n, k >= 2, so it can be negative.

    gaussian: exp(-|d|_2^2 / (2 bandwidth^2)); laplacian: exp(-|d|_1 / bandwidth). A single sample is taken as a
    point mass (k(x, x) = 1): exact for a deterministic policy; a single y shifts the value by a constant in pi.
    """

    def gram(p: Tensor, q: Tensor) -> Tensor:
        d = p.unsqueeze(-2) - q.unsqueeze(-3)
        if kernel == "gaussian":
            return torch.exp(-d.square().sum(-1) / (2 * bandwidth**2))
        return torch.exp(-d.abs().sum(-1) / bandwidth)

    def within(p: Tensor) -> Tensor:
        n = p.shape[-2]
        total = gram(p, p).sum((-2, -1))
        return total if n == 1 else (total - n) / (n * (n - 1))

    return within(x) - 2 * gram(x, y).mean((-2, -1)) + within(y)


@dataclass(frozen=True)
class PolicySamples:
    """pi at each state. actions [R, B, n, a], reparametrised; log_prob [R, B, n] at them and log_prob_data [R, B] at
    the dataset's actions, both None for a deterministic policy (then n = 1)."""

    actions: Tensor
    log_prob: Tensor | None = None
    log_prob_data: Tensor | None = None


@dataclass(frozen=True)
class BehaviourSamples:
    """nu at each state. data_actions [R, B, a]; log_prob maps actions [R, B, n, a] to log nu(a|s) [R, B, n], of the
    mixture or of one cluster (behaviour_model.py); samples [R, B, k, a] of nu where a model can draw them."""

    data_actions: Tensor
    log_prob: Callable[[Tensor], Tensor] | None = None
    samples: Tensor | None = None

    def drawn(self) -> Tensor:
        """Samples of nu [R, B, k, a]; failing a model's, the one that the dataset holds."""
        return self.data_actions.unsqueeze(-2) if self.samples is None else self.samples


def _log_mean_exp(x: Tensor) -> Tensor:
    return torch.logsumexp(x, -1) - math.log(x.shape[-1])


def _log_half_sum(x: Tensor, y: Tensor) -> Tensor:
    return torch.logaddexp(x, y) - math.log(2)


def _jsd(pi: Tensor, nu: Tensor, pi_data: Tensor, nu_data: Tensor) -> Tensor:
    """1/2 E_pi[log pi - log m] + 1/2 E_nu[log nu - log m], m = (pi + nu)/2; the dataset's action is nu's sample."""
    return 0.5 * ((pi - _log_half_sum(pi, nu)).mean(-1) + nu_data - _log_half_sum(pi_data, nu_data))


DENSITY_FREE = ("mse", "w1", "mmd")
SEVERAL = ("renyi", "mmd")  # not means over single actions: one action of each state gives another quantity
NAMES = ("kl", "kl_data", "renyi", "chi_square", "jsd", *DENSITY_FREE)


def check_divergence(name: str, deterministic: bool) -> None:
    """Refuses an unknown name, and a density ratio asked of a policy without a density, before training starts."""
    if name not in NAMES:
        raise InputError(f"divergence is '{name}', expected one of {', '.join(NAMES)}")
    if deterministic and name not in DENSITY_FREE:
        raise InputError(
            f"divergence '{name}' compares densities and a deterministic policy has none, "
            f"expected one of {', '.join(DENSITY_FREE)}"
        )


def check_order(alpha: float) -> None:
    if not (alpha > 0 and alpha != 1):
        raise InputError(f"divergence 'renyi': alpha is {alpha}, expected a positive number other than 1 (1 is 'kl')")


def divergence_term(
    name: str,
    policy: PolicySamples,
    behaviour: BehaviourSamples,
    *,
    alpha: float = 0.5,
    kernel: Kernel = "gaussian",
    bandwidth: float = 1.0,
) -> Tensor:
    """D(pi(.|s), nu(.|s)) per state, [R, B], as a term to be minimised by the actor.

    'kl'          mean_n [log pi(a) - log nu(a)], a ~ pi.
    'kl_data'     -log pi(a_data): KL(nu || pi) up to the behaviour's entropy.
    'renyi'       log mean_n (pi/nu)^(alpha-1) / (alpha-1); a stochastic policy needs n >= 2 (n = 1 is 'kl').
    'chi_square'  mean_n pi/nu - 1. Overflows far from the data; 'renyi' with alpha = 2 is log(1 + chi^2) and does not.
    'jsd'         in [0, log 2] in expectation; nu's sample is the dataset's action.
    'w1'          ground metric |a - b|_1, per dimension (`w1_from_samples`).   'mse'  mean_n |a - a_data|^2 / dim.
    'mmd'         MMD^2 with the given kernel; a stochastic policy needs n >= 2.
    """
    check_divergence(name, deterministic=policy.log_prob is None)
    actions = policy.actions
    if name == "mse":
        return (actions - behaviour.data_actions.unsqueeze(-2)).square().mean((-2, -1))
    if name == "w1":
        return w1_from_samples(actions, behaviour.drawn())
    if name in SEVERAL and policy.log_prob is not None and actions.shape[-2] < 2:
        raise InputError(f"divergence '{name}': found 1 action per state of a stochastic policy, expected at least 2")
    if name == "mmd":
        return mmd_squared(actions, behaviour.drawn(), kernel, bandwidth)
    if name in ("kl_data", "jsd") and policy.log_prob_data is None:
        raise InputError(
            f"divergence '{name}': log_prob_data is missing, expected log pi(a|s) of the dataset's actions"
        )
    if name == "kl_data":
        assert policy.log_prob_data is not None
        return -policy.log_prob_data
    if behaviour.log_prob is None:
        raise InputError(f"divergence '{name}': the behaviour has no log_prob, expected a behaviour model")
    assert policy.log_prob is not None
    nu = behaviour.log_prob(actions)
    if name == "jsd":
        assert policy.log_prob_data is not None
        nu_data = behaviour.log_prob(behaviour.data_actions.unsqueeze(-2)).squeeze(-1)
        return _jsd(policy.log_prob, nu, policy.log_prob_data, nu_data)
    log_ratio = policy.log_prob - nu
    if name == "kl":
        return log_ratio.mean(-1)
    if name == "chi_square":
        return torch.expm1(_log_mean_exp(log_ratio))
    check_order(alpha)
    return _log_mean_exp((alpha - 1) * log_ratio) / (alpha - 1)
