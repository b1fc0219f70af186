"""Work captured as a CUDA graph: hundreds of small kernels for the price of one launch."""

from collections.abc import Callable, Hashable
from typing import Any

import torch

WARM_UP = 3  # real calls of a phase before its capture: libraries choose their kernels, caches fill


class GraphedCalls:
    """Calls `function(step)` eagerly at first, then captures it once per phase and replays it.

    Calls of equal phase run the same operations on the same tensors; everything a call reads or leaves behind lives in
    tensors that are written in place, so that what happens between replays (re-clustering, a restored checkpoint) is
    seen by them. A replay gives the captured call's own result again, its tensors written anew. Capturing runs nothing:
    no call is done twice or left out.
    """

    def __init__(self, function: Callable[[int], Any], pool: Any = None) -> None:
        """pool: of another instance's memory, where the two never run at the same time."""
        self.function = function
        self.graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, Any]] = {}
        self._warm: dict[Hashable, int] = {}
        self.pool = pool if pool is not None else torch.cuda.graph_pool_handle()

    def __call__(self, step: int, phase: Hashable = None) -> Any:
        if phase not in self.graphs:
            if self._warm.setdefault(phase, 0) < WARM_UP:
                self._warm[phase] += 1
                return self.function(step)
            graph = torch.cuda.CUDAGraph()
            # thread_local: a checkpoint may be on its way from the GPU in another thread
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                result = self.function(step)
            self.graphs[phase] = graph, result
        graph, result = self.graphs[phase]
        graph.replay()
        return result
