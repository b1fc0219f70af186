"""Stacked linear maps fused into one launch with bias, ReLU, the ReLU's mask and sums over rows."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from c4rl.core.triton.split import (
    add_split_product,
    can_describe,
    describe,
    empty_split,
    high,
    is_split,
    read_block,
    read_split,
    split,
    write,
)


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


@triton.jit
def _tall_product_kernel(
    X, Y, PRODUCT, SUMS,
    rows, K, N, members, rows_per_piece,
    x_run, x_member, x_row, x_low, y_low, product_piece, product_batch, sums_piece,
    HAS_SUMS: tl.constexpr, SPLIT: tl.constexpr, BLOCKS: tl.constexpr,
    BK: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """PRODUCT[piece, b, k, n] = sum_i X[b, i, k] Y[b, i, n] over the rows of a piece; SUMS[piece, b, n] = sum_i Y.

    SPLIT: X and Y are, their low numbers x_low and y_low further on, and there are no sums: they would halve the speed.
    BLOCKS: as in a linear map, and `rows` is a multiple of BR.
    """
    tile, b, piece = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    tiles_n = tl.cdiv(N, BN)
    first_k, first_n = (tile // tiles_n) * BK, (tile % tiles_n) * BN
    k, n = first_k + tl.arange(0, BK), first_n + tl.arange(0, BN)
    run, member = b // members, b % members
    if not BLOCKS:
        x, y = X + run * x_run + member * x_member, Y + b * rows * N
    inside_k, inside_n = k < K, n < N
    first = tl.program_id(2) * rows_per_piece
    end = tl.minimum(first + rows_per_piece, rows)
    total = tl.zeros((BK, BN), dtype=tl.float32)
    y_total = tl.zeros((BR, BN), dtype=tl.float32)
    for start in range(first, end, BR):
        if BLOCKS:
            row = tl.program_id(1) * rows + start
            x_high, x_rest = read_block(X, row, first_k, x_low)
            y_high, y_rest = read_block(Y, row, first_n, y_low)
            total = add_split_product(x_high.T, x_rest.T, y_high, y_rest, total)
        else:
            i = start + tl.arange(0, BR)
            inside_i = i < end
            x_tile, inside_x = x + i[None, :] * x_row + k[:, None], inside_i[None, :] & inside_k[:, None]
            y_tile, inside_y = y + i[:, None] * N + n[None, :], inside_i[:, None] & inside_n[None, :]
            if SPLIT:
                x_high, x_rest = read_split(x_tile, x_low, inside_x)
                y_high, y_rest = read_split(y_tile, y_low, inside_y)
                total = add_split_product(x_high, x_rest, y_high, y_rest, total)
            else:
                x_here, y_here = tl.load(x_tile, mask=inside_x, other=0.0), tl.load(y_tile, mask=inside_y, other=0.0)
                total = tl.dot(x_here, y_here, total, input_precision="ieee")
                if HAS_SUMS:
                    y_total += y_here
    product = PRODUCT + piece * product_piece + b * product_batch
    tl.store(product + k[:, None] * N + n[None, :], total, mask=inside_k[:, None] & inside_n[None, :])
    if HAS_SUMS and tile // tiles_n == 0:
        tl.store(SUMS + piece * sums_piece + b * N + n, tl.sum(y_total, axis=0), mask=inside_n)


NARROW = 16  # up to this many columns, a whole row is multiplied at once
FEW = 8  # so many products are summed one by one
SHALLOW = 64  # factors of sums over fewer products are not split
MANY_ROWS = 1024  # from this many on, cuBLAS computes weight gradients
TILE = 64 * 64
BLOCKS = 128, 128, 32, 8, 3  # a tile's rows, columns and depth, warps and stages where whole blocks are copied
Strides = tuple[int, int, int]  # of rows that may be shared by members: run, member, row


def kept_split(batch: int, rows: int, width: int) -> bool:
    """Whether to store a layer that only products read as its split numbers."""
    return width >= SHALLOW and _is_large(batch, rows, width, True) and _is_tall(batch, rows, width, width)


def splits(batch: int, rows: int, depth: int, columns: int) -> bool:
    """Whether bf16x3 splits the factors of a product [rows, depth] [depth, columns]."""
    return depth >= SHALLOW and columns > NARROW and _is_large(batch, rows, columns, True)


def _strides(x: Tensor) -> Strides:
    """x [R, rows, k], shared by a run's members, or [R, M, rows, k]; the last axis is dense."""
    x = x[0] if is_split(x) else x.unsqueeze(1) if x.dim() == 3 else x
    assert x.stride(-1) == 1 or x.shape[-1] == 1
    return x.stride(0), x.stride(1) if x.shape[1] > 1 else 0, x.stride(2)


