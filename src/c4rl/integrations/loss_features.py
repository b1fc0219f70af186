"""Features that a library's own critic loss computes: C4 need not compute them a second time."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from c4rl.plugins.c4.any_critic import plain_tensor

CHECKED_EVERY = 200  # batches
Recorded = tuple[int, Tensor]  # which network's layer, and what entered it


class LossFeatures:
    """Records what enters the linear layers of critics, and finds the penultimate features among it.

    Where they are is found out by comparing with features that C4 computed itself, on batches 1, 2, 3, 5, 9 and so on
    (layers that are equal at the start soon differ), on every `CHECKED_EVERY`th and whenever the loss calls more or
    fewer layers; where they are not found, C4 goes on computing them itself.
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        self._layers = [
            (owner, layer)
            for owner, network in enumerate(networks)
            for layer in network.modules()
            if isinstance(layer, nn.Linear)
        ]
        self._recorded: list[Recorded] = []
        self._places: list[int] = []  # among the recorded ones: one stack of all critics, or one for each critic
        self._shape: torch.Size | None = None  # of the features of all critics, [critics, B, m]
        self._batches, self._count = 0, 0  # seen, and inputs recorded of the one that was compared last

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Around the library's critic loss."""
        self._recorded = []
        hooks = [
            layer.register_forward_pre_hook(partial(self._record, owner), with_kwargs=True)
            for owner, layer in self._layers
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _record(self, owner: int, layer: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        features = plain_tensor((*inputs, *named.values())[0])  # under vmap: [critics, B, m]
        if features.requires_grad:
            self._recorded.append((owner, features))

    def of_critics(self, computed: Callable[[], Sequence[Tensor]]) -> Tensor | None:
        """Those of the recorded batch, [critics, B, m]; None: not found. computed: the same, as C4 computes them."""
        recorded, self._recorded = self._recorded, []
        due = self._batches % CHECKED_EVERY == 0 or self._batches.bit_count() == 1
        if due or len(recorded) != self._count:
            features = torch.stack([one.detach() for one in computed()])
            self._places, self._shape = _places_of(features, recorded), features.shape
            self._count = len(recorded)
        self._batches += 1
        if not self._places:
            return None
        found = [recorded[place][1] for place in self._places]
        stacked = found[0] if found[0].dim() == 3 else torch.stack(found)
        return stacked if stacked.shape == self._shape else None


def _places_of(features: Tensor, recorded: Sequence[Recorded]) -> list[int]:
    """Of one stack of all critics, or of each critic among what its own layers recorded; empty: some are nowhere."""
    places = [_place_of(features, recorded)]
    if places == [None]:  # equal critics have equal features
        places = [_place_of(one, recorded, owner) for owner, one in enumerate(features)]
    return [place for place in places if place is not None] if None not in places else []


def _place_of(features: Tensor, recorded: Sequence[Recorded], wanted: int | None = None) -> int | None:
    size = float(features.abs().max().clamp_max(1))  # where all are small, those of other rows differ by little
    for place, (owner, found) in enumerate(recorded):
        if found.shape != features.shape or found.dtype != features.dtype or wanted not in (None, owner):
            continue
        if torch.allclose(found, features, rtol=1e-4, atol=1e-5 * size):  # equal up to the rounding of one layer's sums
            return place
    return None
