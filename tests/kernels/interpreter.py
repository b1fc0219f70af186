"""Runs the Triton kernels without a GPU: Triton's interpreter does in NumPy, one program after another, what they say.

It is slow and knows nothing of compilers, warps and races, but it reads and writes where the kernels do. Triton decides
as it is imported whether to interpret: TRITON_INTERPRET=1 must be in the environment of a fresh process by then.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.language.extra import libdevice
from triton.runtime.interpreter import GridExecutor, InterpretedFunction, InterpreterBuilder, TensorHandle

from c4rl.core import networks
from c4rl.core import ops as kernels
from c4rl.core.ops import mlp as ops_mlp
from c4rl.core.triton import mlp

LIBDEVICE = ("cos", "exp", "log", "log1p", "sin", "tanh")  # what the kernels take from it, in NumPy by the same names


@contextmanager
def interpreted() -> Iterator[set[str]]:
    """Within it the kernels take CPU tensors, unless `kernels.kernels` is against it; gives the names of those used."""
    if not isinstance(tl.sum, InterpretedFunction):
        raise RuntimeError("TRITON_INTERPRET: found another value as Triton was imported, expected 1")
    used: set[str] = set()
    launch = GridExecutor.__call__

    def noted(executor: Any, *arguments: Any, **options: Any) -> None:
        used.add(executor.fn.__name__)
        launch(executor, *arguments, **options)

    # programs also compute beyond the ends of tensors, where nothing is stored, and hashes are meant to overflow
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"), on_the_cpu():
        patch.setattr(GridExecutor, "__call__", noted)
        patch.setattr(InterpreterBuilder, "create_dot", _dot)
        for name in LIBDEVICE:
            patch.setattr(libdevice, name, _elementwise(getattr(np, name)))
        yield used


@contextmanager
def on_the_cpu() -> Iterator[None]:
    """Within it the kernels are given CPU tensors, unless `kernels.kernels` is against it."""

    stream = _Stream()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "available", lambda device: kernels._enabled)
        patch.setattr(ops_mlp, "proven", lambda *given: True)  # the proof takes half a minute here
        patch.setattr(networks, "one_pass_pays", lambda x: kernels._enabled)
        patch.setattr(mlp, "_side_stream", lambda device: stream)
        patch.setattr(torch.cuda, "current_stream", lambda: stream)
        patch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
        yield


class _Stream:
    """Stands for a CUDA stream: here everything happens in order."""

    def wait_stream(self, stream: "_Stream") -> None:
        pass


def _elementwise(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[tl.tensor], tl.tensor]:
    """Stands for a function of libdevice, of which the interpreter has none: they give None."""
    return lambda x: tl.tensor(TensorHandle(function(x.handle.data), x.handle.dtype), x.type)


_dot_of_float32 = InterpreterBuilder.create_dot


def _dot(builder: Any, x: TensorHandle, y: TensorHandle, *others: Any) -> TensorHandle:
    """The interpreter has bfloat16 numbers as the integers that their bits make, and would multiply those."""

    def as_float32(handle: TensorHandle) -> TensorHandle:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    return _dot_of_float32(builder, as_float32(x), as_float32(y), *others)
