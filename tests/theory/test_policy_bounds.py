"""Training on clustered buffers, on finite MDPs and Gaussian means: as printed where true, corrected where not."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from c4rl.theory.mixture_bound import chi_square, kl
from c4rl.theory.policy_bounds import (
    action_values,
    chi_square_cap,
    cql_target,
    frozen_lower_bound,
    isotropic_step,
    kappa_cap,
    kl_step,
    lambert_w,
    pearson_step,
    penalty,
    poor_coverage_chi_square,
    printed_chi_square_cap_holds,
    resolvent,
    stabilised_step,
    step_cap,
    surrogate,
)

seeds = st.integers(0, 2**31 - 1)
positive = st.floats(1e-3, 1e3)
discounts = st.floats(0.0, 0.99)
property_test = settings(derandomize=True, deadline=None, max_examples=60)


def softmax(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.softmax(2 * torch.randn(*shape, generator=generator, dtype=torch.float64), -1)


def random_mdp(seed: int, S: int = 5, A: int = 3) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """transitions, rewards, pi, nu."""
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.rand(S, A, generator=generator, dtype=torch.float64)
    return softmax(generator, S, A, S), rewards, softmax(generator, S, A), softmax(generator, S, A)


# --- global freeze ---------------------------------------------------------------------------------------------------


@property_test
@given(seeds, discounts)
def test_resolvent_is_below_its_geometric_bound(seed: int, gamma: float) -> None:
    transitions, _, pi, nu = random_mdp(seed)
    h = penalty(pi, nu, 1.0, 1.0)
    assert (resolvent(transitions, pi, gamma, h) <= h.max() / (1 - gamma) * (1 + 1e-9)).all()


@property_test
@given(seeds, discounts, st.floats(0, 5), st.floats(0, 5))
def test_frozen_bound_is_below_the_cql_target(seed: int, gamma: float, alpha: float, beta: float) -> None:
    transitions, rewards, pi, nu = random_mdp(seed)
    Q = action_values(transitions, rewards, pi, gamma)
    target = cql_target(transitions, rewards, pi, nu, gamma, alpha, beta)
    assert (target >= frozen_lower_bound(Q, pi, nu, gamma, alpha, beta) - 1e-9 * (1 + target.abs())).all()


def test_frozen_bound_is_the_cql_target_where_there_is_one_state() -> None:
    """pi (1/2, 1/2), nu (1/4, 3/4): chi^2 is 1/3 and KL 1/2 log 4/3; 1/(1-gamma) is 10 and the mean reward 2."""
    transitions = torch.ones(1, 2, 1, dtype=torch.float64)
    rewards, pi, nu = torch.tensor([[[1.0, 3.0]], [[0.5, 0.5]], [[0.25, 0.75]]], dtype=torch.float64)
    Q = action_values(transitions, rewards, pi, 0.9)
    by_hand = 10 * (2 - 0.6 / 3 - 0.7 / 2 * math.log(4 / 3))
    assert cql_target(transitions, rewards, pi, nu, 0.9, 0.6, 0.7).item() == pytest.approx(by_hand)
    assert frozen_lower_bound(Q, pi, nu, 0.9, 0.6, 0.7).item() == pytest.approx(by_hand)
    assert surrogate(Q, pi, nu, 0.9, 0.6, 0.7).item() == pytest.approx(by_hand)


def test_frozen_bound_fails_for_an_overestimating_critic() -> None:
    transitions, rewards, pi, _ = random_mdp(0)
    Q = action_values(transitions, rewards, pi, 0.9) + 1.0
    assert (cql_target(transitions, rewards, pi, pi, 0.9, 1.0) < frozen_lower_bound(Q, pi, pi, 0.9, 1.0)).all()


def test_penalty_at_the_state_alone_is_no_lower_bound_of_the_cql_target() -> None:
    """Counterexample to the cluster-decomposed bound read as one on the CQL target: pi = nu at s, far from it at s'."""
    transitions = torch.zeros(2, 2, 2, dtype=torch.float64)
    transitions[:, :, 1] = 1.0  # both states lead to state 1
    rewards = torch.zeros(2, 2, dtype=torch.float64)
    pi = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64)
    nu = torch.full((2, 2), 0.5, dtype=torch.float64)
    Q = action_values(transitions, rewards, pi, 0.9)
    target = cql_target(transitions, rewards, pi, nu, 0.9, 1.0)
    at_state_alone = surrogate(Q, pi, nu, 0.9, 1.0, 0.0)
    assert target[0] < at_state_alone[0] - 1
    assert target[0] >= frozen_lower_bound(Q, pi, nu, 0.9, 1.0)[0]


# --- cluster-wise training -------------------------------------------------------------------------------------------


