"""Losses of small tensors, in one launch each way: a single run is bound by the number of its kernels."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable
from triton.language.extra import libdevice

BLOCK = 1024
GAP_BLOCK = 8192  # numbers of a block of rows with all their actions


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
def _least_of_members(Q, r, i, members, q_run, q_member, q_row, inside):
    """min_m Q[r, m, i], NaN where one of them is."""
    least = tl.load(Q + r * q_run + i * q_row, mask=inside, other=0.0)
    for m in range(1, members):
        q = tl.load(Q + r * q_run + m * q_member + i * q_row, mask=inside, other=0.0)
        least = tl.where((q < least) | (q != q), q, least)
    return least


@triton.jit
def _target_kernel(
    REWARDS, CONTINUES, DISCOUNT, Q, Y, rows, members,
    reward_run, reward_row, continue_run, continue_row, q_run, q_member, q_row, discount,
    PER_RUN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Y[r, i] = REWARDS + discount CONTINUES min_m Q[r, m, i]; PER_RUN: the discount is DISCOUNT[r]."""
    r, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < rows
    least = _least_of_members(Q, r, i, members, q_run, q_member, q_row, inside)
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


@triton.jit
def _soft_actor_kernel(ALPHA, LOG_PROB, Q, MEAN, rows, members, q_run, q_member, q_row, BLOCK: tl.constexpr):
    """MEAN[r] = the mean of ALPHA[r] LOG_PROB[r, i] - min_m Q[r, m, i]."""
    r = tl.program_id(0).to(tl.int64)
    alpha = tl.load(ALPHA + r)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, rows, BLOCK):
        i = start + tl.arange(0, BLOCK)
        least = _least_of_members(Q, r, i, members, q_run, q_member, q_row, i < rows)
        total += alpha * tl.load(LOG_PROB + r * rows + i, mask=i < rows, other=0.0) - least
    tl.store(MEAN + r, tl.sum(total, axis=0) / rows)


@triton.jit
def _soft_actor_gradient_kernel(
    ALPHA, Q, D_MEAN, D_LOG_PROB, DQ, rows, members, q_run, q_member, q_row, d_run, BLOCK: tl.constexpr
):
    """Equal least values share the gradient, as in PyTorch."""
    r, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < rows
    least = _least_of_members(Q, r, i, members, q_run, q_member, q_row, inside)
    upstream = tl.load(D_MEAN + r * d_run) / rows
    tl.store(D_LOG_PROB + r * rows + i, upstream * tl.load(ALPHA + r) + 0.0 * i, mask=inside)
    sharing = tl.zeros((BLOCK,), dtype=tl.float32)
    for m in range(members):
        q = tl.load(Q + r * q_run + m * q_member + i * q_row, mask=inside, other=0.0)
        sharing += tl.where(q == least, 1.0, 0.0)
    for m in range(members):
        q = tl.load(Q + r * q_run + m * q_member + i * q_row, mask=inside, other=0.0)
        tl.store(DQ + (r * members + m) * rows + i, tl.where(q == least, -upstream, 0.0) / sharing, mask=inside)


