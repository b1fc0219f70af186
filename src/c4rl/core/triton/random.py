"""Counter-based draws in one launch each; bit for bit the hash of c4rl.core.ops.random, and its numbers."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

BLOCK = 256
UNIFORM, NORMAL, INTEGERS = 0, 1, 2


@triton.jit
def hashed(key, step, position):
    """64 bits for number `position` of a stream: SplitMix64 of key + golden * (step << 32 + position)."""
    golden = 0x9E3779B97F4A7C15
    x = key.to(tl.uint64, bitcast=True) + (step.to(tl.uint64) << 32) * golden + position.to(tl.uint64) * golden
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _draw_kernel(KEYS, STEP, HIGH, OUT, count, pairs, KIND: tl.constexpr, BLOCK: tl.constexpr):
    run = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    bits = hashed(tl.load(KEYS + run), tl.load(STEP), i)
    out = OUT + run * count
    if KIND == 0:  # uniform
        u = (bits >> 40).to(tl.float32) * 5.9604644775390625e-08
        tl.store(out + i, u, mask=i < count)
    elif KIND == 1:  # normal, one hash for a pair
        u = ((bits >> 40) + 1).to(tl.float32) * 5.9604644775390625e-08
        angle = ((bits >> 8) & 0xFFFFFF).to(tl.float32) * 3.7450702829238410e-07
        radius = tl.sqrt_rn(-2.0 * libdevice.log(u))
        tl.store(out + i, radius * libdevice.cos(angle), mask=i < pairs)
        tl.store(out + pairs + i, radius * libdevice.sin(angle), mask=(i < pairs) & (pairs + i < count))
    else:  # integers below HIGH[run]
        high = tl.load(HIGH + run).to(tl.uint64)
        tl.store(out + i, (((bits >> 32) * high) >> 32).to(tl.int64), mask=i < count)


def _draw(kind: int, keys: Tensor, step: Tensor, count: int, dtype: torch.dtype, high: Tensor) -> Tensor:
    """[R, count]; high: [R] int64, for integers."""
    out = torch.empty(len(keys), count, dtype=dtype, device=keys.device)
    numbers = (count + 1) // 2 if kind == NORMAL else count
    _draw_kernel[(triton.cdiv(numbers, BLOCK), len(keys))](keys, step, high, out, count, numbers, kind, BLOCK)
    return out


def uniform(keys: Tensor, step: Tensor, count: int) -> Tensor:
    return _draw(UNIFORM, keys, step, count, torch.float32, step)


def normal(keys: Tensor, step: Tensor, count: int) -> Tensor:
    return _draw(NORMAL, keys, step, count, torch.float32, step)


def integers(keys: Tensor, step: Tensor, count: int, high: Tensor) -> Tensor:
    return _draw(INTEGERS, keys, step, count, torch.int64, high)


@triton.jit
def _uniform_48(key, step, position, count):
    """Uniform on [0, 1) with 48 bits, from numbers `position` and `count + position` of a stream."""
    high = (hashed(key, step, position) >> 40).to(tl.float64)
    low = (hashed(key, step, count + position) >> 40).to(tl.float64)
    return high * 5.9604644775390625e-08 + low * 3.552713678800501e-15


@triton.jit
def _below(value, end):
    """value, or the next number below `end` (> 0) if rounding carried it there."""
    before = (end.to(tl.int64, bitcast=True) - 1).to(tl.float64, bitcast=True)
    return tl.minimum(value, tl.where(end > 0, before, end))


@triton.jit
def _cluster_rows_kernel(
    CLUSTER_KEYS, ROW_KEYS, STEP, CUMULATIVE, POOL, STARTED, OFFSETS, LENGTHS, ROWS, CLUSTER,
    clusters, size, count, iterations, BLOCK: tl.constexpr,
):  # fmt: skip
    """See c4rl.core.ops.random, of which this is the same in one launch."""
    run = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    step = tl.load(STEP)
    cumulative = CUMULATIVE + run * clusters * size
    total = tl.load(cumulative + clusters * size - 1)
    drawn = _below(_uniform_48(tl.load(CLUSTER_KEYS + run), step, tl.zeros((1,), tl.int64), 1) * total, total)
    z = tl.zeros((1,), tl.int64)
    for cluster in range(clusters):
        z += (tl.load(cumulative + (cluster + 1) * size - 1) <= drawn).to(tl.int64)
    z = tl.minimum(z, clusters - 1)
    end = tl.load(cumulative + (z + 1) * size - 1)
    start = tl.load(cumulative + z * size - 1, mask=z > 0, other=0.0)
    u = _uniform_48(tl.load(ROW_KEYS + run), step, i, count)
    value = _below(start + u * (end - start), end)
    # the first place of the running sum that is larger
    low = tl.zeros((BLOCK,), tl.int64)
    high = tl.zeros((BLOCK,), tl.int64) + clusters * size
    for _ in range(iterations):
        middle = (low + high) // 2
        larger = tl.load(cumulative + middle, mask=middle < clusters * size, other=float("inf")) > value
        high = tl.where(larger & (low < high), middle, high)
        low = tl.where(larger | (low >= high), low, middle + 1)
    place = tl.minimum(tl.maximum(low - z * size, 0), size - 1)
    clustered = tl.load(POOL + run * size + place)
    uniform = tl.load(OFFSETS + run) + (u * tl.load(LENGTHS + run).to(tl.float64)).to(tl.int64)
    started = tl.load(STARTED + run) != 0
    tl.store(ROWS + run * count + i, tl.where(started, clustered, uniform), mask=i < count)
    if tl.program_id(0) == 0:
        tl.store(CLUSTER + run + tl.zeros((1,), tl.int64), tl.where(started, z, 0))


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
    """See c4rl.core.ops.random."""
    runs, size = pool.shape
    clusters = cumulative.shape[1] // size
    rows, cluster = (torch.empty(*shape, dtype=torch.int64, device=pool.device) for shape in ((runs, count), (runs,)))
    _cluster_rows_kernel[(triton.cdiv(count, BLOCK), runs)](
        cluster_keys, row_keys, step, cumulative, pool, started.view(torch.uint8), offsets, lengths, rows, cluster,
        clusters, size, count, (clusters * size).bit_length(), BLOCK,
    )  # fmt: skip
    return rows, cluster
