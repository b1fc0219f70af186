"""Adam over flat storage in one launch (PyTorch's fused one gives a tensor of this size to a handful of blocks)."""

import math
from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

BLOCK = 1024


@triton.jit
def _adam_kernel(
    P, G, FIRST, SECOND, COUNT, LR, FACTOR, lr, size,
    BETA_1: tl.constexpr, BETA_2: tl.constexpr, LOG_BETA_1: tl.constexpr, LOG_BETA_2: tl.constexpr,
    EPSILON: tl.constexpr,
    LR_PER_PARAMETER: tl.constexpr, HAS_FACTOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < size
    count = tl.load(COUNT).to(tl.float64)
    # in float64: 1 - 0.999 loses four digits in float32
    correction_1 = (1.0 - libdevice.exp(count * LOG_BETA_1)).to(tl.float32)
    correction_2 = (1.0 - libdevice.exp(count * LOG_BETA_2)).to(tl.float32)
    g = tl.load(G + i, mask=inside)
    first = tl.load(FIRST + i, mask=inside)
    second = tl.load(SECOND + i, mask=inside)
    p = tl.load(P + i, mask=inside)
    if LR_PER_PARAMETER:
        step = tl.load(LR + i, mask=inside)
    else:
        step = lr
    if HAS_FACTOR:
        step = step * tl.load(FACTOR).to(tl.float32)
    first += (1.0 - BETA_1) * (g - first)
    second = BETA_2 * second + (1.0 - BETA_2) * g * g
    p -= step * (first / correction_1) / (tl.sqrt_rn(second / correction_2) + EPSILON)
    tl.store(FIRST + i, first, mask=inside)
    tl.store(SECOND + i, second, mask=inside)
    tl.store(P + i, p, mask=inside)


def adam_step(
    flat: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    count: Tensor,
    lr: float | Tensor,
    factor: Tensor | float,
    beta_1: float,
    beta_2: float,
    epsilon: float,
) -> None:
    """See c4rl.core.ops.adam."""
    count += 1
    per_parameter, scheduled = isinstance(lr, Tensor), isinstance(factor, Tensor)
    assert scheduled or factor == 1.0
    number = 0.0 if isinstance(lr, Tensor) else lr
    _adam_kernel[(triton.cdiv(flat.numel(), BLOCK),)](
        flat, gradient, first, second, count, lr if per_parameter else flat, factor if scheduled else count,
        number, flat.numel(), beta_1, beta_2, math.log(beta_1), math.log(beta_2), epsilon,
        per_parameter, scheduled, BLOCK,
    )  # fmt: skip


def in_a_row(tensors: Sequence[Tensor]) -> Tensor | None:
    """Dense tensors as the flat one that they are pieces of, in order and without gaps; None where they are not."""
    first = tensors[0]
    storage, place = first.untyped_storage().data_ptr(), first.storage_offset()
    for tensor in tensors:
        if (tensor.untyped_storage().data_ptr(), tensor.storage_offset()) != (
            storage,
            place,
        ) or not tensor.is_contiguous():
            return None
        place += tensor.numel()
    return first.as_strided((place - first.storage_offset(),), (1,))
