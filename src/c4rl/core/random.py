"""Counter-based random numbers: a function of (seed, stream, step), and of nothing else.

A draw is the SplitMix64 hash of `key + golden * counter`, where the key names (seed, stream) and the counter
(step, position). There is no generator state to save, to share or to disturb: a run draws the same numbers alone,
stacked with others, resumed, eager or inside a CUDA graph, where `step` is a tensor that advances between replays.
"""

import math

import torch
from torch import Tensor

from c4rl.core.ops import fused

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def _signed(x: int) -> int:
    """A 64-bit pattern as the int64 that torch holds."""
    return x - (1 << 64) if x >= 1 << 63 else x


def _mix(x: int) -> int:
    """SplitMix64's output function on Python integers."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def stream_key(seed: int, stream: str) -> int:
    """The key of one run's named stream (a signed 64-bit integer)."""
    key = _mix((seed + _GOLDEN) & _MASK)
    for byte in stream.encode():
        key = _mix((key ^ byte) + _GOLDEN & _MASK)
    return _signed(key)


class Streams:
    """Random numbers for a stack of R runs, all runs in one launch.

    seeds: one per run. step: int64 scalar tensor; the training loop advances it once per update.
    Every method takes a stream name, unique per purpose, and returns [R, *shape].
    """

    def __init__(self, seeds: list[int], step: Tensor, dtype: torch.dtype = torch.float32) -> None:
        self.seeds, self.step, self.dtype = list(seeds), step, dtype
        self._keys: dict[str, Tensor] = {}
        self._positions: dict[int, Tensor] = {}

    def keys(self, stream: str) -> Tensor:
        """[R, 1] int64."""
        if stream not in self._keys:
            keys = [stream_key(seed, stream) for seed in self.seeds]
            self._keys[stream] = torch.tensor(keys, dtype=torch.int64, device=self.step.device).unsqueeze(1)
        return self._keys[stream]

    def _fused(self, kind: str, stream: str, shape: tuple[int, ...], high: Tensor | None = None) -> Tensor:
        from c4rl.core.triton import random as kernels  # needs Triton

        dtype = torch.int64 if kind == "integers" else self.dtype
        out = torch.empty(len(self.seeds), math.prod(shape), dtype=dtype, device=self.step.device)
        kernels.draw(out, kind, self.keys(stream), self.step, high)
        return out.view(-1, *shape)

    @property
    def fuses(self) -> bool:
        """Whether one fused kernel makes a draw; it gives the same numbers (normal ones to rounding)."""
        return self.dtype == torch.float32 and fused(self.step)

    def _bits(self, stream: str, count: int) -> Tensor:
        """64 hashed bits per number, [R, count] int64. At most 2^32 numbers per stream and step."""
        device = self.step.device
        if count not in self._positions:
            positions = torch.arange(count, dtype=torch.int64, device=device)
            self._positions[count] = positions * _signed(_GOLDEN)
        x = self.keys(stream) + (self.step << 32) * _signed(_GOLDEN) + self._positions[count]
        # torch shifts int64 arithmetically: the mask clears the copies of the sign bit
        x = (x ^ ((x >> 30) & (_MASK >> 30))) * _signed(0xBF58476D1CE4E5B9)
        x = (x ^ ((x >> 27) & (_MASK >> 27))) * _signed(0x94D049BB133111EB)
        return x ^ ((x >> 31) & (_MASK >> 31))

    def uniform(self, stream: str, *shape: int) -> Tensor:
        """Uniform on [0, 1), 24 bits, [R, *shape]."""
        if self.fuses:
            return self._fused("uniform", stream, shape)
        bits = self._bits(stream, math.prod(shape))
        u = ((bits >> 40) & 0xFFFFFF).to(self.dtype) * 2.0**-24
        return u.view(len(self.seeds), *shape)

    def normal(self, stream: str, *shape: int) -> Tensor:
        """Standard normal by Box-Muller, [R, *shape]; one hash gives a pair."""
        if self.fuses:
            return self._fused("normal", stream, shape)
        count = math.prod(shape)
        bits = self._bits(stream, (count + 1) // 2)
        u = (((bits >> 40) & 0xFFFFFF) + 1).to(self.dtype) * 2.0**-24  # in (0, 1]: the logarithm is finite
        angle = ((bits >> 8) & 0xFFFFFF).to(self.dtype) * (2.0**-24 * 2 * math.pi)
        radius = torch.sqrt(-2 * torch.log(u))
        pair = torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], dim=1)
        return pair[:, :count].view(len(self.seeds), *shape)

    def integers(self, stream: str, high: Tensor, *shape: int) -> Tensor:
        """Integers on [0, high) for high [R] < 2^31, [R, *shape] int64; bias below high / 2^32."""
        if self.fuses:
            return self._fused("integers", stream, shape, high)
        bits = (self._bits(stream, math.prod(shape)) >> 32) & 0xFFFFFFFF
        return ((bits * high.unsqueeze(1)) >> 32).view(len(self.seeds), *shape)
