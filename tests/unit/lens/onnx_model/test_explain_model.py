"""`explain("model.onnx")`: records, inputs, views and refusals, against real ONNX Runtime."""

import json
import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto as T
from onnx import helper

import ortlens
from ortlens._process import heap_bytes
from ortlens.analysis.problems.stream import findings_of
from ortlens.backend.basis.options import OrtBackendOptions
from ortlens.errors import SessionError, UsageError
from ortlens.lens.onnx_model.sessions import ACCEPTED
from ortlens.lens.onnx_model.source import source_of
from ortlens.trace.records import Capture
from tests.onnx_models import onnx_model
from tests.unit.analysis.test_findings_rules import CASES

RNG = np.random.default_rng(0)


def small() -> onnx.ModelProto:
    """A convolution with a nameless and a named node, and a symbolic batch."""
    return onnx_model(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3]),
            helper.make_node("Relu", ["c"], ["r"], name="relu"),
            helper.make_node("Flatten", ["r"], ["f"]),
            helper.make_node("MatMul", ["f", "v"], ["y"]),
        ],
        [("x", T.FLOAT, ["batch", 3, 10, 10])],
        [("y", T.FLOAT, ["batch", 5])],
        {"w": RNG.standard_normal((4, 3, 3, 3), np.float32), "v": RNG.standard_normal((256, 5), np.float32)},
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(small(), tmp_path / "small.onnx")
    return tmp_path / "small.onnx"


def test_every_frame_tells_of_the_model(path: Path) -> None:
    x = RNG.standard_normal((2, 3, 10, 10), np.float32)
    lens = ortlens.explain(path, calls=3)(x)

    graph = lens.graphs.iloc[0]
    assert (graph.phase, graph.node_count, graph.coverage, graph.dynamic_shapes, graph["name"]) == ("inference", 4, 1.0, True, "small.onnx")
    assert lens.nodes.node.tolist() == ["Conv_0", "relu", "Flatten_2", "MatMul_3"]
    assert lens.nodes.target.tolist() == ["Conv", "Relu", "Flatten", "MatMul"]
    assert lens.nodes["shape"].tolist()[0] == ("batch", 4, 8, 8)
    assert lens.nodes.dtype.unique().tolist() == ["float32"]
    assert lens.nodes.flops.tolist() == [2 * 2 * 4 * 8 * 8 * 27, 0, 0, 2 * 2 * 5 * 256]
    assert lens.nodes.provider.unique().tolist() == ["CPUExecutionProvider"]
    assert lens.nodes.inputs.tolist()[3] == ("Flatten_2", "v")
    model = lens.models.iloc[0]
    assert (model.opset, model.node_count, model.initializer_bytes) == (18, 4, 4 * (4 * 27 + 256 * 5))
    assert lens.sessions.calls.tolist() == [3]
    assert len(lens.runs) == 3
    assert lens.breaks.empty
    assert lens.fallbacks.empty
    expected = onnxruntime.InferenceSession(str(path)).run(None, {"x": x})[0]
    assert lens.result is not None
    np.testing.assert_array_equal(lens.result["y"], expected)


def test_every_form_of_a_model_gives_the_same(path: Path) -> None:
    forms: list[Any] = [str(path), path.read_bytes(), onnx.load(path)]
    for form in forms:
        lens = ortlens.explain(form, calls=1)(x=np.ones((1, 3, 10, 10), np.float32))
        assert lens.nodes.target.tolist() == ["Conv", "Relu", "Flatten", "MatMul"]
    assert forms[-1] == onnx.load(path)


@pytest.mark.skipif(heap_bytes() is None, reason="the C library does not tell what it holds")
def test_weights_are_freed_once_a_model_is_read(tmp_path: Path) -> None:
    weights = {"w": np.ones((1 << 12, 1 << 11), np.float32)}
    ends = [("x", T.FLOAT, [1, 1 << 12])], [("y", T.FLOAT, [1, 1 << 11])]
    onnx.save(onnx_model([helper.make_node("MatMul", ["x", "w"], ["y"])], *ends, weights), tmp_path / "large.onnx")
    before = heap_bytes() or 0
    source = source_of(tmp_path / "large.onnx")
    assert source.constant_bytes == 1 << 25
    assert (heap_bytes() or 0) - before < 1 << 22


