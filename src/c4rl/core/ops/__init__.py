"""Operations that a GPU can do in kernels of our own: plain PyTorch here, Triton in `c4rl.core.triton`.

A file for each family of operations, by the same name on both sides. Where its tensors are float32 on a CUDA device and
Triton is installed, an operation hands over to its namesake there; without that folder, or without one of its files,
the plain code runs. Results differ by the order of additions alone. This file makes the choice.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor

# Matrix products of large networks in float32, or as three products of bfloat16 numbers (each factor split into two):
# the modes that benchmarks/precision.py has shown to be harmless
OFFERED = ("fp32", "bf16x3")
FAMILIES = (
    "adam", "covariance", "layer_norm", "linear", "losses", "metrics", "mlp", "random", "subspace", "tanh_gaussian"
)  # fmt: skip
KERNELS = "c4rl.core.triton"

_enabled = True
_off: frozenset[str] = frozenset()
_precision = "fp32"


@cache
def missing() -> str | None:
    """Why there are no fused kernels here, in words; None where there are."""
    if find_spec("triton") is None:
        return "Triton is not installed"
    if (package := find_spec(KERNELS)) is None or package.origin is None:
        return f"{KERNELS} is not there"
    if not torch.cuda.is_available():
        return "there is no CUDA device"
    if torch.cuda.get_device_capability()[0] < 7:
        return "the GPU is older than Triton supports"
    return None


def available(device: torch.device) -> bool:
    """Whether fused kernels are to be used on this device."""
    return _enabled and device.type == "cuda" and missing() is None


def kernels_on(device: torch.device, family: str) -> ModuleType | None:
    """The family's fused kernels, where they are to be used on this device."""
    return _module(family) if family not in _off and available(device) else None


def kernels_for(tensor: Tensor, family: str) -> ModuleType | None:
    """The same where they take this tensor: of single precision if it is floating."""
    return kernels_on(tensor.device, family) if tensor.dtype in (torch.float32, torch.int64) else None


@cache
def _module(family: str) -> ModuleType | None:
    try:
        return import_module(f"{KERNELS}.{family}")
    except ModuleNotFoundError as error:
        if error.name is None or not f"{KERNELS}.{family}".startswith(error.name):
            raise
        return None


@contextmanager
def kernels(enabled: bool) -> Iterator[None]:
    """Within it the fused kernels are used, or not."""
    global _enabled
    before, _enabled = _enabled, enabled
    try:
        yield
    finally:
        _enabled = before


@contextmanager
def without(*families: str) -> Iterator[None]:
    """Within it the fused kernels of these FAMILIES are not used."""
    global _off
    before, _off = _off, _off.union(families)
    try:
        yield
    finally:
        _off = before


@contextmanager
def products(mode: str) -> Iterator[None]:
    """Within it fused kernels make large matrix products as `mode` says, one of OFFERED."""
    global _precision
    before, _precision = _precision, mode
    try:
        yield
    finally:
        _precision = before


def bf16x3() -> bool:
    """Whether large matrix products are to be made of bfloat16 numbers."""
    return _precision == "bf16x3"
