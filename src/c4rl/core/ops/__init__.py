"""Operations that have fused GPU kernels: plain PyTorch here, Triton in `c4rl.core.triton`.

Each family of operations is one file, with the same name in both folders. For float32 tensors on a CUDA device, with
Triton installed, an operation calls its namesake there; without that folder, or that file, the plain code runs. Results
differ only by the order of additions. This file makes the choice.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

# Matrix products of large networks in float32, or as three products of bfloat16 numbers (each factor split into two):
# the modes that benchmarks/precision.py has shown to be harmless
OFFERED = ("fp32", "bf16x3")
KERNELS = "c4rl.core.triton"


class Choice(NamedTuple):
    enabled: bool = True  # whether fused kernels are used
    off: frozenset[str] = frozenset()  # families that are not
    precision: str = "fp32"


_chosen = Choice()


@cache
def missing() -> str | None:
    """Why fused kernels cannot be used here; None if they can."""
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
    return _chosen.enabled and device.type == "cuda" and missing() is None


def kernels_on(device: torch.device, family: str) -> ModuleType | None:
    """The family's fused kernels, where they are to be used on this device."""
    return _module(family) if family not in _chosen.off and available(device) else None


def kernels_for(tensor: Tensor, family: str) -> ModuleType | None:
    """The same if they take this tensor: float32 or int64."""
    return kernels_on(tensor.device, family) if tensor.dtype in (torch.float32, torch.int64) else None


@cache
def _module(family: str) -> ModuleType | None:
    try:
        return import_module(f"{KERNELS}.{family}")
    except ModuleNotFoundError as error:
        if error.name is None or not f"{KERNELS}.{family}".startswith(error.name):
            raise
        return None


def kernels(enabled: bool) -> AbstractContextManager[None]:
    """Within it the fused kernels are used, or not."""
    return _within(_chosen._replace(enabled=enabled))


def without(*families: str) -> AbstractContextManager[None]:
    """Within it the fused kernels of these families are not used."""
    return _within(_chosen._replace(off=_chosen.off.union(families)))


def products(mode: str) -> AbstractContextManager[None]:
    """Within it fused kernels make large matrix products as `mode` says, one of OFFERED."""
    return _within(_chosen._replace(precision=mode))


@contextmanager
def _within(choice: Choice) -> Iterator[None]:
    global _chosen
    before, _chosen = _chosen, choice
    try:
        yield
    finally:
        _chosen = before


def bf16x3() -> bool:
    """Whether large matrix products are to be made of bfloat16 numbers."""
    return _chosen.precision == "bf16x3"
