"""A stack of ReLU MLPs as one differentiable operation: one launch per layer forwards, two per layer backwards."""

import itertools
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from c4rl.core.triton.layer_norm import norm_relu, norm_relu_gradient
from c4rl.core.triton.linear import linear
from c4rl.core.triton.output import output_gradient
from c4rl.core.triton.split import as_one, flipped, high, is_split, split
from c4rl.core.triton.tall_product import sums_with_product, weight_gradient
from c4rl.core.triton.tiles import MANY_ROWS, NARROW, kept_split, splits

ALIGNMENT = 16


@cache
def _side_stream(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


class Layers(NamedTuple):
    """Weights [R, M, in, out] and biases [R, M, out]; with LayerNorm, gains and shifts [R, M, width] of hidden ones."""

    weights: Sequence[Tensor]
    biases: Sequence[Tensor]
    gains: Sequence[Tensor]
    shifts: Sequence[Tensor]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (*self.weights, *self.biases, *self.gains, *self.shifts)

    @classmethod
    def of(cls, tensors: Sequence[Tensor], depth: int) -> "Layers":
        """The reverse of `tensors`, for `depth` layers."""
        norms = (len(tensors) - 2 * depth) // 2
        cuts = (0, depth, 2 * depth, 2 * depth + norms, len(tensors))
        return cls(*(tensors[start:end] for start, end in itertools.pairwise(cuts)))


class _Evaluated(NamedTuple):
    """Every layer's result [R, M, rows, out], the last one's without ReLU; and what LayerNorm's gradient needs: its
    input, and the mean and 1 / std of its rows.

    Hidden layers below the last may be split.
    """

    results: list[Tensor]
    inputs: list[Tensor]
    moments: list[Tensor]


def _evaluate(
    x: Tensor, actions: Tensor | None, layers: Layers, epsilon: float, factors: Sequence[Tensor], bf16x3: bool
) -> _Evaluated:
    out = _Evaluated([], [], [])
    biases, last = layers.biases, len(layers.weights) - 1
    rows, weights = (x if actions is None else actions).shape[-2], layers.weights
    if bf16x3:
        weights = [weights[0], *in_groups(weights[1:], partial(_split_if_large, rows=rows))]
    fused, output = _output_is_fused(layers, rows), None
    for layer in range(last + (not fused)):
        norm, relu = bool(layers.gains) and layer < last, layer < last and not layers.gains
        runs, members, units = biases[layer].shape
        keep_split = bf16x3 and layer < last - 1 and kept_split(runs * members, rows, units)
        form: dict[str, Any] = {
            "factor": factors[layer] if factors and layer < last else None,
            "relu": relu,
            "bf16x3": bf16x3,
            "keep_split": keep_split and relu,
        }
        products: list[Tensor] = []
        if fused and layer == last - 1 and relu:
            form["dots"] = weights[last].squeeze(3), products
        if layer > 0:
            z = linear(out.results[-1], weights[layer], biases[layer], **form)
        elif actions is None:
            z = linear(x, weights[0], biases[0], **form)
        else:  # the first layer's state part is computed once per state
            width, count = x.shape[-1], actions.shape[-2] // x.shape[-2]
            states = linear(x, weights[0][:, :, :width], biases[0], bf16x3=bf16x3)
            own = weights[0][:, :, width:]
            z = linear(actions, own, add=states, group=count, **form)
        if norm:
            out.inputs.append(z)
            head = (weights[last].squeeze(3), biases[last].squeeze(2)) if fused and layer == last - 1 else None
            z, moments, output = norm_relu(z, layers.gains[layer], layers.shifts[layer], epsilon, keep_split, head)
            out.moments.append(moments)
        elif products:
            output = products[0].sum(0) + biases[last]
        out.results.append(z)
    if output is not None:
        out.results.append(output.unsqueeze(3))
    return out


def _output_is_fused(layers: Layers, rows: int) -> bool:
    """Whether an output of one unit is computed with the layer below it, so that this is not read again: at many rows,
    and where LayerNorm has whole rows at hand."""
    one = len(layers.weights) > 1 and layers.biases[-1].shape[-1] == 1
    return one and (bool(layers.gains) or rows >= MANY_ROWS)


def in_groups(weights: Sequence[Tensor], prepare: Callable[[Tensor], Sequence[Tensor]]) -> list[Tensor]:
    """Apply `prepare` to consecutive weights of one shape as [L, R, M, in, out]; the results layer by layer."""
    groups = [list(group) for _, group in itertools.groupby(weights, lambda weight: weight.shape)]
    return [tensor for group in groups for tensor in prepare(as_one(group))]


def _split_if_large(weights: Tensor, rows: int) -> Sequence[Tensor]:
    """Weights for the forward pass in bf16x3."""
    large = splits(weights.shape[1] * weights.shape[2], rows, *weights.shape[-2:])
    return split(weights.contiguous()).unbind(1) if large else weights.unbind()


def flip(weights: Tensor, rows: int, bf16x3: bool) -> Sequence[Tensor]:
    """Transposes for the backward pass: reading weights across rows is slow, unless there are few rows or columns."""
    _, runs, members, depth, columns = weights.shape
    if min(depth, columns) <= NARROW:
        return weights.mT.unbind()
    large = bf16x3 and splits(runs * members, rows, columns, depth)
    return flipped(weights, large).unbind(1 if large else 0)


class _StackedMLP(torch.autograd.Function):
    """x (and actions, N per row of x) and layers -> the output, and every hidden layer (split ones: high numbers) at
    every n-th row.

    The output and the last hidden layer may be differentiated, once.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        actions: Tensor | None,
        depth: int,
        epsilon: float,
        factors: Sequence[Tensor],
        bf16x3: bool,
        every: int,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        layers, ctx.widths = Layers.of(tensors, depth), [t.shape[-1] for t in (x, actions) if t is not None]
        main, aside = torch.cuda.current_stream(), _side_stream(x.device.index)
        aside.wait_stream(main)
        rows, first = (x if actions is None else actions).shape[-2], layers.weights[0].split(ctx.widths, dim=2)
        with torch.cuda.stream(aside):
            ctx.flipped = in_groups(layers.weights[1:], partial(flip, rows=rows, bf16x3=bf16x3))
            ctx.first = [
                flip(w.unsqueeze(0), rows, False)[0] if needs else None
                for w, needs in zip(first, ctx.needs_input_grad, strict=False)
            ]
        evaluated = _evaluate(x, actions, layers, epsilon, factors, bf16x3)
        *hidden, output = evaluated.results
        main.wait_stream(aside)
        ctx.save_for_backward(x, actions, *tensors, *hidden, *evaluated.inputs, *evaluated.moments)
        ctx.depth, ctx.count, ctx.factors, ctx.bf16x3, ctx.every = depth, len(tensors), factors, bf16x3, every
        hidden = [_every(h, every) for h in hidden]
        ctx.mark_non_differentiable(*hidden[:-1])
        ctx.set_materialize_grads(False)
        return output, *hidden

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, output: Tensor | None, *hidden_gradients: Tensor | None) -> tuple[Any, ...]:  # type: ignore[override]
        depth, count, factors, bf16x3 = ctx.depth, ctx.count, ctx.factors, ctx.bf16x3
        x, actions, *saved = ctx.saved_tensors
        layers, hidden = Layers.of(saved[:count], depth), saved[count : count + depth - 1]
        norms = len(layers.gains)
        inputs, moments = saved[count + depth - 1 :][:norms], saved[count + depth - 1 + norms :]
        needs, trains, every = ctx.needs_input_grad, ctx.needs_input_grad[7], ctx.every
        rows = (x if actions is None else actions).shape[-2]
        main, aside = torch.cuda.current_stream(), _side_stream(x.device.index)
        held: list[Tensor | None] = []  # the side stream reads them: the main one must not reuse their memory
        # in the order of the parameters, so that an optimiser of them all finds its gradient in one piece
        flat = torch.empty(sum(tensor.numel() for tensor in layers.tensors) if trains else 0, device=x.device)
        pieces = flat.split([tensor.numel() for tensor in layers.tensors]) if trains else ()
        gradients = [piece.view(own.shape) for piece, own in zip(pieces, layers.tensors, strict=trains)]
        weights, biases, gains, shifts = Layers.of(gradients, depth) if trains else Layers((), (), (), ())

        def keep(layer: int, source: Tensor, dz: Tensor, sums: Tensor | None) -> None:
            """Compute a layer's gradients on the side stream; sums: of dz, over pieces of the rows."""
            if trains:
                held.extend([dz, sums])
                aside.wait_stream(main)
                with torch.cuda.stream(aside):
                    bias = own_bias(layer, sums)
                    weight_gradient(source, dz, weights[layer], bias=bias, bf16x3=bf16x3)

        def own_bias(layer: int, sums: Tensor | None) -> Tensor | None:
            """Where the bias' gradient is still to be written; None if dz has been summed."""
            if sums is None:
                return biases[layer]
            torch.sum(sums, 0, out=biases[layer])
            return None

        def splits_dz(layer: int) -> bool:
            """Whether hidden layer `layer`'s dz is to be split, as what it will be multiplied with is."""
            return layer > 0 and is_split(hidden[layer - 1])

        def through(layer: int, dy: Tensor, **form: Any) -> tuple[Tensor, Tensor | None]:
            """Hidden layer `layer`'s dz from its dy, and dz's sums over pieces of the rows if they are known. Without
            LayerNorm the ReLU's mask is applied already."""
            if not norms:
                return dy, None
            own = inputs[layer], moments[layer], layers.gains[layer], layers.shifts[layer]
            dz, sums, of_gain, of_shift, of_weight = norm_relu_gradient(dy, *own, splits_dz(layer), **form)
            if trains:
                torch.sum(of_gain, 0, out=gains[layer])
                torch.sum(of_shift, 0, out=shifts[layer])
                if form:
                    torch.sum(of_weight, 0, out=weights[-1].squeeze(3))
            return dz, sums

        def through_output(d: Tensor, add: Tensor | None) -> tuple[Tensor, Tensor | None]:
            """The same of the last hidden layer from the gradient of an output of one unit, and that of its weights."""
            form: dict[str, Any] = {"weight": layers.weights[-1].squeeze(3), "add": add, "group": every}
            if trains:
                torch.sum(d, 2, out=biases[-1].squeeze(2))
            if norms:
                return through(depth - 2, d, **form)
            dz, sums, of_weight = output_gradient(d, hidden[-1], **form, keep_split=splits_dz(depth - 2))
            if trains:
                torch.sum(of_weight, 0, out=weights[-1].squeeze(3))
            return dz, sums

        def slope(layer: int) -> tuple[Tensor | None, Tensor | None]:
            """The slope of hidden layer `layer`, without LayerNorm: a mask, or factors (0 for dropped units)."""
            if factors:
                return None, torch.where(high(hidden[layer]) > 0, factors[layer], 0)
            return None if norms else hidden[layer], None

        features = hidden_gradients[depth - 2] if depth > 1 else None
        if output is None:  # the features alone were used
            assert features is not None
            if every > 1:
                at_all = torch.zeros_like(hidden[-1])
                at_all[:, :, ::every] = features
                features = at_all
            dy = features.contiguous() if norms else torch.where(hidden[-1] > 0, features, 0)
            dy = dy * factors[-1] if factors else dy
            (dz, sums), top = through(depth - 2, dy), depth - 2
        elif _output_is_fused(layers, rows) and not factors:
            add = features.contiguous() if features is not None else None
            (dz, sums), top = through_output(output.squeeze(3).contiguous(), add), depth - 2
        else:
            dz, sums, top = output.contiguous(), None, depth - 1
        for layer in range(top, 0, -1):
            keep(layer, hidden[layer - 1], dz, sums)
            add = features.contiguous() if features is not None and layer == depth - 1 else None
            weight, (mask, factor) = ctx.flipped[layer - 1], slope(layer - 1)
            form: dict[str, Any] = {"add": add, "mask": mask, "factor": factor, "bf16x3": bf16x3}
            form |= {"group": every, "add_to_first": True} if add is not None and every > 1 else {}
            if norms:
                dz, sums = through(layer - 1, linear(dz, weight, **form))
                continue
            form["keep_split"] = splits_dz(layer - 1)
            source = hidden[layer - 2] if layer > 1 else x
            if trains and not sums_with_product(source, layers.biases[layer - 1].shape, rows, bf16x3):
                tile_sums: list[Tensor] = []
                dz, sums = linear(dz, weight, **form, tile_sums=tile_sums), tile_sums[0]
            else:
                dz, sums = linear(dz, weight, **form), None
        dx = dactions = None
        if actions is None:
            keep(0, x, dz, sums)
            if needs[0]:
                dx = linear(dz, ctx.first[0], bf16x3=bf16x3)
                dx = over_members(dx) if x.dim() == 3 else dx
        else:
            per_state = dz.unflatten(2, (x.shape[-2], -1)).sum(3) if needs[0] or trains else dz
            if trains:
                of_states, of_actions = weights[0].split(ctx.widths, dim=2)
                weight_gradient(x, per_state, of_states, bias=own_bias(0, sums), bf16x3=bf16x3)
                weight_gradient(actions, dz, of_actions, bf16x3=bf16x3)
            dx = over_members(linear(per_state, ctx.first[0], bf16x3=bf16x3)) if needs[0] else None
            dactions = over_members(linear(dz, ctx.first[1], bf16x3=bf16x3)) if needs[1] else None
        if held:
            main.wait_stream(aside)
        untouched = [depth - 1, 2 * depth - 1] if output is None else []  # of the output's layer
        found = [None if index in untouched else own for index, own in enumerate(gradients)] or [None] * count
        return dx, dactions, None, None, None, None, None, *found


def _every(hidden: Tensor, count: int) -> Tensor:
    """Every n-th row of a hidden layer, or its high numbers."""
    return high(hidden) if count == 1 else high(hidden)[:, :, ::count]


def over_members(x: Tensor) -> Tensor:
    """Sum over members, [R, M, ...] -> [R, ...]."""
    return x.sum(1) if x.shape[1] > 1 else x.squeeze(1)


def stacked_mlp(
    x: Tensor,
    actions: Tensor | None,
    parameters: tuple[Sequence[Tensor], ...],
    epsilon: float,
    factors: Sequence[Tensor] = (),
    bf16x3: bool = False,
    every: int = 1,
) -> tuple[Tensor, list[Tensor]]:
    """As in c4rl.core.ops.mlp; parameters: the fields of Layers; epsilon: LayerNorm's, which allows no factors.

    In bf16x3 hidden layers below the last may be rounded to bfloat16.
    """
    layers = Layers(*parameters)
    assert not (factors and layers.gains)
    widths = [bias.shape[-1] for bias in layers.biases[:-1]]
    layers = _aligned(layers)
    extra = [bias.shape[-1] - width for bias, width in zip(layers.biases[:-1], widths, strict=True)]
    factors = [F.pad(f, (0, more)) if more else f for f, more in zip(factors, extra, strict=bool(factors))]
    inputs = (x, *layers.tensors) if actions is None else (x, actions, *layers.tensors)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
        settings = len(layers.weights), epsilon, factors, bf16x3, every
        output, *hidden = _StackedMLP.apply(x, actions, *settings, *layers.tensors)
    else:
        *below, output = _evaluate(x, actions, layers, epsilon, factors, bf16x3).results
        hidden = [_every(h, every) for h in below]
    return output, [h if h.shape[-1] == width else h[..., :width] for h, width in zip(hidden, widths, strict=True)]


def _aligned(layers: Layers) -> Layers:
    """Pad layers with units that are always 0, because memory is read 16 numbers at a time (A2PR's VAE is 750 wide).
    LayerNorm would count them in its mean, so layers with it stay as they are."""
    extra = [-bias.shape[-1] % ALIGNMENT for bias in layers.biases[:-1]] + [0]
    if not any(extra) or layers.gains:
        return layers
    before = [0, *extra[:-1]]
    weights = [F.pad(w, (0, out, 0, into)) for w, out, into in zip(layers.weights, extra, before, strict=True)]
    biases = [F.pad(b, (0, out)) for b, out in zip(layers.biases, extra, strict=True)]
    return Layers(weights, biases, (), ())
