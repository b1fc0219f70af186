"""Losses of small tensors, in one launch each way: a single run is bound by the number of its kernels."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK = 1024


@triton.jit
def _difference(X, Y, r, m, i, width, x_run, x_member, x_row, x_k, y_run, y_member, y_row, y_k, inside):
    row, k = i // width, i % width
    x = tl.load(X + r * x_run + m * x_member + row * x_row + k * x_k, mask=inside, other=0.0)
    return x - tl.load(Y + r * y_run + m * y_member + row * y_row + k * y_k, mask=inside, other=0.0)


@triton.jit
def _mean_square_kernel(
    X, Y, MEAN, members, size, width,
    x_run, x_member, x_row, x_k, y_run, y_member, y_row, y_k,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """MEAN[r, m] = the mean of (X - Y)² over `size` numbers, in rows of `width`."""
    b = tl.program_id(0).to(tl.int64)
    r, m = b // members, b % members
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, size, BLOCK):
        i = start + tl.arange(0, BLOCK)
        d = _difference(X, Y, r, m, i, width, x_run, x_member, x_row, x_k, y_run, y_member, y_row, y_k, i < size)
        total += d * d
    tl.store(MEAN + b, tl.sum(total, axis=0) / size)


@triton.jit
def _mean_square_gradient_kernel(
    X, Y, D_MEAN, DX, members, size, width,
    x_run, x_member, x_row, x_k, y_run, y_member, y_row, y_k, d_run, d_member,
    BLOCK: tl.constexpr,
):  # fmt: skip
    b, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    r, m = b // members, b % members
    inside = i < size
    d = _difference(X, Y, r, m, i, width, x_run, x_member, x_row, x_k, y_run, y_member, y_row, y_k, inside)
    upstream = tl.load(D_MEAN + r * d_run + m * d_member)
    tl.store(DX + b * size + i, 2.0 * d * upstream / size, mask=inside)


@triton.jit
def _target_kernel(
    REWARDS, CONTINUES, DISCOUNT, Q, Y, rows, members,
    reward_run, reward_row, continue_run, continue_row, q_run, q_member, q_row, discount,
    PER_RUN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Y[r, i] = REWARDS + discount CONTINUES min_m Q[r, m, i]; PER_RUN: the discount is DISCOUNT[r]."""
    r, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < rows
    least = tl.load(Q + r * q_run + i * q_row, mask=inside, other=0.0)
    for m in range(1, members):
        q = tl.load(Q + r * q_run + m * q_member + i * q_row, mask=inside, other=0.0)
        least = tl.where((q < least) | (q != q), q, least)  # NaN stays NaN
    if PER_RUN:
        discount = tl.load(DISCOUNT + r)
    goes_on = tl.load(CONTINUES + r * continue_run + i * continue_row, mask=inside, other=0.0)
    y = tl.load(REWARDS + r * reward_run + i * reward_row, mask=inside, other=0.0) + discount * goes_on * least
    tl.store(Y + r * rows + i, y, mask=inside)


@triton.jit
def _relative_mean_kernel(
    Q, WEIGHT, MEAN, SLOPE, rows, q_run, q_row, weight, PER_RUN: tl.constexpr, BLOCK: tl.constexpr
):
    """MEAN[r] = weight mean(Q) / mean |Q|, and SLOPE[r], its derivative by any q with the divisor held fixed."""
    r = tl.program_id(0).to(tl.int64)
    total, size = tl.zeros((BLOCK,), dtype=tl.float32), tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, rows, BLOCK):
        i = start + tl.arange(0, BLOCK)
        q = tl.load(Q + r * q_run + i * q_row, mask=i < rows, other=0.0)
        total += q
        size += tl.abs(q)
    if PER_RUN:
        weight = tl.load(WEIGHT + r)
    slope = weight / tl.sum(size, axis=0)
    tl.store(SLOPE + r, slope)
    tl.store(MEAN + r, slope * tl.sum(total, axis=0))


@triton.jit
def _spread_kernel(SLOPE, D_MEAN, DQ, rows, d_run, BLOCK: tl.constexpr):
    r, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.store(DQ + r * rows + i, tl.load(SLOPE + r) * tl.load(D_MEAN + r * d_run) + 0.0 * i, mask=i < rows)


class _MeanSquare(torch.autograd.Function):
    """x [R, M, rows, width], y likewise, without a gradient -> [R, M]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        runs, members, rows, width = x.shape
        mean = torch.empty(runs, members, device=x.device)
        ctx.save_for_backward(x, y)
        sizes = members, rows * width, width
        _mean_square_kernel[(runs * members,)](x, y, mean, *sizes, *x.stride(), *y.stride(), BLOCK)
        return mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_mean: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        x, y = ctx.saved_tensors
        runs, members, rows, width = x.shape
        dx = torch.empty(x.shape, device=x.device)
        size = rows * width
        _mean_square_gradient_kernel[(runs * members, triton.cdiv(size, BLOCK))](
            x, y, d_mean, dx, members, size, width, *x.stride(), *y.stride(), *d_mean.stride(), BLOCK
        )
        return dx, None


class _RelativeMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, weight: float | Tensor) -> Tensor:
        runs, ctx.rows = q.shape
        mean, slope = torch.empty(runs, device=q.device), torch.empty(runs, device=q.device)
        per_run = isinstance(weight, Tensor)
        given = (weight, 0.0) if per_run else (q, weight)
        _relative_mean_kernel[(runs,)](q, given[0], mean, slope, ctx.rows, *q.stride(), given[1], per_run, BLOCK)
        ctx.save_for_backward(slope)
        return mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_mean: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (slope,) = ctx.saved_tensors
        dq = torch.empty(len(slope), ctx.rows, device=slope.device)
        _spread_kernel[(len(slope), triton.cdiv(ctx.rows, BLOCK))](slope, d_mean, dq, ctx.rows, d_mean.stride(0), BLOCK)
        return dq, None


def mean_squared_error(x: Tensor, y: Tensor, keep: int) -> Tensor:
    """Of x and y, expanded like it and without a gradient, over all but the first `keep` axes, 1 or 2 of 2 to 4."""

    def with_four_axes(t: Tensor) -> Tensor:
        t = t if keep == 2 else t.unsqueeze(1)
        return t if t.dim() == 4 else t.unsqueeze(3)

    mean = _MeanSquare.apply(with_four_axes(x), with_four_axes(y))
    return mean if keep == 2 else mean.squeeze(1)


def clipped_target(rewards: Tensor, continues: Tensor, discount: float | Tensor, q: Tensor) -> Tensor:
    """r + γ min_m Q_m of [R, B] and [R, M, B] -> [R, B]; discount: γ, or one per run [R, 1]."""
    runs, members, rows = q.shape
    y = torch.empty(runs, rows, device=q.device)
    per_run = isinstance(discount, Tensor)
    _target_kernel[(runs, triton.cdiv(rows, BLOCK))](
        rewards, continues, discount if per_run else q, q, y, rows, members,
        *rewards.stride(), *continues.stride(), *q.stride(), 0.0 if per_run else discount, per_run, BLOCK,
    )  # fmt: skip
    return y


def relative_mean(q: Tensor, weight: float | Tensor) -> Tensor:
    """weight · mean(q) / mean |q| of each run, the divisor without gradient, [R, B] -> [R]."""
    return _RelativeMean.apply(q, weight)
