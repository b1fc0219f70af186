"""Counter-based random numbers, see c4rl.core.random: keys [R, 1] and step, a scalar, are int64."""

import math

import torch
from torch import Tensor

from c4rl.core import ops

GOLDEN, MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1


def signed(x: int) -> int:
    """A 64-bit pattern as the int64 that torch holds."""
    return x - (1 << 64) if x >= 1 << 63 else x


def hashed_bits(keys: Tensor, step: Tensor, count: int) -> Tensor:
    """64 hashed bits per number, [R, count] int64. At most 2^32 numbers per stream and step."""
    positions = torch.arange(count, dtype=torch.int64, device=keys.device)
    x = keys + ((step << 32) + positions) * signed(GOLDEN)
    # torch shifts int64 arithmetically: the mask clears the copies of the sign bit
    x = (x ^ ((x >> 30) & (MASK >> 30))) * signed(0xBF58476D1CE4E5B9)
    x = (x ^ ((x >> 27) & (MASK >> 27))) * signed(0x94D049BB133111EB)
    return x ^ ((x >> 31) & (MASK >> 31))


def uniform(keys: Tensor, step: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Uniform on [0, 1), 24 bits, [R, count]."""
    if dtype == torch.float32 and (own := ops.kernels_for(step, "random")):
        return own.uniform(keys, step, count)
    return ((hashed_bits(keys, step, count) >> 40) & 0xFFFFFF).to(dtype) * 2.0**-24


def normal(keys: Tensor, step: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Standard normal by Box-Muller, [R, count]; one hash gives a pair."""
    if dtype == torch.float32 and (own := ops.kernels_for(step, "random")):
        return own.normal(keys, step, count)
    bits = hashed_bits(keys, step, (count + 1) // 2)
    u = (((bits >> 40) & 0xFFFFFF) + 1).to(dtype) * 2.0**-24  # in (0, 1]: the logarithm is finite
    angle = ((bits >> 8) & 0xFFFFFF).to(dtype) * (2.0**-24 * 2 * math.pi)
    radius = torch.sqrt(-2 * torch.log(u))
    return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], dim=1)[:, :count]


def integers(keys: Tensor, step: Tensor, count: int, high: Tensor) -> Tensor:
    """Integers on [0, high) for high [R] < 2^31, [R, count] int64; bias below high / 2^32."""
    if own := ops.kernels_for(step, "random"):
        return own.integers(keys, step, count, high)
    return (((hashed_bits(keys, step, count) >> 32) & 0xFFFFFFFF) * high.unsqueeze(1)) >> 32


def uniform_48(keys: Tensor, step: Tensor, count: int) -> Tensor:
    """Uniform on [0, 1) with 48 bits, [R, count] float64: 24 bits would favour some rows among millions."""
    high, low = uniform(keys, step, 2 * count, torch.float32).double().split(count, dim=1)
    return high + low * 2.0**-24


def cluster_rows(
    cluster_keys: Tensor,
    row_keys: Tensor,
    step: Tensor,
    count: int,
    cumulative: Tensor,
    pool: Tensor,
    started: Tensor,
    offsets: Tensor,
    lengths: Tensor,
) -> tuple[Tensor, Tensor]:
    """A cluster z [R] and `count` of its rows [R, count], drawn in proportion to their weights.

    cumulative: [R, K · P], running sums through all clusters of a pool of rows [R, P]. started: [R, 1]; if not set,
    rows are uniform on [offsets, offsets + lengths) ([R, 1] each) and z is 0.
    For one run on the CPU, step may be [S, 1]: z [S] and rows [S, count] of S steps, drawn at once.
    """
    tables = cumulative, pool, started, offsets, lengths
    if own := ops.kernels_for(step, "random"):
        return own.cluster_rows(cluster_keys, row_keys, step, count, *tables)
    size = pool.shape[1]
    ends = cumulative[:, size - 1 :: size].contiguous()  # [R, K]
    total = ends[:, -1:]
    alone = len(cumulative) == 1  # one table may be searched for any number of steps
    place = below(uniform_48(cluster_keys, step, 1) * total, total)
    z = torch.searchsorted(ends[0] if alone else ends, place, right=True)
    z = z.clamp(max=ends.shape[1] - 1)
    ends, pool = ends.expand(len(z), -1), pool.expand(len(z), -1)
    end = ends.gather(1, z)
    start = torch.where(z > 0, ends.gather(1, (z - 1).clamp(min=0)), 0)
    u = uniform_48(row_keys, step, count)
    flat = torch.searchsorted(cumulative[0] if alone else cumulative, below(start + u * (end - start), end), right=True)
    clustered = pool.gather(1, (flat - z * size).clamp(0, size - 1))
    uniform = offsets + (u * lengths).long()
    return torch.where(started, clustered, uniform), torch.where(started, z, 0).squeeze(1)


def below(value: Tensor, end: Tensor) -> Tensor:
    """Keeps rounding from carrying a value to the end of its interval, which belongs to the next row."""
    return torch.minimum(value, torch.nextafter(end, torch.zeros_like(end)))
