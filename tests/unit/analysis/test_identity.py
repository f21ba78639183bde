"""The chain from a user line to a kernel, walked from each of its links."""

from dataclasses import replace
from typing import Any

import pytest

from ortlens.analysis.identity import Link, links
from ortlens.analysis.onnx_model import fusions
from ortlens.errors import UsageError
from ortlens.trace import records as r
from ortlens.views.sentences import onnx_answers
from tests.unit.analysis import hand_made


def node(name: str, line: int, **more: Any) -> r.Node:  # noqa: ANN401 - fields have types of their own
    return hand_made.node(name, target=f"aten.{name}.default", file="/home/me/model.py", line=line, **more)


def kernel(name: str, op_type: str, nodes: tuple[str, ...], onnx: dict[str, str], confidence: r.Confidence, **more: object) -> r.Kernel:
    made = {"onnx_nodes": tuple(onnx), "onnx_ops": tuple(onnx.values()), "calls": 1, "total_ns": 10, "share": 0.25, **more}
    return hand_made.kernel(op_type, kernel=name, node=nodes[-1] if nodes else None, nodes=nodes, confidence=confidence, **made)


CAPTURE = r.Capture(
    graphs=(hand_made.graph(), hand_made.graph("g1", phase="backward")),
    nodes=(
        node("conv", 10, module="stem.conv", onnx_nodes=("conv/Conv",), onnx_confidences=("exact",)),
        node("relu", 11, module="stem", onnx_nodes=("relu/Relu",), onnx_confidences=("exact",)),
        node("t", 12, module="head", onnx_nodes=("node_Gemm",), onnx_confidences=("fused",)),
        node("addmm", 12, module="head", onnx_nodes=("node_Gemm", "addmm/Shape"), onnx_confidences=("fused", "inferred")),
        node("median", 13, module="head2", partition_id=None, supported=False),
        node("relu", 11, graph_id="g1", partition_id="p1"),
    ),
    partitions=(hand_made.partition(), hand_made.partition(1, "g1")),
    sessions=(hand_made.session(), hand_made.session(1)),
    kernels=(
        kernel("relu_nchwc", "Conv", ("conv", "relu"), {"conv/Conv": "Conv", "relu/Relu": "Relu"}, "fused", share=0.5),
        kernel("ReorderOutput", "ReorderOutput", ("relu",), {}, "inferred"),
        kernel("fused node_Gemm", "FusedGemm", ("t", "addmm"), {"node_Gemm": "Gemm"}, "fused"),
        kernel("Mystery", "Mystery", (), {}, "none", share=0.0),
        kernel("relu_nchwc", "Relu", ("relu",), {}, "inferred", session_id="s1"),
    ),
)


def told(found: tuple[Link, ...]) -> list[tuple[str, str, str | None, str | None]]:
    return [(link.graph_id, link.node, link.onnx_node, link.kernel) for link in found]


def test_from_a_line_to_its_kernels() -> None:
    found = links(CAPTURE, line="model.py:11", partition="p0")
    assert told(found) == [("g0", "relu", "relu/Relu", "relu_nchwc"), ("g0", "relu", None, "ReorderOutput")]
    assert [(link.line_confidence, link.onnx_confidence, link.kernel_confidence) for link in found] == [
        ("exact", "exact", "fused"),
        ("exact", "none", "inferred"),
    ]


def test_from_each_link_to_the_others() -> None:
    assert {link.phase for link in links(CAPTURE, line="me/model.py:11")} == {"inference", "backward"}
    assert links(CAPTURE, line="odel.py:11") == ()
    assert [link.line for link in links(CAPTURE, kernel="relu_nchwc", partition="p0")] == [10, 11]
    assert told(links(CAPTURE, node="g1:relu")) == [("g1", "relu", None, "relu_nchwc")]
    gemm = links(CAPTURE, onnx_node="node_Gemm")
    assert told(gemm) == [("g0", "t", "node_Gemm", "fused node_Gemm"), ("g0", "addmm", "node_Gemm", "fused node_Gemm")]
    assert {link.onnx_confidence for link in gemm} == {"fused"}


def test_where_a_chain_ends() -> None:
    (link,) = links(CAPTURE, onnx_node="addmm/Shape")
    assert (link.kernel, link.kernel_confidence, link.onnx_confidence) == (None, "none", "inferred")
    (link,) = links(CAPTURE, node="median")
    assert (link.partition_id, link.onnx_node, link.kernel, link.onnx_confidence) == (None, None, None, "none")


def test_a_module_holds_what_is_inside_it_and_no_namesake() -> None:
    assert [link.node for link in links(CAPTURE, module="stem")] == ["conv", "relu", "relu"]
    assert {link.node for link in links(CAPTURE, module="head")} == {"t", "addmm"}


def test_all_nodes_are_in_the_whole_chain_and_nothing_fits_nothing() -> None:
    assert {(link.graph_id, link.node) for link in links(CAPTURE)} == {(node.graph_id, node.node) for node in CAPTURE.nodes}
    assert links(CAPTURE, node="absent") == ()
    assert links(r.Capture()) == ()


@pytest.mark.parametrize("line", ["model.py", "12", "model.py:x"])
def test_a_line_without_file_or_number_is_refused(line: str) -> None:
    with pytest.raises(UsageError, match=r"model\.py:12"):
        links(CAPTURE, line=line)


def test_fusions_tell_what_became_of_each_node() -> None:
    rows = [(row.change, row.op_type, row.onnx_nodes, row.nodes) for row in fusions(CAPTURE) if row.session_id == "s0"]
    assert rows == [
        ("fused", "Conv", ("conv/Conv", "relu/Relu"), ("conv", "relu")),
        ("inserted", "ReorderOutput", (), ("relu",)),
        ("changed", "FusedGemm", ("node_Gemm",), ("t", "addmm")),
        ("unknown", "Mystery", (), ()),
        ("gone", None, ("addmm/Shape",), ("addmm",)),
    ]
    assert fusions(r.Capture(nodes=CAPTURE.nodes, sessions=CAPTURE.sessions)) == (), "not profiled"


def test_the_summary_of_an_onnx_model_counts_what_rewrites_fused_changed_inserted_and_removed() -> None:
    models = (r.Model(model_id="m0", partition_id="p0", node_count=5, optimized_node_count=4),)
    said = dict(onnx_answers(replace(CAPTURE, environment={"onnx_model": "file"}, models=models)))
    assert said["Optimiser"] == "6 nodes became 4: 1 fused, 1 replaced by another operator, 2 inserted, 1 removed or folded"
