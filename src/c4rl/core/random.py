"""Counter-based random numbers: a function of (seed, stream, step), and of nothing else.

A draw is the SplitMix64 hash of `key + golden * counter`, where the key names (seed, stream) and the counter
(step, position). There is no generator state to save, to share or to disturb: a run draws the same numbers alone,
stacked with others, resumed, eager or inside a CUDA graph, where `step` is a tensor that advances between replays.
"""

import math

import torch
from torch import Tensor

from c4rl.core.ops import random as draws
from c4rl.core.ops.random import GOLDEN, MASK, signed


def _mix(x: int) -> int:
    """SplitMix64's output function on Python integers."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def stream_key(seed: int, stream: str) -> int:
    """The key of one run's named stream (a signed 64-bit integer)."""
    key = _mix((seed + GOLDEN) & MASK)
    for byte in stream.encode():
        key = _mix((key ^ byte) + GOLDEN & MASK)
    return signed(key)


class Streams:
    """Random numbers for a stack of R runs, all runs in one launch.

    seeds: one per run. step: int64 scalar tensor; the training loop advances it once per update.
    Every method takes a stream name, unique per purpose, and returns [R, *shape].
    """

    def __init__(self, seeds: list[int], step: Tensor, dtype: torch.dtype = torch.float32) -> None:
        self.seeds, self.step, self.dtype = list(seeds), step, dtype
        self._keys: dict[str, Tensor] = {}

    def keys(self, stream: str) -> Tensor:
        """[R, 1] int64."""
        if stream not in self._keys:
            keys = [stream_key(seed, stream) for seed in self.seeds]
            self._keys[stream] = torch.tensor(keys, dtype=torch.int64, device=self.step.device).unsqueeze(1)
        return self._keys[stream]

    def uniform(self, stream: str, *shape: int) -> Tensor:
        """Uniform on [0, 1), 24 bits, [R, *shape]."""
        return draws.uniform(self.keys(stream), self.step, math.prod(shape), self.dtype).view(len(self.seeds), *shape)

    def normal(self, stream: str, *shape: int) -> Tensor:
        """Standard normal, [R, *shape]."""
        return draws.normal(self.keys(stream), self.step, math.prod(shape), self.dtype).view(len(self.seeds), *shape)

    def integers(self, stream: str, high: Tensor, *shape: int) -> Tensor:
        """Integers on [0, high) for high [R] < 2^31, [R, *shape] int64; bias below high / 2^32."""
        return draws.integers(self.keys(stream), self.step, math.prod(shape), high).view(len(self.seeds), *shape)
