"""Networks by fused kernels are those by the plain PyTorch code, up to the order of additions."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from c4rl.core import ops as kernels
from c4rl.core.networks import Critic, Stack, StackedMLP
from c4rl.core.ops.mlp import jacobian_vector_product, proven, stacked_mlp
from c4rl.core.policies import dropout_masks
from c4rl.core.random import Streams
from tests.kernels.support import CUDA, errors, normal

pytestmark = pytest.mark.skipif(kernels.missing() is not None, reason=f"no fused kernels here: {kernels.missing()}")


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


@pytest.mark.parametrize("mode", kernels.OFFERED)
@pytest.mark.parametrize("layer_norm", [False, True])
def test_networks_prove_themselves(layer_norm: bool, mode: str) -> None:
    own = kernels.kernels_on(CUDA, "mlp")
    assert own is not None and proven(own, CUDA, layer_norm, mode == "bf16x3")


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
    return [h.squeeze(1) for h in stacked_mlp(x, None, mlp.layers(), [mask.unsqueeze(1) for mask in masks or ()])[1]]


@pytest.mark.parametrize("mode", ["fp32", "bf16x3"])
def test_jacobian_vector_products(mode: str, rows: int = 4500, widths: tuple[int, ...] = (208, 256, 200)) -> None:
    mlp = StackedMLP(Stack((0, 1), 7, 2, CUDA), "net", (7, *widths, 18))
    x = normal(2, rows, 7)
    x = x[:, alike(lambda: hidden_layers(mlp, x), rows, mode)]
    v = normal(*x.shape, seed=1).requires_grad_()

    def numbers() -> tuple[Tensor, ...]:
        y, along = jacobian_vector_product(x, v, mlp.layers())
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


@pytest.mark.parametrize(("runs", "rows"), [(2, 1300), (9, 200)])
def test_a_network_whose_layers_are_kept_split(runs: int, rows: int, widths: tuple[int, ...] = (208, 256, 240)) -> None:
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
