"""`ortlens explain` of files: ONNX models and programs of torch.export."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import ortlens
from ortlens import cli

DATA = Path(__file__).resolve().parents[2] / "data" / "onnx"
MODEL = str(DATA / "pytorch_torchscript.onnx")
REFERENCE = f"{DATA / 'make_pytorch.py'}:made"


def test_an_onnx_model_needs_no_input_and_is_verified_against_its_module(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["explain", MODEL, "--calls", "2", "--profile", "-o", str(tmp_path / "run.ortlens")]) == 0
    said = capsys.readouterr().out
    assert said.startswith("pytorch_torchscript.onnx: ONNX model in onnxruntime")
    assert "Kernels" in said
    assert not ortlens.load(tmp_path / "run.ortlens").kernels.empty
    assert cli.main(["explain", MODEL, "--calls", "1", "--json", "--input", "x=f32[2,3,8,8]:-1:1"]) == 0
    assert json.loads(capsys.readouterr().out)["onnx"]["inputs"] == "x=f32[2,3,8,8]"
    assert cli.main(["explain", MODEL, "--calls", "1", "--verify", "--reference", REFERENCE]) == 0
    assert "verified" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([MODEL, "--verify"], "needs the PyTorch module that it was made from: --reference MODULE:NAME"),
        ([MODEL, "--backend", "eager"], "an ONNX model is run as it is"),
        (["missing.onnx"], "missing.onnx does not exist"),
        (["missing.pt2"], "there is no file 'missing.pt2'"),
        ([MODEL, "--input", "x=i64[2,3,8,8]"], "'x' is int64, and the model takes f32[2,3,8,8]"),
        ([MODEL, "--input", "x=bf16[2,3,8,8]"], "bf16 has no numpy type"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", *options]) == 2
    assert message in capsys.readouterr().err


def test_an_exported_program_is_called_with_its_own_inputs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "program.pt2"
    torch.export.save(torch.export.export(torch.nn.Linear(4, 2).eval(), (torch.ones(3, 4),)), path)
    assert cli.main(["explain", str(path), "--calls", "1"]) == 0
    assert "In ONNX Runtime" in capsys.readouterr().out
    assert cli.main(["explain", str(path), "--calls", "1", "--input", "f32[5]"]) == 2
