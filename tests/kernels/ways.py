"""Three ways to run the kernels: on a GPU, by Triton's interpreter, and no further than its compiler.

The interpreter does in NumPy, one program after another, what the kernels say. It is slow and has no warps, races or
compiler's refusals, but it reads and writes where the kernels do. Triton decides as it is imported whether to
interpret: TRITON_INTERPRET=1 must be in the environment of a fresh process by then. The compiler writes the machine
code of GPUs that need not be there; nothing is launched, and what a kernel would have written stays zero.
"""

import pkgutil
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.language.extra import libdevice
from triton.runtime import interpreter
from triton.runtime.interpreter import GridExecutor, InterpretedFunction, InterpreterBuilder, TensorHandle
from triton.runtime.jit import JITFunction

from c4rl.core import networks, ops
from c4rl.core.ops import mlp as networks_op

TARGETS = (90, 80)  # what the compiler writes for: H100 and A100
LIBDEVICE = ("cos", "exp", "log", "log1p", "sin", "tanh")  # what the kernels take from it, in NumPy by the same names
TYPES = {
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.uint8: "u8",
    torch.bool: "i1",
}


def needs(*families: str) -> pytest.MarkDecorator:
    """For a case of these families of kernels."""
    gone = [family for family in families if find_spec(f"{ops.KERNELS}.{family}") is None]
    return pytest.mark.skipif(bool(gone), reason=f"no kernels: {', '.join(gone)}")


def all_kernels() -> set[str]:
    """As file.name."""
    package = import_module(ops.KERNELS)
    modules = [import_module(f"{ops.KERNELS}.{found.name}") for found in pkgutil.iter_modules(package.__path__)]
    return {
        f"{module.__name__.rpartition('.')[2]}.{name}"
        for module in modules
        for name, kernel in vars(module).items()
        if name.endswith("_kernel") and kernel.fn.__module__ == module.__name__
    }


def _name(function: Any) -> str:
    return f"{function.__module__.rpartition('.')[2]}.{function.__name__}"


class Way:
    """How the kernels are run, and which have been since `used` was emptied."""

    def __init__(self, name: str) -> None:
        """gpu, interpreter or compiler."""
        self.name, self.device = name, torch.device("cuda" if name == "gpu" else "cpu")
        self.used: set[str] = set()
        self.ever_used: set[str] = set()
        self.computes = name != "compiler"

    def sized(self, many: Any, few: Any) -> Any:
        """What a case is to be made of; the interpreter is slow."""
        return few if self.name == "interpreter" else many

    def kernels(self, family: str) -> ModuleType:
        return import_module(f"{ops.KERNELS}.{family}")

    def normal(self, *shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
        drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return drawn.to(self.device, dtype)

    def within(self, bound: float, found: Sequence[Tensor], exact: Sequence[Tensor]) -> None:
        if self.computes:
            assert max(errors(found, exact)) < bound

    def close(self, found: Any, expected: Any, rtol: float, atol: float) -> None:
        if self.computes:
            torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)

    def equal(self, found: Tensor, expected: Tensor) -> None:
        if self.computes:
            assert torch.equal(found, expected)

    def note(self, name: str) -> None:
        self.used.add(name)
        self.ever_used.add(name)

    @contextmanager
    def running(self) -> Iterator[None]:
        with {"gpu": _on_gpu, "interpreter": _interpreted, "compiler": _compiled}[self.name](self):
            yield


def errors(found: Sequence[Tensor], exact: Sequence[Tensor]) -> list[float]:
    """Of each tensor, relative to its size."""
    pairs = zip(found, (e.double() for e in exact), strict=True)
    return [float((f.double() - e).norm() / e.norm().clamp_min(1e-30)) for f, e in pairs]


@contextmanager
def _on_gpu(way: Way) -> Iterator[None]:
    launch = JITFunction.run

    def noted(kernel: Any, *arguments: Any, **options: Any) -> Any:
        way.note(_name(kernel.fn))
        return launch(kernel, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JITFunction, "run", noted)
        yield


