"""Work captured as a CUDA graph: hundreds of small kernels for the price of one launch."""

from collections.abc import Callable, Hashable
from typing import Any

import torch

WARM_UP = 3  # real calls of a phase before its capture: libraries choose their kernels, caches fill


class GraphedCalls:
    """Calls `function(step)` eagerly at first, then captures it once per phase and replays it.

    Calls of equal phase run the same operations on the same tensors. Everything a call reads or writes lives in tensors
    that are updated in place, so replays see changes made between them (re-clustering, a restored checkpoint). A replay
    returns the captured call's result, with its tensors rewritten. Capturing runs nothing: no call is repeated or
    skipped.
    """

    def __init__(self, function: Callable[[int], Any], pool: Any = None) -> None:
        """pool: another instance's memory pool, if the two never run at the same time."""
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
            # thread_local: another thread may be copying a checkpoint from the GPU
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                result = self.function(step)
            self.graphs[phase] = graph, result
        graph, result = self.graphs[phase]
        graph.replay()
        return result
