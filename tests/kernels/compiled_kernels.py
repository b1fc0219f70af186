"""Every kernel compiles for real GPUs, with the arguments that training gives it; run by test_kernels_without_a_gpu.py.

Nothing is launched: a launch is compiled instead, up to the machine code that Triton's own assembler writes, and leaves
zeros behind. The interpreter knows nothing of what a compiler refuses.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from c4rl.core import ops as kernels
from c4rl.core.networks import Critic, Stack
from c4rl.core.triton import linear as linear_maps
from c4rl.core.triton import losses
from c4rl.core.triton.subspace import orthonormal, symmetric_eigen
from c4rl.plugins.c4.plugin import C4Config
from c4rl.plugins.layer_norm import LayerNormConfig
from tests.helpers import CPU, advance, make_launch, small_config, small_dataset
from tests.kernels.interpreter import on_the_cpu

TYPES = {
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.uint8: "u8",
    torch.bool: "i1",
}
KERNELS = {  # by file; each is to be seen
    "adam": {"_adam_kernel"},
    "covariance": {"_centre_kernel", "_size_kernel", "_gradient_kernel"},
    "layer_norm": {"_forward_kernel", "_backward_kernel"},
    "linear": {"_linear_kernel", "_narrow_kernel", "_tall_product_kernel"},
    "losses": {
        "_mean_square_kernel",
        "_mean_square_gradient_kernel",
        "_target_kernel",
        "_relative_mean_kernel",
        "_spread_kernel",
    },
    "metrics": {"_add_kernel"},
    "split": {"_flip_kernel", "_split_kernel"},
    "random": {"_draw_kernel", "_cluster_rows_kernel"},
    "subspace": {"_orthonormal_kernel", "_eigen_kernel"},
    "tanh_gaussian": {"_sample_kernel", "_gradient_kernel"},
}


@pytest.fixture(params=[80, 90], ids=["A100", "H100"])
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Launches are compilations; in the end every kernel must have been seen."""
    done: dict[str, Any] = {}
    target = GPUTarget("cuda", request.param, 32)

    def compile_instead(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        values = dict(zip(kernel.arg_names, arguments, strict=False))
        values |= {name: options.pop(name) for name in list(options) if name in kernel.arg_names}
        signature, constants, aligned = {}, {}, {}
        for place, parameter in enumerate(kernel.params):  # as Triton does before a launch
            value = values[parameter.name]
            if parameter.is_constexpr or (isinstance(value, int) and value == 1):
                signature[parameter.name], constants[(place,)] = "constexpr", value
            elif isinstance(value, Tensor):
                signature[parameter.name], aligned[(place,)] = f"*{TYPES[value.dtype]}", [["tt.divisibility", 16]]
            else:
                signature[parameter.name] = "fp32" if isinstance(value, float) else "i32"
                if isinstance(value, int) and value % 16 == 0:
                    aligned[(place,)] = [["tt.divisibility", 16]]
        name = f"{kernel.fn.__module__.rpartition('.')[2]}.{kernel.fn.__name__}"
        key = f"{name} {signature} {constants} {aligned} {options}"
        if key not in done:
            source = ASTSource(kernel, signature, constants, aligned)
            done[key] = triton.compile(source, target=target, options=options)
            assert "cubin" in done[key].asm
            assert not re.search(r"wgmma\.mma_async[^;]*\}, *\{", done[key].asm["ptx"]), f"{key}: see `split`"

    monkeypatch.setattr(JITFunction, "run", compile_instead)
    for name in ("empty", "empty_like"):  # what a kernel would have written
        monkeypatch.setattr(torch, name, getattr(torch, name.replace("empty", "zeros")))
    with on_the_cpu():
        yield
    seen = {key.partition(" ")[0] for key in done}
    assert seen == {f"{file}.{name}" for file, names in KERNELS.items() for name in names}


@pytest.mark.usefixtures("compiled")
def test_kernels_compile() -> None:
    c4 = C4Config(K=2, period=1, directions=4)
    for algorithm, plugins, options in (
        ("td3_bc", ("c4",), (c4,)),
        ("cql", ("c4", "layer_norm"), (c4, LayerNormConfig())),
    ):
        config = small_config(algorithm, plugins, plugin_options=options, hidden_width=64)
        advance(make_launch(config, small_dataset(300), torch.float32), 2)
    q, setting = torch.zeros(3, 2, 64), torch.zeros(3)  # settings of each run's own, as in a sweep
    losses.clipped_target(q[:, 0], q[:, 1], setting, q)
    losses.relative_mean(q[:, 0], setting)
    columns = torch.zeros(1, 64, 8, dtype=torch.float64)
    symmetric_eigen(orthonormal(columns, columns[0]).mT @ columns)
    x, weight = torch.zeros(1, 2, 4096, 128, device=CPU), torch.zeros(1, 2, 128, 256, device=CPU)
    for bf16x3 in (False, True):
        linear_maps.linear(x, weight, bf16x3=bf16x3)
        linear_maps.weight_gradient(x, x, torch.zeros(1, 2, 128, 128), bf16x3=bf16x3)
    with kernels.products("bf16x3"):
        for runs in (2, 9, 40):
            q = Critic(Stack(tuple(range(runs)), 5, 3, CPU), "critic", (256, 256, 256)).at(torch.zeros(runs, 256, 8)).q
            q.sum().backward()
        output = Critic(Stack((0,), 5, 3, CPU), "critic", (128, 256, 128)).at(torch.zeros(1, 8192, 8))
        assert [layer.dtype for layer in output.hidden] == [torch.bfloat16, torch.bfloat16, torch.float32]
        output.q.sum().backward()
        normed = Critic(Stack((0,), 5, 3, CPU), "critic", (256, 256), layer_norm=True)
        normed.at(torch.zeros(1, 4096, 8)).q.sum().backward()