@contextmanager
def _interpreted(way: Way) -> Iterator[None]:
    if not isinstance(tl.sum, InterpretedFunction):
        raise RuntimeError("TRITON_INTERPRET: found another value as Triton was imported, expected 1")
    launch, patch_language = GridExecutor.__call__, interpreter._patch_lang
    patched: set[str] = set()

    def noted(executor: Any, *arguments: Any, **options: Any) -> None:
        way.note(_name(executor.fn))
        patched.clear()
        launch(executor, *arguments, **options)

    def patch_once(function: Any) -> Any:
        """For all of a launch: the interpreter does it in every call of a function, which takes most of its time."""
        if (module := function.__globals__["__name__"]) in patched:
            return None
        patched.add(module)
        return patch_language(function)

    # programs also compute beyond the ends of tensors, where nothing is stored, and hashes are meant to overflow
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"), _on_the_cpu():
        patch.setattr(GridExecutor, "__call__", noted)
        patch.setattr(interpreter, "_patch_lang", patch_once)
        patch.setattr(InterpreterBuilder, "create_dot", _dot)
        for name in LIBDEVICE:
            patch.setattr(libdevice, name, _elementwise(getattr(np, name)))
        yield


_compiled_for: set[str] = set()


def _reasons(target: int, choices: dict[str, Any], ones: set[str], signature: str) -> Iterator[str]:
    """Why to compile a kernel once more: its code, hence what may be refused, depends on what was chosen for it.

    Where tensor cores multiply it depends on all that is known of the arguments, by which tiles are laid out. GPUs
    differ in tensor cores alone, so that one of them is enough for all combinations of other choices.
    """
    combination = str(sorted(choices.items()))
    if target == TARGETS[0]:
        yield combination
        yield from (f"{name}=1" for name in ones)  # a constant, where others are numbers
        if choices.get("SPLIT"):
            yield signature
    else:
        yield from (f"{name}={value}" for name, value in choices.items())
        if choices.get("SPLIT"):
            yield combination


@contextmanager
def _compiled(way: Way) -> Iterator[None]:
    def compile_instead(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        values = dict(zip(kernel.arg_names, arguments, strict=False))
        values |= {name: options.pop(name) for name in list(options) if name in kernel.arg_names}
        signature, constants, aligned = {}, {}, {}
        for place, parameter in enumerate(kernel.params):  # as Triton does before a launch
            value = values[parameter.name]
            if parameter.is_constexpr or (isinstance(value, int) and value == 1):
                signature[parameter.name], constants[(place,)] = "constexpr", value
            elif hasattr(value, "block_shape"):  # a described tensor
                signature[parameter.name] = f"tensordesc<{TYPES[value.base.dtype]}{value.block_shape}>"
            elif isinstance(value, Tensor):
                signature[parameter.name], aligned[(place,)] = f"*{TYPES[value.dtype]}", [["tt.divisibility", 16]]
            else:
                signature[parameter.name] = "fp32" if isinstance(value, float) else "i32"
                if isinstance(value, int) and value % 16 == 0:
                    aligned[(place,)] = [["tt.divisibility", 16]]
        name = _name(kernel.fn)
        way.note(name)
        chosen = {parameter.name: values[parameter.name] for parameter in kernel.params if parameter.is_constexpr}
        types = {name: kind for name, kind in signature.items() if kind.startswith(("*", "tensordesc"))}
        ones = {name for name, kind in signature.items() if kind == "constexpr" and name not in chosen}
        for target in TARGETS[:1] if chosen.get("BLOCKS") else TARGETS:  # older GPUs copy no blocks
            key = f"sm_{target} {name} {signature} {constants} {aligned} {options}"
            reasons = {f"sm_{target} {name} {why}" for why in _reasons(target, chosen | types | options, ones, key)}
            if reasons <= _compiled_for:
                continue
            _compiled_for.update(reasons)
            source = ASTSource(kernel, signature, constants, aligned)
            assembly = triton.compile(source, target=GPUTarget("cuda", target, 32), options=options).asm
            assert "cubin" in assembly
            assert not re.search(r"wgmma\.mma_async[^;]*\}, *\{", assembly["ptx"]), f"{key}: see `split`"

    with pytest.MonkeyPatch.context() as patch, _on_the_cpu():
        patch.setattr(JITFunction, "run", compile_instead)
        for name in ("empty", "empty_like"):  # what a kernel would have written
            patch.setattr(torch, name, getattr(torch, name.replace("empty", "zeros")))
        yield


@contextmanager
def _on_the_cpu() -> Iterator[None]:
    """Within it the kernels are given CPU tensors, unless `ops.kernels` is against it."""
    stream = _Stream()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ops, "available", lambda device: ops._chosen.enabled)
        patch.setattr(networks_op, "proven", lambda *given: True)  # the proof takes half a minute here
        patch.setattr(networks, "one_pass_pays", lambda x: ops._chosen.enabled)
        if find_spec(f"{ops.KERNELS}.mlp") is not None:
            patch.setattr(import_module(f"{ops.KERNELS}.mlp"), "_side_stream", lambda device: stream)
            patch.setattr(import_module(f"{ops.KERNELS}.split"), "_copies_blocks", lambda device: True)
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
