"""Corollary 1: every divergence of appendix A, and Renyi of every order, obeys the mixture upper bound."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Normal

from c4rl.plugins.c4.divergences import BehaviourSamples, PolicySamples, divergence_term, mmd_squared
from c4rl.theory.mixture_bound import DIVERGENCES, kl, mixture_gap, mixture_moments, renyi
from tests.c4.gaussian_divergences import GAUSSIAN, gaussian_mse, gaussian_w1

seeds = st.integers(0, 2**31 - 1)
property_test = settings(derandomize=True, deadline=None, max_examples=60)
GRID = torch.linspace(-15, 15, 6001, dtype=torch.float64)


def distributions(seed: int, actions: int, clusters: int, sparse: bool) -> tuple[Tensor, Tensor, Tensor]:
    """pi [A], nu_z [K, A], w [K]; far apart (log-normal masses), and with zeros in pi where `sparse`."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.softmax(3 * torch.randn(*shape, generator=generator, dtype=torch.float64), -1)

    p, components, w = draw(actions), draw(clusters, actions), draw(clusters)
    if sparse:
        p = p * (torch.arange(actions) % 2)
        p = p / p.sum()
    return p, components, w


cases = (seeds, st.integers(2, 8), st.integers(1, 5), st.booleans())


def test_divergences_are_those_of_the_appendix() -> None:
    """The bound alone does not notice a factor or a constant."""
    p, q = torch.tensor([[0.5, 0.5], [0.25, 0.75]], dtype=torch.float64)
    to_middle = 0.5 * math.log(4 / 3) + 0.5 * math.log(4 / 5), 0.25 * math.log(2 / 3) + 0.75 * math.log(6 / 5)
    by_hand = {
        "kl": 0.5 * math.log(2) + 0.5 * math.log(2 / 3),
        "kl_data": 0.25 * math.log(1 / 2) + 0.75 * math.log(3 / 2),
        "chi_square": 1 / 3,
        "jsd": 0.5 * sum(to_middle),
        "w1": 0.25,
        "mse": 1 / 16,
        "mmd": math.sqrt(2 - 2 / math.e) / 4,
        "mmd_squared": (2 - 2 / math.e) / 16,
    }
    assert {name: divergence(p, q).item() for name, divergence in DIVERGENCES.items()} == pytest.approx(by_hand)
    assert renyi(p, q, 2.0).item() == pytest.approx(math.log(4 / 3))
    assert renyi(p, q, 0.5).item() == pytest.approx(-2 * math.log(math.sqrt(1 / 8) + math.sqrt(3 / 8)))


@pytest.mark.parametrize("name", sorted(DIVERGENCES))
@property_test
@given(*cases)
def test_discrete_divergences_obey_the_bound(name: str, seed: int, actions: int, clusters: int, sparse: bool) -> None:
    # KL(nu || pi) is infinite on both sides where pi has zeros
    p, components, w = distributions(seed, actions, clusters, sparse and name != "kl_data")
    right = w @ DIVERGENCES[name](p, components)
    assert mixture_gap(DIVERGENCES[name], p, components, w) >= -1e-12 * (1 + right)


@property_test
@given(*cases, st.floats(0.01, 30.0).filter(lambda alpha: abs(alpha - 1) > 1e-3))
def test_renyi_obeys_the_bound_for_every_order(
    seed: int, actions: int, clusters: int, sparse: bool, alpha: float
) -> None:
    """The paper doubts alpha > 1; convexity in the second argument holds for all orders."""
    p, components, w = distributions(seed, actions, clusters, sparse)
    right = w @ renyi(p, components, alpha)
    assert mixture_gap(lambda a, b: renyi(a, b, alpha), p, components, w) >= -1e-10 * (1 + right)


def test_renyi_above_one_is_not_jointly_convex() -> None:
    """What does fail for alpha > 1: mixing the first arguments along with the second. KL (alpha = 1) allows that."""
    generator = torch.Generator().manual_seed(0)
    p, q = torch.softmax(4 * torch.randn(2, 200, 2, 2, generator=generator, dtype=torch.float64), -1)  # [200, pair, A]
    for joint_gap, jointly_convex in (
        (renyi(p, q, 3.0).mean(-1) - renyi(p.mean(1), q.mean(1), 3.0), False),
        (kl(p, q).mean(-1) - kl(p.mean(1), q.mean(1)), True),
    ):
        assert (joint_gap.min() >= -1e-12) == jointly_convex


@property_test
@given(seeds)
def test_the_bound_says_nothing_where_clusters_have_disjoint_supports(seed: int) -> None:
    """No policy lies inside both clusters, so the right side is infinite for each, also for pi = nu."""
    p, components, w = distributions(seed, 6, 2, sparse=False)
    components = components * torch.tensor([[1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]])
    components = components / components.sum(1, keepdim=True)
    nu = w @ components
    vacuous = {"kl": kl, "chi_square": DIVERGENCES["chi_square"], "renyi": lambda a, b: renyi(a, b, 2.0)}
    finite = {name: DIVERGENCES[name] for name in ("jsd", "w1", "mse", "mmd")}
    for name, divergence in (vacuous | finite).items():
        for policy in (p, nu, components[0]):
            assert (w @ divergence(policy, components)).isinf() == (name in vacuous)
            assert divergence(policy, nu).isfinite()
        assert divergence(nu, nu).abs() < 1e-9


