"""Fused GPU kernels, in Triton: the same mathematics as the plain PyTorch code beside which they are used.

Each is chosen where its tensors are float32 on a CUDA device and Triton is there (it comes with PyTorch's CUDA builds).
Everywhere else the plain code runs. Results differ by the order of additions alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

# float32, TensorFloat-32, and sums of products of numbers that are split into two or three shorter ones (these by fused
# kernels alone; PyTorch's own products stay float32)
PRECISIONS = ("fp32", "tf32", "tf32x3", "bf16x3", "bf16x6")
OFFERED = ("fp32",)  # to users: those that benchmarks/precision.py has shown to be harmless

_enabled = True
_products = "fp32"


@cache
def missing() -> str | None:
    """Why there are no fused kernels here, in words; None where there are."""
    if find_spec("triton") is None:
        return "Triton is not installed"
    if not torch.cuda.is_available():
        return "there is no CUDA device"
    if torch.cuda.get_device_capability()[0] < 7:
        return "the GPU is older than Triton supports"
    return None


def product_precision() -> str:
    """Of the fused kernels' products, as Triton names it."""
    return {"fp32": "ieee"}.get(_products, _products)


@contextmanager
def products(mode: str) -> Iterator[None]:
    """Within it matrix products on a GPU are made as `mode` says, one of PRECISIONS."""
    global _products
    before, _products = _products, mode
    plain, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, mode == "tf32"
    try:
        yield
    finally:
        _products, torch.backends.cuda.matmul.allow_tf32 = before, plain


def available(device: torch.device) -> bool:
    """Whether the fused kernels are to be used on this device."""
    return _enabled and device.type == "cuda" and missing() is None


def fused(tensor: Tensor) -> bool:
    """Whether the fused kernels take this tensor: on a GPU, and of single precision where it is floating."""
    return tensor.is_cuda and tensor.dtype in (torch.float32, torch.int64) and available(tensor.device)


def transposed_product(x: Tensor, y: Tensor) -> Tensor:
    """xᵀ y of many rows [..., rows, in] and [..., rows, out] -> [..., in, out]."""
    if x.dim() == 3 and fused(x):
        from c4rl.kernels.linear import tall_product  # needs Triton

        return tall_product(x, y.unsqueeze(1))[0].squeeze(1)
    return x.mT @ y


@contextmanager
def kernels(enabled: bool) -> Iterator[None]:
    """Within it the fused kernels are used, or not."""
    global _enabled
    before, _enabled = _enabled, enabled
    try:
        yield
    finally:
        _enabled = before
