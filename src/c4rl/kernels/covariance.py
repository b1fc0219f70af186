"""||C||_F^2 + beta (tr C)^2 of C = Cov(g', g), forwards and backwards in a handful of launches."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 32  # columns that one program holds for all rows of a batch


@triton.jit
def _centre_kernel(
    NEXT, G, VALID, X, Y, rows, width, members, valid_run, valid_row, BLOCK_ROWS: tl.constexpr, TILE: tl.constexpr
):
    """X = (g' - mean g') w / (n - 1), Y = g - mean g, over the valid rows, for TILE columns."""
    b = tl.program_id(1).to(tl.int64)
    i, j = tl.arange(0, BLOCK_ROWS), tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = (i < rows)[:, None] & (j < width)[None, :]
    weight = tl.load(VALID + (b // members) * valid_run + i * valid_row, mask=i < rows, other=0.0)
    count = tl.sum(weight, axis=0)
    place = (b * rows + i[:, None]) * width + j[None, :]
    following = tl.load(NEXT + place, mask=inside, other=0.0)
    here = tl.load(G + place, mask=inside, other=0.0)
    n = tl.maximum(count, 1.0)
    following_mean = tl.sum(following * weight[:, None], axis=0) / n
    mean = tl.sum(here * weight[:, None], axis=0) / n
    scale = weight / tl.maximum(count - 1.0, 1.0)
    tl.store(X + place, (following - following_mean[None, :]) * scale[:, None], mask=inside)
    tl.store(Y + place, here - mean[None, :], mask=inside)


@triton.jit
def _size_kernel(C, SUMS, width, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """Of ROWS rows of C: the sum of squares, and of the diagonal."""
    part, b = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i, j = part * ROWS + tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK)[None, :]
    c = tl.load(C + (b * width + i) * width + j, mask=(i < width) & (j < width), other=0.0)
    place = (b * tl.num_programs(0) + part) * 2
    tl.store(SUMS + place, tl.sum(tl.sum(c * c, axis=1), axis=0))
    tl.store(SUMS + place + 1, tl.sum(tl.sum(tl.where(i == j, c, 0.0), axis=1), axis=0))


class _Penalty(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, g_next: Tensor, g: Tensor, valid: Tensor, beta: float | Tensor) -> Tensor:
        runs, members, rows, width = g.shape
        x, y = torch.empty_like(g), torch.empty_like(g)
        _centre_kernel[(triton.cdiv(width, TILE), runs * members)](
            g_next, g, valid, x, y, rows, width, members, *valid.stride(), triton.next_power_of_2(rows), TILE,
            num_warps=8,
        )  # fmt: skip
        C = torch.matmul(x.mT, y)
        parts = triton.cdiv(width, 16)
        sums = torch.empty(runs, members, parts, 2, device=g.device)
        _size_kernel[(parts, runs * members)](C, sums, width, triton.next_power_of_2(width), 16)
        size, trace = sums.sum(2).unbind(-1)
        ctx.save_for_backward(x, C, trace)
        ctx.beta = beta
        return size + beta * trace.square()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, C, trace = ctx.saved_tensors
        twice = (2 * gradient)[..., None, None]
        dC = C * twice
        dC.diagonal(dim1=-2, dim2=-1).add_((2 * ctx.beta * gradient * trace).unsqueeze(-1))
        return None, x @ dC, None, None


def penalty(g_next: Tensor, g: Tensor, valid: Tensor, beta: float | Tensor) -> Tensor:
    """g', g: [R, M, B, m]; valid: [R, 1, B] of 0 and 1; beta: a number or [R, 1]. Gives [R, M]; no gradient into g'."""
    return _Penalty.apply(g_next.contiguous(), g.contiguous(), valid.squeeze(1).float(), beta)
