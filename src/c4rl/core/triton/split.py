"""Numbers split into two bfloat16 ones, which tensor cores multiply: bf16x3 is the three products that count."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def two_bfloat16(x):
    """Their sum is x to two thirds of float32's digits."""
    high = x.to(tl.bfloat16)
    return high, (x - high.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def read_split(X, distance, inside):
    """Of the split numbers at X: the high ones, and the low ones `distance` further on."""
    return tl.load(X, mask=inside, other=0.0), tl.load(X + distance, mask=inside, other=0.0)


@triton.jit
def add_split_product(x_high, x_low, y_high, y_low, total):
    """total + x y, small products first; low times low is below the last digit kept."""
    total = tl.dot(x_low, y_high, total)
    total = tl.dot(x_high, y_low, total)
    return tl.dot(x_high, y_high, total)


@triton.jit
def _split_kernel(X, SPLIT, count, BLOCK: tl.constexpr):
    """`count` high numbers, then as many low ones."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    high, low = two_bfloat16(tl.load(X + i, mask=i < count, other=0.0))
    tl.store(SPLIT + i, high, mask=i < count)
    tl.store(SPLIT + count + i, low, mask=i < count)


def split(x: Tensor) -> Tensor:
    """A dense tensor's high and low numbers, [2, ...].

    Factors are split before their product and not within it: there, on Hopper GPUs, tensor cores read them from
    registers, which compilers give away too early (triton-lang/triton, issue 9433 and pull request 11781), so that a
    product that ran at the same time as other work was wrong now and then.
    """
    out = torch.empty(2, *x.shape, device=x.device, dtype=torch.bfloat16)
    _split_kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), 1024)
    return out


def is_split(x: Tensor) -> bool:
    """Whether x is [2, R, M, rows, k] and not a tensor [R, (M,) rows, k]; both are as large in memory."""
    return x.dim() == 5


def high(x: Tensor) -> Tensor:
    """x, or its high numbers."""
    return x[0] if is_split(x) else x
