"""Products that sum over rows, xᵀ y: the gradients of weights, and covariances."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from c4rl.core.triton import tiles
from c4rl.core.triton.split import add_split_product, can_describe, describe, is_split, read_block, read_split


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


def sums_with_product(x: Tensor, bias: Sequence[int], rows: int, bf16x3: bool) -> bool:
    """Whether `weight_gradient` of x and a bias of this shape also sums dz: not for split numbers, nor with cuBLAS."""
    runs, members, columns = bias
    return not is_split(x) and (
        not tiles.splits_tall(runs * members, rows, x.shape[-1], columns) if bf16x3 else rows < tiles.MANY_ROWS
    )


def weight_gradient(
    x: Tensor, gradient: Tensor, out: Tensor, *, bias: Tensor | None = None, bf16x3: bool = False
) -> None:
    """Writes the gradients of W and, if given, of the bias in z = x W + bias, from dz [R, M, rows, out].

    x: [R, rows, in] or [R, M, rows, in]; both may be split. out: [R, M, in, out], which may be rows of a larger one;
    bias: [R, M, out].
    """
    if gradient.shape[-2] >= tiles.MANY_ROWS and not bf16x3:  # cuBLAS does not split numbers
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
    large, given = tiles.is_tall(batch, rows, depth, columns), is_split(x) or is_split(y)
    bf16x3 = given or (bf16x3 and tiles.splits_tall(batch, rows, depth, columns))
    tile, programs = 64 if large or given else 32, 512
    if min(depth, columns) <= tiles.NARROW and rows >= tiles.MANY_ROWS:  # reading takes longer than multiplying
        tile, programs = 128, 1056
    if bf16x3:
        if sums is not None:
            torch.sum(y, 2, out=sums)
            sums = None
        x, y = tiles.as_split(x), tiles.as_split(y)
    else:
        y = y.contiguous()
    blocks = bf16x3 and min(depth, columns) >= 128 and rows % 32 == 0 and can_describe(members, x, y)
    sizes = ((2 * tile if bf16x3 else tile, depth), (2 * tile if blocks else tile, columns))
    tile_k, tile_n = (min(size, max(16, triton.next_power_of_2(width))) for size, width in sizes)
    count = triton.cdiv(depth, tile_k) * triton.cdiv(columns, tile_n) * batch
    # few tiles with many rows each would leave most of the GPU idle: rows are summed in pieces, then the pieces
    pieces = max(1, min(rows // 256, 400 // count, 8) if bf16x3 else min(rows // 256, programs // count))
    rows_per_piece = triton.cdiv(triton.cdiv(rows, pieces), 32) * 32
    pieces = triton.cdiv(rows, rows_per_piece)

    def in_pieces(whole: Tensor) -> Tensor:
        return torch.empty(pieces, *whole.shape, device=x.device, dtype=torch.float32) if pieces > 1 else whole[None]

    products, row_sums = in_pieces(out), in_pieces(sums) if sums is not None else out[None]
    strides = *tiles.strides_of(x), x.stride(0), y.stride(0)
    if blocks:
        strides = 0, 0, 0, batch * rows, batch * rows
        x, y = describe(x, 32, tile_k), describe(y, 32, tile_n)
    _tall_product_kernel[(count // batch, batch, pieces)](
        x, y, products, row_sums,
        rows, depth, columns, members, rows_per_piece,
        *strides, products.stride(0), tiles.batch_and_row(products[0])[0], row_sums.stride(0),
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