def test_kernels_lead_back_to_nodes_and_views_and_files_work(path: Path, tmp_path: Path) -> None:
    lens = ortlens.explain(path, calls=5)()
    text = lens.summary()
    assert text.startswith("small.onnx: ONNX model in onnxruntime")
    assert "x=f32[1,3,10,10] (random numbers, batch=1)" in text
    for word in ("torch", "Graph breaks", "Recompiles", "Partitions"):
        assert word not in text
        assert word not in lens._repr_html_().partition("<table")[0]
    assert repr(lens) == "<OnnxLens 'small.onnx': ONNX model of 4 nodes, 5 calls>"
    kernels = lens.profile(repeat=3)
    conv = kernels[kernels.op_type == "Conv"].iloc[0]
    assert conv.onnx_nodes == ("Conv_0", "relu")
    assert conv.node == "Conv_0"
    assert kernels.provider.unique().tolist() == ["CPUExecutionProvider"]
    assert float(kernels.share.sum()) == pytest.approx(1.0)
    assert int(kernels.total_ns.sum()) > 0
    assert "fused" in lens.fusions().change.tolist()
    assert lens.models.optimized_node_count.notna().all()
    assert "Optimiser" in lens.summary()
    saved = ortlens.load(lens.save(tmp_path / "small.ortlens"))
    assert saved.summary().split("Model  ")[1] == lens.summary().split("Model  ")[1]  # what to type for the rest is another
    assert lens.report(tmp_path / "small.html").stat().st_size > 10_000
    assert "m0" in repr(lens.netron("m0"))
    assert "m0.optimized" in repr(lens.netron("p0", optimized=True))
    assert not lens.compare(saved).is_worse
    assert lens.check(max_breaks=0, min_coverage=1.0).verdict.tolist() == ["passed", "passed"]
    assert lens.memory().weight_bytes.notna().all()


def test_a_dry_run_makes_no_session(path: Path) -> None:
    lens = ortlens.explain(path, dry_run=True)()
    assert lens.session is None
    assert lens.sessions.empty
    assert lens.nodes.flops.tolist()[0] == 2 * 4 * 8 * 8 * 27
    assert "dry run" in lens.summary()
    with pytest.raises(UsageError, match="dry run"):
        lens.profile()


def test_a_model_is_explained_without_torch(path: Path, run_python: Callable[..., str]) -> None:
    code = (
        "import sys, ortlens\n"
        f"lens = ortlens.explain({str(path)!r}, calls=1)()\n"
        "lens.summary(); lens.findings\n"
        "sys.exit('torch' in sys.modules)"
    )
    run_python(code)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"args": (1, 2)}, "2 inputs were given, and the model takes 1"),
        ({"kwargs": {"x1": 1}}, r"no input 'x1'\. Did you mean x\?"),
        ({"kwargs": {"x": np.ones((1, 3, 10, 10))}}, r"float64, and the model takes f32\[batch,3,10,10\]"),
        ({"args": (None,)}, "is None"),
        ({"args": ("text",)}, "'x' is str"),
        ({"args": (np.ones((1, 3, 9, 9), np.float32),)}, r"cannot run small.onnx with x=f32\[1,3,9,9\]"),
    ],
)
def test_wrong_inputs_are_refused_by_name(path: Path, given: dict[str, Any], message: str) -> None:
    explained = ortlens.explain(path, calls=1)
    with pytest.raises((UsageError, SessionError), match=message):
        explained(*given.get("args", ()), **given.get("kwargs", {}))


def test_generated_inputs_find_sizes_that_the_model_takes() -> None:
    fussy = onnx_model(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        [("x", T.FLOAT, ["a", "b"])],
        [("y", T.FLOAT, None)],
        {"shape": np.array([16, 16], np.int64)},
    )
    lens = ortlens.explain(fussy, calls=1)()
    assert lens.captured().environment["onnx_inputs_made"] == "random numbers, a=16, b=16"


