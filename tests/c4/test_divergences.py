"""Appendix A's divergences: closed forms against quadrature, sample forms against closed forms, refusals."""

import math
from typing import get_args

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from c4rl.core.errors import InputError
from c4rl.plugins.c4.behaviour_model import BehaviourModel
from c4rl.plugins.c4.divergences import (
    BehaviourSamples,
    Divergence,
    PolicySamples,
    check_divergence,
    divergence_term,
    mmd_squared,
    w1_from_samples,
)
from tests.c4.gaussian_divergences import GAUSSIAN, gaussian_chi_square, gaussian_kl, gaussian_renyi, gaussian_w1

DOUBLE = torch.float64
MEAN_P, STD_P = torch.tensor([0.3, -0.2], dtype=DOUBLE), torch.tensor([0.5, 0.8], dtype=DOUBLE)
MEAN_Q, STD_Q = torch.tensor([0.0, 0.4], dtype=DOUBLE), torch.tensor([0.7, 0.9], dtype=DOUBLE)
GRID = torch.linspace(-12, 12, 200_001, dtype=DOUBLE)


def one_dimensional_densities() -> tuple[Tensor, Tensor]:
    """p and q of each dimension on the grid, [2, grid]."""
    p = Normal(MEAN_P[:, None], STD_P[:, None]).log_prob(GRID).exp()
    q = Normal(MEAN_Q[:, None], STD_Q[:, None]).log_prob(GRID).exp()
    return p, q


def integral(values: Tensor) -> Tensor:
    return torch.trapezoid(values, GRID)


@pytest.mark.parametrize("alpha", [0.3, 0.5, 2.0, 2.4])
def test_gaussian_renyi_matches_quadrature(alpha: float) -> None:
    p, q = one_dimensional_densities()
    expected = (integral(p**alpha * q ** (1 - alpha)).log() / (alpha - 1)).sum()  # additive over dimensions
    torch.testing.assert_close(gaussian_renyi(MEAN_P, STD_P, MEAN_Q, STD_Q, alpha), expected)


def test_gaussian_kl_chi_square_and_w1_match_quadrature() -> None:
    p, q = one_dimensional_densities()
    torch.testing.assert_close(gaussian_kl(MEAN_P, STD_P, MEAN_Q, STD_Q), integral(p * (p / q).log()).sum())
    chi_square = integral(p * p / q).prod() - 1
    torch.testing.assert_close(gaussian_chi_square(MEAN_P, STD_P, MEAN_Q, STD_Q), chi_square)
    cdf_gap = torch.cumulative_trapezoid(p - q, GRID).abs()
    w1 = torch.trapezoid(cdf_gap, GRID[1:]).sum()
    torch.testing.assert_close(gaussian_w1(MEAN_P, STD_P, MEAN_Q, STD_Q), w1, rtol=1e-6, atol=0)


def test_renyi_tends_to_kl_and_is_the_log_of_chi_square_at_two() -> None:
    kl = gaussian_kl(MEAN_P, STD_P, MEAN_Q, STD_Q)
    for alpha in (1 - 1e-6, 1 + 1e-6):
        torch.testing.assert_close(gaussian_renyi(MEAN_P, STD_P, MEAN_Q, STD_Q, alpha), kl, rtol=1e-4, atol=0)


def test_chi_square_is_infinite_exactly_where_the_policy_is_too_wide() -> None:
    """std_p^2 >= 2 std_q^2 in one dimension is enough, and the other states' gradients stay finite."""
    std_p = torch.tensor([[1.41, 0.5], [math.sqrt(2.0) + 1e-9, 0.5], [3.0, 0.5]], dtype=DOUBLE, requires_grad=True)
    mean = torch.zeros(3, 2, dtype=DOUBLE)
    value = gaussian_chi_square(mean, std_p, mean, torch.ones(3, 2, dtype=DOUBLE))
    assert value.isinf().tolist() == [False, True, True]
    (gradient,) = torch.autograd.grad(value[0], std_p)
    assert gradient.isfinite().all()


