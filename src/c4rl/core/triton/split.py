"""Numbers split into two bfloat16 ones for tensor cores: bf16x3 is the three products that matter."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

try:
    from triton.tools.tensor_descriptor import TensorDescriptor
except ImportError:  # an older Triton
    TensorDescriptor = None


@triton.jit
def read_split(X, distance, inside):
    """The high numbers at X, and the low ones `distance` further on."""
    return tl.load(X, mask=inside, other=0.0), tl.load(X + distance, mask=inside, other=0.0)


@triton.jit
def read_block(X, row, column, distance):
    """The same of a described tensor, the low numbers `distance` rows further on."""
    return X.load([row, column]), X.load([row + distance, column])


@triton.jit
def write(X, x, distance, inside, SPLIT: tl.constexpr):
    """x to X; SPLIT: as two bfloat16 numbers, high ones, and low ones `distance` further on, whose sums are x to two
    thirds of float32's digits."""
    if SPLIT:
        high = x.to(tl.bfloat16)
        tl.store(X, high, mask=inside)
        tl.store(X + distance, (x - high.to(tl.float32)).to(tl.bfloat16), mask=inside)
    else:
        tl.store(X, x, mask=inside)


@triton.jit
def add_split_product(x_high, x_low, y_high, y_low, total):
    """total + x y, small products first; low times low is below the last digit kept."""
    total = tl.dot(x_low, y_high, total)
    total = tl.dot(x_high, y_low, total)
    return tl.dot(x_high, y_high, total)


@triton.jit
def _split_kernel(X, SPLIT, count, BLOCK: tl.constexpr):
    """`count` high numbers, then as many low ones."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    write(SPLIT + i, tl.load(X + i, mask=i < count, other=0.0), count, i < count, True)


def split(x: Tensor) -> Tensor:
    """A dense tensor's high and low numbers, [2, ...].

    Factors are split before their product, not within it. Within it, tensor cores of Hopper GPUs read them from
    registers, which compilers reuse too early (triton-lang/triton, issue 9433 and pull request 11781), so that a
    product running at the same time as other work was occasionally wrong.
    """
    out = empty_split(x.shape, x.device)
    _split_kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), 1024)
    return out


def empty_split(shape: Sequence[int], device: torch.device) -> Tensor:
    """Where split numbers are to be written."""
    return torch.empty(2, *shape, device=device, dtype=torch.bfloat16)


def can_describe(members: int, *tensors: Tensor) -> bool:
    """Whether blocks of split tensors [2, R, M, rows, k] can be copied by the engine of Hopper and later GPUs."""
    return (
        TensorDescriptor is not None
        and all(t.shape[2] == members and t[0].is_contiguous() for t in tensors)
        and all(t.shape[-1] % 8 == 0 and t.stride(0) % t.shape[-1] == 0 for t in tensors)
        and _copies_blocks(tensors[0].device)
    )


@cache
def _copies_blocks(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device)[0] >= 9


def describe(x: Tensor, rows: int, columns: int) -> Any:
    """A split tensor as rows of k numbers, of which blocks are read."""
    width = x.shape[-1]
    return TensorDescriptor(x, [(x.stride(0) + x[0].numel()) // width, width], [width, 1], [rows, columns])


@triton.jit
def _flip_kernel(
    W, FLIPPED, rows, columns, runs, members, low, w_layer, w_run, w_member, w_row,
    SPLIT: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """FLIPPED[b, j, i] = W[b, i, j], b = layer, run, member; SPLIT: split, its low numbers `low` further on."""
    tile, b = tl.program_id(0), tl.program_id(1).to(tl.int64)
    tiles = tl.cdiv(columns, TILE)
    i, j = (tile // tiles) * TILE + tl.arange(0, TILE), (tile % tiles) * TILE + tl.arange(0, TILE)
    layer, run, member = b // (runs * members), b // members % runs, b % members
    w = W + layer * w_layer + run * w_run + member * w_member
    x = tl.load(w + i[:, None] * w_row + j[None, :], mask=(i < rows)[:, None] & (j < columns)[None, :], other=0.0)
    x = tl.trans(x)
    place = FLIPPED + (b * columns + j[:, None]) * rows + i[None, :]
    inside = (j < columns)[:, None] & (i < rows)[None, :]
    write(place, x, low, inside, SPLIT)


def flipped(weights: Tensor, split: bool) -> Tensor:
    """The transposes of [L, R, M, in, out] in one launch, [L, R, M, out, in]; split: [2, L, ...]."""
    layers, runs, members, rows, columns = weights.shape
    shape, dtype = (layers, runs, members, columns, rows), torch.bfloat16 if split else torch.float32
    out = torch.empty(*((2,) if split else ()), *shape, device=weights.device, dtype=dtype)
    tiles = triton.cdiv(rows, 32) * triton.cdiv(columns, 32)
    _flip_kernel[(tiles, layers * runs * members)](
        weights, out, rows, columns, runs, members, weights.numel(), *weights.stride()[:4], split, 32
    )
    return out


def as_one(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors of one shape as [L, ...]: a view where they lie evenly apart, as a network's weights do, else a copy."""
    first, places = tensors[0], [tensor.storage_offset() for tensor in tensors]
    step = places[-1] - places[-2] if len(tensors) > 1 else 0
    even = places == [places[0] + index * step for index in range(len(tensors))]
    storages = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    if even and len(storages) == 1 and len({tensor.stride() for tensor in tensors}) == 1:
        return first.as_strided((len(tensors), *first.shape), (step, *first.stride()))
    return torch.stack(list(tensors))


def is_split(x: Tensor) -> bool:
    """Whether x is [2, R, M, rows, k] and not a tensor [R, (M,) rows, k]; both are as large in memory."""
    return x.dim() == 5


def high(x: Tensor) -> Tensor:
    """x, or its high numbers."""
    return x[0] if is_split(x) else x
