"""A stack of ReLU MLPs as one differentiable operation: one launch per layer forwards, two per layer backwards."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from c4rl.kernels.linear import linear, weight_gradient


@cache
def _side_stream(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _layers(x: Tensor, actions: Tensor | None, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> list[Tensor]:
    """Every layer's result, [R, M, rows, out]; the last one's without ReLU."""
    depth = len(weights)
    if actions is None:
        results = [linear(x, weights[0], biases[0], relu=depth > 1)]
    else:  # the first layer's state part is computed once per state
        width, count = x.shape[-1], actions.shape[-2] // x.shape[-2]
        states = linear(x, weights[0][:, :, :width], biases[0])
        results = [linear(actions, weights[0][:, :, width:], add=states, group=count, relu=depth > 1)]
    for layer in range(1, depth):
        results.append(linear(results[-1], weights[layer], biases[layer], relu=layer < depth - 1))
    return results


class _StackedMLP(torch.autograd.Function):
    """x (and actions, N per row of x) and layers -> the output, and every hidden layer.

    The output and the last hidden layer may be differentiated, once.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, actions: Tensor | None, *parameters: Tensor) -> tuple[Tensor, ...]:
        weights, biases = parameters[::2], parameters[1::2]
        main, aside = torch.cuda.current_stream(), _side_stream(x.device.index)
        aside.wait_stream(main)
        with torch.cuda.stream(aside):  # for the way back: reading weights across their rows is slow
            ctx.flipped = [w.mT.contiguous() for w in weights[1:]]
        *hidden, output = _layers(x, actions, weights, biases)
        main.wait_stream(aside)
        ctx.save_for_backward(x, actions, *parameters, *hidden)
        ctx.depth = len(weights)
        ctx.mark_non_differentiable(*hidden[:-1])
        ctx.set_materialize_grads(False)
        return output, *hidden

    @staticmethod
    def backward(ctx: Any, output: Tensor | None, *hidden_gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, actions, *saved = ctx.saved_tensors
        depth = ctx.depth
        weights, hidden = saved[: 2 * depth : 2], saved[2 * depth :]
        needs = ctx.needs_input_grad
        gradients: list[Tensor | None] = [None] * (2 * depth)
        # nothing waits for weight gradients: they are computed beside the chain of dz, which stays until they are done
        main, aside, held = torch.cuda.current_stream(), _side_stream(x.device.index), []

        def keep(layer: int, source: Tensor, dz: Tensor) -> None:
            if needs[2 + 2 * layer]:
                held.append(dz)
                aside.wait_stream(main)
                with torch.cuda.stream(aside):
                    gradients[2 * layer], gradients[2 * layer + 1] = weight_gradient(source, dz)

        features = hidden_gradients[depth - 2] if depth > 1 else None
        dz: Tensor
        if output is None:  # the features alone were used
            assert features is not None
            dz = torch.where(hidden[-1] > 0, features, 0)
            top = depth - 2
        else:
            dz, top = output.contiguous(), depth - 1
        for layer in range(top, 0, -1):
            keep(layer, hidden[layer - 1], dz)
            add = features.contiguous() if features is not None and layer == depth - 1 else None
            dz = linear(dz, ctx.flipped[layer - 1], add=add, mask=hidden[layer - 1])
        dx = dactions = None
        if actions is None:
            keep(0, x, dz)
            if needs[0]:
                dx = linear(dz, weights[0], transposed=True)
                dx = dx.sum(1) if x.dim() == 3 else dx
        else:
            width, count = x.shape[-1], actions.shape[-2] // x.shape[-2]
            per_state = dz.unflatten(2, (-1, count)).sum(3) if needs[0] or needs[2] else dz
            if needs[2]:
                of_states, gradients[1] = weight_gradient(x, per_state)
                of_actions, _ = weight_gradient(actions, dz, bias=False)
                gradients[0] = torch.cat([of_states, of_actions], dim=2)
            if needs[0]:
                dx = linear(per_state, weights[0][:, :, :width], transposed=True).sum(1)
            if needs[1]:
                dactions = linear(dz, weights[0][:, :, width:], transposed=True).sum(1)
        if held:
            main.wait_stream(aside)
        return dx, dactions, *gradients


def stacked_mlp(
    x: Tensor, actions: Tensor | None, weights: list[Tensor], biases: list[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Weights [R, M, in, out], biases [R, M, out]; x [R, rows, in], or [R, rows, s] beside actions [R, rows · N, a].

    Gives the output [R, M, rows (· N), out] and every hidden layer [R, M, rows (· N), width].
    """
    parameters = [tensor for pair in zip(weights, biases, strict=True) for tensor in pair]
    inputs = (x, *parameters) if actions is None else (x, actions, *parameters)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
        output, *hidden = _StackedMLP.apply(x, actions, *parameters)
    else:
        *hidden, output = _layers(x, actions, weights, biases)
    return output, hidden
