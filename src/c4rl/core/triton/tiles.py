"""What stacked matrix products share: which are large enough for which tiles and for split factors, and strides."""

from torch import Tensor

from c4rl.core.triton.split import is_split, split

NARROW = 16  # up to this many columns, a whole row is multiplied at once
SHALLOW = 64  # factors of sums over fewer products are not split
MANY_ROWS = 1024  # from this many on, cuBLAS computes weight gradients
TILE = 64 * 64
Strides = tuple[int, int, int]  # of rows that may be shared by members: run, member, row


def kept_split(batch: int, rows: int, width: int) -> bool:
    """Whether to store a layer that only products read as its split numbers."""
    return width >= SHALLOW and is_large(batch, rows, width, True) and is_tall(batch, rows, width, width)


def splits(batch: int, rows: int, depth: int, columns: int) -> bool:
    """Whether bf16x3 splits the factors of a product [rows, depth] [depth, columns]."""
    return depth >= SHALLOW and columns > NARROW and is_large(batch, rows, columns, True)


def strides_of(x: Tensor) -> Strides:
    """x [R, rows, k], shared by a run's members, or [R, M, rows, k]; the last axis is dense."""
    x = x[0] if is_split(x) else x.unsqueeze(1) if x.dim() == 3 else x
    assert x.stride(-1) == 1 or x.shape[-1] == 1
    return x.stride(0), x.stride(1) if x.shape[1] > 1 else 0, x.stride(2)


def as_split(x: Tensor) -> Tensor:
    """x [R, rows, k] or [R, M, rows, k], split if it is not yet: [2, R, 1 or M, rows, k]."""
    return x if is_split(x) else split((x.unsqueeze(1) if x.dim() == 3 else x).contiguous())


def is_large(batch: int, rows: int, columns: int, bf16x3: bool) -> bool:
    """Whether tiles of 64 x 64 keep the whole GPU busy; in bf16x3, tensor cores make up for some of it."""
    return batch * rows * columns >= (140 if bf16x3 else 220) * TILE


def is_vast(batch: int, rows: int, columns: int) -> bool:
    """The same in bf16x3 of larger tiles."""
    return batch * rows * columns >= 400 * TILE


def is_tall(batch: int, rows: int, depth: int, columns: int) -> bool:
    """The same for a product that sums over rows, possibly in pieces."""
    return min(depth, columns) > 32 and (batch * rows >= 8192 or batch * depth * columns >= 140 * TILE)


def splits_tall(batch: int, rows: int, depth: int, columns: int) -> bool:
    """Whether bf16x3 splits its factors."""
    return is_tall(batch, rows, depth, columns) and min(depth, columns) >= SHALLOW


def batch_and_row(x: Tensor) -> tuple[int, int]:
    """Strides of x [R, M, rows, k], whose runs and members are as one axis."""
    return (x.stride(1) if x.shape[1] > 1 else x.stride(0)), x.stride(2)