@property_test
@given(seeds, discounts, st.floats(0, 5), st.floats(0, 5))
def test_cluster_objective_is_below_the_mixture_objective(seed: int, gamma: float, alpha: float, beta: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    pi, components, w = softmax(generator, 4), softmax(generator, 3, 4), softmax(generator, 3)
    Q = torch.randn(4, generator=generator, dtype=torch.float64)
    per_cluster = w @ surrogate(Q, pi, components, gamma, alpha, beta)
    mixture = surrogate(Q, pi, w @ components, gamma, alpha, beta)
    assert per_cluster <= mixture + 1e-9 * (1 + mixture.abs() + per_cluster.abs())


@property_test
@given(seeds)
def test_sampled_cluster_gradients_average_to_that_of_the_weighted_sum(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(4, generator=generator, dtype=torch.float64, requires_grad=True)
    components, w = softmax(generator, 3, 4), softmax(generator, 3)
    Q = torch.randn(4, generator=generator, dtype=torch.float64)

    def gradient(value: Tensor) -> Tensor:
        return torch.autograd.grad(value, logits)[0]

    def pi() -> Tensor:
        return torch.softmax(logits, -1)

    sampled = torch.stack([gradient(surrogate(Q, pi(), nu, 0.9, 0.5, 0.5)) for nu in components])
    whole = gradient(w @ surrogate(Q, pi(), components, 0.9, 0.5, 0.5))
    torch.testing.assert_close(w @ sampled, whole)


@property_test
@given(seeds)
def test_state_dependent_clusters_are_bounded_by_each_clusters_own_states(seed: int) -> None:
    """E_s D(pi||nu) <= sum_z p_z E_{s|z} D(pi||nu_z), with nu(a|s) = sum_z w_z(s) nu_z(a|s)."""
    generator = torch.Generator().manual_seed(seed)
    pi, components = softmax(generator, 6, 4), softmax(generator, 3, 6, 4)
    w, rho = softmax(generator, 6, 3), softmax(generator, 6)
    nu = torch.einsum("sz,zsa->sa", w, components)
    p = rho @ w
    states_of = (rho.unsqueeze(-1) * w / p).T  # [K, S], the states of cluster z
    for divergence in (chi_square, kl):
        clustered = p @ (states_of * divergence(pi, components)).sum(-1)
        assert rho @ divergence(pi, nu) <= clustered * (1 + 1e-9)


def test_constant_weights_do_not_bound_the_buffers_own_behaviour() -> None:
    """Counterexample with w_z in place of w_z(s): two states, two clusters, each cluster owning one state.

    nu at state 0 is nu_0, far from pi, and sum_z w_z D(pi||nu_z) at state 0 is dominated by the unused nu_1 = pi.
    """
    pi = torch.tensor([0.5, 0.5], dtype=torch.float64)
    components = torch.tensor([[0.01, 0.99], [0.5, 0.5]], dtype=torch.float64)
    w = torch.tensor([0.1, 0.9], dtype=torch.float64)
    assert kl(pi, components[0]) > w @ kl(pi, components)


def test_cluster_objective_can_point_away_from_the_mixture_objective() -> None:
    """Counterexample to "does not bias the direction": modes at +-10, pi = N(8, 1), unit variances, no Q.

    The mixture's KL pulls pi to the mode at 10; the weighted sum of KLs pulls it to the middle, far from all data.
    """
    mean = torch.tensor(8.0, dtype=torch.float64, requires_grad=True)
    modes = torch.tensor([-10.0, 10.0], dtype=torch.float64)
    noise = torch.randn(2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    action = mean + noise
    log_components = torch.distributions.Normal(modes, 1.0).log_prob(action.unsqueeze(-1))
    mixture_kl = -torch.logsumexp(log_components + math.log(0.5), -1).mean()  # pi's entropy does not depend on mean
    clustered_kl = 0.5 * (mean - modes).square().mean()
    (to_mode,) = torch.autograd.grad(-mixture_kl, mean)
    (to_middle,) = torch.autograd.grad(-clustered_kl, mean)
    assert to_mode > 1.5 and to_middle < -7


# --- isotropic penalties and the KL term -----------------------------------------------------------------------------


def gaussian_objective(delta: Tensor, g: Tensor, Sigma: Tensor, alpha: float, beta: float, rho: float) -> Tensor:
    r = delta @ torch.linalg.solve(Sigma, delta)
    pearson = alpha * torch.expm1(r) if alpha > 0 else 0.0
    return delta @ g - rho * (pearson + beta * r / 2)


def random_covariance(seed: int, m: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(m, m, generator=generator, dtype=torch.float64)
    return torch.randn(m, generator=generator, dtype=torch.float64), root @ root.T + 0.1 * torch.eye(m)


@property_test
@given(seeds, st.just(0.0) | st.floats(1e-3, 3.0), st.floats(0.05, 3.0), st.floats(0.0, 0.9))
def test_stabilised_step_is_the_maximiser(seed: int, alpha: float, beta: float, gamma: float) -> None:
    """The objective is concave, so a vanishing gradient at mu_beta + kappa* Sigma g settles it."""
    g, Sigma = random_covariance(seed)
    kappa = stabilised_step((g @ Sigma @ g).item(), alpha, beta, gamma)
    delta = (kappa * Sigma @ g).requires_grad_()
    (gradient,) = torch.autograd.grad(gaussian_objective(delta, g, Sigma, alpha, beta, 1 / (1 - gamma)), delta)
    assert gradient.norm() < 1e-8 * g.norm()


@property_test
@given(positive, positive)
def test_isotropic_special_cases_are_as_printed(R: float, weight: float) -> None:
    assert math.isclose(isotropic_step(lambda r: 0.5, R, weight), kl_step(weight), rel_tol=1e-9)
    generic = isotropic_step(lambda r: math.exp(min(r, 700.0)), R, weight)
    assert math.isclose(generic, pearson_step(R, weight), rel_tol=1e-7)


@property_test
@given(st.floats(1e-8, 1e8))
def test_lambert_w_inverts_its_definition(z: float) -> None:
    assert math.isclose(lambert_w(z) * math.exp(lambert_w(z)), z, rel_tol=1e-9)


def test_increasing_penalty_alone_gives_no_unique_step() -> None:
    """Counterexample: psi(r) = log(1 + r) increases strictly, and its equation has two roots or none."""
    R, kappas = 1.0, torch.linspace(1e-3, 50, 100_000, dtype=torch.float64)

    def roots(weight: float) -> int:
        left = 2 * weight / (1 + kappas.square() * R) * kappas - 1
        return int((left[1:].sign() != left[:-1].sign()).sum())

    assert roots(2.0) == 2 and roots(0.5) == 0


@property_test
@given(positive, st.just(0.0) | st.floats(1e-3, 10), st.floats(1e-2, 10), discounts)
def test_step_and_chi_square_stay_below_the_corrected_caps(R: float, alpha: float, beta: float, gamma: float) -> None:
    kappa = stabilised_step(R, alpha, beta, gamma)
    assert kappa <= kappa_cap(alpha, beta, gamma) * (1 + 1e-9)
    assert kappa_cap(alpha, beta, gamma) <= (1 - gamma) / beta  # the printed cap, implied
    cap = chi_square_cap(R, alpha, beta, gamma)
    assert kappa * kappa * R <= math.log1p(cap) * (1 + 1e-7) + 1e-12


def test_corrected_caps_are_attained() -> None:
    """The first two where Q is flat, chi^2's second where beta is small, the step's where there is KL alone."""
    step = stabilised_step(1e-9, 0.3, 0.7, 0.5)
    assert step == pytest.approx(kappa_cap(0.3, 0.7, 0.5))
    assert step**2 * 1e-9 == pytest.approx(chi_square_cap(1e-9, 0.3, 0.7, 0.5))
    steep = stabilised_step(100.0, 0.3, 1e-9, 0.5) ** 2 * 100
    assert math.expm1(steep) == pytest.approx(chi_square_cap(100.0, 0.3, 1e-9, 0.5))
    # unit variance: m = 1, and the step's length is kappa times the gradient's
    assert 3 * stabilised_step(9.0, 0.0, 0.7, 0.5) == pytest.approx(step_cap(3.0, 1.0, 0.7, 0.5, strongly_convex=True))


@property_test
@given(positive, st.floats(1e-2, 3), st.floats(1e-2, 30), st.floats(0.0, 0.9))
def test_printed_chi_square_cap_holds_exactly_under_its_missing_condition(
    R: float, alpha: float, beta: float, gamma: float
) -> None:
    exponent = stabilised_step(R, alpha, beta, gamma) ** 2 * R
    printed = math.log(beta / (2 * alpha))
    if abs(exponent - printed) > 1e-9:
        assert printed_chi_square_cap_holds(R, alpha, beta, gamma) == (exponent < printed)


@pytest.mark.parametrize(("R", "alpha", "beta"), [(1.0, 1.0, 1.0), (1e4, 0.1, 1.0)])
def test_printed_chi_square_cap_is_broken(R: float, alpha: float, beta: float) -> None:
    """beta < 2 alpha makes it negative; a steep Q breaks it for beta > 2 alpha too, and chi^2 has no cap free of R."""
    chi = [math.expm1(stabilised_step(scale * R, alpha, beta, 0.0) ** 2 * scale * R) for scale in (1, 1e3, 1e6)]
    assert chi[0] > beta / (2 * alpha) - 1
    assert chi[0] < chi[1] / 5 < chi[2] / 25


def bernoulli_kl(p: float, q: float) -> float:
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


@property_test
@given(st.floats(0.005, 0.1), st.floats(0.1, 0.38))
def test_quadratic_lower_bound_gives_twice_the_printed_step(behaviour: float, step: float) -> None:
    """Counterexample to the printed cap: Bernoulli policies, theta the probability, E_pi[Q] = g theta exactly linear.

    KL'' falls on [behaviour, 1/2], so m = 2 KL(theta*)/step^2 is a valid quadratic lower bound on |theta| <= step.
    """
    top = behaviour + step
    m = 2 * bernoulli_kl(top, behaviour) / step**2
    offsets = [t for t in (step * i / 50 for i in range(-50, 51)) if 0 < behaviour + t < 1 and t != 0]
    assert all(bernoulli_kl(behaviour + t, behaviour) >= 0.5 * m * t * t * (1 - 1e-9) for t in offsets)
    beta, gamma = 0.7, 0.5
    slope = math.log(top / (1 - top)) - math.log(behaviour / (1 - behaviour))  # KL'(theta*)
    g = slope * beta / (1 - gamma)  # makes theta* the maximiser of g theta - beta rho KL
    assert step > step_cap(g, m, beta, gamma, strongly_convex=True)
    assert step <= step_cap(g, m, beta, gamma, strongly_convex=False)


@property_test
@given(seeds, st.floats(0.0, 2.0), st.floats(0.05, 3.0))
def test_gaussian_means_obey_the_printed_step_cap(seed: int, alpha: float, beta: float) -> None:
    """There KL is strongly convex with m = 1/||Sigma||_2."""
    g, Sigma = random_covariance(seed)
    kappa = stabilised_step((g @ Sigma @ g).item(), alpha, beta, 0.5)
    m = 1 / torch.linalg.matrix_norm(Sigma, 2).item()
    step = (kappa * Sigma @ g).norm().item()
    assert step <= step_cap(g.norm().item(), m, beta, 0.5, strongly_convex=True) * (1 + 1e-9)


def test_a_convex_critic_undoes_strong_concavity() -> None:
    """Counterexample: Q = c a^2 / 2, unit variance: E_pi[Q] has curvature c, above beta rho the surrogate is convex."""
    mean = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
    beta_rho, c = 1.0, 1.5
    surrogate_value = 0.5 * c * (mean.square() + 1) - beta_rho * 0.5 * mean.square()
    (slope,) = torch.autograd.grad(surrogate_value, mean, create_graph=True)
    (curvature,) = torch.autograd.grad(slope, mean)
    assert curvature > 0


def test_a_chi_square_with_a_hump_breaks_the_printed_step_cap() -> None:
    """Counterexample: three actions with masses x, (1 - x + theta)/2 and (1 - x - theta)/2, E_pi[Q] = g theta.

    x rises to 1e-3 at theta = 1/2 and falls again. Nearly the whole KL is that of theta, and is strongly convex; chi^2
    is 1000 at 1/2, because nu gives that action 1e-9, and the maximiser lies behind the hump.
    """
    theta = torch.linspace(-0.9, 0.9, 1801, dtype=torch.float64, requires_grad=True)
    x = 1e-9 + 1e-3 * (math.pi * theta).sin().square()
    pi = torch.stack([x, (1 - x + theta) / 2, (1 - x - theta) / 2], -1)
    nu = pi[len(pi) // 2].detach()  # theta = 0
    (slope,) = torch.autograd.grad(kl(pi, nu).sum(), theta, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), theta)
    m, g, alpha, beta, gamma = curvature.min().item(), 1.3, 1e-3, 1.0, 0.5
    assert m > 0.9
    for weight, obeys in ((0.0, True), (alpha, False)):
        step = theta[(g * theta - penalty(pi, nu, weight, beta) / (1 - gamma)).argmax()].item()
        assert (step <= step_cap(g, m, beta, gamma, strongly_convex=True)) == obeys
        assert step <= step_cap(g, m, beta, gamma, strongly_convex=False)


# --- poor coverage ---------------------------------------------------------------------------------------------------


@property_test
@given(seeds, st.integers(1, 4))
def test_poor_coverage_forces_a_large_chi_square(seed: int, size: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    pi, nu = softmax(generator, 6), softmax(generator, 6)
    delta, epsilon = pi[:size].sum().item(), nu[:size].sum().item()
    least = poor_coverage_chi_square(delta, epsilon)
    assert chi_square(pi, nu).item() >= least * (1 - 1e-9) - 1e-12
    assert least >= delta**2 / epsilon - 1
    two_point = chi_square(torch.tensor([delta, 1 - delta]).double(), torch.tensor([epsilon, 1 - epsilon]).double())
    assert math.isclose(two_point.item(), least, rel_tol=1e-5, abs_tol=1e-6)
