"""ONNX files of several exporters: explained as they are, with the results of ONNX Runtime, or refused with a reason."""

import runpy
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest
import torch
from onnx import TensorProto as T
from onnx import helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases
from onnxruntime import quantization
from torch import nn

import ortlens
from ortlens.analysis.answers.verdict import correct_verdict
from ortlens.errors import OrtLensError, SessionError, UsageError
from tests.onnx_models import onnx_model, product

DATA = Path(__file__).resolve().parents[1] / "data" / "onnx"
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


@pytest.fixture(scope="module")
def net() -> nn.Module:
    module: nn.Module = runpy.run_path(str(DATA / "make_pytorch.py"))["made"]()
    return module


X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def same_as_onnx_runtime(lens: ortlens.OnnxLens, model: str | bytes, feed: Mapping[str, Any]) -> None:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    assert lens.result is not None
    for output, expected in zip(lens.result.values(), session.run(None, dict(feed)), strict=True):
        assert_same(output, expected)


def assert_same(found: object, expected: object) -> None:
    if isinstance(expected, list):
        assert isinstance(found, list)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(found, expected)
    else:
        assert found == expected


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_models_of_both_exporters_of_pytorch_name_its_modules(exporter: str, net: nn.Module) -> None:
    exported = DATA / f"pytorch_{exporter}.onnx"
    lens = ortlens.explain(exported, calls=2)(X)
    modules = dict(zip(lens.nodes.target, lens.nodes.module, strict=True))
    assert modules["Conv"] == "body.0"
    assert modules["Gemm"] == "head"
    if exporter == "dynamo":
        conv = lens.nodes[lens.nodes.target == "Conv"].iloc[0]
        assert conv.file == "make_pytorch.py"
        assert "self.body(x)" in conv.source
        assert conv.module_type == "Conv2d"
    lens.profile(repeat=2)
    assert "body.0" in lens.kernels.module.tolist()
    rows = lens.verify(net)
    assert rows.ok.tolist() == [True] * 4
    assert rows.scope.tolist() == ["call"] + ["value"] * 3
    captured = lens.captured()
    assert correct_verdict(captured) == "verified"
    assert lens.check(max_abs_err=1e-3).verdict.tolist() == ["passed"]


def test_a_wrong_weight_is_found_against_pytorch_and_a_reference_that_does_not_fit_is_refused(net: nn.Module) -> None:
    model = onnx.load(DATA / "pytorch_dynamo.onnx")
    bias = next(tensor for tensor in model.graph.initializer if tuple(tensor.dims) == (5,))
    values = numpy_helper.to_array(bias).copy()
    values[3] += 0.01
    bias.CopyFrom(numpy_helper.from_array(values, bias.name))
    lens = ortlens.explain(model, calls=1, name="planted")(X)
    rows = lens.verify(net)
    assert rows.ok.tolist() == [False, True, True, True]
    assert 1e-4 < float(rows.max_abs.iloc[0]) < 1e-2
    finding = lens.findings[lens.findings.rule == "call_differs"].iloc[0]
    assert finding.severity == "error"
    assert "differs from PyTorch's: by up to" in finding.title
    assert "WRONG RESULTS" in lens.summary()
    lens.verify(net, atol=0.1)  # within what the user allows, and the finding goes
    assert "call_differs" not in lens.findings.rule.tolist()
    with pytest.raises(UsageError, match="returns 2 tensors"):
        lens.verify(lambda x: (net(x), x))
    with pytest.raises(UsageError, match="calling Linear with the model's inputs failed"):
        lens.verify(nn.Linear(3, 3))


NORM = nn.BatchNorm1d(4)


@pytest.mark.parametrize(("layers", "right"), [((NORM, nn.Dropout(0.5)), None), ((NORM,), False)])
def test_a_module_in_training_mode_is_not_called_right_and_stays(layers: tuple[nn.Module, ...], right: object) -> None:
    """A mask that differs from itself has no verdict; statistics of the batch, which are the same each time, are another result."""
    module, x = nn.Sequential(*layers).train(), torch.randn(3, 4)
    weights = {name: np.full(4, value, np.float32) for name, value in (("w", 1), ("b", 0), ("m", 0), ("v", 1))}
    before, after = ([(name, T.FLOAT, [3, 4])] for name in "xy")
    model = onnx_model([helper.make_node("BatchNormalization", ["x", *weights], ["y"])], before, after, weights)
    lens = ortlens.explain(model, calls=1)(x)
    NORM.reset_running_stats()
    state, random = {name: value.clone() for name, value in module.state_dict().items()}, torch.get_rng_state()
    rows = lens.verify(module)
    assert [None if pd.isna(ok) else ok for ok in rows.ok] == [right]
    assert rows.max_abs.iloc[0] > 1e-3
    assert ("call_differs" in lens.findings.rule.tolist()) is (right is False)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
    assert module.training
    assert lens.verify(module.eval()).ok.tolist() == [True]