def test_gaussian_w1_allows_deterministic_policies() -> None:
    zero = torch.zeros(2, dtype=DOUBLE)
    torch.testing.assert_close(gaussian_w1(MEAN_P, zero, MEAN_Q, zero), (MEAN_P - MEAN_Q).abs().sum())
    draws = MEAN_Q + STD_Q * torch.randn(400_000, 2, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    sampled = (MEAN_P - draws).abs().sum(-1).mean()
    torch.testing.assert_close(gaussian_w1(MEAN_P, zero, MEAN_Q, STD_Q), sampled, rtol=0.01, atol=0)


@pytest.mark.parametrize("name", sorted(GAUSSIAN))
def test_gaussian_forms_vanish_only_at_equality_and_have_right_gradients(name: str) -> None:
    extra = {"alpha": 0.7} if name == "renyi" else {}
    divergence = GAUSSIAN[name]
    assert divergence(MEAN_P, STD_P, MEAN_P, STD_P, **extra).abs() < 1e-9
    assert divergence(MEAN_P, STD_P, MEAN_Q, STD_Q, **extra) > 1e-3
    arguments = (MEAN_P.clone().requires_grad_(), STD_P.clone().requires_grad_())
    assert torch.autograd.gradcheck(lambda mean, std: divergence(mean, std, MEAN_Q, STD_Q, **extra), arguments)


def squashed_problem(count: int) -> tuple[PolicySamples, BehaviourSamples]:
    """Tanh-squashed P and Q with many samples: tanh is a bijection, so density divergences keep their closed forms."""
    generator = torch.Generator().manual_seed(1)
    pi = TransformedDistribution(Normal(MEAN_P, STD_P), TanhTransform(cache_size=1))
    nu = TransformedDistribution(Normal(MEAN_Q, STD_Q), TanhTransform(cache_size=1))

    def draw(mean: Tensor, std: Tensor, *shape: int) -> Tensor:
        return torch.tanh(mean + std * torch.randn(*shape, 2, generator=generator, dtype=DOUBLE))

    actions = draw(MEAN_P, STD_P, 1, 50, count)
    data = draw(MEAN_Q, STD_Q, 1, 50)
    policy = PolicySamples(actions, pi.log_prob(actions).sum(-1), pi.log_prob(data).sum(-1))
    return policy, BehaviourSamples(data, lambda a: nu.log_prob(a).sum(-1))


@pytest.mark.parametrize("name", ["kl", "renyi", "chi_square"])
def test_sample_forms_estimate_the_divergence_of_squashed_policies(name: str) -> None:
    policy, behaviour = squashed_problem(4000)
    extra = {"alpha": 0.5} if name == "renyi" else {}
    term = divergence_term(name, policy, behaviour, **extra)
    expected = GAUSSIAN[name](MEAN_P, STD_P, MEAN_Q, STD_Q, **extra)
    assert term.shape == (1, 50)
    assert (term.mean() - expected).abs() < 5 * term.std() / math.sqrt(50)
    assert term.std() < 0.1 * expected


def test_jensen_shannon_estimates_its_integral() -> None:
    generator = torch.Generator().manual_seed(2)
    p, q = one_dimensional_densities()
    p, q = p[0], q[0]
    half = 0.5 * (p + q)
    expected = 0.5 * integral(p * (p / half).log() + q * (q / half).log())
    pi, nu = Normal(MEAN_P[:1], STD_P[:1]), Normal(MEAN_Q[:1], STD_Q[:1])
    draws = torch.randn(2, 1, 200_000, 1, generator=generator, dtype=DOUBLE)
    actions, data = MEAN_P[0] + STD_P[0] * draws[0], MEAN_Q[0] + STD_Q[0] * draws[1]
    policy = PolicySamples(actions.unsqueeze(2), pi.log_prob(actions.unsqueeze(2)).sum(-1), pi.log_prob(data).sum(-1))
    term = divergence_term("jsd", policy, BehaviourSamples(data, lambda a: nu.log_prob(a).sum(-1)))
    assert term.std() < 0.5  # far from it, the tolerance below would be none
    assert (term.mean() - expected).abs() < 5 * term.std() / math.sqrt(200_000)


def test_jensen_shannon_of_several_actions_is_the_mean_over_them() -> None:
    policy, behaviour = squashed_problem(3)
    assert policy.log_prob is not None
    single = [
        PolicySamples(policy.actions[:, :, [n]], policy.log_prob[:, :, [n]], policy.log_prob_data) for n in range(3)
    ]
    means = torch.stack([divergence_term("jsd", one, behaviour) for one in single]).mean(0)
    torch.testing.assert_close(divergence_term("jsd", policy, behaviour), means)


def test_data_form_is_the_negative_log_likelihood() -> None:
    policy, behaviour = squashed_problem(2)
    assert policy.log_prob_data is not None
    torch.testing.assert_close(divergence_term("kl_data", policy, behaviour), -policy.log_prob_data)


def test_sorted_w1_approaches_the_closed_form_from_above() -> None:
    generator = torch.Generator().manual_seed(3)
    gaps = []
    for count in (20, 2000):
        draws = torch.randn(2, 40, count, 2, generator=generator, dtype=DOUBLE)
        sampled = w1_from_samples(MEAN_P + STD_P * draws[0], MEAN_Q + STD_Q * draws[1]).mean()
        gaps.append((sampled - gaussian_w1(MEAN_P, STD_P, MEAN_Q, STD_Q)).item())
    assert gaps[0] > gaps[1] > -0.005 and gaps[1] < 0.02


def test_mmd_is_unbiased_and_zero_for_equal_distributions() -> None:
    generator = torch.Generator().manual_seed(4)
    x, y, far = torch.randn(3, 5000, 4, 2, generator=generator, dtype=DOUBLE)
    same = mmd_squared(x, y)
    assert same.mean().abs() < 4.5 * same.std() / math.sqrt(5000)
    assert mmd_squared(x, far + 2).mean() > 0.2


def test_mmd_is_the_mean_over_pairs() -> None:
    """State by state, pair by pair, for numbers of samples that differ."""
    generator = torch.Generator().manual_seed(6)
    x, y = (torch.randn(2, 3, count, 4, generator=generator, dtype=DOUBLE) for count in (5, 2))

    def mean(p: Tensor, q: Tensor, distinct: bool = False) -> float:
        pairs = [(a - b).square().sum() for i, a in enumerate(p) for j, b in enumerate(q) if not (distinct and i == j)]
        return sum(math.exp(-distance.item() / 2) for distance in pairs) / len(pairs)

    found = mmd_squared(x, y)
    for r in range(2):
        for b in range(3):
            p, q = x[r, b], y[r, b]
            assert found[r, b].item() == pytest.approx(mean(p, p, True) - 2 * mean(p, q) + mean(q, q, True))


def test_parameter_mse_counts_means_and_deviations() -> None:
    expected = ((0.3**2 + 0.2**2) + (0.6**2 + 0.1**2)) / 2
    assert GAUSSIAN["mse"](MEAN_P, STD_P, MEAN_Q, STD_Q).item() == pytest.approx(expected)


def test_gaussian_kernel_mmd_has_its_closed_value() -> None:
    """For N(m, s^2) and N(0, s^2): E k(x, y) = 1 / sqrt(1 + 2 s^2) exp(-m^2 / (2 (1 + 2 s^2)))."""
    generator = torch.Generator().manual_seed(5)
    shift, std = 0.8, 0.6
    x, y = std * torch.randn(2, 4000, 8, 1, generator=generator, dtype=DOUBLE)
    width = 1 + 2 * std**2
    expected = 2 / math.sqrt(width) * (1 - math.exp(-(shift**2) / (2 * width)))
    sampled = mmd_squared(x + shift, y)
    assert abs(sampled.mean().item() - expected) < 4.5 * sampled.std().item() / math.sqrt(4000)


def test_deterministic_policies_are_pulled_to_the_data() -> None:
    data = torch.tensor([[[0.5, -0.5]]], dtype=DOUBLE)
    for name in ("mse", "w1", "mmd"):
        action = torch.zeros(1, 1, 1, 2, dtype=DOUBLE, requires_grad=True)
        term = divergence_term(name, PolicySamples(action), BehaviourSamples(data))
        term.sum().backward()
        assert term.shape == (1, 1) and term > 0
        assert action.grad is not None and (action.grad.sign() == -data.sign()).all()
        there = divergence_term(name, PolicySamples(data.unsqueeze(-2)), BehaviourSamples(data))
        assert there.abs().max() < 1e-12
    zero = PolicySamples(torch.zeros(1, 1, 1, 2, dtype=DOUBLE))
    assert divergence_term("mse", zero, BehaviourSamples(data)).item() == 0.25
    assert divergence_term("w1", zero, BehaviourSamples(data)).item() == 1.0


@pytest.mark.parametrize("name", get_args(Divergence))
def test_every_name_is_answered_or_refused_with_its_reason(name: str) -> None:
    policy, behaviour = squashed_problem(4)
    assert divergence_term(name, policy, behaviour).shape == (1, 50)
    deterministic = PolicySamples(policy.actions[:, :, :1])
    if name in ("mse", "w1", "mmd"):
        assert divergence_term(name, deterministic, behaviour).isfinite().all()
    else:
        with pytest.raises(InputError, match=f"'{name}' compares densities and a deterministic policy has none"):
            divergence_term(name, deterministic, behaviour)


def test_missing_pieces_are_named() -> None:
    policy, behaviour = squashed_problem(4)
    with pytest.raises(InputError, match="divergence is 'hellinger', expected one of kl"):
        check_divergence("hellinger", deterministic=False)
    with pytest.raises(InputError, match="alpha is 1"):
        divergence_term("renyi", policy, behaviour, alpha=1.0)
    with pytest.raises(InputError, match="'kl': the behaviour has no log_prob"):
        divergence_term("kl", policy, BehaviourSamples(behaviour.data_actions))
    with pytest.raises(InputError, match="'jsd': log_prob_data is missing"):
        divergence_term("jsd", PolicySamples(policy.actions, policy.log_prob), behaviour)
    single = PolicySamples(policy.actions[:, :, :1], policy.log_prob)
    for name in ("mmd", "renyi"):
        with pytest.raises(InputError, match=f"'{name}': found 1 action"):
            divergence_term(name, single, behaviour)


@pytest.mark.parametrize("name", get_args(Divergence))
def test_actor_term_never_asks_the_device_for_a_value(name: str) -> None:
    """Meta tensors have shapes and no values: whatever would synchronise with the host fails on them."""
    model = BehaviourModel(3, 2, 5, 2, device="meta")
    states, data = torch.empty(3, 16, 5, device="meta"), torch.empty(3, 16, 2, device="meta")
    actions = torch.empty(3, 16, 4, 2, device="meta", requires_grad=True)
    cluster = torch.empty(3, dtype=torch.int64, device="meta")
    policy = PolicySamples(actions, actions.sum(-1), actions.sum((-2, -1)))
    behaviour = BehaviourSamples(data, lambda a: model.log_prob_cluster(states, a, cluster))
    term = divergence_term(name, policy, behaviour)
    term.sum().backward()
    assert term.shape == (3, 16) and actions.grad is not None
