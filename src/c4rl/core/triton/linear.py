"""Stacked linear maps fused into one launch with bias, ReLU, the ReLU's mask, sums over rows and dots with them."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from c4rl.core.triton import tiles
from c4rl.core.triton.split import (
    add_split_product,
    can_describe,
    describe,
    empty_split,
    high,
    is_split,
    read_block,
    read_split,
    write,
)

FEW = 8  # so many products are summed one by one
BLOCKS = 128, 128, 32, 8, 3  # a tile's rows, columns and depth, warps and stages where whole blocks are copied


@triton.jit
def _linear_kernel(
    X, W, BIAS, ADD, MASK, WEIGHT, Y, SUMS, DOTS,
    rows, K, N, members, batch,
    x_run, x_member, x_row, x_low,
    w_run, w_member, w_k, w_n, w_low,
    bias_run, bias_member,
    add_batch, add_row, group,
    mask_batch, mask_row,
    weight_run, weight_member,
    y_low,
    HAS_BIAS: tl.constexpr, HAS_ADD: tl.constexpr, ADD_TO_FIRST: tl.constexpr, HAS_MASK: tl.constexpr,
    MASK_SCALES: tl.constexpr, RELU: tl.constexpr, HAS_SUMS: tl.constexpr, HAS_DOTS: tl.constexpr,
    Y_SPLIT: tl.constexpr,
    SPLIT: tl.constexpr, BLOCKS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Y[b, i, n] = mask(relu(sum_k X[b, i, k] W[b, k, n] + bias[b, n] + ADD[b, i // group, n])), b = run, member.

    ADD_TO_FIRST: ADD is for the first row of each group alone. SUMS[piece, b, n]: sums of Y over the rows of a tile.
    DOTS[piece, b, i]: products with WEIGHT[b, n] over the columns of a tile.
    SPLIT: X and W are, their low numbers x_low and w_low further on; Y_SPLIT: so is Y. BLOCKS: X and W are described as
    rows of all members one after another, x_low and w_low count rows, and K is a multiple of BK.
    """
    tile, b = tl.program_id(0), tl.program_id(1).to(tl.int64)
    tiles_n = tl.cdiv(N, BN)
    first_i, first_n = (tile // tiles_n) * BM, (tile % tiles_n) * BN
    i, n = first_i + tl.arange(0, BM), first_n + tl.arange(0, BN)
    run, member = b // members, b % members
    if not BLOCKS:
        x = X + run * x_run + member * x_member
        w = W + run * w_run + member * w_member
    inside_i, inside_n = i < rows, n < N
    inside = inside_i[:, None] & inside_n[None, :]
    if HAS_MASK:  # read while the product is computed
        active = tl.load(MASK + b * mask_batch + i[:, None] * mask_row + n[None, :], mask=inside, other=0.0)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        if BK == 1:
            x_here = tl.load(x + i * x_row + start, mask=inside_i, other=0.0)
            w_here = tl.load(w + start * w_k + n * w_n, mask=inside_n, other=0.0)
            total += x_here[:, None] * w_here[None, :]
        elif BLOCKS:
            x_high, x_rest = read_block(X, tl.program_id(1) * rows + first_i, start, x_low)
            w_high, w_rest = read_block(W, tl.program_id(1) * K + start, first_n, w_low)
            total = add_split_product(x_high, x_rest, w_high, w_rest, total)
        else:
            k = start + tl.arange(0, BK)
            x_tile, inside_x = x + i[:, None] * x_row + k[None, :], inside_i[:, None] & (k < K)[None, :]
            w_tile, inside_w = w + k[:, None] * w_k + n[None, :] * w_n, (k < K)[:, None] & inside_n[None, :]
            if SPLIT:
                x_high, x_rest = read_split(x_tile, x_low, inside_x)
                w_high, w_rest = read_split(w_tile, w_low, inside_w)
                total = add_split_product(x_high, x_rest, w_high, w_rest, total)
            else:
                x_here, w_here = tl.load(x_tile, mask=inside_x, other=0.0), tl.load(w_tile, mask=inside_w, other=0.0)
                total = tl.dot(x_here, w_here, total, input_precision="ieee")
    if HAS_BIAS:
        total += tl.load(BIAS + run * bias_run + member * bias_member + n, mask=inside_n, other=0.0)[None, :]
    if HAS_ADD:
        has_own = inside & (i % group == 0)[:, None] if ADD_TO_FIRST else inside
        total += tl.load(ADD + b * add_batch + (i // group)[:, None] * add_row + n[None, :], mask=has_own, other=0.0)
    if RELU:
        total = tl.maximum(total, 0.0)
    if HAS_MASK:
        total = total * active if MASK_SCALES else tl.where(active > 0, total, 0.0)
    if HAS_SUMS:
        piece = (tile // tiles_n).to(tl.int64) * batch + b
        tl.store(SUMS + piece * N + n, tl.sum(tl.where(inside, total, 0.0), axis=0), mask=inside_n)
    if HAS_DOTS:
        weight = tl.load(WEIGHT + run * weight_run + member * weight_member + n, mask=inside_n, other=0.0)
        piece = (tile % tiles_n).to(tl.int64) * batch + b
        tl.store(DOTS + piece * rows + i, tl.sum(total * weight[None, :], axis=1), mask=inside_i)
    y = Y + (b * rows + i[:, None]) * N + n[None, :]
    write(y, total, y_low, inside, Y_SPLIT)


@triton.jit
def _narrow_kernel(
    X, W, BIAS, Y,
    rows, K, N, members,
    x_run, x_member, x_row,
    w_run, w_member, w_k, w_n,
    bias_run, bias_member,
    HAS_BIAS: tl.constexpr, BM: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Y[b, i, n] = sum_k X[b, i, k] W[b, k, n] + bias[b, n] for a few n: rows are read once, whole."""
    b = tl.program_id(1).to(tl.int64)
    i, k = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BLOCK_K)
    run, member = b // members, b % members
    x = X + run * x_run + member * x_member
    w = W + run * w_run + member * w_member
    x_tile = tl.load(x + i[:, None] * x_row + k[None, :], mask=(i < rows)[:, None] & (k < K)[None, :], other=0.0)
    for n in range(N):
        y = tl.sum(x_tile * tl.load(w + k * w_k + n * w_n, mask=k < K, other=0.0)[None, :], axis=1)
        if HAS_BIAS:
            y += tl.load(BIAS + run * bias_run + member * bias_member + n)
        tl.store(Y + (b * rows + i) * N + n, y, mask=i < rows)


def _tiles(batch: int, rows: int, columns: int, bf16x3: bool) -> tuple[int, int, int, int, int]:
    """Rows, columns and depth of a tile, warps, stages: large tiles reuse more, small ones keep the whole GPU busy."""
    if columns <= tiles.NARROW:
        return 32, 16, 32, 4, 3
    if bf16x3:
        return (64, 128, 32, 4, 3) if tiles.is_vast(batch, rows, columns) else (64, 64, 32, 4, 3)
    if not tiles.is_large(batch, rows, columns, False):
        return 32, 32, 32, 4, 3
    return (128, 64, 32, 8, 3) if rows >= 1024 else (64, 64, 32, 4, 3)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    add: Tensor | None = None,
    group: int = 1,
    add_to_first: bool = False,
    mask: Tensor | None = None,
    factor: Tensor | None = None,
    relu: bool = False,
    bf16x3: bool = False,
    keep_split: bool = False,
    tile_sums: list[Tensor] | None = None,
    dots: tuple[Tensor, list[Tensor]] | None = None,
) -> Tensor:
    """mask · factor · relu(x W + bias + add) -> [R, M, rows, out].

    x: [R, rows, in] or [R, M, rows, in]. weight: [R, M, in, out]. bias: [R, M, out]. add: [R, M, rows / group, out],
    each row of it for `group` rows, or for the first of them alone (add_to_first). mask: [R, M, rows, out], > 0 keeps.
    factor: instead of a mask, like it. x, weight and mask may be split. bf16x3: a large product is made so. keep_split:
    the result is to be split. tile_sums: is given the sums over the rows of each tile, [tiles, R, M, out]. dots: of the
    rows with [R, M, out] are given to the list, summed over tiles of columns, [tiles, R, M, rows].
    """
    runs, members, _, columns = weight.shape[-4:]
    rows, depth = x.shape[-2:]
    batch = runs * members
    shape = (runs, members, rows, columns)
    y = empty_split(shape, x.device) if keep_split else torch.empty(shape, device=x.device, dtype=torch.float32)
    mask = high(mask) if mask is not None else factor
    bias_strides = (bias.stride(0), bias.stride(1)) if bias is not None else (0, 0)
    plain = add is None and mask is None and not (relu or keep_split or is_split(x) or dots) and tile_sums is None
    if columns <= tiles.NARROW and depth >= 64 and plain:
        block = triton.next_power_of_2(depth)
        tile_rows = max(1, 4096 // block)
        _narrow_kernel[(triton.cdiv(rows, tile_rows), batch)](
            x, weight, bias if bias is not None else x, y, rows, depth, columns, members,
            *tiles.strides_of(x), *weight.stride(), *bias_strides, bias is not None, tile_rows, block,
        )  # fmt: skip
        return y
    bf16x3 = is_split(x) or (bf16x3 and tiles.splits(batch, rows, depth, columns))
    if bf16x3:
        x, weight = tiles.as_split(x), tiles.as_split(weight)
    tile_rows, tile_columns, tile_depth, warps, stages = _tiles(batch, rows, columns, bf16x3)
    tile_depth = 1 if depth <= FEW else 16 if depth <= 16 else tile_depth
    blocks = bf16x3 and tiles.is_vast(batch, rows, columns) and depth % 32 == 0 and can_describe(members, x, weight)
    if blocks:
        tile_rows, tile_columns, tile_depth, warps, stages = BLOCKS
    tiles_down = triton.cdiv(rows, tile_rows)
    tiles_across = triton.cdiv(columns, tile_columns)
    sums = products = y
    if tile_sums is not None:
        sums = torch.empty(tiles_down, runs, members, columns, device=x.device, dtype=torch.float32)
        tile_sums.append(sums)
    if dots is not None:
        products = torch.empty(tiles_across, runs, members, rows, device=x.device, dtype=torch.float32)
        dots[1].append(products)
    strides = *tiles.strides_of(x), x.stride(0), *weight.stride()[-4:], weight.stride(0)
    x_given, weight_given = x, weight
    if blocks:
        strides = 0, 0, 0, batch * rows, 0, 0, 0, 0, weight.stride(0) // columns
        x_given, weight_given = describe(x, tile_rows, tile_depth), describe(weight, tile_depth, tile_columns)
    _linear_kernel[(tiles_down * tiles_across, batch)](
        x_given, weight_given, bias if bias is not None else x,
        add if add is not None else x, mask if mask is not None else x, dots[0] if dots else x, y, sums, products,
        rows, depth, columns, members, batch,
        *strides,
        *bias_strides,
        *(tiles.batch_and_row(add) if add is not None else (0, 0)), group,
        *(tiles.batch_and_row(mask) if mask is not None else (0, 0)),
        *(dots[0].stride()[:2] if dots else (0, 0)),
        y.stride(0),
        bias is not None, add is not None, add_to_first, mask is not None, factor is not None,
        relu, tile_sums is not None, dots is not None, keep_split,
        bf16x3, blocks, tile_rows, tile_columns, tile_depth, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return y