def cast_to(*elements: str) -> onnx.ModelProto:
    kinds = {element.lower(): getattr(T, element) for element in elements}
    nodes = [helper.make_node("Cast", ["x"], [name], to=kind) for name, kind in kinds.items()]
    return onnx_model(nodes, [("x", T.FLOAT, [2, 4])], [(name, kind, [2, 4]) for name, kind in kinds.items()], opset=21)


ELEMENTS = (
    *("BOOL", "BFLOAT16", "FLOAT16", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "DOUBLE"),
    *("FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT8E4M3FNUZ", "FLOAT8E5M2FNUZ"),
)


def test_every_element_type_of_pytorch_is_compared_and_others_have_no_verdict() -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    dtypes = [getattr(torch, element.lower().replace("8e", "8_e")) for element in ELEMENTS]
    lens = ortlens.explain(cast_to(*ELEMENTS), calls=1)(x)
    for by in (0, 1):
        assert lens.verify(lambda x, by=by: [(x + by).to(dtype) for dtype in dtypes]).ok.tolist() == [by == 0] * len(ELEMENTS)
    assert not lens.profile(repeat=1).empty
    rows = ortlens.explain(cast_to("INT4", "UINT4", "STRING"), calls=1)(np.ones((2, 4), np.float32)).verify(lambda _: ())
    assert rows.ok.isna().tolist() == [True] * 3
    assert all(element in note for element, note in zip(("int4", "uint4", "string"), rows.note, strict=True))


def test_tensors_of_a_sequence_are_compared_one_by_one() -> None:
    of = helper.make_sequence_type_proto(helper.make_tensor_type_proto(T.FLOAT, [2]))
    x, y = ([helper.make_value_info(name, of)] for name in "xy")
    model = onnx_model([helper.make_node("Identity", ["x"], ["y"])], x, y, opset=21)
    rows = ortlens.explain(model, calls=1)([np.ones(2, np.float32)] * 2).verify(lambda x: [x[0], x[1] + 1])
    assert dict(zip(rows.node, rows.ok, strict=True)) == {"y[0]": True, "y[1]": False}


def test_a_forest_of_scikit_learn_with_maps_among_its_outputs() -> None:
    path = DATA / "sklearn_forest.onnx"
    x = np.array([[5.1, 3.5, 1.4, 0.2], [6.7, 3.0, 5.2, 2.3]], np.float32)
    lens = ortlens.explain(path, calls=2)(x)
    assert lens.result is not None
    assert lens.result["output_label"].tolist() == [0, 2]
    assert sum(lens.result["output_probability"][0].values()) == pytest.approx(1.0)
    assert "ai.onnx.ml::TreeEnsembleClassifier" in lens.nodes.target.tolist()
    assert not lens.profile(repeat=2).empty


def test_a_pipeline_of_scikit_learn_with_text() -> None:
    path = DATA / "sklearn_pipeline.onnx"
    feed = {f"n{place}": np.ones((2, 1), np.float32) for place in range(4)} | {"colour": np.array([["red"], ["blue"]], dtype=object)}
    same_as_onnx_runtime(ortlens.explain(path, calls=1)(**feed), str(path), feed)
    explained = ortlens.explain(path, calls=1)
    with pytest.raises(SessionError, match=r"Unknown Category.*give them: n0=f32\[\?,1\].*colour=str"):
        explained()  # no text that is made up is a colour


CONTROL = {"if", "if_seq", "loop11", "loop13_seq", "loop16_seq_none", "scan9_sum", "sequence_map_identity_1_sequence"}


@pytest.mark.parametrize("name", [*sorted(CONTROL), "sequence_insert_at_front", "string_concat"])
def test_models_of_onnx_itself(name: str) -> None:
    path = DATA / f"onnx_{name}.onnx"
    lens = ortlens.explain(path, calls=2)()
    same_as_onnx_runtime(lens, str(path), lens.inputs)
    if name in CONTROL:
        assert len(lens.nodes) > len(onnx.load(path).graph.node) - (name == "sequence_map_identity_1_sequence")  # with those of the bodies
    lens.profile(repeat=2)
    assert lens.kernels.total_ns.ge(0).all()
    assert lens.summary()


def _static(source: Path, target: Path) -> None:
    samples = iter([{"x": np.random.default_rng(1).standard_normal((4, 32)).astype(np.float32)}])
    reader = SimpleNamespace(get_next=lambda: next(samples, None))
    quantization.quantize_static(source, target, reader, quant_format=quantization.QuantFormat.QDQ)


