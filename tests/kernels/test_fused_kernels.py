"""Fused kernels are the plain PyTorch code beside them, up to the order of additions."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from c4rl import kernels
from c4rl.algorithms.losses import clipped_target, mean_squared_error, relative_mean
from c4rl.algorithms.t_symmetry_dynamics import jacobian_vector_product
from c4rl.c4.cluster_sampler import ClusterSampler
from c4rl.c4.cross_covariance import penalty
from c4rl.c4.principal_directions import principal_directions
from c4rl.networks import Critic, Stack, StackedMLP
from c4rl.policies import TanhGaussian, dropout_masks
from c4rl.random import Streams
from c4rl.training.buffer import Batch
from c4rl.training.optimizer import FlatAdam

pytestmark = pytest.mark.skipif(kernels.missing() is not None, reason=f"no fused kernels here: {kernels.missing()}")
CUDA = torch.device("cuda")


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(CUDA, dtype)


def errors(found: tuple[Tensor, ...], exact: tuple[Tensor, ...]) -> list[float]:
    """Of each tensor, relative to its size."""
    return [float((f.double() - e).norm() / e.norm().clamp_min(1e-30)) for f, e in zip(found, exact, strict=True)]


def critic_numbers(
    runs: int, rows: int, drawn: int, dtype: torch.dtype, fused: bool, layer_norm: bool
) -> tuple[Tensor, ...]:
    """Q values and gradients of a loss that uses outputs and features at data, and outputs at drawn actions."""
    stack = Stack(tuple(range(runs)), 5, 3, CUDA, dtype)
    critic = Critic(stack, "critic", (64, 48, 64), layer_norm=layer_norm)
    pairs, actions = normal(runs, rows, 8, dtype=dtype), normal(runs, rows, drawn, 3, seed=1, dtype=dtype)
    actions.requires_grad_()
    with kernels.kernels(fused):
        output, drawn_output = critic.at(pairs), critic(pairs[..., :5], actions)
        loss = output.q.square().mean() + output.features.square().mean() + (drawn_output.q**2).mean()
        return output.q.detach(), drawn_output.q.detach(), *torch.autograd.grad(loss, [actions, *critic.parameters()])


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize(("runs", "rows", "drawn"), [(1, 33, 1), (3, 256, 7), (2, 128, 31)])
def test_a_critic_and_its_gradients(runs: int, rows: int, drawn: int, layer_norm: bool) -> None:
    exact = critic_numbers(runs, rows, drawn, torch.float64, False, layer_norm)
    fused = errors(critic_numbers(runs, rows, drawn, torch.float32, True, layer_norm), exact)
    plain = errors(critic_numbers(runs, rows, drawn, torch.float32, False, layer_norm), exact)
    assert max(fused) < 3 * max(plain) + 1e-6, (fused, plain)


@pytest.mark.parametrize("mode", kernels.PRECISIONS)
@pytest.mark.parametrize("layer_norm", [False, True])
def test_networks_prove_themselves(layer_norm: bool, mode: str) -> None:
    with kernels.products(mode):
        assert Critic(Stack((0,), 3, 2, CUDA), "critic", (8,), layer_norm=layer_norm).mlp.fuses(normal(1, 4, 5))


def test_gradients_of_features_alone_and_of_frozen_critics() -> None:
    stack = Stack((0, 1), 5, 3, CUDA)
    critic = Critic(stack, "critic", (64, 64))
    states, actions = normal(2, 40, 5), normal(2, 40, 3, seed=1).requires_grad_()

    def of_features() -> tuple[Tensor, ...]:
        features = critic(states, actions).features
        return torch.autograd.grad(features.square().sum(), [actions, *list(critic.mlp.weights)[:-1]])

    def of_frozen() -> tuple[Tensor, ...]:
        return torch.autograd.grad(critic(states, actions, slice(1), frozen=True).q.sum(), [actions])

    for numbers in (of_features, of_frozen):
        fused = numbers()
        with kernels.kernels(False):
            plain = numbers()
        assert max(errors(fused, tuple(p.double() for p in plain))) < 1e-5


def test_a_network_of_one_member() -> None:
    mlp = StackedMLP(Stack((0, 1, 2), 7, 2, CUDA), "net", (7, 32, 32, 5))
    rows = normal(3, 50, 7)
    fused = mlp(rows)
    with kernels.kernels(False):
        torch.testing.assert_close(fused, mlp(rows), rtol=1e-5, atol=1e-6)


def alike(hidden: Callable[[], Sequence[Tensor]], rows: int, mode: str) -> Tensor:
    """The rows at which every ReLU of every run is on the side of 0 where the plain code has it: most.

    One unit on the other side changes a row's gradients by far more than rounding does.
    """
    with kernels.products(mode):
        fused = [h > 0 for h in hidden()]
    with kernels.kernels(False):
        plain = [h > 0 for h in hidden()]
    same = [(f == p).flatten(0, -3).all(0).view(rows, -1).all(1) for f, p in zip(fused, plain, strict=True)]
    found = torch.stack(same).all(0).nonzero().squeeze(1)
    assert len(found) > 0.7 * rows
    return found


def hidden_layers(mlp: StackedMLP, x: Tensor, masks: Sequence[Tensor] | None = None) -> list[Tensor]:
    if mlp.fuses(x):
        return [h.squeeze(1) for h in mlp.evaluate(x, masks=masks)[1]]
    hidden = [x]
    for layer in range(len(mlp.weights) - 1):
        h = mlp.activate(layer, mlp.linear(layer, hidden[-1]))
        hidden.append(h if masks is None else h * masks[layer])
    return hidden[1:]


@pytest.mark.parametrize("mode", ["fp32", "bf16x3"])
def test_jacobian_vector_products(mode: str, rows: int = 4500, widths: tuple[int, ...] = (208, 256, 200)) -> None:
    mlp = StackedMLP(Stack((0, 1), 7, 2, CUDA), "net", (7, *widths, 18))
    x = normal(2, rows, 7)
    x = x[:, alike(lambda: hidden_layers(mlp, x), rows, mode)]
    v = normal(*x.shape, seed=1).requires_grad_()

    def numbers() -> tuple[Tensor, ...]:
        y, along = jacobian_vector_product(mlp, x, v)
        loss = y.square().mean() + (along * y.detach().cos()).mean()
        return y.detach(), along.detach(), *torch.autograd.grad(loss, [v, *mlp.parameters()])

    with kernels.products(mode):
        fused = numbers()
    with kernels.kernels(False):
        plain = numbers()
    assert max(errors(fused, tuple(p.double() for p in plain))) < (1e-5 if mode == "fp32" else 1e-4)


@pytest.mark.parametrize("mode", ["fp32", "bf16x3"])
def test_dropout(mode: str, rows: int = 4500, widths: tuple[int, ...] = (200, 200, 200)) -> None:
    mlp = StackedMLP(Stack((0, 1), 7, 2, CUDA), "net", (7, *widths, 3))
    x, streams = normal(2, rows, 7), Streams([1, 2], torch.tensor(3, device=CUDA))
    masks = dropout_masks(streams, "dropout", 0.4, widths, rows)
    assert masks is not None
    chosen = alike(lambda: hidden_layers(mlp, x, masks), rows, mode)
    x, masks = x[:, chosen].requires_grad_(), [mask[:, chosen] for mask in masks]

    def numbers() -> tuple[Tensor, ...]:
        y = mlp(x, masks)
        return y.detach(), *torch.autograd.grad(y.square().mean(), [x, *mlp.parameters()])

    with kernels.products(mode):
        fused = numbers()
    with kernels.kernels(False):
        plain = numbers()
    assert max(errors(fused, tuple(p.double() for p in plain))) < (1e-5 if mode == "fp32" else 1e-4)


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


PARTS = pytest.mark.parametrize(("mode", "bound"), [("fp32", 1e-6), ("tf32", 2e-3), ("bf16x6", 4e-6), ("bf16x3", 1e-4)])


@PARTS
def test_products_of_numbers_in_parts(mode: str, bound: float, rows: int = 2100, columns: int = 208) -> None:
    """Three parts have all of float32's digits, two have two thirds of them.

    Tensor cores cut sums off where float32 is rounded, so that an error remains that grows with the number of terms.
    """
    from c4rl.kernels.linear import linear, weight_gradient  # need Triton

    x, gradient = normal(2, 2, rows, 80), normal(2, 2, rows, columns, seed=1)
    weight, bias = normal(2, 3, 80, columns, seed=2)[:, 1:], normal(2, 2, columns, seed=3)
    exact = x.double() @ weight.double() + bias.double().unsqueeze(2)
    exact_weight = x.double().mT @ gradient.double()
    with kernels.products(mode):
        found = linear(x, weight, bias), weight_gradient(x, gradient)[0]
    rounding = errors(found, (exact, exact_weight))
    assert max(rounding) < bound
    if mode == "bf16x3":
        assert min(rounding) > 1e-6, "nothing was split"


@pytest.mark.parametrize(("runs", "rows"), [(2, 1300), (9, 200)])
def test_a_network_whose_layers_are_kept_in_parts(
    runs: int, rows: int, widths: tuple[int, ...] = (208, 256, 240)
) -> None:
    critic = Critic(Stack(tuple(range(runs)), 5, 3, CUDA), "critic", widths)
    states, actions = normal(runs, rows, 5), normal(runs, rows, 2, 3, seed=1)
    chosen = alike(lambda: critic(states, actions).hidden, rows, "bf16x3")
    states, actions = states[:, chosen], actions[:, chosen].requires_grad_()

    def numbers() -> tuple[Tensor, ...]:
        output = critic(states, actions)
        parameters = [actions, *critic.parameters()]
        of_q = torch.autograd.grad(output.q.square().mean() + output.features.mean(), parameters)
        of_features = torch.autograd.grad(critic(states, actions).features.square().mean(), parameters[: len(widths)])
        of_frozen = torch.autograd.grad(critic(states, actions, slice(1), frozen=True).q.sum(), [actions])
        active = [(h > 0).double() for h in output.hidden]
        return (*of_q, *of_features, *of_frozen, output.q.detach(), output.features.detach(), *active)

    with kernels.products("bf16x3"):
        lower = [h.dtype for h in critic(states, actions).hidden]
        assert lower == [torch.bfloat16] * (len(widths) - 1) + [torch.float32]
        fused = numbers()
    with kernels.kernels(False):
        plain = numbers()
    assert max(errors(fused, tuple(p.double() for p in plain))) < 1e-4


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
    from c4rl.kernels.metrics import add_metrics  # needs Triton

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
    from c4rl.kernels.subspace import proven  # needs Triton

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