@pytest.mark.parametrize("distance", [2.0, 3.0, 4.0])
def test_the_bound_grows_with_the_distance_of_the_clusters(distance: float) -> None:
    """At pi = nu, two unit Gaussians at -d and d, where the left side is 0."""
    nu_z = torch.stack([Normal(centre, 1.0).log_prob(GRID).exp() for centre in (-distance, distance)])
    nu = nu_z.mean(0)
    right = torch.trapezoid(nu * (nu / nu_z).log(), GRID).mean()
    torch.testing.assert_close(right, torch.tensor(distance**2 - math.log(2), dtype=torch.float64), rtol=0.02, atol=0)


def gaussian_problem(seed: int, clusters: int = 3) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """One-dimensional N(mean, std^2), components N(means, stds^2) wide enough for chi^2 to be finite, and weights."""
    generator = torch.Generator().manual_seed(seed)
    u = torch.rand(2 * clusters + 2, generator=generator, dtype=torch.float64)
    means, stds = 4 * u[:clusters] - 2, 0.8 + u[clusters : 2 * clusters]
    w = torch.softmax(torch.randn(clusters, generator=generator, dtype=torch.float64), -1)
    return 4 * u[-1] - 2, 0.3 + 0.7 * u[-2], means, stds, w


@pytest.mark.parametrize("name", ["kl", "kl_data", "renyi", "chi_square"])
@property_test
@given(seeds)
def test_gaussian_mixtures_obey_the_bound_in_closed_form(name: str, seed: int) -> None:
    """Right side: the closed forms used in training. Left side: quadrature of the mixture's density."""
    mean, std, means, stds, w = gaussian_problem(seed)
    extra = {"alpha": 2.5} if name == "renyi" else {}
    if name == "renyi":
        stds = stds + 0.6
    per_cluster = GAUSSIAN[name](mean[None], std[None], means[:, None], stds[:, None], **extra)
    log_p = Normal(mean, std).log_prob(GRID)
    log_q = torch.logsumexp(Normal(means[:, None], stds[:, None]).log_prob(GRID) + w.log()[:, None], 0)
    p, q = log_p.exp(), log_q.exp()
    left = {
        "kl": lambda: torch.trapezoid(p * (log_p - log_q), GRID),
        "kl_data": lambda: torch.trapezoid(q * (log_q - log_p), GRID),
        "renyi": lambda: torch.trapezoid((2.5 * log_p - 1.5 * log_q).exp(), GRID).log() / 1.5,
        "chi_square": lambda: torch.trapezoid((2 * log_p - log_q).exp(), GRID) - 1,
    }[name]()
    assert per_cluster.isfinite().all()
    assert left <= w @ per_cluster * (1 + 1e-6) + 1e-6


@property_test
@given(seeds)
def test_w1_and_moment_mse_of_gaussian_mixtures_obey_the_bound(seed: int) -> None:
    mean, std, means, stds, w = gaussian_problem(seed)
    cdf = (w[:, None] * Normal(means[:, None], stds[:, None]).cdf(GRID)).sum(0)
    left = torch.trapezoid((Normal(mean, std).cdf(GRID) - cdf).abs(), GRID)
    assert left <= w @ gaussian_w1(mean[None], std[None], means[:, None], stds[:, None]) + 1e-6
    mixture_mean, mixture_std = mixture_moments(means, stds, w)
    left = gaussian_mse(mean[None], std[None], mixture_mean[None], mixture_std[None])
    assert left <= w @ gaussian_mse(mean[None], std[None], means[:, None], stds[:, None]) + 1e-12


def test_parameter_mse_breaks_the_bound_on_variances_and_on_log_stds() -> None:
    """Two narrow components at +-d and pi in the middle: the mixture is wide although no component is."""
    w = torch.tensor([0.5, 0.5], dtype=torch.float64)
    for distance, std, parameter in ((5.0, 1.0, torch.square), (1e-2, math.exp(-10), torch.log)):
        means = torch.tensor([-distance, distance], dtype=torch.float64)
        stds = torch.full((2,), std, dtype=torch.float64)
        mean, spread = mixture_moments(means, stds, w)
        left = mean.square() + (parameter(spread) - parameter(stds[0])).square()
        right = w @ means.square()  # the stds agree
        assert left > 10 * right


@property_test
@given(seeds)
def test_sample_mse_is_affine_in_the_behaviour(seed: int) -> None:
    """As trained on, mean |a - a_data|^2 over the mixture's rows is exactly the weighted sum over the clusters'."""
    generator = torch.Generator().manual_seed(seed)
    action, data = torch.randn(2, 1, 12, 2, generator=generator, dtype=torch.float64)
    label = torch.arange(12) % 3
    action = action[:, :1].expand(1, 12, 2)
    term = divergence_term("mse", PolicySamples(action.unsqueeze(2)), BehaviourSamples(data)).squeeze(0)
    per_cluster = torch.stack([term[label == z].mean() for z in range(3)])
    torch.testing.assert_close(term.mean(), per_cluster.mean())


@property_test
@given(seeds)
def test_mmd_squared_of_samples_obeys_the_bound(seed: int) -> None:
    """Point masses: pi at one action, each nu_z at one action, so that a mixture's samples are its support."""
    generator = torch.Generator().manual_seed(seed)
    x, support = torch.randn(5, 2, generator=generator, dtype=torch.float64).split([1, 4])
    per_cluster = torch.stack([mmd_squared(x, y[None]) for y in support]).mean()
    cross = torch.exp(-(x - support).square().sum(-1) / 2).mean()
    among = torch.exp(-(support[:, None] - support).square().sum(-1) / 2).mean()
    assert 1 - 2 * cross + among <= per_cluster + 1e-12