def refused(model: Path | onnx.ModelProto) -> str:
    explained = ortlens.explain(model, calls=1)
    with pytest.raises((SessionError, UsageError)) as raised:
        explained()
    return str(raised.value)


def test_what_onnx_runtime_cannot_load_is_refused_with_what_to_do() -> None:
    ends = [("x", T.FLOAT, [2])], [("y", T.FLOAT, [2])]
    strange = onnx_model([helper.make_node("Turn", ["x"], ["y"], domain="com.acme")], *ends, domains=("com.acme",))
    assert re.search(r"com\.acme::Turn.*register_custom_ops_library", refused(strange), re.DOTALL)
    new = small()
    new.ir_version = 99
    assert re.search("IR version 99.*Upgrade onnxruntime", refused(new), re.DOTALL)


def test_a_rewrite_that_breaks_a_model_is_named_and_can_be_disabled() -> None:
    nodes = [helper.make_node("Identity", ["x"], ["kept"]), helper.make_node("Div", ["one", "x"], ["q"])]
    model = onnx_model(
        [*nodes, helper.make_node("Mul", ["kept", "q"], ["y"])], [("x", T.FLOAT, [2])], [("y", T.FLOAT, [2])], {"one": np.float32(1)}
    )
    x = np.array([1, 2], np.float32)
    with pytest.raises(SessionError, match="rewrite DivMulFusion breaks the model") as refused:
        ortlens.explain(model)(x)
    (entry,) = re.findall(r"options\.add_session_config_entry\((.*?)\)", str(refused.value))
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(*json.loads(f"[{entry}]"))
    result = ortlens.explain(model, calls=1, options={"ort_session_options": options})(x).result
    assert result is not None
    assert result["y"].tolist() == [1, 1]


def test_missing_external_data_is_named(path: Path) -> None:
    onnx.save(small(), path, save_as_external_data=True, location="weights.data", size_threshold=0)
    lens = ortlens.explain(path, calls=1)()
    assert lens.models.initializer_bytes.tolist() == [4 * (4 * 27 + 256 * 5)]
    (path.parent / "weights.data").unlink()
    assert "its weights lie in other files beside" in refused(path)


