"""LayerNorm, its gain and shift, and the ReLU after it, in one launch each way."""

import torch
import triton
import triton.language as tl
from torch import Tensor

ELEMENTS = 4096  # of a program's tile


@triton.jit
def _forward_kernel(
    Z, GAIN, SHIFT, N, Y, RSTD, rows, width, members, gain_run, gain_member, shift_run, shift_member, epsilon,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """n = (z - mean) / std of each row, y = relu(n gain + shift)."""
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
    tl.store(Y + place, tl.maximum(n * gain[None, :] + shift[None, :], 0.0), mask=inside)
    tl.store(RSTD + b * rows + i, rstd, mask=i < rows)


@triton.jit
def _backward_kernel(
    DY, N, Y, RSTD, GAIN, DZ, D_GAIN, D_SHIFT, rows, width, members, gain_run, gain_member,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    b, piece = tl.program_id(1).to(tl.int64), tl.program_id(0)
    i, j = piece * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (i < rows)[:, None] & (j < width)[None, :]
    place = (b * rows + i[:, None]) * width + j[None, :]
    n = tl.load(N + place, mask=inside, other=0.0)
    dy = tl.load(DY + place, mask=inside, other=0.0)
    dy = tl.where(tl.load(Y + place, mask=inside, other=0.0) > 0, dy, 0.0)
    gain = tl.load(GAIN + (b // members) * gain_run + (b % members) * gain_member + j, mask=j < width, other=0.0)
    dn = dy * gain[None, :]
    along = tl.sum(dn * n, axis=1) / width
    rstd = tl.load(RSTD + b * rows + i, mask=i < rows, other=0.0)
    dz = (dn - tl.sum(dn, axis=1)[:, None] / width - n * along[:, None]) * rstd[:, None]
    tl.store(DZ + place, dz, mask=inside)
    sums = (b * tl.num_programs(0) + piece) * width + j
    tl.store(D_GAIN + sums, tl.sum(dy * n, axis=0), mask=j < width)
    tl.store(D_SHIFT + sums, tl.sum(dy, axis=0), mask=j < width)


def norm_relu(z: Tensor, gain: Tensor, shift: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """z [R, M, rows, width], gain and shift [R, M, width] -> y, and for the way back n (in z's place) and 1 / std."""
    runs, members, rows, width = z.shape
    block = triton.next_power_of_2(width)
    tile = max(1, ELEMENTS // block)
    y, rstd = torch.empty_like(z), torch.empty(runs, members, rows, device=z.device, dtype=z.dtype)
    _forward_kernel[(triton.cdiv(rows, tile), runs * members)](
        z, gain, shift, z, y, rstd, rows, width, members, *gain.stride()[:2], *shift.stride()[:2], epsilon, tile, block
    )
    return y, z, rstd


def norm_relu_gradient(
    dy: Tensor, n: Tensor, y: Tensor, rstd: Tensor, gain: Tensor, of_gain: Tensor | None, of_shift: Tensor | None
) -> Tensor:
    """dz [R, M, rows, width]; writes the gradients of gain and shift [R, M, width] where they are asked for."""
    runs, members, rows, width = n.shape
    block = triton.next_power_of_2(width)
    tile = max(1, ELEMENTS // block)
    pieces = triton.cdiv(rows, tile)
    dz = torch.empty_like(n)
    d_gain, d_shift = torch.empty(2, runs, members, pieces, width, device=n.device, dtype=n.dtype)
    _backward_kernel[(pieces, runs * members)](
        dy, n, y, rstd, gain, dz, d_gain, d_shift, rows, width, members, *gain.stride()[:2], tile, block
    )
    if of_gain is not None and of_shift is not None:
        torch.sum(d_gain, 2, out=of_gain)
        torch.sum(d_shift, 2, out=of_shift)
    return dz
