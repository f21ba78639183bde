"""Which weights a session may read in torch's memory."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortlens.backend.runtime.shared_weights import shareable

SIDE = 4


def model_of(*nodes: onnx.NodeProto, outputs: tuple[str, ...] = ("y",)) -> onnx.ModelProto:
    """A model of a square input `x` and the square initializers `w` and `v`."""
    shape = [SIDE, SIDE]
    weights = [numpy_helper.from_array(np.zeros(shape, np.float32), name) for name in ("w", "v")]
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in outputs],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def test_factors_of_products_can_be_shared() -> None:
    first, second = helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Gemm", ["v", "a"], ["y"], transB=1)
    assert shareable(model_of(first, second)) == {"w", "v"}


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("Add", ["a", "w"], ["y"]),
        helper.make_node("Gemm", ["a", "v", "w"], ["y"]),
        helper.make_node("Transpose", ["w"], ["y"]),
        helper.make_node("Concat", ["a", "w"], ["y"], axis=0),
        helper.make_node("MatMul", ["a", "w"], ["y"], domain="com.example"),
    ],
    ids=lambda node: f"{node.domain}{node.op_type}",
)
def test_what_another_node_reads_as_well_is_not_shared(node: onnx.NodeProto) -> None:
    assert "w" not in shareable(model_of(helper.make_node("MatMul", ["x", "w"], ["a"]), node))


def test_what_a_graph_inside_a_node_reads_is_not_shared() -> None:
    inner = helper.make_graph([helper.make_node("Identity", ["w"], ["b"])], "inner", [], [helper.make_empty_tensor_value_info("b")])
    nodes = helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    assert shareable(model_of(*nodes)) == set()


def test_an_output_is_not_shared() -> None:
    assert shareable(model_of(helper.make_node("MatMul", ["x", "w"], ["y"]), outputs=("y", "w"))) == set()
