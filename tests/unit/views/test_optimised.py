"""A model beside what ONNX Runtime made of it: every node and every kernel once, in the order of the model."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ortlens.analysis.onnx_model import fusions, optimised
from ortlens.views.markup import _environment
from ortlens.views.report import _optimised
from tests.recorded import recorded
from tests.unit.views.sample_captures import HOSTILE, SAMPLES

if TYPE_CHECKING:
    from ortlens.trace.records import Capture


def shown(capture: Capture) -> str:
    """The panes as the report has them."""
    module: Any = _environment().get_template("panes.html").module
    return str(module.optimised(_optimised(capture)))


@pytest.mark.parametrize("name", ["bert", "resnet", "twelve"])
def test_every_kernel_and_every_node_is_there_once(name: str) -> None:
    capture = recorded(name)
    rows = optimised(capture)
    assert sorted((row.session_id, row.kernel.kernel) for row in rows if row.kernel) == sorted(
        (kernel.session_id, kernel.kernel) for kernel in capture.kernels
    )
    partitions = {session.session_id: session.partition_id for session in capture.sessions}
    for session in {row.session_id for row in rows}:
        made = {onnx for node in capture.nodes if node.partition_id == partitions[session] for onnx in node.onnx_nodes}
        shown = [node for row in rows if row.session_id == session for node, _ in row.onnx_nodes]
        assert made <= set(shown)
        assert len(set(shown)) == len(shown)
    changed = {(row.session_id, row.kernel.kernel) for row in rows if row.kernel and row.change}
    assert changed <= {(row.session_id, row.kernel) for row in fusions(capture)}
    assert sum(row.change == "gone" for row in rows) == sum(row.change == "gone" for row in fusions(capture))


def test_the_rows_are_in_the_order_of_the_model() -> None:
    capture = recorded("bert")
    order = list(dict.fromkeys(onnx for node in capture.nodes for onnx in node.onnx_nodes))
    firsts = [min(order.index(node) for node, _ in row.onnx_nodes) for row in optimised(capture)]
    assert firsts == sorted(firsts)


def test_fused_nodes_are_one_row_beside_their_kernel() -> None:
    rows = [row for row in optimised(recorded("bert")) if row.kernel is not None and row.kernel.op_type == "Gelu"]
    assert {(row.change, tuple(op for _, op in row.onnx_nodes)) for row in rows} == {("fused", ("Div", "Erf", "Add", "Mul", "Mul"))}
    assert shown(recorded("bert")).count("5 fused into 1") == len(rows)


def test_an_inserted_kernel_follows_the_one_before_it() -> None:
    capture = recorded("resnet")
    kernels = [kernel.kernel for kernel in capture.kernels]
    rows = [row.kernel.kernel for row in optimised(capture) if row.kernel is not None]
    for kernel in capture.kernels:
        if kernel.op_type == "ReorderOutput":
            assert rows[rows.index(kernel.kernel) - 1] == kernels[kernels.index(kernel.kernel) - 1]


def test_what_ran_as_it_was_has_no_panes() -> None:
    assert _optimised(recorded("models")) == []
    assert _optimised(SAMPLES["demo_like"]) == []


def test_hostile_names_are_text_and_much_is_counted() -> None:
    capture = recorded("bert")
    kernels = tuple(
        replace(item, op_type=HOSTILE, module=HOSTILE, onnx_nodes=tuple(name + HOSTILE for name in item.onnx_nodes))
        for item in capture.kernels
    )
    html = shown(replace(capture, kernels=kernels))
    assert "<img" not in html
    assert not {"\u202e", "\x00", "\x1b"}.intersection(html)
    many = tuple(replace(kernel, kernel=f"{kernel.kernel} {number}") for number in range(10) for kernel in capture.kernels)
    html = shown(replace(capture, kernels=many))
    assert re.search(r"and 1,\d{3} more rows: see <code>.fusions\(\)</code>", html)
    assert len(html) < 150_000


def test_a_node_that_several_kernels_may_compute_is_charged_to_none() -> None:
    rows = optimised(recorded("resnet"))
    (row,) = (row for row in rows if ("relu_3/Relu", "Relu") in row.onnx_nodes)
    assert (row.change, row.kernel) == ("shared", None)
    (conv,) = (row for row in rows if ("convolution_4/Conv", "Conv") in row.onnx_nodes)
    assert (conv.change, [op for _, op in conv.onnx_nodes]) == ("fused", ["Conv", "BatchNormalization", "Relu"])
