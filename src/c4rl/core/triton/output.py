"""The gradient through an output of one unit at many rows, which reads the last hidden layer once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from c4rl.core.triton.split import empty_split, write

ELEMENTS = 2048  # of a program's tile
PROGRAMS, MOST_STEPS = 1056, 16  # enough to keep a GPU busy; tiles of one program


@triton.jit
def _output_gradient_kernel(
    D, H, WEIGHT, ADD, DZ, D_BIAS, D_WEIGHT,
    rows, width, members, batch, steps, weight_run, weight_member, add_batch, add_row, group, dz_low,
    HAS_ADD: tl.constexpr, DZ_SPLIT: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """dz = D WEIGHT where h > 0 of each row, and sums over the rows of a piece [piece, b, width]: of dz and D h.

    ADD[b, i // group] is added to D WEIGHT at the first row of each group.
    """
    b, piece = tl.program_id(1).to(tl.int64), tl.program_id(0)
    j = tl.arange(0, WIDTH)
    run, member = b // members, b % members
    weight = tl.load(WEIGHT + run * weight_run + member * weight_member + j, mask=j < width, other=0.0)
    of_bias = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    of_weight = of_bias
    for step in range(steps):
        i = (piece * steps + step) * ROWS + tl.arange(0, ROWS)
        inside = (i < rows)[:, None] & (j < width)[None, :]
        place = (b * rows + i[:, None]) * width + j[None, :]
        h = tl.load(H + place, mask=inside, other=0.0)
        d = tl.load(D + b * rows + i, mask=i < rows, other=0.0)
        dy = d[:, None] * weight[None, :]
        if HAS_ADD:
            add = ADD + b * add_batch + (i // group)[:, None] * add_row + j[None, :]
            dy += tl.load(add, mask=inside & (i % group == 0)[:, None], other=0.0)
        dz = tl.where(h > 0, dy, 0.0)
        write(DZ + place, dz, dz_low, inside, DZ_SPLIT)
        of_bias += dz
        of_weight += d[:, None] * h
    sums = (piece.to(tl.int64) * batch + b) * width + j
    tl.store(D_BIAS + sums, tl.sum(of_bias, axis=0), mask=j < width)
    tl.store(D_WEIGHT + sums, tl.sum(of_weight, axis=0), mask=j < width)


def output_gradient(
    d: Tensor, h: Tensor, weight: Tensor, add: Tensor | None = None, group: int = 1, keep_split: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """From the gradient d [R, M, rows] of h · weight, h = relu(z) [R, M, rows, width] and weight [R, M, width]: dz, its
    sums over pieces of the rows [pieces, R, M, width], and those that make the gradient of the weight.

    add: the rest of h's own gradient at the first row of each group [R, M, rows / group, width]. keep_split: dz is to
    be split.
    """
    runs, members, rows, width = h.shape
    batch, block = runs * members, triton.next_power_of_2(width)
    tile = max(1, ELEMENTS // block)
    steps = max(1, min(MOST_STEPS, batch * rows // (tile * PROGRAMS)))
    pieces = triton.cdiv(rows, tile * steps)
    dz = empty_split(h.shape, h.device) if keep_split else torch.empty_like(h)
    sums, of_weight = torch.empty(2, pieces, runs, members, width, device=h.device, dtype=h.dtype)
    _output_gradient_kernel[(pieces, batch)](
        d, h, weight, add if add is not None else h, dz, sums, of_weight,
        rows, width, members, batch, steps, *weight.stride()[:2],
        *((add.stride(1), add.stride(2)) if add is not None else (0, 0)), group, dz.stride(0),
        add is not None, keep_split, tile, block,
    )  # fmt: skip
    return dz, sums, of_weight
