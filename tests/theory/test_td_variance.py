"""Theorem 1: the three terms, the block form, and what happens outside the printed assumptions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from c4rl.theory.td_variance import (
    block_form,
    dataset_variance,
    deviation_error_bound,
    equal_direction_variance,
    td_terms,
)

seeds = st.integers(0, 2**31 - 1)
property_test = settings(derandomize=True, deadline=None, max_examples=40)
GAMMA = 0.9


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def unit(seed: int, *shape: int) -> Tensor:
    w = normal(seed, *shape)
    return w / w.norm(dim=-1, keepdim=True)


def covariance(x: Tensor, y: Tensor) -> Tensor:
    return (x - x.mean(0)).T @ (y - y.mean(0)) / len(x)


@property_test
@given(seeds, st.floats(0.0, 2.0), st.floats(0.0, 2.0))
def test_three_terms_are_the_variance_of_the_linear_residual(seed: int, k: float, k_next: float) -> None:
    """Over directions at one transition, correlated w and w'; and over transitions at one pair of directions."""
    w = unit(seed, 50, 4)
    w_next = 0.5 * w + 0.5 * unit(seed + 1, 50, 4)
    g_next, g = normal(seed + 2, 4), normal(seed + 3, 4)
    for arguments in ((g_next, g, w_next, w), (w_next, w, g_next, g)):
        delta = 3.0 + GAMMA * k_next * (arguments[2] * arguments[0]).sum(-1) - k * (arguments[3] * arguments[1]).sum(-1)
        torch.testing.assert_close(td_terms(*arguments).variance(GAMMA, k, k_next), delta.var(correction=0))


@property_test
@given(seeds)
def test_block_form_holds_for_random_magnitudes(seed: int) -> None:
    w, w_next = unit(seed, 60, 3), unit(seed + 1, 60, 3)
    k, k_next = normal(seed + 2, 60, 1).abs(), normal(seed + 3, 60, 1).abs()
    g_next, g = normal(seed + 4, 3), normal(seed + 5, 3)
    delta = GAMMA * k_next.squeeze() * (w_next @ g_next) - k.squeeze() * (w @ g)
    u_next, u = k_next * w_next, k * w
    blocks = covariance(u_next, u_next), covariance(u, u), covariance(u_next, u)
    torch.testing.assert_close(block_form(g_next, g, *blocks, GAMMA), delta.var(correction=0))


def test_magnitudes_must_be_fixed_for_the_printed_form() -> None:
    """Counterexample: w constant, k random. Every printed term is zero, the residual still varies."""
    k, w = torch.tensor([0.5, 1.5], dtype=torch.float64), torch.tensor([1.0, 0.0], dtype=torch.float64)
    g = torch.tensor([2.0, 1.0], dtype=torch.float64)
    printed = td_terms(g, g, w.expand(2, 2), w.expand(2, 2)).variance(0.0, k.mean().item(), 0.0)
    assert printed == 0 and (k * (w @ g)).var(correction=0) == 1.0


@property_test
@given(seeds)
def test_equal_isotropic_directions_have_the_printed_variance(seed: int) -> None:
    """The 2m points +-e_j have the sphere's mean and covariance, so the corollary is exact on them."""
    g_next, g = normal(seed, 5), normal(seed + 1, 5)
    w = torch.cat([torch.eye(5), -torch.eye(5)]).double()
    variance = td_terms(g_next, g, w, w).variance(GAMMA, 0.3, 0.3)
    torch.testing.assert_close(variance, equal_direction_variance(g_next, g, GAMMA, 0.3))


def test_random_directions_see_the_dot_product_and_not_the_covariance() -> None:
    """Counterexample to |Cov(<w', g'>, <w, g>)| <= ||C||_2 for random directions: constant gradients have C = 0."""
    g = torch.tensor([1.0, 2.0, 2.0], dtype=torch.float64)
    w = torch.cat([torch.eye(3), -torch.eye(3)]).double()
    shared = td_terms(g, g, w, w).C
    torch.testing.assert_close(shared, g @ g / 3)  # E<g', g> / m, while Cov(g', g) = 0
    independent = td_terms(g, g, w.repeat_interleave(6, 0), w.repeat(6, 1)).C
    assert independent.abs() < 1e-12


