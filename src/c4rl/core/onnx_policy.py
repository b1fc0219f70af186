"""A policy as an ONNX model, built from its arrays: the package `onnx` is enough, and only to write it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from c4rl.core.array import Array
from c4rl.core.numpy_policy import LAYER_NORM_EPSILON, NumpyPolicy

OPSET, IR_VERSION = 17, 8  # old enough for runtimes of 2022


def onnx_bytes(policy: NumpyPolicy, facts: Mapping[str, str]) -> bytes:
    """`observation` [batch, s] -> `action` [batch, a], both float32 in the units of the data; facts: its metadata.

    Normaliser, squash, bounds and the mean over an ensemble's members are part of the graph.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes: list[Any] = []
    constants: list[Any] = []

    def constant(name: str, value: Array) -> str:
        constants.append(numpy_helper.from_array(np.ascontiguousarray(value, np.float32), name))
        return name

    def apply(operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        name = output or f"x{len(nodes)}"
        nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    mean, std = (constant(name, getattr(policy, name)) for name in ("observation_mean", "observation_std"))
    x = apply("Div", apply("Sub", "observation", mean), std)
    for i, (w, b) in enumerate(zip(policy.weights, policy.biases, strict=True)):
        x = apply("Add", apply("MatMul", x, constant(f"w{i}", w)), constant(f"b{i}", b))
        if policy.gains and i < len(policy.gains):
            x = apply("LayerNormalization", x, constant(f"ones{i}", np.ones(w.shape[-1])), epsilon=LAYER_NORM_EPSILON)
            x = apply("Mul", x, constant(f"gain{i}", policy.gains[i]))
            x = apply("Add", x, constant(f"shift{i}", policy.shifts[i]))
        x = apply("Relu", x) if i < len(policy.weights) - 1 else x
    one = constant("one", np.array(1))
    x = apply("Tanh", x) if policy.squash == "tanh" else apply("Clip", x, constant("minus_one", np.array(-1)), one)
    if policy.weights[0].ndim == 3:
        x = apply("ReduceMean", x, axes=[0], keepdims=0)
    x = apply("Div", apply("Add", x, one), constant("two", np.array(2)))
    x = apply("Mul", x, constant("action_span", policy.action_high - policy.action_low))
    x = apply("Add", constant("action_low", policy.action_low), x)
    apply("Min", constant("action_high", policy.action_high), x, output="action")

    sizes = {"observation": policy.observation_mean.size, "action": policy.action_low.size}
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", size]) for n, size in sizes.items()]
    graph = helper.make_graph(nodes, "policy", ends[:1], ends[1:], constants)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="c4rl"
    )
    # names of files need not be UTF-8, which protobuf insists on
    helper.set_model_props(
        model, {name: fact.encode("utf-8", "backslashreplace").decode() for name, fact in facts.items()}
    )
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()
