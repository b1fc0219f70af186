"""The target critics' features in one pass: small networks one by one cost operations, not arithmetic."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

CHECKED_EVERY = 200  # batches
# modules without weights that treat every number alike
ELEMENTWISE = nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid, nn.Softplus


class StackedTargets:
    """Evaluates critics of one shape, each a chain of linear layers and activations, as stacked products.

    Whether they are such chains is found out by comparing with features that C4 computed itself, on the first batch and
    then on every `CHECKED_EVERY`th; where they are not, C4 goes on computing them itself.
    """

    def __init__(self, targets: Sequence[nn.Module], bind: Callable[[Any], None] = lambda _: None) -> None:
        """bind: gives a target its present weights, where it is not the module's own that are trained."""
        self._targets, self._bind = targets, bind
        self._chains: list[tuple[nn.Module, ...]] = []  # layer by layer, that of each target
        self._batches = 0

    @torch.no_grad()
    def features(self, x: Tensor, computed: Callable[[], Sequence[Tensor]]) -> Tensor | None:
        """At x [B, s + a], [critics, B, m]; None: no such chains. computed: the same, as C4 computes them."""
        if checked := self._batches % CHECKED_EVERY == 0:
            self._chains = self._find_chains(computed)
        self._batches += 1
        if not self._chains:
            return None
        for target in self._targets:
            self._bind(target)
        found = self._evaluated(x)
        if checked:
            expected = torch.stack(list(computed()))
            if found.shape != expected.shape or not torch.allclose(found, expected, rtol=1e-4, atol=1e-5):
                self._chains = []
                return None
        return found

    def _find_chains(self, computed: Callable[[], Sequence[Tensor]]) -> list[tuple[nn.Module, ...]]:
        """The layers below each target's last linear one, in the order of their calls; empty: others are among them."""
        chains: list[list[nn.Module]] = [[] for _ in self._targets]
        hooks = [
            module.register_forward_pre_hook(lambda module, _, chain=chain: chain.append(module))
            for target, chain in zip(self._targets, chains, strict=True)
            for module in target.modules()
            if not any(module.children())
        ]
        try:
            computed()
        finally:
            for hook in hooks:
                hook.remove()
        below = [tuple(_below_the_last_linear(chain)) for chain in chains]
        kinds = {tuple(type(layer) for layer in chain) for chain in below}
        if len(kinds) != 1 or not all(issubclass(kind, (nn.Linear, *ELEMENTWISE)) for kind in kinds.pop()):
            return []
        return list(zip(*below, strict=True))

    def _evaluated(self, x: Tensor) -> Tensor:
        out = x.expand(len(self._targets), -1, -1)
        for layers in self._chains:
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


def _below_the_last_linear(chain: list[nn.Module]) -> list[nn.Module]:
    linear = [place for place, layer in enumerate(chain) if isinstance(layer, nn.Linear)]
    return chain[: linear[-1]] if linear else []
