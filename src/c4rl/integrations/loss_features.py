"""Features that a library's own critic loss computes: C4 need not compute them a second time."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from c4rl.plugins.c4.anywhere import C4Anywhere

CHECKED_EVERY = 200  # batches


class LossFeatures:
    """Records what enters the linear layers of critics, and finds the penultimate features among it.

    Where they are is found out by comparing with features that C4 computed itself, on the first batch and then on every
    `CHECKED_EVERY`th; where they are not found, C4 goes on computing them itself.
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        self._layers = [layer for network in networks for layer in network.modules() if isinstance(layer, nn.Linear)]
        self._recorded: list[Tensor] = []
        self._places: list[int] | None = None
        self._batches = 0

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Around the library's critic loss."""
        self._recorded = []
        hooks = [layer.register_forward_pre_hook(self._record) for layer in self._layers]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _record(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        features = torch.func.debug_unwrap(inputs[0], recurse=True)  # under vmap: [critics, B, m]
        if features.requires_grad:
            self._recorded += features.unbind(0) if features.dim() == 3 else [features]

    def of_critics(self, computed: Callable[[], Sequence[Tensor]]) -> list[Tensor | None]:
        """Those of the recorded batch, for each critic. computed: the same, as C4 computes them."""
        recorded, self._recorded = self._recorded, []
        if self._batches % CHECKED_EVERY == 0:
            self._places = [_place_of(features.detach(), recorded) for features in computed()]
        self._batches += 1
        assert self._places is not None
        return [recorded[place] if 0 <= place < len(recorded) else None for place in self._places]


def penalty_of(
    c4: C4Anywhere, critics: Sequence[tuple[nn.Module, nn.Module]], loss: Tensor, rows: Tensor, recorded: LossFeatures
) -> Tensor:
    """The sum of the critics' penalties. critics: each with its target; loss: the sum of their losses."""
    if c4.weighted_penalty.is_zero or c4.config.mode == "exact":
        known: list[Tensor | None] = [None] * len(critics)
    else:
        known = recorded.of_critics(lambda: [c4.features(critic, rows) for critic, _ in critics])
    td_loss = loss.detach() / len(critics)
    pairs = zip(critics, known, strict=True)
    return torch.stack([c4.penalty(*both, td_loss, rows, features) for both, features in pairs]).sum()


def _place_of(features: Tensor, recorded: Sequence[Tensor]) -> int:
    """-1: nowhere."""
    for place, found in enumerate(recorded):
        # equal up to the rounding of one layer's sums
        if found.shape == features.shape and torch.allclose(found, features, rtol=1e-4, atol=1e-5):
            return place
    return -1
