"""Small dense linear algebra of principal directions."""

from collections.abc import Callable
from functools import partial
from types import ModuleType

import torch
from torch import Tensor

from c4rl.core import ops

MOST_ROWS = 512  # of a matrix that the fused kernels take


def _kernels(rows: int, device: torch.device) -> ModuleType | None:
    own = ops.kernels_on(device, "subspace") if rows <= MOST_ROWS else None
    return own if own is not None and own.proven(device) else None


def solved_on_device(rows: int, device: torch.device) -> bool:
    """Whether `solvers` of matrices of this many rows leave the host alone, which PyTorch's eigensolver does not."""
    return _kernels(rows, device) is not None


def solvers(spare: Tensor) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], tuple[Tensor, Tensor]]]:
    """Orthonormal columns [R, m, d], and ascending eigenvalues and eigenvectors of a symmetric [R, d, d].

    spare: [m, d], orthonormal columns, of which fused kernels take some instead of columns that depend on others.
    """
    if own := _kernels(len(spare), spare.device):
        return partial(own.orthonormal, spare=spare), own.symmetric_eigen
    return lambda columns: torch.linalg.qr(columns)[0], torch.linalg.eigh
