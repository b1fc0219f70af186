"""The target critics' features in one pass: small networks one by one cost operations, not arithmetic."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

CHECKED_EVERY = 200  # batches
# modules without weights that treat every number alike
ELEMENTWISE = nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid, nn.Softplus
Chains = list[tuple[nn.Module, ...]]  # layer by layer, that of each target


class StackedTargets:
    """Evaluates critics of one shape, each a chain of linear layers and activations, as stacked products.

    Whether they are such chains is found out by comparing with features that C4 computed itself, on the first batch and
    then on every `CHECKED_EVERY`th; where they are not, C4 goes on computing them itself.
    """

    def __init__(self, targets: Sequence[nn.Module], bind: Callable[[Any], None] = lambda _: None) -> None:
        """bind: gives a target its present weights, where it is not the module's own that are trained."""
        self._targets, self._bind = targets, bind
        self._chains: Chains = []
        self._batches = 0

    @torch.no_grad()
    def features(self, x: Tensor, computed: Callable[[], Sequence[Tensor]]) -> Tensor | None:
        """At x [B, s + a], [critics, B, m]; None: no such chains. computed: the same, as C4 computes them."""
        for target in self._targets:
            self._bind(target)
        if self._batches % CHECKED_EVERY == 0:
            self._chains = self._find_chains(x, computed)
        self._batches += 1
        return self._evaluated(x, self._chains) if self._chains else None

    def _find_chains(self, x: Tensor, computed: Callable[[], Sequence[Tensor]]) -> Chains:
        called: list[list[nn.Module]] = [[] for _ in self._targets]
        hooks = [
            module.register_forward_pre_hook(lambda module, _, own=own: own.append(module))
            for target, own in zip(self._targets, called, strict=True)
            for module in target.modules()
            if not any(module.children())
        ]
        try:
            expected = torch.stack(list(computed()))
        finally:
            for hook in hooks:
                hook.remove()
        for chains in _candidates(called, x.shape[1]):
            found = self._evaluated(x, chains)
            if found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-4, atol=1e-5):
                return chains
        return []

    def _evaluated(self, x: Tensor, chains: Chains) -> Tensor:
        out = x.expand(len(self._targets), -1, -1)
        for layers in chains:
            linear = [layer for layer in layers if isinstance(layer, nn.Linear)]  # all or none
            if not linear:
                out = layers[0](out)
                continue
            weights = torch.stack([layer.weight for layer in linear]).mT
            if linear[0].bias is None:
                out = torch.bmm(out, weights)
            else:
                out = torch.baddbmm(torch.stack([layer.bias for layer in linear]).unsqueeze(1), out, weights)
        return out


def _candidates(called: list[list[nn.Module]], inputs: int) -> Iterator[Chains]:
    """What the targets may be, from the modules that each called: the layers below its last linear one."""
    below = []
    for modules in called:
        last = max((place for place, module in enumerate(modules) if isinstance(module, nn.Linear)), default=0)
        below.append(modules[:last])
    if len({str(layers) for layers in below}) != 1:  # their kinds, widths and settings
        return
    linear = [layer for layer in below[0] if isinstance(layer, nn.Linear)]
    widths = [inputs, *(layer.out_features for layer in linear)]
    fits = all(layer.in_features == width for layer, width in zip(linear, widths, strict=False))
    if not fits or not all(isinstance(layer, (nn.Linear, *ELEMENTWISE)) for layer in below[0]):
        return
    chains: Chains = list(zip(*below, strict=True))
    yield chains
    if len(linear) == len(chains):  # activations need not be modules
        yield [layers for own in chains for layers in (own, (nn.ReLU(),))]