@pytest.mark.parametrize("quantize", [quantization.quantize_dynamic, _static])
def test_quantised_models(quantize: Callable[[Path, Path], None], tmp_path: Path) -> None:
    source, target = tmp_path / "product.onnx", tmp_path / "quantised.onnx"
    onnx.save(product(), source)
    quantize(source, target)
    x = np.ones((3, 32), np.float32)
    lens = ortlens.explain(target, calls=2)(x)
    same_as_onnx_runtime(lens, str(target), {"x": x})
    lens.profile(repeat=2)
    assert any(op in " ".join(lens.kernels.op_type) for op in ("MatMulInteger", "QLinearMatMul", "DynamicQuantizeMatMul", "QGemm"))
    assert int(lens.nodes.flops.sum()) == 2 * 3 * 32 * 16


def test_an_old_model_whose_initializers_are_inputs() -> None:
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["g"]), helper.make_node("Dropout", ["g"], ["y"])]
    inputs = [("x", T.FLOAT, [1, 4]), ("w", T.FLOAT, [4, 2]), ("b", T.FLOAT, [2])]
    constants = {"w": np.ones((4, 2), np.float32), "b": np.zeros(2, np.float32)}
    lens = ortlens.explain(onnx_model(nodes, inputs, [("y", T.FLOAT, [1, 2])], constants, opset=7, ir_version=3), calls=1)()
    assert lens.models.opset.tolist() == [7]
    assert lens.partitions.input_count.tolist() == [1]
    assert lens.graphs.weights.iloc[0] == ("w", "b")


@pytest.mark.skipif(not (LIGHT / "light_squeezenet.onnx").is_file(), reason="onnx was installed without its test models")
def test_a_network_that_caffe2_exported() -> None:
    lens = ortlens.explain(LIGHT / "light_squeezenet.onnx", calls=2)()
    assert lens.models.opset.iloc[0] <= 9
    assert lens.nodes.target.value_counts()["Conv"] == 26
    assert int(lens.nodes.flops.sum()) > 500_000_000
    lens.profile(repeat=2)
    conv = lens.kernels[lens.kernels.op_type.str.contains("Conv")]
    assert conv.node.notna().all()


