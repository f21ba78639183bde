"""ONNX models made by hand, with weights wherever a model may hold some."""

import onnx
from onnx import TensorProto, helper


def weights(name: str, count: int) -> TensorProto:
    return helper.make_tensor(name, TensorProto.FLOAT, [count], bytes(4 * count), raw=True)


def model_of(*nodes: onnx.NodeProto, initializers: tuple[TensorProto, ...] = (), functions: tuple[onnx.FunctionProto, ...] = ()) -> bytes:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
    graph = helper.make_graph(list(nodes), "graph", [value], [out], list(initializers))
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    made: bytes = helper.make_model(graph, opset_imports=opsets, functions=list(functions)).SerializeToString()
    return made


def everything() -> bytes:
    """Large tensors wherever a model may hold one."""
    inner = helper.make_graph([helper.make_node("Relu", ["x"], ["z"], name="inner")], "branch", [], [], [weights("nested", 500)])
    constant = helper.make_node("Constant", [], ["c"], name="constant", value=weights("attribute", 500))
    branches = helper.make_node("If", ["x"], ["y"], name="if", then_branch=inner, else_branch=inner)
    gelu = helper.make_node("Gelu", ["x"], ["g"], name="gelu", domain="com.microsoft")
    body = helper.make_node("Constant", [], ["o"], value=weights("in a function", 500))
    function = helper.make_function("own", "F", [], ["o"], [body], [helper.make_opsetid("", 18)])
    return model_of(constant, branches, gelu, initializers=(weights("large", 500), weights("small", 4)), functions=(function,))
