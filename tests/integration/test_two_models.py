"""An ONNX model against the one that it was made from: which values are which, what each part loses, and what helps."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper, parser
from onnxruntime.quantization import QuantFormat, quantize_dynamic, quantize_static
from onnxruntime.transformers.float16 import convert_float_to_float16

import ortlens
from ortlens.errors import OrtLensError

NETWORK = """<ir_version: 8, opset_import: ["": 17]> net (float[2,8,12,12] x) => (float[2,5] y) {
  a = Conv <pads = [1,1,1,1]> (x, wa) b = Relu (a) c = Conv <pads = [1,1,1,1]> (b, wc) d = Add (c, b)
  e = Conv (d, we) f = Relu (e) g = GlobalAveragePool (f) h = Flatten (g) y = Gemm <transB = 1> (h, wy, by)
}"""
SIZES = {"wa": (8, 8, 3, 3), "wc": (8, 8, 3, 3), "we": (6, 8, 3, 3), "wy": (5, 6), "by": (5,)}


def network(path: Path) -> Path:
    """A network with names, and a channel of weights that a scale for the whole tensor does not suit."""
    model, rng = parser.parse_model(NETWORK), np.random.default_rng(0)
    weights = {name: rng.standard_normal(size, np.float32) / 6 for name, size in SIZES.items()}
    weights["we"][0] *= 40
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())
    for node in model.graph.node:
        node.name = f"n_{node.output[0]}"
    onnx.save(model, path)
    return path


def x(seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal((2, 8, 12, 12), np.float32)


def made(form: str, source: Path, left_out: Sequence[str] = ()) -> Path:
    """The network in another form."""
    path = source.with_name(f"{form}.onnx")
    if form in ("QDQ", "QOperator"):
        reader = SimpleNamespace(get_next=iter([*({"x": x(seed)} for seed in range(20, 28)), None]).__next__)
        quantize_static(source, path, reader, quant_format=QuantFormat[form], nodes_to_exclude=list(left_out))
    elif form == "dynamic":
        quantize_dynamic(source, path)
    elif form == "float16":
        onnx.save(convert_float_to_float16(onnx.load(source), keep_io_types=True), path)
    else:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(path)
        onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return path


def verified(model: str | onnx.ModelProto, reference: str | bytes, seed: int = 0) -> ortlens.OnnxLens:
    lens: ortlens.OnnxLens = ortlens.explain(model, calls=1)(x(seed))
    lens.verify(reference)
    return lens


@pytest.mark.parametrize("form", ["QDQ", "QOperator", "dynamic", "float16", "optimised"])
def test_values_are_paired_by_what_they_are(form: str, tmp_path: Path) -> None:
    source = network(tmp_path / "net.onnx")
    lens = verified(str(made(form, source)), str(source))
    rows, output = lens.numerics[lens.numerics.scope == "value"], lens.numerics.iloc[0]
    named = rows[rows.onnx_value.isin(list("abcdefgh"))]
    clipped = {"b": "a", "f": "e"} if form == "QDQ" else {}  # its Conv writes the value of the Relu, which the quantisation replaces
    assert dict(zip(named.onnx_value, named.reference_value, strict=True)) == {name: clipped.get(name, name) for name in named.onnx_value}
    assert set(rows.reference_value) >= ({"d", "y"} if form == "optimised" else {"b", "d", "f", "h", "y"})
    assert rows.own_sqnr_db.min() > (10 if form in ("QDQ", "QOperator", "dynamic") else 50)
    found = output.scope, output.sqnr_db > 15, output.isna().ok, "y_quantized" in set(rows.onnx_value)  # a part of its own
    assert found == ("call", True, form != "optimised", form == "QOperator")
    same = verified(str(source), source.read_bytes())
    assert (bool((same.numerics.sqnr_db == np.inf).all()), same.findings.empty) == (True, True)


@pytest.mark.parametrize(("form", "seed"), [(form, seed) for form in ("QDQ", "QOperator") for seed in range(6)])
def test_a_scale_that_does_not_fit_is_named_first(form: str, seed: int, tmp_path: Path) -> None:
    source, rng = network(tmp_path / "net.onnx"), np.random.default_rng(seed)
    model = onnx.load(made(form, source))
    scales = [tensor for tensor in model.graph.initializer if tensor.name.endswith("_scale") and "bias" not in tensor.name]
    tensor = scales[rng.integers(len(scales))]
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(rng.choice([16, 1 / 16])), tensor.name))
    lens = verified(model, str(source), seed)
    assert (lens.actions.subject[0].split()[:3], lens.findings.rule[0]) == (["The", "scale", tensor.name], "scale_misfit")


@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
def test_nodes_left_out_gain_what_was_said(form: str, tmp_path: Path) -> None:
    source = network(tmp_path / "net.onnx")
    lens = verified(str(made(form, source)), str(source))
    (found,) = (row for row in lens.captured().findings if row.rule == "narrow_nodes")
    before, after = map(float, re.findall(r"([\d.]+) dB", found.title))
    names = json.loads(found.settings[0].partition(" = ")[2])
    assert (before == pytest.approx(lens.numerics.sqnr_db[0], abs=0.1), "n_e" in names) == (True, True)
    assert verified(str(made(form, source, names)), str(source)).numerics.sqnr_db[0] == pytest.approx(after, abs=1)


def test_an_overflow_of_float16_that_only_some_inputs_have_is_named(tmp_path: Path) -> None:
    source = network(tmp_path / "net.onnx")
    lens = verified(str(made("float16", source)), str(source))
    assert not lens.numerics.nonfinite.notna().any()
    lens.verify(str(source), x(0) * 3000)
    (found,) = lens.captured().findings
    assert (found.rule, found.subject, "float16 holds 65,504" in found.title) == ("float16_overflow", "n_e", True)
    assert lens.numerics[lens.numerics.nonfinite == "origin"].sqnr_db.tolist()[0] == -np.inf


def test_a_part_that_another_tool_changed_is_named_by_any_reference(tmp_path: Path) -> None:
    model = onnx.load(network(tmp_path / "net.onnx"))
    weights = next(tensor for tensor in model.graph.initializer if tensor.name == "wc")
    weights.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weights) * np.float32(1.01), "wc"))
    lens = verified(model, str(tmp_path / "net.onnx"))
    (found,) = lens.captured().findings
    assert (found.rule, "begins" not in found.title, "is c, of n_c" in found.title) == ("call_differs", True, True)
    linear, given = torch.nn.Linear(4, 3).eval(), torch.ones(2, 4)
    torch.onnx.export(linear, (given,), tmp_path / "linear.onnx", dynamo=True, verbose=False)
    lens = ortlens.explain(str(tmp_path / "linear.onnx"), calls=1)(given.numpy())
    assert lens.verify(torch.export.export(linear, (given,))).ok.tolist() == lens.verify(linear).ok.tolist() == [True, True]
    for other in (str(tmp_path / "net.onnx"), str(tmp_path / "none.onnx"), 3):
        with pytest.raises(OrtLensError, match=r"cannot run a part of|does not exist|an exported program or an ONNX model"):
            lens.verify(other)
