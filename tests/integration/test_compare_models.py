"""Two ONNX models on the same inputs. Times are not asserted on, but where they are planted."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnxruntime import quantization
from onnxruntime.transformers.float16 import convert_float_to_float16

import ortlens
from ortlens import cli
from ortlens.studies.engine import LocalSide
from tests.answers import answered
from tests.onnx_models import onnx_model

X = np.random.default_rng(0).standard_normal((4, 32)).astype(np.float32)


def saved(path: Path, *, scale: float = 1.0, name: str = "x", outputs: str = "y") -> str:
    drawn = np.random.default_rng(1)
    first, second = (drawn.standard_normal((32, width)).astype(np.float32) for width in (32, 8))
    nodes = [helper.make_node(*each) for each in (("MatMul", [name, "w"], ["m"]), ("Relu", ["m"], ["r"]), ("MatMul", ["r", "v"], ["y"]))]
    ends = [(output, TensorProto.FLOAT, None) for output in outputs]
    onnx.save(onnx_model(nodes, [(name, TensorProto.FLOAT, ["n", 32])], ends, {"w": first, "v": second * scale}), path)
    return str(path)


@pytest.mark.parametrize(("form", "became"), [("QDQ", ("QDQ MatMul", 2)), ("QOperator", ("QLinearMatMul", 1))])
def test_what_was_quantised_has_a_partner(tmp_path: Path, form: str, became: tuple[str, int]) -> None:
    a, b = saved(tmp_path / "a.onnx"), tmp_path / "b.onnx"
    reader = SimpleNamespace(get_next=iter([{"x": X}, None]).__next__)
    quantization.quantize_static(a, b, reader, quant_format=quantization.QuantFormat[form])
    found = ortlens.compare_models(a, b, X, budget_s=0.01)
    assert ("MatMul", *became, "quantised") in found.operators.itertuples(index=False, name=None)
    assert {row.model for row in found.pairs if row.change != "quantised"} == {"QuantizeLinear", "DequantizeLinear"}
    assert 20 < found.numerics.sqnr_db.iloc[0] < 80
    assert (found.times[["file_bytes", "first_ns", "cpu_ns"]] > 1).all(axis=None)
    assert became[0] in found._repr_html_()


def test_other_names_and_types_of_inputs_are_said(tmp_path: Path) -> None:
    a, b = saved(tmp_path / "a.onnx"), saved(tmp_path / "b.onnx", scale=1.01, name="input")
    found = ortlens.compare_models(a, b, x=X, budget_s=0.01)
    assert found.notes == ("the inputs x=f32[4,32] are given as input=f32[4,32]",)
    assert found.numerics.sqnr_db.iloc[0] == pytest.approx(40.0, abs=0.01)
    half = convert_float_to_float16(onnx.load(b), keep_io_types=False)
    assert ortlens.compare_models(a, half, X, budget_s=0.01).notes == ("the inputs x=f32[4,32] are given as input=f16[4,32]",)


def test_limits_for_ci(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, page = saved(tmp_path / "a.onnx"), saved(tmp_path / "b.onnx", scale=1.01), tmp_path / "c.html"
    monkeypatch.setattr(LocalSide, "round", lambda side: 1000 if side.name == "a.onnx" else 2000)
    told = ["--input", "f32[4,32]", "--budget", "0.01"]
    within, beyond = "--min-sqnr=39 --max-slowdown=2.1", "--max-slowdown=1.9"
    for after, limits, code in ((b, "", 0), (b, within, 0), (b, beyond, 1), (a, "--min-sqnr=999", 0)):
        assert cli.main(["compare", a, after, *told, *limits.split(), "--json"]) == code
        assert answered(capsys.readouterr().out)["ok"] is (code == 0)
    assert cli.main(["compare", a, b, *told, "--html", str(page), "--min-sqnr", "41"]) == 1
    assert "FAILED  min_sqnr  worst output: SQNR 40 dB, at least 41 dB asked" in capsys.readouterr().out
    assert "2.00x as long" in page.read_text()


def test_what_cannot_be_compared_is_refused_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = saved(tmp_path / "a.onnx"), saved(tmp_path / "b.onnx", outputs="ym")
    for arguments, says in {
        f"{a} {b}": "2 outputs",
        f"{a} missing.onnx": "missing.onnx does not exist",
        f"{a} run.ortlens": "compare takes two captures, or two ONNX models",
        "a.ortlens b.ortlens --min-sqnr 3": "compare takes two captures, or two ONNX models",
        f"{a} {a} --input f32[4]": "cannot run a.onnx",
        f"{a} {a} --input z=f32[4,32]": "no input 'z'",
    }.items():
        assert cli.main(["compare", *arguments.split()]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert says in line
