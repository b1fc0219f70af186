"""Every proximity constraint of the paper's appendix A between a policy pi and a behaviour policy nu, per state.

`divergence_term` works on samples, for tanh-squashed and deterministic policies and for mixtures, and is differentiable
in the policy through its reparametrised actions. 'kl' is KL(pi || nu); 'kl_data' is KL(nu || pi) from logged actions.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from c4rl.core.errors import InputError


def w1_from_samples(x: Tensor, y: Tensor) -> Tensor:
    """Sum over dimensions of the W1 between the samples' marginals; x [..., n, a], y [..., n or 1, a] -> [...].

    This is W1 for the ground metric |a - b|_1 when dimensions are independent and below it otherwise. Against one
    behaviour sample it is mean |x - y|_1, exact for a deterministic policy. It is convex in y's distribution.
    """
    return (x.sort(-2).values - y.sort(-2).values).abs().mean(-2).sum(-1)


def mmd_squared(x: Tensor, y: Tensor) -> Tensor:
    """MMD^2 from samples x [..., n, a] and y [..., k, a] -> [...]; unbiased for n, k >= 2, so it can be negative.

    The kernel is exp(-|d|^2 / 2). A single sample is taken as a point mass (k(x, x) = 1): exact for a deterministic
    policy; a single y shifts the value by a constant in pi.
    """

    def gram(p: Tensor, q: Tensor) -> Tensor:
        return torch.exp(-(p.unsqueeze(-2) - q.unsqueeze(-3)).square().sum(-1) / 2)

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
    """nu at each state. data_actions [R, B, a], its one sample there; log_prob maps actions [R, B, n, a] to log nu(a|s)
    [R, B, n], of the mixture or of one cluster (behaviour_model.py)."""

    data_actions: Tensor
    log_prob: Callable[[Tensor], Tensor] | None = None


def _log_mean_exp(x: Tensor) -> Tensor:
    return torch.logsumexp(x, -1) - math.log(x.shape[-1])


def _log_half_sum(x: Tensor, y: Tensor) -> Tensor:
    return torch.logaddexp(x, y) - math.log(2)


def _jsd(pi: Tensor, nu: Tensor, pi_data: Tensor, nu_data: Tensor) -> Tensor:
    """1/2 E_pi[log pi - log m] + 1/2 E_nu[log nu - log m], m = (pi + nu)/2; the dataset's action is nu's sample."""
    return 0.5 * ((pi - _log_half_sum(pi, nu)).mean(-1) + nu_data - _log_half_sum(pi_data, nu_data))


Divergence = Literal["kl", "kl_data", "renyi", "chi_square", "jsd", "w1", "mse", "mmd"]
DENSITY_FREE = ("mse", "w1", "mmd")
SEVERAL = ("renyi", "mmd")  # not means over single actions: one action of each state gives another quantity


def check_divergence(name: str, deterministic: bool) -> None:
    """Refuses an unknown name, and a density ratio asked of a policy without a density, before training starts."""
    if name not in get_args(Divergence):
        raise InputError(f"divergence is '{name}', expected one of {', '.join(get_args(Divergence))}")
    if deterministic and name not in DENSITY_FREE:
        raise InputError(
            f"divergence '{name}' compares densities and a deterministic policy has none, "
            f"expected one of {', '.join(DENSITY_FREE)}"
        )


def check_order(alpha: float) -> None:
    if not (alpha > 0 and alpha != 1):
        raise InputError(f"divergence 'renyi': alpha is {alpha}, expected a positive number other than 1 (1 is 'kl')")


def divergence_term(name: str, policy: PolicySamples, behaviour: BehaviourSamples, alpha: float = 0.5) -> Tensor:
    """D(pi(.|s), nu(.|s)) per state, [R, B], as a term to be minimised by the actor.

    'kl'          mean_n [log pi(a) - log nu(a)], a ~ pi.
    'kl_data'     -log pi(a_data): KL(nu || pi) up to the behaviour's entropy.
    'renyi'       log mean_n (pi/nu)^(alpha-1) / (alpha-1); a stochastic policy needs n >= 2 (n = 1 is 'kl').
    'chi_square'  mean_n pi/nu - 1. Overflows far from the data; 'renyi' with alpha = 2 is log(1 + chi^2) and does not.
    'jsd'         in [0, log 2] in expectation; nu's sample is the dataset's action.
    'w1'          ground metric |a - b|_1, per dimension (`w1_from_samples`).   'mse'  mean_n |a - a_data|^2 / dim.
    'mmd'         MMD^2 with the Gaussian kernel of width 1; a stochastic policy needs n >= 2.
    """
    check_divergence(name, deterministic=policy.log_prob is None)
    actions, logged = policy.actions, behaviour.data_actions.unsqueeze(-2)
    if name == "mse":
        return (actions - logged).square().mean((-2, -1))
    if name == "w1":
        return w1_from_samples(actions, logged)
    if name in SEVERAL and policy.log_prob is not None and actions.shape[-2] < 2:
        raise InputError(f"divergence '{name}': found 1 action per state of a stochastic policy, expected at least 2")
    if name == "mmd":
        return mmd_squared(actions, logged)
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
        nu_data = behaviour.log_prob(logged).squeeze(-1)
        return _jsd(policy.log_prob, nu, policy.log_prob_data, nu_data)
    log_ratio = policy.log_prob - nu
    if name == "kl":
        return log_ratio.mean(-1)
    if name == "chi_square":
        return torch.expm1(_log_mean_exp(log_ratio))
    check_order(alpha)
    return _log_mean_exp((alpha - 1) * log_ratio) / (alpha - 1)
