"""Kernels led back over what ONNX Runtime really makes of small models, and over made-up ones that it should not be trusted with."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from ortlens.backend.basis.node_provenance import FX_NODE_KEY, FX_NODES_KEY, INFERRED_KEY, iter_nodes, provenance_of
from ortlens.lens.profiling import kernel_origins
from ortlens.lens.profiling.kernel_records import _place
from tests.onnx_models import onnx_model
from tests.unit.analysis.hand_made import node as fx_node

FLOAT = onnx.TensorProto.FLOAT


def made(op_type: str, inputs: list[str], output: str, fx: str, **attributes: Any) -> onnx.NodeProto:  # noqa: ANN401 - of any kind
    """A labelled node, called after its FX node and its output, as conversion does."""
    node = helper.make_node(op_type, inputs, [output], name=f"{fx}/{op_type}/{output}", **attributes)
    node.metadata_props.add(key=FX_NODE_KEY, value=fx)
    return node


def model(nodes: list[onnx.NodeProto], output: str, shapes: dict[str, list[int]], **constants: np.ndarray[Any, Any]) -> onnx.ModelProto:
    inputs = [(name, FLOAT, shape) for name, shape in shapes.items() if name != output]
    return onnx_model(nodes, inputs, [(output, FLOAT, shapes[output])], constants)


def optimized(before: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(folder / "after.onnx")
    onnxruntime.InferenceSession(before.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(folder / "after.onnx")


def walked(before: onnx.ModelProto, after: onnx.ModelProto) -> dict[str, kernel_origins.Origin]:
    compute = list(dict.fromkeys(provenance_of(node).node for node in iter_nodes(before.graph)))
    kernels = {node.name or f"{node.op_type}_7": node.op_type for node in iter_nodes(after.graph)}
    return kernel_origins.origins(before, after, kernels, compute)


def by_op(found: dict[str, kernel_origins.Origin]) -> dict[str, kernel_origins.Origin]:
    return {origin.op_type: origin for origin in found.values()}


def test_a_node_that_stays_is_exact(tmp_path: Path) -> None:
    before = model([made("Sin", ["x"], "s", "sin"), made("Cos", ["s"], "c", "cos")], "c", {"x": [4], "c": [4]})
    found = by_op(walked(before, optimized(before, tmp_path)))
    assert (found["Sin"].node, found["Sin"].nodes, found["Sin"].confidence) == ("sin", ("sin",), "exact")
    assert found["Cos"].onnx_nodes == ("cos/Cos/c",)


def test_a_fused_node_names_all_that_it_computes(tmp_path: Path) -> None:
    nodes = [
        made("MatMul", ["x", "w"], "mm", "mm"),
        made("Add", ["mm", "b"], "add", "add"),
        made("Div", ["add", "root"], "d", "gelu"),
        made("Erf", ["d"], "e", "gelu"),
        made("Add", ["e", "one"], "f", "gelu"),
        made("Mul", ["add", "f"], "h", "gelu"),
        made("Mul", ["h", "half"], "gelu", "gelu"),
        made("Relu", ["gelu"], "relu", "relu"),
    ]
    numbers = {name: np.array(value, np.float32) for name, value in (("root", 1.41421356), ("one", 1), ("half", 0.5))}
    before = model(nodes, "relu", {"x": [4, 8], "relu": [4, 8]}, w=np.ones((8, 8), np.float32), b=np.ones(8, np.float32), **numbers)
    found = by_op(walked(before, optimized(before, tmp_path)))
    assert (found["Gemm"].node, found["Gemm"].nodes, found["Gemm"].onnx_ops) == ("add", ("mm", "add"), ("MatMul", "Add"))
    assert (found["Gelu"].node, found["Gelu"].nodes, found["Gelu"].onnx_ops) == ("gelu", ("gelu",), ("Div", "Erf", "Add", "Mul", "Mul"))
    assert {found["Gemm"].confidence, found["Gelu"].confidence} == {"fused"}
    assert found["Relu"].confidence == "exact"


def test_convolutions_in_blocks_and_the_reorders_between(tmp_path: Path) -> None:
    weights = {name: np.random.default_rng(0).random((16, 16, 3, 3), np.float32) for name in ("w1", "w2")}
    pads = {"pads": [1, 1, 1, 1]}
    nodes = [
        made("Conv", ["x", "w1"], "c1", "conv_1", **pads),
        made("Relu", ["c1"], "r1", "relu_1"),
        made("Conv", ["r1", "w2"], "c2", "conv_2", **pads),
        made("Add", ["c2", "r1"], "a", "add"),
        made("Relu", ["a"], "r2", "relu_2"),
        made("Sin", ["r2"], "s", "sin"),
    ]
    before = model(nodes, "s", {"x": [1, 16, 8, 8], "s": [1, 16, 8, 8]}, **weights)
    after = optimized(before, tmp_path)
    if not any(node.op_type == "ReorderInput" for node in after.graph.node):
        pytest.skip("ONNX Runtime blocks convolutions on some processors only")
    found = walked(before, after)
    convolutions = {origin.node: origin.nodes for origin in found.values() if origin.op_type == "Conv"}
    assert convolutions == {"relu_1": ("conv_1", "relu_1"), "relu_2": ("conv_2", "add", "relu_2")}
    reorders = {origin.node: origin.confidence for origin in found.values() if origin.op_type.startswith("Reorder")}
    assert reorders == {"relu_1": "inferred", "relu_2": "inferred"}
    assert by_op(found)["Sin"].confidence == "exact"


def test_a_constant_that_was_folded_belongs_to_no_kernel(tmp_path: Path) -> None:
    nodes = [made("Transpose", ["w"], "t", "t", perm=[1, 0]), made("MatMul", ["x", "t"], "mm", "mm")]
    before = model(nodes, "mm", {"x": [2, 8], "mm": [2, 4]}, w=np.ones((4, 8), np.float32))
    (origin,) = walked(before, optimized(before, tmp_path)).values()
    assert (origin.nodes, origin.onnx_nodes) == (("mm",), ("mm/MatMul/mm",))


def branchy() -> onnx.ModelProto:
    def body(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
        return helper.make_graph(list(nodes), name, [], [helper.make_tensor_value_info(nodes[-1].output[0], FLOAT, [4, 4])])

    taken = body("taken", made("MatMul", ["x", "x"], "m", "pick"), made("Relu", ["m"], "y1", "pick"))
    other = body("other", made("Neg", ["x"], "y2", "pick"))
    choice = made("If", ["cond"], "y", "pick", then_branch=taken, else_branch=other)
    made_model = model([choice, made("Sin", ["y"], "z", "sin")], "z", {"x": [4, 4], "z": [4, 4]})
    made_model.graph.input.append(helper.make_tensor_value_info("cond", onnx.TensorProto.BOOL, []))
    return made_model


def test_bodies_of_control_flow_lead_back_too(tmp_path: Path) -> None:
    before = branchy()
    found = by_op(walked(before, optimized(before, tmp_path)))
    assert {op: found[op].node for op in ("If", "MatMul", "Relu", "Neg", "Sin")} == {
        "If": "pick",
        "MatMul": "pick",
        "Relu": "pick",
        "Neg": "pick",
        "Sin": "sin",
    }
    assert found["MatMul"].confidence == "exact"


def rewritten(before: onnx.ModelProto, *nodes: onnx.NodeProto) -> onnx.ModelProto:
    after = onnx.ModelProto()
    after.CopyFrom(before)
    del after.graph.node[:]
    after.graph.node.extend(nodes)
    return after


CHAIN = [made("Sin", ["x"], "s", "sin"), made("Cos", ["s"], "c", "cos"), made("Neg", ["c"], "n", "neg")]
BEFORE = model(CHAIN, "n", {"x": [4], "n": [4]})


def of(origin: kernel_origins.Origin) -> tuple[str | None, str]:
    return origin.node, origin.confidence


def test_what_nothing_tells_of_has_no_origin() -> None:
    found = walked(BEFORE, rewritten(BEFORE, helper.make_node("Mystery", ["u"], ["v"], name="Mystery")))
    assert found["Mystery"] == kernel_origins.Origin(kernel="Mystery", op_type="Mystery")


def test_a_kernel_without_a_name_has_an_origin_where_all_that_it_may_be_agree() -> None:
    one, other = helper.make_node("Both", ["x"], ["s"]), helper.make_node("Both", ["s"], ["n"])
    assert walked(BEFORE, rewritten(BEFORE, one))["Both_7"].node == "sin"
    torn = walked(BEFORE, rewritten(BEFORE, one, other))["Both_7"]
    assert (*of(torn), torn.candidates) == (None, "none", ("sin", "neg")), "nobody knows which"
    same, apart = ({name: fx_node(name, file="model.py", line=line) for name, line in (("sin", 1), ("neg", last))} for last in (1, 2))
    assert [place and place.line for place in (_place(torn, same), _place(torn, apart))] == [1, None]


def test_kernels_without_names_are_told_apart_by_their_order() -> None:
    after = rewritten(BEFORE, helper.make_node("Sin", ["x"], ["s"]), CHAIN[1], helper.make_node("Sin", ["c"], ["n"]))
    compute = ["sin", "cos", "neg"]
    found = kernel_origins.origins(BEFORE, after, {"Sin_9": "Sin", "cos/Cos/c": "Cos", "Sin_3": "Sin"}, compute)
    assert [of(origin) for origin in found.values()] == [("sin", "inferred"), ("cos", "exact"), ("neg", "inferred")]
    found = kernel_origins.origins(BEFORE, after, {"cos/Cos/c": "Cos", "Sin_9": "Sin", "Sin_3": "Sin"}, compute)
    assert [origin.confidence for origin in found.values()] == ["exact", "none", "none"], "they ran in another order than they are listed"


def test_a_cast_that_does_the_work_of_another_operator_is_not_put_in() -> None:
    nodes = [made("Sin", ["x"], "s", "sin"), made("CastLike", ["s", "x"], "c", "to"), made("Neg", ["c"], "n", "neg")]
    before = model(nodes, "n", {"x": [4], "n": [4]})
    cast = helper.make_node("Cast", ["s"], ["c"], to=FLOAT, name="Cast_1")
    origin = walked(before, rewritten(before, nodes[0], cast, nodes[2]))["Cast_1"]
    assert (*of(origin), origin.onnx_ops) == ("to", "fused", ("CastLike",))


PUT_IN: dict[str, tuple[tuple[onnx.NodeProto, ...], dict[str, tuple[str, str]]]] = {
    "copies between devices": (
        (
            helper.make_node("MemcpyFromHost", ["x"], ["x_gpu"], name="Memcpy_token_1"),
            helper.make_node("Sin", ["x_gpu"], ["s"], name="sin/Sin/s"),
            helper.make_node("MemcpyToHost", ["s"], ["s_cpu"], name="Memcpy"),
            helper.make_node("Cos", ["s_cpu"], ["c"], name="cos/Cos/c"),
            CHAIN[2],
        ),
        {"Memcpy": ("sin", "inferred"), "Memcpy_token_1": ("sin", "inferred"), "cos/Cos/c": ("cos", "exact")},  # no maker: who reads it
    ),
    "a transposition that took over a name": (
        (
            CHAIN[0],
            helper.make_node("Cos", ["s"], ["c_turned"], name="cos/Cos/c"),
            helper.make_node("Transpose", ["c_turned"], ["c"], name="Transpose_1"),
            CHAIN[2],
        ),
        {"cos/Cos/c": ("cos", "exact"), "Transpose_1": ("cos", "inferred")},
    ),
}


@pytest.mark.parametrize("name", PUT_IN)
def test_what_is_put_in_is_counted_for_the_value_that_it_hands_on(name: str) -> None:
    nodes, expected = PUT_IN[name]
    found = walked(BEFORE, rewritten(BEFORE, *nodes))
    assert {kernel: of(found[kernel]) for kernel in expected} == expected


@pytest.mark.parametrize(
    ("key", "value", "nodes", "confidence"),
    [(INFERRED_KEY, "neighbour", ("cos",), "inferred"), (FX_NODES_KEY, "cos,sin", ("sin", "cos"), "fused")],
)
def test_labels_that_are_inferred_or_name_several_nodes(key: str, value: str, nodes: tuple[str, ...], confidence: str) -> None:
    labelled = made("Cos", ["s"], "c", "cos")
    labelled.metadata_props.add(key=key, value=value)
    before = model([CHAIN[0], labelled, CHAIN[2]], "n", {"x": [4], "n": [4]})
    origin = walked(before, before)["cos/Cos/c"]
    assert (*of(origin), origin.nodes) == ("cos", confidence, nodes)


def test_what_is_labelled_with_an_input_is_counted_for_who_reads_it() -> None:
    found = kernel_origins.origins(BEFORE, BEFORE, {"sin/Sin/s": "Sin"}, ["cos", "neg"])  # sin is no node of the partition
    assert of(found["sin/Sin/s"]) == ("cos", "inferred")


def test_without_an_optimised_model_names_lead_back() -> None:
    kernels = {"sin/Sin/s": "Sin", "cos/Cos/c/SomeFusion/": "Fused", "Provider_123_graph_0": "Compiled"}
    found = kernel_origins.origins(BEFORE, None, kernels, ["sin", "cos", "neg"])
    assert [of(origin) for origin in found.values()] == [("sin", "exact"), ("cos", "inferred"), (None, "none")]