@property_test
@given(seeds)
def test_dataset_variance_needs_the_base_residual(seed: int) -> None:
    base, linear = normal(seed, 30), normal(seed + 1, 30)
    torch.testing.assert_close(dataset_variance(base, linear), (base + linear).var(correction=0))
    constant = torch.full_like(base, base[0].item())
    torch.testing.assert_close(dataset_variance(constant, linear), linear.var(correction=0))


@property_test
@given(seeds, st.floats(0.01, 0.5), st.floats(0.01, 0.5))
def test_taylor_error_stays_below_its_bound(seed: int, k: float, k_next: float) -> None:
    """Q(x) = sum_j sin(a_j . x): its gradient is Lipschitz with ||A||_2^2, so L is known."""
    A = normal(seed, 6, 4)
    L = torch.linalg.matrix_norm(A, 2).square().item()
    x, x_next = normal(seed + 1, 4), normal(seed + 2, 4)
    w, w_next = unit(seed + 3, 200, 4), unit(seed + 4, 200, 4)

    def Q(points: Tensor) -> Tensor:
        return (points @ A.T).sin().sum(-1)

    def gradient(point: Tensor) -> Tensor:
        return (point @ A.T).cos() @ A

    exact = (GAMMA * Q(x_next + k_next * w_next) - Q(x + k * w)).std(correction=0)
    linear = td_terms(gradient(x_next), gradient(x), w_next, w).variance(GAMMA, k, k_next).sqrt()
    assert (exact - linear).abs() <= deviation_error_bound(L, GAMMA, k, k_next)


def test_taylor_error_can_be_as_large_as_its_bound() -> None:
    """Q(x) = L/2 x|x| has an L-Lipschitz gradient that is 0 at x = x' = 0; w' = -w."""
    L, k, k_next, w = 3.0, 0.2, 0.3, torch.tensor([-1.0, 1.0], dtype=torch.float64)

    def Q(x: Tensor) -> Tensor:
        return L / 2 * x * x.abs()

    exact = (GAMMA * Q(-k_next * w) - Q(k * w)).std(correction=0)
    assert exact.item() == pytest.approx(deviation_error_bound(L, GAMMA, k, k_next))


def taylor_errors(activation: type[torch.nn.Module], magnitudes: tuple[float, ...]) -> list[float]:
    """How far k^2 Var<w, g> is from Var Q(x + kw) over isotropic directions, relative, mean over 32 points and three
    untrained 4x64 networks of 6 inputs."""
    errors = torch.zeros(len(magnitudes), dtype=torch.float64)
    for seed in range(3):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            layers = [layer for i in (6, 64, 64, 64) for layer in (torch.nn.Linear(i, 64), activation())]
            Q = torch.nn.Sequential(*layers, torch.nn.Linear(64, 1)).double()
        x, w = normal(seed, 32, 6).requires_grad_(), unit(seed + 100, 1000, 6)
        (g,) = torch.autograd.grad(Q(x).sum(), x)
        with torch.no_grad():
            for i, k in enumerate(magnitudes):
                exact = Q(x.unsqueeze(1) + k * w).squeeze(2).var(1, correction=0)
                linear = td_terms(g.unsqueeze(1), g.unsqueeze(1), w, w).variance(0.0, k, 0.0)
                errors[i] += (linear / exact - 1).abs().mean() / 3
    return errors.tolist()


def test_the_taylor_step_needs_smooth_gradients() -> None:
    """A ReLU network's gradient jumps: there is no L, and the error falls with k instead of k^2."""
    relu, tanh = (taylor_errors(kind, (0.4, 0.1)) for kind in (torch.nn.ReLU, torch.nn.Tanh))
    assert relu[0] == pytest.approx(0.23, abs=0.03) and tanh[0] == pytest.approx(0.008, abs=0.003)
    assert relu[0] / relu[1] < 4 < 6 < tanh[0] / tanh[1]
