"""Stacked MLPs and their matrix products."""

import itertools
import warnings
from collections.abc import Sequence
from functools import cache
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

from c4rl.core import ops
from c4rl.core.numpy_policy import LAYER_NORM_EPSILON

# weights [R, M, in, out] and biases [R, M, out]; with LayerNorm, gains and shifts [R, M, width] of hidden layers
Layers = tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]


def stacked_mlp(
    x: Tensor, actions: Tensor | None, layers: Layers, factors: Sequence[Tensor] = (), every: int = 1
) -> tuple[Tensor, list[Tensor]]:
    """R x M ReLU MLPs: the output [R, M, rows (· N), out] and every hidden layer [R, M, rows (· N), width].

    x: [R, rows, in], or [R, rows, s] with actions [R, rows · N, a], N for each row. factors: dropout
    factors of hidden layers, [R, M, rows (· N), width] each. every: hidden layers of every n-th row only. Fused kernels
    are differentiable once, through the output and the last hidden layer; they may round lower layers, but keep their
    signs.
    """
    if (own := _kernels(x, bool(layers[2]))) and not (factors and layers[2]):
        return own.stacked_mlp(x, actions, layers, LAYER_NORM_EPSILON, factors, ops.bf16x3(), every)
    output, hidden = _plain_mlp(x, actions, layers, factors)
    return output, hidden if every == 1 else [h[:, :, ::every] for h in hidden]


def jacobian_vector_product(x: Tensor, v: Tensor, layers: Layers) -> tuple[Tensor, Tensor]:
    """f(x) and J_f(x)·v of MLPs of one member without LayerNorm, [R, rows, out] each; v: like x [R, rows, in].

    The ReLUs' slopes are piecewise constant, so differentiating this product differentiates the Jacobian.
    """
    output, hidden = stacked_mlp(x, None, layers)
    weights = layers[0]
    if _kernels(x, False) and (own := ops.kernels_for(x, "tangents")):
        return output.squeeze(1), own.tangents(v, weights, hidden, ops.bf16x3()).squeeze(1)
    for w, h in zip(weights[:-1], hidden, strict=True):
        v = torch.bmm(v, w.squeeze(1)) * (h.squeeze(1).detach() > 0)
    return output.squeeze(1), torch.bmm(v, weights[-1].squeeze(1))


def one_pass_pays(x: Tensor) -> bool:
    """Whether one pass over joined rows is faster than two: on a GPU, launches cost more than larger tensors."""
    return x.is_cuda


def _kernels(x: Tensor, layer_norm: bool) -> ModuleType | None:
    own = ops.kernels_for(x, "mlp")
    if own is None or (layer_norm and ops.kernels_for(x, "layer_norm") is None):
        return None
    return own if proven(own, x.device, layer_norm, ops.bf16x3()) else None


def _plain_mlp(
    x: Tensor, actions: Tensor | None, layers: Layers, factors: Sequence[Tensor] = ()
) -> tuple[Tensor, list[Tensor]]:
    weights, biases, gains, shifts = layers
    runs, members = weights[0].shape[:2]

    def own_rows(rows: Tensor) -> Tensor:
        """[R, B, d] -> [R·M, B, d]: every member sees its run's rows."""
        return rows.unsqueeze(1).expand(-1, members, -1, -1).flatten(0, 1) if members > 1 else rows

    def linear(layer: int, rows: Tensor, weight: Tensor) -> Tensor:
        return torch.baddbmm(biases[layer].flatten(0, 1).unsqueeze(1), rows, weight.flatten(0, 1))

    if actions is None:
        z = linear(0, own_rows(x), weights[0])
    else:  # the first layer's state part is computed once per state, not once per action
        width, count = x.shape[-1], actions.shape[-2] // x.shape[-2]
        state_part = linear(0, own_rows(x), weights[0][:, :, :width])
        action_part = torch.bmm(own_rows(actions), weights[0][:, :, width:].flatten(0, 1))
        z = (state_part.unsqueeze(2) + action_part.unflatten(1, (-1, count))).flatten(1, 2)
    hidden = []
    for layer in range(1, len(weights)):
        if gains:
            gain, shift = (p[layer - 1].flatten(0, 1).unsqueeze(1) for p in (gains, shifts))
            z = torch.addcmul(shift, F.layer_norm(z, z.shape[-1:], eps=LAYER_NORM_EPSILON), gain)
        h = z.relu_()
        hidden.append(h * factors[layer - 1].flatten(0, 1) if factors else h)
        z = linear(layer, hidden[-1], weights[layer])
    return z.unflatten(0, (runs, members)), [h.unflatten(0, (runs, members)) for h in hidden]


@cache
def proven(own: ModuleType, device: torch.device, layer_norm: bool, bf16x3: bool) -> bool:
    """Whether the fused kernels agree with the plain code on this GPU and Triton version; warns once if not."""
    generator = torch.Generator().manual_seed(0)

    def uniform(*shape: int, scale: float = 1.0) -> Tensor:
        return ((2 * torch.rand(*shape, generator=generator) - 1) * scale).to(device)

    def error(rows: int, *sizes: int) -> float:
        x, widths = uniform(2, rows, sizes[0], scale=2.0), list(itertools.pairwise(sizes))
        weights = [uniform(2, 2, into, out, scale=into**-0.5) for into, out in widths]
        biases = [uniform(2, 2, out, scale=into**-0.5) for into, out in widths]
        normed = [out for _, out in widths[:-1]] if layer_norm else []
        layers = weights, biases, [1 + uniform(2, 2, n) / 2 for n in normed], [uniform(2, 2, n) / 2 for n in normed]
        parameters = [p.requires_grad_() for some in layers for p in some]
        plain = _plain_mlp(x, None, layers)
        fused = own.stacked_mlp(x, None, layers, LAYER_NORM_EPSILON, (), bf16x3)
        # one unit that rounding puts on the other side of its ReLU changes a row's gradients by far more than rounding
        sides = [((h > 0) == (p > 0)).all(3) for h, p in zip(fused[1], plain[1], strict=True)]
        alike = torch.stack(sides).all(0).to(x.dtype)

        def with_gradients(q: Tensor, hidden: list[Tensor]) -> tuple[Tensor, ...]:
            loss = (alike * (q.square() + hidden[-1].square()).sum(3)).sum()
            return q.detach(), *torch.autograd.grad(loss, parameters)

        pairs = zip(with_gradients(*fused), with_gradients(*plain), strict=True)
        return max(float((f - p).norm() / p.norm()) for f, p in pairs)

    try:
        with torch.enable_grad():  # odd widths in small tiles, and the largest tiles there are
            found = max(error(50, 5, 40, 24, 1), error(2048, 5, 256, 256, 256, 1))
        reason = None if found < (1e-3 if bf16x3 else 1e-4) else f"an error of {found:.1g}"
    except Exception as raised:  # whatever a compiler raises must not end a job that can do without
        reason = f"{type(raised).__name__}: {raised}"
    if reason is not None:
        with_norm = (" with LayerNorm" if layer_norm else "") + (" in bf16x3" if bf16x3 else "")
        warnings.warn(f"fused kernels of networks{with_norm} are not used: {reason}", stacklevel=2)
    return reason is None


def transposed_product(x: Tensor, y: Tensor) -> Tensor:
    """xᵀ y of many rows [..., rows, in] and [..., rows, out] -> [..., in, out]."""
    if x.dim() == 3 and (own := ops.kernels_for(x, "tall_product")):
        return own.tall_product(x, y)
    return x.mT @ y
