"""An update captured as a CUDA graph: hundreds of small kernels for the price of one launch."""

from collections.abc import Callable, Hashable

import torch

WARM_UP = 3  # real updates of a phase before its capture: libraries choose their kernels, caches fill


class GraphedUpdates:
    """Calls `update(step)` eagerly at first, then captures it once per phase and replays it.

    Updates of equal phase run the same operations on the same tensors; everything an update reads or leaves behind
    lives in tensors that are written in place, so that what happens between replays (re-clustering, a restored
    checkpoint) is seen by them. Capturing runs nothing: no update is done twice or left out.
    """

    def __init__(self, update: Callable[[int], None]) -> None:
        self.update = update
        self.graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._warm: dict[Hashable, int] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: int, phase: Hashable) -> None:
        if phase in self.graphs:
            self.graphs[phase].replay()
        elif self._warm.setdefault(phase, 0) < WARM_UP:
            self._warm[phase] += 1
            self.update(step)
        else:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                self.update(step)
            self.graphs[phase] = graph
            graph.replay()
