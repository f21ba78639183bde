"""ONNX models made by hand, with weights wherever a model may hold some."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def onnx_model(  # noqa: PLR0913 - what a model is made of
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    constants: Mapping[str, Any] | None = None,
    *,
    opset: int = 18,
    domains: Sequence[str] = (),
    ir_version: int = 10,
    **more: Any,  # noqa: ANN401 - of `make_model`
) -> onnx.ModelProto:
    """Make a model; an input or output is its name, element type and sizes, a constant whatever numpy makes an array of."""
    held = [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    ends = [[helper.make_tensor_value_info(*each) if isinstance(each, tuple) else each for each in side] for side in (inputs, outputs)]
    graph = helper.make_graph(nodes, "graph", ends[0], ends[1], held)
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version, **more)


def product(depth: int = 32, width: int = 16) -> onnx.ModelProto:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"], name="product"), helper.make_node("Relu", ["m"], ["y"], name="relu")]
    x, y = [("x", TensorProto.FLOAT, ["rows", depth])], [("y", TensorProto.FLOAT, ["rows", width])]
    return onnx_model(nodes, x, y, {"w": np.ones((depth, width), np.float32)})


def weights(name: str, count: int) -> TensorProto:
    return helper.make_tensor(name, TensorProto.FLOAT, [count], bytes(4 * count), raw=True)


def model_of(*nodes: onnx.NodeProto, initializers: tuple[TensorProto, ...] = (), functions: tuple[onnx.FunctionProto, ...] = ()) -> bytes:
    x, y = ([(name, TensorProto.FLOAT, ["n"])] for name in "xy")
    made = onnx_model(nodes, x, y, domains=["com.microsoft"], functions=list(functions))
    made.graph.initializer.extend(initializers)
    return bytes(made.SerializeToString())


def everything() -> bytes:
    """Large tensors wherever a model may hold one."""
    inner = helper.make_graph([helper.make_node("Relu", ["x"], ["z"], name="inner")], "branch", [], [], [weights("nested", 500)])
    constant = helper.make_node("Constant", [], ["c"], name="constant", value=weights("attribute", 500))
    branches = helper.make_node("If", ["x"], ["y"], name="if", then_branch=inner, else_branch=inner)
    gelu = helper.make_node("Gelu", ["x"], ["g"], name="gelu", domain="com.microsoft")
    body = helper.make_node("Constant", [], ["o"], value=weights("in a function", 500))
    function = helper.make_function("own", "F", [], ["o"], [body], [helper.make_opsetid("", 18)])
    return model_of(constant, branches, gelu, initializers=(weights("large", 500), weights("small", 4)), functions=(function,))
