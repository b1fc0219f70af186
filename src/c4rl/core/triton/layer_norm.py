"""LayerNorm, its gain and shift, and the ReLU after it, in one launch each way."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from c4rl.core.triton.split import empty_split, write

ELEMENTS = 4096  # of a program's tile
PROGRAMS, MOST_STEPS = 1056, 16  # enough to keep a GPU busy; tiles of one program


@triton.jit
def _forward_kernel(
    Z, GAIN, SHIFT, N, Y, RSTD, rows, width, members, gain_run, gain_member, shift_run, shift_member, y_low, epsilon,
    Y_SPLIT: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """n = (z - mean) / std of each row, y = relu(n gain + shift). Y_SPLIT: y is, its low numbers y_low further on."""
    b = tl.program_id(1).to(tl.int64)
    i, j = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    run, member = b // members, b % members
    inside = (i < rows)[:, None] & (j < width)[None, :]
    place = (b * rows + i[:, None]) * width + j[None, :]
    z = tl.load(Z + place, mask=inside, other=0.0)
    mean = tl.sum(z, axis=1) / width
    centred = tl.where(inside, z - mean[:, None], 0.0)
    rstd = 1.0 / tl.sqrt_rn(tl.sum(centred * centred, axis=1) / width + epsilon)
    n = centred * rstd[:, None]
    gain = tl.load(GAIN + run * gain_run + member * gain_member + j, mask=j < width, other=0.0)
    shift = tl.load(SHIFT + run * shift_run + member * shift_member + j, mask=j < width, other=0.0)
    tl.store(N + place, n, mask=inside)
    y = tl.maximum(n * gain[None, :] + shift[None, :], 0.0)
    write(Y + place, y, y_low, inside, Y_SPLIT)
    tl.store(RSTD + b * rows + i, rstd, mask=i < rows)


@triton.jit
def _backward_kernel(
    DY, N, RSTD, GAIN, SHIFT, DZ, D_GAIN, D_SHIFT, D_BIAS,
    rows, width, members, batch, steps, gain_run, gain_member, shift_run, shift_member, dz_low,
    DZ_SPLIT: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """dz, and sums over the rows of a piece [piece, b, width]: of dy n, dy (0 where the ReLU is) and dz."""
    b, piece = tl.program_id(1).to(tl.int64), tl.program_id(0)
    j = tl.arange(0, WIDTH)
    run, member = b // members, b % members
    gain = tl.load(GAIN + run * gain_run + member * gain_member + j, mask=j < width, other=0.0)
    shift = tl.load(SHIFT + run * shift_run + member * shift_member + j, mask=j < width, other=0.0)
    of_gain = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    of_shift, of_bias = of_gain, of_gain
    for step in range(steps):  # summing over rows takes longer than the rest: once per piece
        i = (piece * steps + step) * ROWS + tl.arange(0, ROWS)
        inside = (i < rows)[:, None] & (j < width)[None, :]
        place = (b * rows + i[:, None]) * width + j[None, :]
        n = tl.load(N + place, mask=inside, other=0.0)
        dy = tl.load(DY + place, mask=inside, other=0.0)
        dy = tl.where(n * gain[None, :] + shift[None, :] > 0, dy, 0.0)
        dn = dy * gain[None, :]
        along = tl.sum(dn * n, axis=1) / width
        rstd = tl.load(RSTD + b * rows + i, mask=i < rows, other=0.0)
        dz = (dn - tl.sum(dn, axis=1)[:, None] / width - n * along[:, None]) * rstd[:, None]
        write(DZ + place, dz, dz_low, inside, DZ_SPLIT)
        of_gain += dy * n
        of_shift += dy
        of_bias += dz
    sums = (piece.to(tl.int64) * batch + b) * width + j
    tl.store(D_GAIN + sums, tl.sum(of_gain, axis=0), mask=j < width)
    tl.store(D_SHIFT + sums, tl.sum(of_shift, axis=0), mask=j < width)
    tl.store(D_BIAS + sums, tl.sum(of_bias, axis=0), mask=j < width)


def norm_relu(
    z: Tensor, gain: Tensor, shift: Tensor, epsilon: float, keep_split: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """z [R, M, rows, width], gain and shift [R, M, width] -> y, and for the gradient n (in z's place) and 1 / std.

    keep_split: y is to be split.
    """
    runs, members, rows, width = z.shape
    block = triton.next_power_of_2(width)
    tile = max(1, ELEMENTS // block)
    y = empty_split(z.shape, z.device) if keep_split else torch.empty_like(z)
    rstd = torch.empty(runs, members, rows, device=z.device, dtype=z.dtype)
    _forward_kernel[(triton.cdiv(rows, tile), runs * members)](
        z, gain, shift, z, y, rstd, rows, width, members, *gain.stride()[:2], *shift.stride()[:2], y.stride(0), epsilon,
        keep_split, tile, block,
    )  # fmt: skip
    return y, z, rstd


def norm_relu_gradient(
    dy: Tensor, n: Tensor, rstd: Tensor, gain: Tensor, shift: Tensor, keep_split: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dz [R, M, rows, width], and its sums over pieces of the rows and those that make the gradients of gain and shift,
    [pieces, R, M, width] each. keep_split: dz is to be split."""
    runs, members, rows, width = n.shape
    batch, block = runs * members, triton.next_power_of_2(width)
    tile = max(1, ELEMENTS // 2 // block)
    steps = max(1, min(MOST_STEPS, batch * rows // (tile * PROGRAMS)))
    pieces = triton.cdiv(rows, tile * steps)
    dz = empty_split(n.shape, n.device) if keep_split else torch.empty_like(n)
    of_gain, of_shift, sums = torch.empty(3, pieces, runs, members, width, device=n.device, dtype=n.dtype)
    _backward_kernel[(pieces, batch)](
        dy, n, rstd, gain, shift, dz, of_gain, of_shift, sums,
        rows, width, members, batch, steps, *gain.stride()[:2], *shift.stride()[:2], dz.stride(0),
        keep_split, tile, block,
    )  # fmt: skip
    return dz, sums, of_gain, of_shift
