"""Fused kernels are the plain PyTorch code beside them, up to the order of additions."""

from typing import Any

import pytest
import torch
from torch import Tensor

from c4rl.algorithms.losses import clipped_target, mean_squared_error, relative_mean
from c4rl.core import ops as kernels
from c4rl.core.buffer import Batch
from c4rl.core.networks import Critic, Stack
from c4rl.core.optimizers import FlatAdam
from c4rl.core.policies import TanhGaussian
from c4rl.core.random import Streams
from c4rl.plugins.c4.cluster_sampler import ClusterSampler
from c4rl.plugins.c4.cross_covariance import penalty
from c4rl.plugins.c4.principal_directions import principal_directions
from tests.kernels.support import CUDA, errors, normal

pytestmark = pytest.mark.skipif(kernels.missing() is not None, reason=f"no fused kernels here: {kernels.missing()}")


@pytest.mark.parametrize("per_run", [False, True])
@pytest.mark.parametrize("rows", [37, 1500])
def test_losses(rows: int, per_run: bool) -> None:
    """Against the plain code in float64; tensors lie in memory as in training: columns of rows, one of N actions."""
    packed, q_drawn = normal(3, rows, 19), normal(3, 2, rows, 4, seed=1).requires_grad_()
    actions, value = normal(3, rows, 5, seed=2).requires_grad_(), normal(3, rows, seed=3).requires_grad_()
    setting = torch.tensor([0.9, 0.5, 0.99], device=CUDA) if per_run else 0.9

    def numbers(dtype: torch.dtype) -> tuple[Tensor, ...]:
        rows_, q, a, v = (t.to(dtype) for t in (packed, q_drawn, actions, value))
        given = setting.to(dtype) if isinstance(setting, Tensor) else setting
        empty = [rows_[..., :0]] * 5
        batch = Batch(*empty, rewards=rows_[..., 7], continues=(rows_[..., 8] > 0).to(dtype), next_valid=rows_[..., 0])
        batch = batch._replace(continues=torch.stack([batch.continues, batch.rewards], dim=2)[..., 0])
        y = clipped_target(batch, given, q[..., 2].detach())
        losses = (
            mean_squared_error(q[..., 0], y.unsqueeze(1), keep=2),
            mean_squared_error(a, rows_[..., 3:8]),
            mean_squared_error(v, y),
            relative_mean(v, given),
        )
        total = sum((loss * torch.arange(1, loss.numel() + 1, device=CUDA).view_as(loss)).sum() for loss in losses)
        return y, *(loss.detach() for loss in losses), *torch.autograd.grad(total, [q_drawn, actions, value])

    exact = tuple(number.double() for number in numbers(torch.float64))
    assert max(errors(numbers(torch.float32), exact)) < 2e-6


def test_a_target_of_no_number_is_none() -> None:
    q = torch.tensor([[[1.0, float("nan")], [float("nan"), 2.0]]], device=CUDA)
    rewards = torch.ones(1, 2, device=CUDA)
    batch = Batch(*[rewards] * 5, rewards=rewards, continues=rewards, next_valid=rewards)
    assert clipped_target(batch, 0.9, q).isnan().all()


PRECISIONS = pytest.mark.parametrize(("mode", "bound"), [("fp32", 1e-6), ("bf16x3", 1e-4)])


@PRECISIONS
def test_products_in_each_precision(mode: str, bound: float, rows: int = 2100, columns: int = 208) -> None:
    """In float32, and in bf16x3, which has two thirds of its digits.

    Tensor cores cut sums off where float32 is rounded, so that an error remains that grows with the number of terms.
    """
    from c4rl.core.triton.linear import linear, weight_gradient  # need Triton

    own, shared = normal(2, 2, rows, 80), normal(2, rows, 90)[..., 4:84]  # by members, and columns of packed rows
    gradient = normal(2, 2, rows, columns, seed=1)
    weight, bias = normal(2, 3, 80, columns, seed=2)[:, 1:], normal(2, 2, columns, seed=3)
    rounding, split = [], mode == "bf16x3"
    for x, every_x in ((own, own.double()), (shared, shared.unsqueeze(1).double())):
        exact = every_x @ weight.double() + bias.double().unsqueeze(2)
        found, of_weight, of_bias = (
            linear(x, weight, bias, bf16x3=split),
            torch.empty_like(weight),
            torch.empty_like(bias),
        )
        weight_gradient(x, gradient, of_weight, bias=of_bias, bf16x3=split)
        rounding += errors((found, of_weight), (exact, every_x.mT @ gradient.double()))
        assert errors((of_bias,), (gradient.double().sum(2),))[0] < 1e-6
    assert max(rounding) < bound
    if mode == "bf16x3":
        assert min(rounding) > 1e-6, "nothing was split"


@pytest.mark.parametrize("kind", ["uniform", "integers", "normal"])
def test_draws_are_the_same_numbers(kind: str) -> None:
    streams = Streams([1, 2, 3], torch.tensor(123_456_789_012, device=CUDA))
    arguments: tuple[Any, ...] = (torch.tensor([5, 7, 100_000], device=CUDA),) if kind == "integers" else ()
    fused = getattr(streams, kind)("stream", *arguments, 37, 3)
    with kernels.kernels(False):
        plain = getattr(streams, kind)("stream", *arguments, 37, 3)
    if kind == "normal":
        torch.testing.assert_close(fused, plain, rtol=1e-6, atol=1e-6)
    else:
        assert torch.equal(fused, plain)