def test_a_model_with_the_layout_of_tensorflow() -> None:
    weight = np.random.default_rng(0).standard_normal((8, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Transpose", ["image:0"], ["nchw"], name="model/conv/Conv2D__6", perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["nchw", "w"], ["conv"], name="model/conv/Conv2D", kernel_shape=[3, 3]),
        helper.make_node("Relu", ["conv"], ["relu"], name="model/conv/Relu"),
        helper.make_node("Transpose", ["relu"], ["Identity:0"], name="model/conv/Relu__11", perm=[0, 2, 3, 1]),
    ]
    ends = [("image:0", T.FLOAT, ["unk__12", 16, 16, 3])], [("Identity:0", T.FLOAT, None)]
    model = onnx_model(nodes, *ends, {"w": weight}, opset=9, ir_version=4, producer_name="tf2onnx")
    x = np.ones((2, 16, 16, 3), np.float32)
    lens = ortlens.explain(model, calls=2)({"image:0": x})
    same_as_onnx_runtime(lens, model.SerializeToString(), {"image:0": x})
    assert lens.captured().environment["onnx_producer"] == "tf2onnx"
    assert lens.profile(repeat=2).node.notna().all()


def test_what_runs_beside_the_preferred_provider_is_placed_with_a_reason() -> None:
    if "AzureExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("this build of ONNX Runtime has one execution provider")
    lens = ortlens.explain(product(), calls=1, options={"preferred_execution_providers": ["AzureExecutionProvider"]})()
    lens.profile(repeat=1)
    assert lens.sessions.providers.iloc[0] == ("AzureExecutionProvider", "CPUExecutionProvider")
    assert lens.nodes.provider.tolist() == ["CPUExecutionProvider", "CPUExecutionProvider"]
    assert lens.nodes.reason.str.startswith("AzureExecutionProvider").all()
    assert "Azure: 0 of 2 nodes; CPU: 2; AzureExecutionProvider" in lens.summary()
    assert "kernels_on_cpu" in lens.findings.rule.tolist()


def test_a_provider_that_was_asked_for_and_not_registered_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    if "AzureExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("this build of ONNX Runtime has one execution provider")
    # What ONNX Runtime does, without an error, where a library is missing or the provider is a plugin.
    monkeypatch.setattr(onnxruntime.InferenceSession, "get_providers", lambda _: ["CPUExecutionProvider"])
    lens = ortlens.explain(product(), calls=1, options={"preferred_execution_providers": ["AzureExecutionProvider"]})()
    assert lens.sessions.providers.iloc[0] == ("CPUExecutionProvider",)
    assert "provider_fallback" in lens.findings.rule.tolist()


def test_devices_in_the_session_options_are_not_overridden() -> None:
    options = onnxruntime.SessionOptions()
    options.add_provider_for_devices([device for device in onnxruntime.get_ep_devices() if device.ep_name == "CPUExecutionProvider"], {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # ONNX Runtime warns where providers are passed as well
        lens = ortlens.explain(product(), calls=1, options={"ort_session_options": options})()
    assert lens.sessions.providers.iloc[0] == ("CPUExecutionProvider",)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # onnx computes its cases when they are collected
def test_every_model_of_onnx_is_explained_or_refused_as_onnx_runtime_does() -> None:
    """The lens refuses what ONNX Runtime refuses and nothing else, and gives its results; every third model."""
    explained, wrong = 0, []
    for case in collect_testcases(None)[::3]:
        name, model = case.name, case.model
        assert model is not None
        assert case.data_sets is not None
        inputs, _ = case.data_sets[0]
        values = [numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value for value in inputs]
        feed = dict(zip([value.name for value in model.graph.input], values, strict=False))
        try:
            lens = ortlens.explain(model, calls=1)(*inputs)
        except OrtLensError as error:
            if not isinstance(error, SessionError) and _runs(model, feed):
                wrong.append(f"{name}: {error}")
            continue
        explained += 1
        if not _runs(model, lens.inputs):  # types that numpy does not have: `run` takes no values of them
            continue
        try:
            same_as_onnx_runtime(lens, model.SerializeToString(), lens.inputs)
        except AssertionError as error:
            if "rand" not in name and "dropout" not in name and "bernoulli" not in name:
                wrong.append(f"{name}: {str(error)[:200]}")
    assert not wrong
    assert explained > 430


def _runs(model: onnx.ModelProto, feed: Mapping[str, Any]) -> bool:
    try:
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, dict(feed))
    except Exception:  # noqa: BLE001 - ONNX Runtime's own classes
        return False
    return True


@pytest.mark.slow
def test_a_model_of_more_than_two_gigabytes_is_read_by_its_path(tmp_path: Path) -> None:
    rows, width = 600_000, 1024  # 2.4 GB
    table = T(name="table", data_type=T.FLOAT, dims=[rows, width], data_location=T.EXTERNAL)
    table.external_data.add(key="location", value="table.bin")
    with (tmp_path / "table.bin").open("wb") as file:
        file.truncate(4 * rows * width)  # a sparse file of zeros
    nodes = [helper.make_node("Gather", ["table", "ids"], ["y"], name="lookup")]
    model = onnx_model(nodes, [("ids", T.INT64, ["n"])], [("y", T.FLOAT, ["n", width])])
    model.graph.initializer.append(table)
    (tmp_path / "large.onnx").write_bytes(model.SerializeToString())
    lens = ortlens.explain(tmp_path / "large.onnx", calls=2)(np.array([1, rows - 1]))
    assert lens.models.initializer_bytes.tolist() == [4 * rows * width]
    lens.profile(repeat=1)
    assert lens.kernels.node.tolist() == ["lookup"]
    assert lens.save(tmp_path / "large.ortlens").stat().st_size < 100_000


def chosen(x: torch.Tensor) -> torch.Tensor:
    """Find the place of the largest element, from sums that float32 cannot tell apart."""
    return ((x + 2.0**25) - 2.0**25).argmax().reshape(1) + 1


def test_a_choice_that_float64_makes_as_the_model_does_is_right() -> None:
    nodes = [helper.make_node("ArgMax", ["x"], ["place"], axis=0), helper.make_node("Add", ["place", "one"], ["y"])]
    model = onnx_model(nodes, [("x", T.FLOAT, [3])], [("y", T.INT64, [1])], {"one": np.ones(1, np.int64)})
    lens = ortlens.explain(model, calls=1)(np.array([1.0, 1.5, 0.5], np.float32))
    assert lens.verify(chosen).ok.tolist() == [True], "PyTorch takes the first, which is not the largest"
    assert lens.verify(lambda x: chosen(x) + 9).ok.tolist() == [False]


def test_a_model_that_differs_from_itself_has_no_verdict() -> None:
    lens = ortlens.explain(onnx_model([helper.make_node("RandomUniform", [], ["y"], shape=[4])], [], [("y", T.FLOAT, [4])]), calls=1)()
    assert lens.verify(lambda: torch.zeros(4)).note.tolist() == ["no verdict: the model's own results differ between two runs"]
    assert lens.findings.empty