def _split(x: Tensor) -> Tensor:
    """x [R, rows, k] or [R, M, rows, k], split if it is not yet: [2, R, 1 or M, rows, k]."""
    return x if is_split(x) else split((x.unsqueeze(1) if x.dim() == 3 else x).contiguous())


def _is_large(batch: int, rows: int, columns: int, bf16x3: bool) -> bool:
    """Whether tiles of 64 x 64 keep the whole GPU busy; in bf16x3, tensor cores make up for some of it."""
    return batch * rows * columns >= (140 if bf16x3 else 220) * TILE


def _is_vast(batch: int, rows: int, columns: int) -> bool:
    """The same in bf16x3 of larger tiles."""
    return batch * rows * columns >= 400 * TILE


def _is_tall(batch: int, rows: int, depth: int, columns: int) -> bool:
    """The same for a product that sums over rows, possibly in pieces."""
    return min(depth, columns) > 32 and (batch * rows >= 8192 or batch * depth * columns >= 140 * TILE)


def _tiles(batch: int, rows: int, columns: int, bf16x3: bool) -> tuple[int, int, int, int, int]:
    """Rows, columns and depth of a tile, warps, stages: large tiles reuse more, small ones keep the whole GPU busy."""
    if columns <= NARROW:
        return 32, 16, 32, 4, 3
    if bf16x3:
        return (64, 128, 32, 4, 3) if _is_vast(batch, rows, columns) else (64, 64, 32, 4, 3)
    if not _is_large(batch, rows, columns, False):
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
    if columns <= NARROW and depth >= 64 and plain:
        block = triton.next_power_of_2(depth)
        tile_rows = max(1, 4096 // block)
        _narrow_kernel[(triton.cdiv(rows, tile_rows), batch)](
            x, weight, bias if bias is not None else x, y, rows, depth, columns, members,
            *_strides(x), *weight.stride(), *bias_strides, bias is not None, tile_rows, block,
        )  # fmt: skip
        return y
    bf16x3 = is_split(x) or (bf16x3 and splits(batch, rows, depth, columns))
    if bf16x3:
        x, weight = _split(x), _split(weight)
    tile_rows, tile_columns, tile_depth, warps, stages = _tiles(batch, rows, columns, bf16x3)
    tile_depth = 1 if depth <= FEW else 16 if depth <= 16 else tile_depth
    blocks = bf16x3 and _is_vast(batch, rows, columns) and depth % 32 == 0 and can_describe(members, x, weight)
    if blocks:
        tile_rows, tile_columns, tile_depth, warps, stages = BLOCKS
    tiles = triton.cdiv(rows, tile_rows)
    tiles_across = triton.cdiv(columns, tile_columns)
    sums = products = y
    if tile_sums is not None:
        sums = torch.empty(tiles, runs, members, columns, device=x.device, dtype=torch.float32)
        tile_sums.append(sums)
    if dots is not None:
        products = torch.empty(tiles_across, runs, members, rows, device=x.device, dtype=torch.float32)
        dots[1].append(products)
    strides = *_strides(x), x.stride(0), *weight.stride()[-4:], weight.stride(0)
    x_given, weight_given = x, weight
    if blocks:
        strides = 0, 0, 0, batch * rows, 0, 0, 0, 0, weight.stride(0) // columns
        x_given, weight_given = describe(x, tile_rows, tile_depth), describe(weight, tile_depth, tile_columns)
    _linear_kernel[(tiles * tiles_across, batch)](
        x_given, weight_given, bias if bias is not None else x,
        add if add is not None else x, mask if mask is not None else x, dots[0] if dots else x, y, sums, products,
        rows, depth, columns, members, batch,
        *strides,
        *bias_strides,
        *(_batch_and_row(add) if add is not None else (0, 0)), group,
        *(_batch_and_row(mask) if mask is not None else (0, 0)),
        *(dots[0].stride()[:2] if dots else (0, 0)),
        y.stride(0),
        bias is not None, add is not None, add_to_first, mask is not None, factor is not None,
        relu, tile_sums is not None, dots is not None, keep_split,
        bf16x3, blocks, tile_rows, tile_columns, tile_depth, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return y


def _batch_and_row(x: Tensor) -> tuple[int, int]:
    """Strides of x [R, M, rows, k], whose runs and members are as one axis."""
    return (x.stride(1) if x.shape[1] > 1 else x.stride(0)), x.stride(2)


def sums_with_product(x: Tensor, bias: Sequence[int], rows: int, bf16x3: bool) -> bool:
    """Whether `weight_gradient` of x and a bias of this shape also sums dz: not for split numbers, nor with cuBLAS."""
    runs, members, columns = bias
    return not is_split(x) and (
        not _splits_tall(runs * members, rows, x.shape[-1], columns) if bf16x3 else rows < MANY_ROWS
    )


def _splits_tall(batch: int, rows: int, depth: int, columns: int) -> bool:
    return _is_tall(batch, rows, depth, columns) and min(depth, columns) >= SHALLOW


def weight_gradient(
    x: Tensor, gradient: Tensor, out: Tensor, *, bias: Tensor | None = None, bf16x3: bool = False
) -> None:
    """Writes the gradients of W and, if given, of the bias in z = x W + bias, from dz [R, M, rows, out].

    x: [R, rows, in] or [R, M, rows, in]; both may be split. out: [R, M, in, out], which may be rows of a larger one;
    bias: [R, M, out].
    """
    if gradient.shape[-2] >= MANY_ROWS and not bf16x3:  # cuBLAS does not split numbers
        _product_in_pieces(x, gradient, out)
        if bias is not None:
            torch.sum(gradient, 2, out=bias)
    else:
        _tall_product(x, gradient, out, bias, bf16x3)


def tall_product(x: Tensor, y: Tensor) -> Tensor:
    """xᵀ y of [R, rows, in] and [R, rows, out] -> [R, in, out]."""
    out = torch.empty(len(x), 1, x.shape[-1], y.shape[-1], device=x.device, dtype=torch.float32)
    _tall_product(x, y.unsqueeze(1), out, None, False)
    return out.squeeze(1)


def _tall_product(x: Tensor, y: Tensor, out: Tensor, sums: Tensor | None, bf16x3: bool) -> None:
    """xᵀ y of [R, (M,) rows, in] and [R, M, rows, out], and the sums of y's rows [R, M, out]."""
    runs, members, rows, columns = y.shape[-4:]
    depth, batch = x.shape[-1], runs * members
    large, given = _is_tall(batch, rows, depth, columns), is_split(x) or is_split(y)
    bf16x3 = given or (bf16x3 and _splits_tall(batch, rows, depth, columns))
    tile, programs = 64 if large or given else 32, 512
    if min(depth, columns) <= NARROW and rows >= MANY_ROWS:  # reading takes longer than multiplying
        tile, programs = 128, 1056
    if bf16x3:
        if sums is not None:
            torch.sum(y, 2, out=sums)
            sums = None
        x, y = _split(x), _split(y)
    else:
        y = y.contiguous()
    blocks = bf16x3 and min(depth, columns) >= 128 and rows % 32 == 0 and can_describe(members, x, y)
    sizes = ((2 * tile if bf16x3 else tile, depth), (2 * tile if blocks else tile, columns))
    tile_k, tile_n = (min(size, max(16, triton.next_power_of_2(width))) for size, width in sizes)
    tiles = triton.cdiv(depth, tile_k) * triton.cdiv(columns, tile_n) * batch
    # few tiles with many rows each would leave most of the GPU idle: rows are summed in pieces, then the pieces
    pieces = max(1, min(rows // 256, 400 // tiles, 8) if bf16x3 else min(rows // 256, programs // tiles))
    rows_per_piece = triton.cdiv(triton.cdiv(rows, pieces), 32) * 32
    pieces = triton.cdiv(rows, rows_per_piece)

    def in_pieces(whole: Tensor) -> Tensor:
        return torch.empty(pieces, *whole.shape, device=x.device, dtype=torch.float32) if pieces > 1 else whole[None]

    products, row_sums = in_pieces(out), in_pieces(sums) if sums is not None else out[None]
    strides = *_strides(x), x.stride(0), y.stride(0)
    if blocks:
        strides = 0, 0, 0, batch * rows, batch * rows
        x, y = describe(x, 32, tile_k), describe(y, 32, tile_n)
    _tall_product_kernel[(tiles // batch, batch, pieces)](
        x, y, products, row_sums,
        rows, depth, columns, members, rows_per_piece,
        *strides, products.stride(0), _batch_and_row(products[0])[0], row_sums.stride(0),
        sums is not None, bf16x3, blocks, tile_k, tile_n, 32, num_warps=8 if blocks else 4, num_stages=3,
    )  # fmt: skip
    if pieces > 1:
        torch.sum(products, 0, out=out)
        if sums is not None:
            torch.sum(row_sums, 0, out=sums)


def _product_in_pieces(x: Tensor, y: Tensor, out: Tensor) -> None:
    """xᵀ y of many rows, by cuBLAS: its products of this shape are faster than ours once the rows are split."""
    runs, members, rows, columns = y.shape
    if x.dim() == 3:
        x = x.unsqueeze(1).expand(-1, members, -1, -1)
    count = next(count for count in (16, 8, 4, 2, 1) if rows % count == 0)
    pieces = torch.bmm(x.reshape(runs * members * count, rows // count, -1).mT, y.reshape(-1, rows // count, columns))
    torch.sum(pieces.view(runs, members, count, -1, columns), 2, out=out)
