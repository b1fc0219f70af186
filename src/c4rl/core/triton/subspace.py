"""Small dense linear algebra for principal directions, one program per matrix, in float64.

PyTorch's factorisations of such matrices launch hundreds of kernels for a stack; its eigensolver waits for the host.
"""

import warnings
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

GRAM_SCHMIDT_PASSES = 2  # the second one restores what rounding cost nearly dependent columns
MOST_SWEEPS = 12  # of Jacobi's method: it converges quadratically, a matrix of 32 rows in six to eight


@triton.jit
def _orthonormal_kernel(
    A, SPARE, OUT, rows, columns, PASSES: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr
):
    matrix = tl.program_id(0).to(tl.int64)
    i, j = tl.arange(0, BLOCK_ROWS)[:, None], tl.arange(0, BLOCK_COLUMNS)[None, :]
    inside = (i < rows) & (j < columns)
    place = matrix * rows * columns + i * columns + j
    a = tl.load(A + place, mask=inside, other=0.0)
    for _ in tl.static_range(PASSES):
        before = tl.sum(a * a, axis=0)  # [columns]
        for column in range(columns):
            chosen = j == column
            q = tl.sum(tl.where(chosen, a, 0.0), axis=1)
            square = tl.sum(q * q, axis=0)
            length = tl.sum(tl.where(tl.arange(0, BLOCK_COLUMNS) == column, before, 0.0), axis=0)
            if square <= 1e-24 * length:  # what is left is rounding: take another column instead
                index = tl.arange(0, BLOCK_ROWS)
                q = tl.load(SPARE + index * columns + column, mask=index < rows, other=0.0)
                for _again in tl.static_range(2):
                    share = tl.sum(tl.where(j < column, a * q[:, None], 0.0), axis=0)
                    q -= tl.sum(tl.where(j < column, a * share[None, :], 0.0), axis=1)
                square = tl.sum(q * q, axis=0)
            q = q * (1.0 / tl.sqrt(square))
            share = tl.sum(a * q[:, None], axis=0)
            a = tl.where(chosen, q[:, None], tl.where(j > column, a - q[:, None] * share[None, :], a))
    tl.store(OUT + place, a, mask=inside)


def orthonormal(matrices: Tensor, spare: Tensor) -> Tensor:
    """Columns [R, m, d] made orthonormal from the left by Gram-Schmidt, d <= m.

    A column that depends on those to its left gives way to the same column of `spare` [m, d], of independent columns.
    """
    matrices = matrices.contiguous()
    count, rows, columns = matrices.shape
    out = torch.empty_like(matrices)
    _orthonormal_kernel[(count,)](
        matrices, spare.contiguous(), out, rows, columns, GRAM_SCHMIDT_PASSES,
        triton.next_power_of_2(rows), triton.next_power_of_2(columns), num_warps=8,
    )  # fmt: skip
    return out


