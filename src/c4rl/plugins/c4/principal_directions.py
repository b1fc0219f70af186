"""Leading principal directions of g' and of g, each on its own side.

Penultimate features have 256 dimensions; the mixture is fitted on d of them per side. Projecting the sides separately
keeps Omega_z = [Sigma' C; C^T Sigma] readable in blocks.
"""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from c4rl.core.ops.mlp import transposed_product
from c4rl.core.ops.subspace import solvers
from c4rl.core.random import Streams

EXTRA_DIRECTIONS = 16  # searched in addition: the error falls with the gap to the first one left out
POWER_STEPS = 6


class Projection(NamedTuple):
    """An orthonormal projection of each run; call it on [R, N, m] to get [R, N, d]."""

    mean: Tensor  # [R, m]
    directions: Tensor  # [R, m, d], by decreasing variance; the largest entry of a direction is positive
    kept_variance: Tensor  # [R], the share of the variance inside the d directions

    def __call__(self, g: Tensor) -> Tensor:
        # subtracting after the product spares a centred copy of g
        return g @ self.directions - self.mean.unsqueeze(1) @ self.directions


def principal_directions(g: Tensor, dimensions: int, valid: Tensor | None = None) -> Projection:
    """The d leading eigenvectors of Cov(g) over the valid rows ([R, N] bool), g: [R, N, m]; d = min(dimensions, m).

    Non-finite rows take no part; they stay non-finite when projected, so that the fit of the mixture reports them.
    """
    usable = g.isfinite().all(2) if valid is None else valid & g.isfinite().all(2)
    count = usable.sum(1).clamp(min=1).unsqueeze(1)
    rows = torch.where(usable.unsqueeze(2), g, 0)
    mean = (rows.sum(1, dtype=torch.float64) / count).to(g.dtype)
    centred = torch.where(usable.unsqueeze(2), rows - mean.unsqueeze(1), 0)
    covariance = transposed_product(centred, centred).double() / count.unsqueeze(2)
    # an overflowed matrix of one run must not end the others: its rows are reported by the fit
    covariance = torch.where(covariance.isfinite().flatten(1).all(1).view(-1, 1, 1), covariance, 0)
    total = covariance.diagonal(dim1=1, dim2=2).sum(1)
    scaled = covariance / torch.where(total > 0, total, 1.0).view(-1, 1, 1)  # far from the ends of the number range
    dimensions = min(dimensions, g.shape[2])
    eigenvalues, directions = _leading_eigenvectors(scaled, dimensions)
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    directions = directions * torch.where(largest < 0, -1.0, 1.0)
    # features without any variance lose none of it
    kept = torch.where(total > 0, eigenvalues.sum(1), 1.0)
    return Projection(mean, directions.to(g.dtype), kept.to(g.dtype))


def _leading_eigenvectors(matrix: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Eigenvalues [R, d] and eigenvectors [R, m, d] of the d largest, by block power iteration from a fixed start.

    The full eigensolver takes several times as long on either device, and was seen not to converge on features that
    the penalty had shrunk. A direction that the iteration has not quite found has a close rival in variance.
    """
    size = matrix.shape[1]
    width = min(size, count + EXTRA_DIRECTIONS)
    first = _first_basis(size, width, matrix.device, matrix.dtype)
    orthonormal, symmetric_eigen = solvers(first)
    basis = first.expand(len(matrix), -1, -1)
    for _ in range(POWER_STEPS):
        basis = orthonormal(matrix @ (matrix @ basis))
    eigenvalues, rotation = symmetric_eigen(basis.mT @ matrix @ basis)
    leading = (basis @ rotation)[:, :, -count:].flip(2)
    return eigenvalues[:, -count:].flip(1).clamp(min=0), leading


@cache
def _first_basis(size: int, width: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Fixed orthonormal columns in no particular direction, [m, d]."""
    step = torch.zeros((), dtype=torch.int64, device=device)
    return torch.linalg.qr(Streams([0], step, dtype).normal("principal_directions", size, width)[0])[0]
