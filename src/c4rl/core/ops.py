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

# float32; TensorFloat-32; and sums of products of bfloat16 parts that a number is split into, two (bf16x3) or three
# (bf16x6, which is all of float32's digits): those by fused kernels, where a product is large enough to gain from it
PRECISIONS = ("fp32", "tf32", "bf16x3", "bf16x6")
OFFERED = ("fp32", "bf16x3")  # to users: those that benchmarks/precision.py has shown to be harmless

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


def product_mode() -> str:
    """One of PRECISIONS."""
    return _products


def product_precision() -> str:
    """Of the fused kernels' products, as Triton names it."""
    return "tf32" if _products == "tf32" else "ieee"


def product_parts() -> int:
    """Into how many parts the factors of large products are split; 1: not at all."""
    return {"bf16x3": 2, "bf16x6": 3}.get(_products, 1)


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
        from c4rl.core.triton.linear import tall_product  # needs Triton

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