def test_single_cluster_batches_are_the_same_rows() -> None:
    streams = Streams([3, 7], torch.zeros((), dtype=torch.int64, device=CUDA))
    sampler = ClusterSampler([3, 7], [0, 300], [300, 200], [4, 3], device=CUDA)
    for refreshed in (False, True):
        if refreshed:
            sampler.refresh(normal(2, 300, 4).softmax(2), 0)
        for step in range(20):
            streams.step.fill_(step)
            rows, cluster = sampler.rows(streams, 64)
            with kernels.kernels(False):
                plain_rows, plain_cluster = sampler.rows(streams, 64)
            assert torch.equal(rows, plain_rows) and torch.equal(cluster, plain_cluster)


@pytest.mark.parametrize("lr", [1e-3, [1e-3, 2e-3]])
def test_adam(lr: float | list[float]) -> None:
    after = []
    for enabled in (True, False):
        critic = Critic(Stack((0, 1), 5, 2, CUDA), "critic", (32, 32))
        adam = FlatAdam(critic, torch.tensor(lr, device=CUDA) if isinstance(lr, list) else lr)
        rows = normal(2, 50, 7)
        for _ in range(20):
            with kernels.kernels(False):
                loss = critic.at(rows).q.square().mean((1, 2)).sum()
            with kernels.kernels(enabled):
                adam.step(loss, torch.tensor(0.5, device=CUDA))
        after.append(adam.flat.clone())
    torch.testing.assert_close(after[0], after[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shape", [(2, 20, 3), (2, 20, 4, 3)])
def test_actions_of_a_tanh_gaussian(shape: tuple[int, ...]) -> None:
    raw = normal(2, 20, 6).requires_grad_(len(shape) == 3)
    mean, log_std = raw.split(3, -1)
    policy, noise = TanhGaussian(mean, log_std.clamp(-5, 2)), normal(*shape, seed=1)
    fused = policy.sample(noise)
    with kernels.kernels(False):
        plain = policy.sample(noise)
    torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-5)
    if raw.requires_grad:
        losses = [(actions * noise).sum() + log_prob.square().sum() for actions, log_prob in (fused, plain)]
        gradients = [torch.autograd.grad(loss, raw, retain_graph=True)[0] for loss in losses]
        assert errors((gradients[0],), (gradients[1].double(),))[0] < 1e-5


@pytest.mark.parametrize("beta", [1.0, [0.5, 2.0]])
def test_the_cross_covariance_penalty(beta: float | list[float]) -> None:
    """A batch's mask is a column of its packed rows, so that its numbers do not lie side by side."""
    g = normal(2, 2, 100, 48).requires_grad_()
    g_next = normal(2, 2, 100, 48, seed=1) + 0.3 * g.detach()
    packed = normal(2, 100, 3)
    packed[..., 1] = (torch.arange(100, device=CUDA) % 7 != 0).float()
    valid = packed[..., 1].unsqueeze(1)
    weight = torch.tensor(beta, device=CUDA).unsqueeze(1) if isinstance(beta, list) else beta
    fused = penalty(g_next, g, valid, beta=weight)
    with kernels.kernels(False):
        plain = penalty(g_next, g, valid, beta=weight)
    torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-6)
    gradients = [torch.autograd.grad((p * p).sum(), g)[0] for p in (fused, plain)]
    assert errors((gradients[0],), (gradients[1].double(),))[0] < 1e-5


def test_metrics_and_failures() -> None:
    """NaN and infinities are failures, from the first update that has them."""
    from c4rl.core.triton.metrics import add_metrics  # needs Triton

    values, sums = normal(5, 40), normal(5, 40, seed=1)
    values[1, 3], values[4, 33], values[0, 34] = torch.nan, torch.inf, -torch.inf
    failed_at = torch.full((40,), -1, device=CUDA)
    failed_at[33] = 2
    expected = failed_at.clone()
    expected[[3, 34]] = 7
    total = sums + values
    add_metrics(values, sums, failed_at, torch.tensor(7, device=CUDA))
    assert torch.equal(sums.nan_to_num(), total.nan_to_num())
    assert torch.equal(failed_at, expected)


def test_principal_directions() -> None:
    spectrum = torch.logspace(0, -3, 64, device=CUDA)
    rows = normal(3, 2000, 64) * spectrum
    fused = principal_directions(rows, 8)
    with kernels.kernels(False):
        plain = principal_directions(rows, 8)
    torch.testing.assert_close(fused.kept_variance, plain.kept_variance, rtol=1e-4, atol=0)
    torch.testing.assert_close(fused.directions, plain.directions, rtol=0, atol=1e-3)


def test_kernels_for_principal_directions_prove_themselves() -> None:
    from c4rl.core.triton.subspace import proven  # needs Triton

    assert proven(CUDA)


def test_principal_directions_of_features_that_hardly_vary() -> None:
    """None of them, one of them, or one so much more than the others that the rest is rounding noise beside it."""
    rows = torch.zeros(3, 500, 64, device=CUDA)
    rows[1, :, 0] = torch.arange(500, device=CUDA)
    rows[2] = 1e-8 * normal(500, 64)
    rows[2, :, 5] += 10 * normal(500, seed=1)
    found = principal_directions(rows, 8)
    assert found.directions[1, 0, 0].item() == pytest.approx(1.0)
    assert (found.kept_variance <= 1 + 1e-6).all()
    identity = torch.eye(8, device=CUDA).expand(3, -1, -1)
    torch.testing.assert_close(found.directions.mT @ found.directions, identity, rtol=0, atol=1e-5)
