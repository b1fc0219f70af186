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
    Z, GAIN, SHIFT, WEIGHT, BIAS, Y, MEAN, RSTD, DOTS,
    rows, width, members, gain_run, gain_member, shift_run, shift_member, weight_run, weight_member, bias_run,
    bias_member, y_low, epsilon,
    HAS_DOTS: tl.constexpr, Y_SPLIT: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """n = (z - mean) / std of each row, y = relu(n gain + shift) and DOTS, y · WEIGHT + BIAS.

    Y_SPLIT: y is split, its low numbers y_low further on.
    """
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
    y = tl.maximum(n * gain[None, :] + shift[None, :], 0.0)
    write(Y + place, y, y_low, inside, Y_SPLIT)
    tl.store(MEAN + b * rows + i, mean, mask=i < rows)
    tl.store(RSTD + b * rows + i, rstd, mask=i < rows)
    if HAS_DOTS:
        weight = tl.load(WEIGHT + run * weight_run + member * weight_member + j, mask=j < width, other=0.0)
        bias = tl.load(BIAS + run * bias_run + member * bias_member)
        tl.store(DOTS + b * rows + i, tl.sum(y * weight[None, :], axis=1) + bias, mask=i < rows)


@triton.jit
def _backward_kernel(
    DY, Z, MEAN, RSTD, GAIN, SHIFT, WEIGHT, ADD, DZ, D_GAIN, D_SHIFT, D_BIAS, D_WEIGHT,
    rows, width, members, batch, steps,
    gain_run, gain_member, shift_run, shift_member, weight_run, weight_member, add_batch, add_row, group, dz_low,
    OF_DOTS: tl.constexpr, HAS_ADD: tl.constexpr, DZ_SPLIT: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """dz, and sums over the rows of a piece [piece, b, width]: of dy n, dy (0 where the ReLU is) and dz.

    OF_DOTS: DY [b, rows] is the gradient of y · WEIGHT, D_WEIGHT the sum of that of WEIGHT. ADD[b, i // group]: the
    rest of dy, at the first row of each group.
    """
    b, piece = tl.program_id(1).to(tl.int64), tl.program_id(0)
    j = tl.arange(0, WIDTH)
    run, member = b // members, b % members
    gain = tl.load(GAIN + run * gain_run + member * gain_member + j, mask=j < width, other=0.0)
    shift = tl.load(SHIFT + run * shift_run + member * shift_member + j, mask=j < width, other=0.0)
    if OF_DOTS:
        weight = tl.load(WEIGHT + run * weight_run + member * weight_member + j, mask=j < width, other=0.0)
    of_gain = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    of_shift, of_bias, of_weight = of_gain, of_gain, of_gain
    for step in range(steps):  # summing over rows takes longer than the rest: once per piece
        i = (piece * steps + step) * ROWS + tl.arange(0, ROWS)
        inside = (i < rows)[:, None] & (j < width)[None, :]
        place = (b * rows + i[:, None]) * width + j[None, :]
        z = tl.load(Z + place, mask=inside, other=0.0)
        mean = tl.load(MEAN + b * rows + i, mask=i < rows, other=0.0)
        rstd = tl.load(RSTD + b * rows + i, mask=i < rows, other=0.0)
        n = (z - mean[:, None]) * rstd[:, None]
        y = n * gain[None, :] + shift[None, :]  # 0 beyond the width, where n is not
        if OF_DOTS:
            d = tl.load(DY + b * rows + i, mask=i < rows, other=0.0)
            dy = d[:, None] * weight[None, :]
            of_weight += d[:, None] * tl.maximum(y, 0.0)
        else:
            dy = tl.load(DY + place, mask=inside, other=0.0)
        if HAS_ADD:
            add = ADD + b * add_batch + (i // group)[:, None] * add_row + j[None, :]
            dy += tl.load(add, mask=inside & (i % group == 0)[:, None], other=0.0)
        dy = tl.where(y > 0, dy, 0.0)
        dn = dy * gain[None, :]
        along = tl.sum(dn * n, axis=1) / width
        dz = (dn - tl.sum(dn, axis=1)[:, None] / width - n * along[:, None]) * rstd[:, None]
        write(DZ + place, dz, dz_low, inside, DZ_SPLIT)
        of_gain += dy * n
        of_shift += dy
        of_bias += dz
    sums = (piece.to(tl.int64) * batch + b) * width + j
    tl.store(D_GAIN + sums, tl.sum(of_gain, axis=0), mask=j < width)
    tl.store(D_SHIFT + sums, tl.sum(of_shift, axis=0), mask=j < width)
    tl.store(D_BIAS + sums, tl.sum(of_bias, axis=0), mask=j < width)
    if OF_DOTS:
        tl.store(D_WEIGHT + sums, tl.sum(of_weight, axis=0), mask=j < width)


def norm_relu(
    z: Tensor,
    gain: Tensor,
    shift: Tensor,
    epsilon: float,
    keep_split: bool = False,
    output: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """z [R, M, rows, width], gain and shift [R, M, width] -> y; mean and 1 / std of z's rows, [2, R, M, rows]; and the
    output y · w + bias [R, M, rows], if w [R, M, width] and the bias [R, M] are given.

    keep_split: y is to be split.
    """
    runs, members, rows, width = z.shape
    block = triton.next_power_of_2(width)
    tile = max(1, ELEMENTS // block)
    y = empty_split(z.shape, z.device) if keep_split else torch.empty_like(z)
    moments = torch.empty(2, runs, members, rows, device=z.device, dtype=z.dtype)
    dots = torch.empty_like(moments[0]) if output is not None else None
    weight, bias = output or (z[..., 0, :], z[..., 0, 0])
    _forward_kernel[(triton.cdiv(rows, tile), runs * members)](
        z, gain, shift, weight, bias, y, *moments, dots if dots is not None else y,
        rows, width, members, *gain.stride()[:2], *shift.stride()[:2], *weight.stride()[:2], *bias.stride(),
        y.stride(0), epsilon, dots is not None, keep_split, tile, block,
    )  # fmt: skip
    return y, moments, dots


def norm_relu_gradient(
    dy: Tensor,
    z: Tensor,
    moments: Tensor,
    gain: Tensor,
    shift: Tensor,
    keep_split: bool = False,
    weight: Tensor | None = None,
    add: Tensor | None = None,
    group: int = 1,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """dz [R, M, rows, width], and its sums over pieces of the rows and those that make the gradients of gain, shift and
    weight, [pieces, R, M, width] each.

    weight: [R, M, width], if dy is the output's gradient [R, M, rows]; add: the rest of y's own at the first row of
    each group [R, M, rows / group, width]. keep_split: dz is to be split.
    """
    runs, members, rows, width = z.shape
    batch, block = runs * members, triton.next_power_of_2(width)
    tile = max(1, ELEMENTS // 2 // block)
    steps = max(1, min(MOST_STEPS, batch * rows // (tile * PROGRAMS)))
    pieces = triton.cdiv(rows, tile * steps)
    dz = empty_split(z.shape, z.device) if keep_split else torch.empty_like(z)
    of_gain, of_shift, of_weight, sums = torch.empty(4, pieces, runs, members, width, device=z.device, dtype=z.dtype)
    _backward_kernel[(pieces, batch)](
        dy, z, *moments, gain, shift, weight if weight is not None else gain, add if add is not None else z,
        dz, of_gain, of_shift, sums, of_weight,
        rows, width, members, batch, steps, *gain.stride()[:2], *shift.stride()[:2],
        *(weight.stride()[:2] if weight is not None else (0, 0)),
        *((add.stride(1), add.stride(2)) if add is not None else (0, 0)), group, dz.stride(0),
        weight is not None, add is not None, keep_split, tile, block,
    )  # fmt: skip
    return dz, sums, of_gain, of_shift, of_weight
