"""Leading principal directions of g' and of g, each on its own side.

Penultimate features have 256 dimensions; the mixture is fitted on d of them per side. Projecting the sides separately
keeps Omega_z = [Sigma' C; C^T Sigma] readable in blocks.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Projection(NamedTuple):
    """An orthonormal projection of each run; call it on [R, N, m] to get [R, N, d]."""

    mean: Tensor  # [R, m]
    directions: Tensor  # [R, m, d], by decreasing variance; the largest entry of a direction is positive
    kept_variance: Tensor  # [R], the share of the variance inside the d directions

    def __call__(self, g: Tensor) -> Tensor:
        # subtracting after the product spares a centred copy of g
        return g @ self.directions - self.mean.unsqueeze(1) @ self.directions


def principal_directions(g: Tensor, dimensions: int = 16, valid: Tensor | None = None) -> Projection:
    """The d leading eigenvectors of Cov(g) over the valid rows ([R, N] bool), g: [R, N, m]; d = min(dimensions, m).

    Non-finite rows take no part; they stay non-finite when projected, so that the fit of the mixture reports them.
    """
    finite = g.sum(2).isfinite()
    usable = (finite if valid is None else valid & finite).unsqueeze(2)
    count = usable.sum(1).clamp(min=1)
    rows = torch.where(usable, g, 0)
    mean = rows.sum(1) / count
    rows.addcmul_(usable.to(g.dtype), mean.unsqueeze(1), value=-1)  # in place: passes over g cost as much as the rest
    covariance = rows.mT @ rows / count.unsqueeze(2)
    # the eigensolver raises on an overflowed matrix, which would end the other runs of the stack too
    regular = covariance.isfinite().flatten(1).all(1).view(-1, 1, 1)
    eigenvalues, eigenvectors = torch.linalg.eigh(torch.where(regular, covariance, 0))
    dimensions = min(dimensions, g.shape[2])
    directions = eigenvectors[:, :, -dimensions:].flip(2)
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    directions = directions * torch.where(largest < 0, -1.0, 1.0)
    total = eigenvalues.clamp(min=0).sum(1)
    kept = eigenvalues[:, -dimensions:].clamp(min=0).sum(1)
    # features without any variance lose none of it
    return Projection(mean, directions, torch.where(total > 0, kept / total, 1.0))