def test_damaged_files_are_refused(path: Path) -> None:
    whole = path.read_bytes()
    for damaged in (b"not a model", b"", whole[: len(whole) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match="not an ONNX model"):
            ortlens.explain(path)
    for missing, message in ((path.parent / "no.onnx", r"no\.onnx does not exist"), (path.parent, "is a folder")):
        with pytest.raises(UsageError, match=message):
            ortlens.explain(missing)


def test_options_without_effect_are_refused(path: Path) -> None:
    with pytest.raises(UsageError, match="'min_partition_nodes' has no effect on an ONNX model"):
        ortlens.explain(path, options={"min_partition_nodes": 2})
    with pytest.raises(UsageError, match="NoSuchProvider"):
        ortlens.explain(path, options={"preferred_execution_providers": ["NoSuchProvider"]})


def test_the_users_session_options_are_used_and_kept(path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    lens = ortlens.explain(path, calls=1, options={"ort_session_options": options})()
    lens.profile(repeat=1)
    assert lens.sessions.threads.tolist() == [1]
    assert lens.kernels.op_type.tolist() == ["Conv", "Relu", "Flatten", "MatMul"]
    assert not options.enable_profiling
    assert not options.optimized_model_filepath


def ending_in(element: int) -> onnx.ModelProto:
    """A model of one operator whose output has an element type."""
    node = helper.make_node("Cast", ["x"], ["y"], to=element)
    if element != T.BFLOAT16:
        node = helper.make_node("QuantizeLinear", ["x", "scale"], ["y"], output_dtype=element)
    return onnx_model([node], [("x", T.FLOAT, [4])], [("y", element, [4])], {"scale": np.float32(0.5)}, opset=21)


@pytest.mark.parametrize("element", [T.BFLOAT16, T.INT4])
def test_outputs_that_numpy_has_no_type_for_are_no_failure_and_bfloat16_is_compared(element: int) -> None:
    import torch

    lens = ortlens.explain(ending_in(element))()
    assert list(lens.result or ()) == ["y"]
    assert len(lens.profile()) == 1
    if element == T.BFLOAT16:
        assert lens.verify(torch.Tensor.bfloat16).ok.tolist() == [True]
        assert lens.verify(lambda x: x.bfloat16() + 1).ok.tolist() == [False]


def recorded_of_a_model(capture: Capture) -> Capture:
    """The same as the lens of an ONNX model records it: one graph, partition and session, without what it never measures."""
    none: dict[str, Any] = dict.fromkeys(
        ("integer_bytes", "copied_bytes", "shareable_bytes", "arena_bytes", "kept_bytes", "table_bytes", "cuda_graph")
    )
    empty: dict[str, Any] = dict.fromkeys(("fallbacks", "breaks", "recompiles", "ledger", "steps"), ())
    return replace(
        capture,
        environment={**capture.environment, "onnx_model": "file"},
        figures=replace(capture.figures, peak_bytes=None),
        graphs=tuple(replace(row, phase="inference", convert_ns=None, optimize_ns=None) for row in capture.graphs[:1]),
        partitions=tuple(replace(row, weight_bytes=1, ort_ns=None, torch_ns=None) for row in capture.partitions[:1]),
        sessions=tuple(replace(row, frozen_bytes=1, cause="first", **none) for row in capture.sessions[:1]),
        runs=tuple(replace(row, bind_ns=0, output_ns=0) for row in capture.runs),
        **empty,
    )


def quantised(bits: int, **level: Any) -> onnx.ModelProto:  # noqa: ANN401 - attributes of a node
    weights = np.zeros((2, 1, 32 * bits // 8), np.uint8)
    node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=32, N=2, bits=bits, block_size=32, **level)
    made = onnx_model([node], [("x", T.FLOAT, [1, 32])], [("y", T.FLOAT, [1, 2])], {"w": weights, "s": np.ones(2, np.float32)})
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return made


ZEROS = onnx_model(
    [helper.make_node("Sub", ["x", "x"], ["zero"]), helper.make_node("Div", ["zero", "zero"], ["y"])],
    [("x", T.FLOAT16, [2])],
    [("y", T.FLOAT16, [2])],
    {},
)


@pytest.mark.parametrize(
    ("model", "value", "rules"),
    [
        (quantised(4), 1.0, ["no_accuracy_level"]),
        (quantised(8, accuracy_level=0), 1.0, ["no_accuracy_level"]),
        (quantised(8, accuracy_level=4), 1.0, []),
        (ZEROS, 1.0, ["all_nan"]),
        (ZEROS, np.nan, []),  # as the inputs have it
    ],
)
def test_what_a_model_does_to_its_numbers_is_said(model: onnx.ModelProto, value: float, rules: list[str]) -> None:
    x = np.full((1, 32), value, np.float32) if model is not ZEROS else np.full(2, value, np.float16)
    assert [finding.rule for finding in ortlens.explain(model)(x).captured().findings] == rules


def test_no_advice_on_a_model_names_what_is_refused_there() -> None:
    refused = {field.name for field in fields(OrtBackendOptions)} - {*ACCEPTED}
    models = [recorded_of_a_model(fires) for _, fires, *_ in CASES if fires.sessions]
    advised = {(item.rule, item.mitigation, item.settings) for model in models for item in findings_of(model)}
    named = {rule: refused & {*re.findall(r"\w+", said)} for rule, said, settings in advised}
    assert {rule: names for rule, names in named.items() if names} == {}
    assert [rule for rule, said, settings in advised if "torch." in f"{settings} {said}" or "model.float" in said] == []
    assert {rule for rule, *_ in advised} >= {"float64_nodes", "float16_nodes", "device_idle", "too_many_threads"}