@triton.jit
def _eigen_kernel(A, VALUES, VECTORS, size, turns, BLOCK: tl.constexpr):
    """Jacobi's method, BLOCK / 2 disjoint rotations at a time: j meets partner (2 round - j) mod (BLOCK - 1)."""
    matrix = tl.program_id(0).to(tl.int64)
    i, j = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    inside = (i < size) & (j < size)
    place = matrix * size * size + i * size + j
    a = tl.load(A + place, mask=inside, other=0.0)
    a = tl.where(inside, a, tl.where(i == j, -1.0, 0.0))  # padding does not mix with the matrix
    v = tl.where(i == j, 1.0, 0.0).to(tl.float64)
    index = tl.arange(0, BLOCK)
    turn = 0
    left = tl.sum(tl.sum(tl.where(i == j, 0.0, a * a), axis=1), axis=0)
    enough = 1e-26 * (left + tl.sum(tl.sum(tl.where(i == j, a * a, 0.0), axis=1), axis=0))
    while (turn < turns) & (left > enough):
        round = turn % (BLOCK - 1)
        partner = (2 * round - index + 2 * (BLOCK - 1)) % (BLOCK - 1)
        partner = tl.where(index == BLOCK - 1, round, tl.where(index == round, BLOCK - 1, partner))
        meets = j == partner[:, None]
        own = tl.sum(tl.where(i == j, a, 0.0), axis=1)
        other = tl.sum(tl.where(meets, tl.sum(tl.where(i == j, a, 0.0), axis=0)[None, :], 0.0), axis=1)
        joint = tl.sum(tl.where(meets, a, 0.0), axis=1)
        rotates = tl.abs(joint) > 1e-300
        ratio = (other - own) / tl.where(rotates, 2 * joint, 1.0)
        tangent = tl.where(ratio >= 0, 1.0, -1.0) / (tl.abs(ratio) + tl.sqrt(1 + ratio * ratio))
        # two equal diagonal entries turn by 45 degrees, in opposite senses seen from either side
        tangent = tl.where(ratio == 0, tl.where(index < partner, 1.0, -1.0), tangent)
        tangent = tl.where(rotates, tangent, 0.0)
        cosine = 1 / tl.sqrt(1 + tangent * tangent)
        sine = tangent * cosine
        rows = tl.broadcast_to(partner[:, None], (BLOCK, BLOCK))
        columns = tl.broadcast_to(partner[None, :], (BLOCK, BLOCK))
        a = cosine[:, None] * a - sine[:, None] * tl.gather(a, rows, 0)
        a = cosine[None, :] * a - sine[None, :] * tl.gather(a, columns, 1)
        v = cosine[None, :] * v - sine[None, :] * tl.gather(v, columns, 1)
        turn += 1
        if round == BLOCK - 2:  # the end of a sweep: what is left off the diagonal?
            left = tl.sum(tl.sum(tl.where(i == j, 0.0, a * a), axis=1), axis=0)
    tl.store(VALUES + matrix * size + index, tl.sum(tl.where(i == j, a, 0.0), axis=1), mask=index < size)
    tl.store(VECTORS + place, v, mask=inside)


def symmetric_eigen(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Ascending eigenvalues [R, n] and eigenvectors [R, n, n] (columns), as torch.linalg.eigh gives them."""
    matrices = matrices.contiguous()
    count, size, _ = matrices.shape
    values, vectors = matrices.new_empty(count, size), torch.empty_like(matrices)
    block = max(triton.next_power_of_2(size), 16)  # Triton 3.6 cannot compile a block of one number
    _eigen_kernel[(count,)](matrices, values, vectors, size, MOST_SWEEPS * (block - 1), block, num_warps=4)
    values, order = values.sort(1)
    return values, vectors.gather(2, order.unsqueeze(1).expand_as(vectors))


@cache
def proven(device: torch.device) -> bool:
    """Whether both kernels are correct here on difficult matrices; warns once if not.

    Triton changes between versions, and a wrong direction would go unnoticed: clusters would only get worse.
    """
    try:
        spare = torch.linalg.qr(torch.cos(torch.arange(48.0 * 12, device=device, dtype=torch.float64).view(48, 12)))[0]
        hard = spare.clone().expand(2, -1, -1).clone()
        hard[1] = 0
        hard[1, 7] = torch.arange(1.0, 13.0, device=device, dtype=torch.float64)  # one direction, and along an axis
        columns = orthonormal(hard, spare)
        identity = torch.eye(12, device=device, dtype=torch.float64)
        found = (columns.mT @ columns - identity).abs().max()
        matrix = spare[:12] @ torch.diag(torch.logspace(0, -9, 12, device=device, dtype=torch.float64)) @ spare[:12].mT
        values, vectors = symmetric_eigen(matrix.unsqueeze(0))
        found = torch.maximum(found, (vectors[0] * values @ vectors[0].mT - matrix).abs().max())
        if found < 1e-10:
            return True
        reason = f"an error of {float(found):.1g}"
    except Exception as error:  # whatever a compiler raises must not end a job that can do without
        reason = f"{type(error).__name__}: {error}"
    warnings.warn(f"fused kernels for principal directions are not used: {reason}", stacklevel=2)
    return False
