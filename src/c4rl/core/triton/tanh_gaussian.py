"""Actions of a tanh-Gaussian policy and their log-probabilities, in one launch each way."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

ROWS = 64


@triton.jit
def _squashed(mean, log_std, noise):
    """tanh(mean + std noise), and each number's part of its log-probability."""
    u = mean + libdevice.exp(log_std) * noise
    # log N(noise) - log std - log(1 - tanh(u)^2), the last as 2 (log 2 - u - softplus(-2u))
    v = -2.0 * u
    softplus = tl.maximum(v, 0.0) + libdevice.log1p(libdevice.exp(-tl.abs(v)))
    slope = 2.0 * (0.6931471805599453 - u - softplus)
    log_normal = -0.5 * noise * noise - log_std - 0.9189385332046727
    return libdevice.tanh(u), log_normal - slope


@triton.jit
def _sample_kernel(
    MEAN, LOG_STD, NOISE, ACTIONS, LOG_PROB, rows, width, count, mean_row, std_row,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    j = tl.arange(0, WIDTH)
    inside = (i < rows)[:, None] & (j < width)[None, :]
    state = i // count
    mean = tl.load(MEAN + state[:, None] * mean_row + j[None, :], mask=inside, other=0.0)
    log_std = tl.load(LOG_STD + state[:, None] * std_row + j[None, :], mask=inside, other=0.0)
    noise = tl.load(NOISE + i[:, None] * width + j[None, :], mask=inside, other=0.0)
    action, log_prob = _squashed(mean, log_std, noise)
    tl.store(ACTIONS + i[:, None] * width + j[None, :], action, mask=inside)
    tl.store(LOG_PROB + i, tl.sum(tl.where(inside, log_prob, 0.0), axis=1), mask=i < rows)


@triton.jit
def _three_kinds_kernel(
    UNIFORM, MEAN, LOG_STD, NOISE, NEXT_MEAN, NEXT_LOG_STD, NEXT_NOISE, ACTIONS, LOG_DENSITY, rows, width, count,
    mean_row, std_row, next_mean_row, next_std_row,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Of each state's 3 `count` actions: uniform ones, then both policies'."""
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    j = tl.arange(0, WIDTH)[None, :]
    inside = (i < rows)[:, None] & (j < width)
    state, kind = (i // (3 * count))[:, None], (i // count % 3)[:, None]
    drawn = (state * count + (i % count)[:, None]) * width + j
    here, there = inside & (kind == 1), inside & (kind == 2)
    uniform = tl.load(UNIFORM + drawn, mask=inside & (kind == 0), other=0.0) * 2.0 - 1.0
    # of the two, the one that is not read is 0
    mean = tl.load(MEAN + state * mean_row + j, mask=here, other=0.0)
    mean += tl.load(NEXT_MEAN + state * next_mean_row + j, mask=there, other=0.0)
    log_std = tl.load(LOG_STD + state * std_row + j, mask=here, other=0.0)
    log_std += tl.load(NEXT_LOG_STD + state * next_std_row + j, mask=there, other=0.0)
    noise = tl.load(NOISE + drawn, mask=here, other=0.0) + tl.load(NEXT_NOISE + drawn, mask=there, other=0.0)
    action, log_prob = _squashed(mean, log_std, noise)
    log_density = tl.where(kind == 0, -0.6931471805599453, log_prob)
    tl.store(ACTIONS + i[:, None] * width + j, tl.where(kind == 0, uniform, action), mask=inside)
    tl.store(LOG_DENSITY + i, tl.sum(tl.where(inside, log_density, 0.0), axis=1), mask=i < rows)


@triton.jit
def _gradient_kernel(
    LOG_STD, NOISE, ACTIONS, D_ACTIONS, D_LOG_PROB, D_MEAN, D_LOG_STD, size, width, std_row, BLOCK: tl.constexpr
):
    """With a = tanh(mean + std noise): da/du = 1 - a^2 and d log_prob/du = 2a."""
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = e < size
    row = e // width
    a = tl.load(ACTIONS + e, mask=inside, other=0.0)
    d_log_prob = tl.load(D_LOG_PROB + row, mask=inside, other=0.0)
    du = tl.load(D_ACTIONS + e, mask=inside, other=0.0) * (1.0 - a * a) + d_log_prob * 2.0 * a
    std = libdevice.exp(tl.load(LOG_STD + row * std_row + e % width, mask=inside, other=0.0))
    tl.store(D_MEAN + e, du, mask=inside)
    tl.store(D_LOG_STD + e, du * std * tl.load(NOISE + e, mask=inside, other=0.0) - d_log_prob, mask=inside)


def _row_stride(x: Tensor) -> int:
    """Of [R, B, a] whose rows lie evenly apart, as the halves of a network's output do."""
    assert x.stride(-1) == 1 and (x.shape[0] == 1 or x.stride(0) == x.shape[1] * x.stride(1))
    return x.stride(1)


class _Sample(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        width = noise.shape[-1]
        rows = noise.numel() // width
        actions = torch.empty_like(noise)
        log_prob = torch.empty(noise.shape[:-1], device=noise.device)
        _sample_kernel[(triton.cdiv(rows, ROWS),)](
            mean, log_std, noise, actions, log_prob, rows, width, rows // (mean.shape[0] * mean.shape[1]),
            _row_stride(mean), _row_stride(log_std), ROWS, max(triton.next_power_of_2(width), 2),
        )  # fmt: skip
        ctx.save_for_backward(log_std, noise, actions)
        return actions, log_prob

    @staticmethod
    def backward(ctx: Any, d_actions: Tensor, d_log_prob: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        log_std, noise, actions = ctx.saved_tensors
        d_mean, d_log_std = torch.empty_like(actions), torch.empty_like(actions)
        _gradient_kernel[(triton.cdiv(actions.numel(), 512),)](
            log_std, noise, actions, d_actions.contiguous(), d_log_prob.contiguous(), d_mean, d_log_std,
            actions.numel(), actions.shape[-1], _row_stride(log_std), 512,
        )  # fmt: skip
        return d_mean, d_log_std, None


def sample_tanh_gaussian(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """tanh(mean + std noise) and its log-probability; mean, log_std [R, B, a], noise [R, B, (N,) a].

    With N actions per state nothing can be differentiated.
    """
    return _Sample.apply(mean, log_std, noise.contiguous())


def uniform_and_sampled(
    uniform: Tensor,
    mean: Tensor,
    log_std: Tensor,
    noise: Tensor,
    next_mean: Tensor,
    next_log_std: Tensor,
    next_noise: Tensor,
) -> tuple[Tensor, Tensor]:
    """See c4rl.core.ops.tanh_gaussian."""
    runs, states, count, width = noise.shape
    actions = torch.empty(runs, states, 3 * count, width, device=noise.device)
    log_density = torch.empty(runs, states, 3 * count, device=noise.device)
    rows = log_density.numel()
    moments = mean, log_std, next_mean, next_log_std
    _three_kinds_kernel[(triton.cdiv(rows, ROWS),)](
        uniform, mean, log_std, noise, next_mean, next_log_std, next_noise, actions, log_density, rows, width, count,
        *map(_row_stride, moments), ROWS, max(triton.next_power_of_2(width), 2),
    )  # fmt: skip
    return actions, log_density
