"""Jacobian-vector products of stacked ReLU MLPs, differentiable once."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from c4rl.core.triton.linear import linear
from c4rl.core.triton.mlp import flip, in_groups, over_members
from c4rl.core.triton.split import is_split
from c4rl.core.triton.tall_product import weight_gradient
from c4rl.core.triton.tiles import kept_split


class _Tangents(torch.autograd.Function):
    """v, weights and then hidden layers -> J·v; see `tangents`."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, bf16x3: bool, *tensors: Tensor) -> Tensor:
        last = len(tensors) // 2
        weights, hidden = tensors[: last + 1], tensors[last + 1 :]
        results = [v]
        for layer, weight in enumerate(weights[:-1]):
            keep_split = bf16x3 and kept_split(weight.shape[0] * weight.shape[1], v.shape[-2], weight.shape[3])
            results.append(linear(results[-1], weight, mask=hidden[layer], bf16x3=bf16x3, keep_split=keep_split))
        ctx.save_for_backward(*tensors, *results)
        ctx.bf16x3 = bf16x3
        return linear(results[-1], weights[-1], bf16x3=bf16x3)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, output: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        last, bf16x3 = len(ctx.saved_tensors) // 3, ctx.bf16x3
        weights, hidden = ctx.saved_tensors[: last + 1], ctx.saved_tensors[last + 1 : 2 * last + 1]
        results, dz = ctx.saved_tensors[2 * last + 1 :], output.contiguous()
        back = in_groups(weights[1:], partial(flip, rows=dz.shape[-2], bf16x3=bf16x3))
        gradients = [torch.empty_like(weight) for weight in weights]
        for layer in range(last, 0, -1):
            weight_gradient(results[layer], dz, gradients[layer], bf16x3=bf16x3)
            form: dict[str, Any] = {"bf16x3": bf16x3, "keep_split": is_split(results[layer - 1])}
            dz = linear(dz, back[layer - 1], mask=hidden[layer - 1], **form)
        weight_gradient(results[0], dz, gradients[0], bf16x3=bf16x3)
        dv = None
        if ctx.needs_input_grad[0]:
            dv = over_members(linear(dz, flip(weights[0].unsqueeze(0), dz.shape[-2], False)[0], bf16x3=bf16x3))
        return dv, None, *gradients, *([None] * last)


def tangents(v: Tensor, weights: Sequence[Tensor], hidden: Sequence[Tensor], bf16x3: bool = False) -> Tensor:
    """J·v of a ReLU MLP with these hidden layers [R, M, rows, width], v [R, rows, in] -> [R, M, rows, out].

    The ReLUs' slopes are piecewise constant: no gradient flows into the hidden layers.
    """
    return _Tangents.apply(v, bf16x3, *weights, *(h.detach() for h in hidden))
