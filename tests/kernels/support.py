"""What tests of kernels share."""

import torch
from torch import Tensor

CUDA = torch.device("cuda")


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(CUDA, dtype)


def errors(found: tuple[Tensor, ...], exact: tuple[Tensor, ...]) -> list[float]:
    """Of each tensor, relative to its size."""
    return [float((f.double() - e).norm() / e.norm().clamp_min(1e-30)) for f, e in zip(found, exact, strict=True)]
