"""Features or gradients of all critics in one pass: small networks one by one cost operations, not arithmetic."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from c4rl.plugins.c4.any_critic import plain_tensor

CHECKED_EVERY = 200  # batches
# modules without weights that treat every number alike
ELEMENTWISE = nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid, nn.Softplus
Chains = list[tuple[nn.Module, ...]]  # layer by layer, that of each critic; the last one gives Q
Computed = Callable[[], Sequence[Tensor]]  # of each critic, as C4 computes it
Evaluate = Callable[[Tensor, Chains], Tensor | None]


class StackedCritics:
    """Evaluates critics of one shape, each a chain of linear layers and activations, as stacked products.

    Whether they are such chains is found out by comparing with what C4 computed itself, on batches 1, 2, 3, 5, 9 and so
    on (a scale that starts as 1 shows once it has moved) and on every `CHECKED_EVERY`th; where they are not, C4 goes on
    computing it itself.
    """

    def __init__(self, critics: Sequence[nn.Module], bind: Callable[[Any, bool], None] = lambda *_: None) -> None:
        """bind: gives a critic its present weights, where it is not the module's own that are trained; True: with the
        graph into them."""
        self._critics, self._bind = critics, bind
        self._chains: Chains = []
        self._batches = 0

    @torch.no_grad()
    def features(self, x: Tensor, computed: Computed) -> Tensor | None:
        """At x [B, s + a], [critics, B, m]; None: no such chains. computed: the same, as C4 computes them."""
        return self._evaluated(_features, x, computed, graph=False)

    def gradients(self, x: Tensor, computed: Computed, graph: bool = False) -> Tensor | None:
        """∇Q at x, [critics, B, s + a], of ReLU networks; with a graph into the weights, if wanted."""
        with torch.set_grad_enabled(graph):
            return self._evaluated(_gradients, x, computed, graph)

    def _evaluated(self, evaluate: Evaluate, x: Tensor, computed: Computed, graph: bool) -> Tensor | None:
        for critic in self._critics:
            self._bind(critic, graph)
        if self._batches % CHECKED_EVERY == 0 or self._batches.bit_count() == 1:
            self._chains = self._find_chains(evaluate, x, computed)
        self._batches += 1
        return evaluate(x, self._chains) if self._chains else None

    def _find_chains(self, evaluate: Evaluate, x: Tensor, computed: Computed) -> Chains:
        called: list[list[nn.Module]] = [[] for _ in self._critics]
        lent: list[tuple[nn.Linear, int]] = []  # and where in memory its weight was when it was called

        def record(module: nn.Module, own: list[nn.Module]) -> None:
            own.append(module)
            if isinstance(module, nn.Linear):
                lent.append((module, plain_tensor(module.weight).data_ptr()))

        hooks = [
            module.register_forward_pre_hook(lambda module, _, own=own: record(module, own))
            for critic, own in zip(self._critics, called, strict=True)
            for module in critic.modules()
            if not any(module.children())
        ]
        try:
            expected = torch.stack([one.detach() for one in computed()])
        finally:
            for hook in hooks:
                hook.remove()
        if any(layer.weight.data_ptr() != place for layer, place in lent):  # as by torch.func.functional_call
            return []
        for chains in _candidates(called, x.shape[1]):
            found = evaluate(x, chains)
            if found is not None and found.shape == expected.shape and _agree(found, expected):
                return chains
        return []


def _agree(found: Tensor, expected: Tensor) -> bool:
    """Up to the rounding of a few layers' sums."""
    return torch.allclose(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def _features(x: Tensor, chains: Chains) -> Tensor:
    """What enters the last layers, [critics, B, m]."""
    out = x.expand(len(chains[0]), -1, -1)
    for layers in chains[:-1]:
        out = _product(out, _weights(layers), layers) if isinstance(layers[0], nn.Linear) else layers[0](out)
    return out


def _gradients(x: Tensor, chains: Chains) -> Tensor | None:
    """∇Q = w D_L W_L ... D_1 W_1, with D_l the 0/1 diagonal of active units, [critics, B, s + a]; None: other chains.

    The D_l are piecewise constant, so differentiating this product is differentiating the gradient, at half the cost
    of autograd's double backward.
    """
    linear, activations = chains[::2], chains[1::2]
    if not (
        len(linear) == len(activations) + 1
        and all(isinstance(layers[0], nn.Linear) for layers in linear)
        and all(isinstance(layers[0], nn.ReLU) for layers in activations)
    ):
        return None
    weights = [_weights(layers) for layers in linear]
    active: list[Tensor] = []
    with torch.no_grad():
        out = x.expand(len(linear[0]), -1, -1)
        for w, layers in zip(weights[:-1], linear, strict=False):
            out = _product(out, w, layers).relu_()
            active.append(out.sign())  # as numbers: multiplying by booleans takes four times as long
    rows = weights[-1]  # [critics, 1, width]: the same last layer for every row
    for w, on in zip(reversed(weights[:-1]), reversed(active), strict=True):
        rows = torch.bmm(rows * on, w)
    return rows


def _weights(layers: tuple[Any, ...]) -> Tensor:
    return torch.stack([layer.weight for layer in layers])  # [critics, out, in]


def _product(out: Tensor, weights: Tensor, layers: tuple[Any, ...]) -> Tensor:
    if layers[0].bias is None:
        return torch.bmm(out, weights.mT)
    return torch.baddbmm(torch.stack([layer.bias for layer in layers]).unsqueeze(1), out, weights.mT)


def _candidates(called: list[list[nn.Module]], inputs: int) -> Iterator[Chains]:
    """What the critics may be, from the modules that each called: all up to its last linear one."""
    layers = []
    for modules in called:
        last = max((place for place, module in enumerate(modules) if isinstance(module, nn.Linear)), default=-1)
        layers.append(modules[: last + 1])
    if len({str(own) for own in layers}) != 1:  # their kinds, widths and settings
        return
    linear = [layer for layer in layers[0] if isinstance(layer, nn.Linear)]
    widths = [inputs, *(layer.out_features for layer in linear)]
    fits = all(layer.in_features == width for layer, width in zip(linear, widths, strict=False))
    if not linear or not fits or not all(isinstance(layer, (nn.Linear, *ELEMENTWISE)) for layer in layers[0]):
        return
    if any(layer._forward_pre_hooks for own in layers for layer in own):  # such as torch.nn.utils.weight_norm's
        return  # they make the weight anew at each call: the one at hand is that of the last call
    chains: Chains = list(zip(*layers, strict=True))
    yield chains
    if len(linear) == len(chains):  # activations need not be modules
        yield [chain for own in chains for chain in (own, (nn.ReLU(),))][:-1]