@triton.jit
def _gap_kernel(
    Q, LOG_DENSITY, DATA, GAP, SOFT, rows, count, members,
    q_run, q_member, q_row, q_k, data_run, data_member, data_row,
    ROWS: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """SOFT[b, i] = log sum_k exp(Q - LOG_DENSITY) and GAP[b], the mean of SOFT - DATA; b = run, member."""
    b = tl.program_id(0).to(tl.int64)
    r, m, k = b // members, b % members, tl.arange(0, COUNT)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    for start in range(0, rows, ROWS):
        i = start + tl.arange(0, ROWS)
        inside = (i < rows)[:, None] & (k < count)[None, :]
        place = r * q_run + m * q_member + i[:, None] * q_row + k[None, :] * q_k
        q = tl.load(Q + place, mask=inside, other=0.0)
        log_density = tl.load(LOG_DENSITY + (r * rows + i[:, None]) * count + k[None, :], mask=inside, other=0.0)
        x = tl.where(inside, q - log_density, float("-inf"))
        largest = tl.max(x, axis=1)
        largest = tl.where(tl.abs(largest) == float("inf"), 0.0, largest)
        soft = libdevice.log(tl.sum(libdevice.exp(x - largest[:, None]), axis=1)) + largest
        tl.store(SOFT + b * rows + i, soft, mask=i < rows)
        data = tl.load(DATA + r * data_run + m * data_member + i * data_row, mask=i < rows, other=0.0)
        total += tl.where(i < rows, soft - data, 0.0)
    tl.store(GAP + b, tl.sum(total, axis=0) / rows)


@triton.jit
def _gap_gradient_kernel(
    Q, LOG_DENSITY, SOFT, D_GAP, DQ, D_DATA, rows, count, members,
    q_run, q_member, q_row, q_k, d_run, d_member,
    ROWS: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    r, m, k = b // members, b % members, tl.arange(0, COUNT)
    i = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = (i < rows)[:, None] & (k < count)[None, :]
    q = tl.load(Q + r * q_run + m * q_member + i[:, None] * q_row + k[None, :] * q_k, mask=inside, other=0.0)
    log_density = tl.load(LOG_DENSITY + (r * rows + i[:, None]) * count + k[None, :], mask=inside, other=0.0)
    soft = tl.load(SOFT + b * rows + i, mask=i < rows, other=0.0)
    upstream = tl.load(D_GAP + r * d_run + m * d_member) / rows
    share = libdevice.exp(q - log_density - soft[:, None])
    tl.store(DQ + (b * rows + i[:, None]) * count + k[None, :], upstream * share, mask=inside)
    tl.store(D_DATA + b * rows + i, -upstream + 0.0 * i, mask=i < rows)


class _SoftActorLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, alpha: Tensor, log_prob: Tensor, q: Tensor) -> Tensor:
        runs, members, rows = q.shape
        mean = torch.empty(runs, device=q.device)
        _soft_actor_kernel[(runs,)](alpha, log_prob, q, mean, rows, members, *q.stride(), BLOCK)
        ctx.save_for_backward(alpha, q)
        return mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_mean: Tensor) -> tuple[None, Tensor, Tensor]:  # type: ignore[override]
        alpha, q = ctx.saved_tensors
        runs, members, rows = q.shape
        d_log_prob, dq = torch.empty(runs, rows, device=q.device), torch.empty(q.shape, device=q.device)
        _soft_actor_gradient_kernel[(runs, triton.cdiv(rows, BLOCK))](
            alpha, q, d_mean, d_log_prob, dq, rows, members, *q.stride(), d_mean.stride(0), BLOCK
        )
        return None, d_log_prob, dq


class _Gap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, log_density: Tensor, q_data: Tensor) -> Tensor:
        runs, members, rows, count = q.shape
        gap, soft = torch.empty(runs, members, device=q.device), torch.empty(runs, members, rows, device=q.device)
        ctx.block = max(2, triton.next_power_of_2(count))
        at_once = max(2, min(GAP_BLOCK // ctx.block, triton.next_power_of_2(rows)))
        _gap_kernel[(runs * members,)](
            q, log_density, q_data, gap, soft, rows, count, members, *q.stride(), *q_data.stride(),
            at_once, ctx.block, num_warps=8,
        )  # fmt: skip
        ctx.save_for_backward(q, log_density, soft)
        return gap

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_gap: Tensor) -> tuple[Tensor, None, Tensor]:  # type: ignore[override]
        q, log_density, soft = ctx.saved_tensors
        runs, members, rows, count = q.shape
        dq, d_data = torch.empty(q.shape, device=q.device), torch.empty(soft.shape, device=q.device)
        at_once = max(2, 1024 // ctx.block)
        _gap_gradient_kernel[(runs * members, triton.cdiv(rows, at_once))](
            q, log_density, soft, d_gap, dq, d_data, rows, count, members, *q.stride(), *d_gap.stride(),
            at_once, ctx.block,
        )  # fmt: skip
        return dq, None, d_data


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
    """Over all but the first `keep` axes (1 or 2, of 2 to 4). y: expanded like x, without a gradient."""

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


def soft_actor_loss(alpha: Tensor, log_prob: Tensor, q: Tensor) -> Tensor:
    """The mean of α log π - min_m Q_m of each run, from [R], [R, B] and [R, M, B] -> [R]; alpha without gradient."""
    return _SoftActorLoss.apply(alpha, log_prob.contiguous(), q)


def soft_maximum_gap(q: Tensor, log_density: Tensor, q_data: Tensor) -> Tensor:
    """The mean of log sum_n exp(q_n - log_density_n) - q_data over rows; see c4rl.core.ops.losses."""
    return _Gap.apply(q, log_density.contiguous(), q_data)


def relative_mean(q: Tensor, weight: float | Tensor) -> Tensor:
    """weight · mean(q) / mean |q| of each run, the divisor without gradient, [R, B] -> [R]."""
    return _RelativeMean.apply(q, weight)
