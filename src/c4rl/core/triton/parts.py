"""Numbers as sums of bfloat16 parts, which tensor cores multiply: two parts for bf16x3, three for bf16x6."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def parts_of(x):
    """bfloat16 numbers whose sum is x, to float32's last digit."""
    first = x.to(tl.bfloat16)
    rest = x - first.to(tl.float32)
    second = rest.to(tl.bfloat16)
    return first, second, (rest - second.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def read_parts(X, part, inside, PARTS: tl.constexpr):
    """Of the numbers that lie at X in parts, `part` apart: three parts, or two and one to ignore."""
    first = tl.load(X, mask=inside, other=0.0)
    second = tl.load(X + part, mask=inside, other=0.0)
    return first, second, tl.load(X + 2 * part, mask=inside, other=0.0) if PARTS == 3 else second


@triton.jit
def product_of_parts(x0, x1, x2, y0, y1, y2, total, PARTS: tl.constexpr):
    """The products that matter, small ones first; those left out are below the last digit kept."""
    if PARTS == 3:
        total = tl.dot(x2, y0, total)
        total = tl.dot(x1, y1, total)
        total = tl.dot(x0, y2, total)
    total = tl.dot(x1, y0, total)
    total = tl.dot(x0, y1, total)
    return tl.dot(x0, y0, total)


@triton.jit
def _split_kernel(X, PARTS_OF_X, count, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """The parts of `count` numbers, one after the other."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x0, x1, x2 = parts_of(tl.load(X + i, mask=i < count, other=0.0))
    tl.store(PARTS_OF_X + i, x0, mask=i < count)
    tl.store(PARTS_OF_X + count + i, x1, mask=i < count)
    if PARTS == 3:
        tl.store(PARTS_OF_X + 2 * count + i, x2, mask=i < count)


def in_parts(x: Tensor, parts: int) -> Tensor:
    """The parts of a dense tensor, [parts, ...].

    Factors are split before their product and not within it: there, on Hopper GPUs, tensor cores read the parts from
    registers, which compilers give away too early (triton-lang/triton, issue 9433 and pull request 11781), so that a
    product beside other work was wrong now and then.
    """
    out = torch.empty(parts, *x.shape, device=x.device, dtype=torch.bfloat16)
    _split_kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), parts, 1024)
    return out


def is_split(x: Tensor) -> bool:
    """Whether x is parts [parts, R, M, rows, k] and not a tensor [R, (M,) rows, k]; two are as large in memory as x."""
    return x.dim() == 5
