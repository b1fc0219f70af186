"""||C||_F^2 + beta (tr C)^2 of C = Cov(g', g), forwards and backwards in a handful of launches."""

from functools import cache
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
def _size_kernel(C, BETA, VALUE, TRACE, width, members, beta_run, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """||C||_F^2 + beta (tr C)^2 and tr C of one matrix, ROWS rows at a time."""
    b = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, BLOCK)[None, :]
    squares = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    diagonal = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for start in range(0, width, ROWS):
        i = start + tl.arange(0, ROWS)[:, None]
        c = tl.load(C + (b * width + i) * width + j, mask=(i < width) & (j < width), other=0.0)
        squares += c * c
        diagonal += tl.where(i == j, c, 0.0)
    trace = tl.sum(tl.sum(diagonal, axis=1), axis=0)
    beta = tl.load(BETA + (b // members) * beta_run)
    tl.store(VALUE + b, tl.sum(tl.sum(squares, axis=1), axis=0) + beta * trace * trace)
    tl.store(TRACE + b, trace)


@triton.jit
def _gradient_kernel(
    C, GRADIENT, BETA, TRACE, DC, width, members, gradient_run, gradient_member, beta_run, BLOCK: tl.constexpr
):
    """dC = 2 gradient (C + beta tr(C) I), BLOCK numbers of it."""
    b = tl.program_id(1).to(tl.int64)
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = e < width * width
    c = tl.load(C + b * width * width + e, mask=inside, other=0.0)
    run, member = b // members, b % members
    gradient = tl.load(GRADIENT + run * gradient_run + member * gradient_member)
    on_diagonal = tl.load(BETA + run * beta_run) * tl.load(TRACE + b)
    c += tl.where(e // width == e % width, on_diagonal, 0.0)
    tl.store(DC + b * width * width + e, 2.0 * gradient * c, mask=inside)


class _Size(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, g_next: Tensor, g: Tensor, valid: Tensor, beta: Tensor) -> Tensor:
        runs, members, rows, width = g.shape
        x, y = torch.empty_like(g), torch.empty_like(g)
        _centre_kernel[(triton.cdiv(width, TILE), runs * members)](
            g_next, g, valid, x, y, rows, width, members, *valid.stride(), triton.next_power_of_2(rows), TILE,
            num_warps=8,
        )  # fmt: skip
        C = torch.matmul(x.mT, y)
        value, trace = (torch.empty(runs, members, device=g.device) for _ in range(2))
        block = triton.next_power_of_2(width)
        _size_kernel[(runs * members,)](
            C, beta, value, trace, width, members, beta.stride(0), block, max(2, 4096 // block), num_warps=8
        )
        ctx.save_for_backward(x, C, trace, beta)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, C, trace, beta = ctx.saved_tensors
        members, width = C.shape[1:3]
        dC = torch.empty_like(C)
        _gradient_kernel[(triton.cdiv(width * width, 1024), trace.numel())](
            C, gradient, beta, trace, dC, width, members, *gradient.stride(), beta.stride(0), 1024
        )
        return None, x @ dC, None, None


def cross_covariance_size(g_next: Tensor, g: Tensor, valid: Tensor, beta: float | Tensor) -> Tensor:
    """g', g: [R, M, B, m]; valid: [R, 1, B] of 0 and 1; beta: a number or [R, 1]. Gives [R, M]; no gradient into g'."""
    if not isinstance(beta, Tensor):
        beta = _constant(beta, g.device)
    per_run = beta.reshape(-1).expand(len(g))
    return _Size.apply(g_next.contiguous(), g.contiguous(), valid.squeeze(1).float(), per_run)


@cache
def _constant(value: float, device: torch.device) -> Tensor:
    """Made once, so that no graph has to fill it."""
    return torch.tensor(value, device=device)
