"""Partitions in the log that torch writes with TORCH_TRACE, as tlparse reads it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ortlens
from ortlens import _torch
from ortlens.backend.recording import reporter

# Each starts processes that import torch and compile.
pytestmark = pytest.mark.slow

PROGRAM = """
import torch
def f(x):
    y = torch.sin(x) + 1
    torch._dynamo.graph_break()
    return torch.fft.fft(y).abs().relu()
torch.compile(f, backend="ortlens")(torch.ones(4, 8))
"""
TLPARSE = shutil.which("tlparse") or shutil.which("tlparse", path=str(Path(sys.executable).parent))


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trace")
    (folder / "program.py").write_text(PROGRAM, encoding="utf-8")
    environment = {**os.environ, "TORCH_TRACE": str(folder)}
    subprocess.run([sys.executable, "program.py"], cwd=folder, env=environment, check=True, capture_output=True, timeout=300)
    (log,) = folder.glob("*.log")
    return log


def artifacts_of(log: Path) -> list[tuple[str, dict[str, Any]]]:
    """Compilation and content of each artifact of ours: a line of metadata, then its payload, indented by a tab."""
    found = []
    lines = iter([*log.read_text(encoding="utf-8").splitlines(), ""])
    line = next(lines)
    for following in lines:
        if '"ortlens_partitions"' in line:
            metadata = json.loads(line.partition("] ")[2])
            payload = []
            while following.startswith("\t"):
                payload.append(following[1:])
                following = next(lines)  # noqa: PLW2901 - the payload belongs to the line before it
            found.append((f"{metadata['frame_id']}/{metadata['frame_compile_id']}", json.loads("\n".join(payload))))
        line = following
    return found


def test_each_graph_says_what_runs_where(trace: Path) -> None:
    (first, whole), (second, part) = artifacts_of(trace)
    assert (first, second) == ("0/0", "1/0")
    assert (whole["phase"], whole["in_pytorch"]) == ("inference", [])
    assert [each["operators"] for each in whole["partitions"]] == [{"aten.sin.default": 1, "aten.add.Tensor": 1}]
    assert [each["operators"] for each in part["partitions"]] == [{"aten.relu.default": 1}]
    fft = part["in_pytorch"][0]
    assert (fft["operator"], fft["reason_code"], fft["line"]) == ("aten._fft_r2c.default", "policy", 6)


@pytest.mark.skipif(TLPARSE is None, reason="tlparse is not installed: pip install tlparse")
def test_tlparse_lists_them_under_their_compilation(trace: Path, tmp_path: Path) -> None:
    assert TLPARSE is not None
    out = tmp_path / "out"
    subprocess.run([TLPARSE, str(trace), "-o", str(out), "--no-browser"], check=True, capture_output=True, timeout=120)
    pages = {page.parent.name for page in out.rglob("ortlens_partitions_*.json")}
    assert pages == {"-_0_0_1", "-_1_0_0"}, "the second attempt at frame 0, behind its graph break, and frame 1"
    assert (out / "index.html").read_text(encoding="utf-8").count("ortlens_partitions_") >= 2


QUIET = """
import torch, ortlens
from ortlens.backend.recording import reporter
reporter._described = lambda *_: print("described, though nobody reads it")
lens = ortlens.Lens()  # which listens to the same log
torch.compile(torch.cos, backend="ortlens")(torch.ones(3))
torch.compile(torch.sin, backend=lens)(torch.ones(3))
print(len(lens.graphs))
"""


def test_without_a_trace_nothing_is_described(run_python: Callable[..., str]) -> None:
    """In a process of its own: pytest adds handlers to this log."""
    assert run_python(QUIET) == "1\n"


@pytest.mark.parametrize("broken", ["_described", "trace_artifact"])
def test_a_failure_costs_the_entry_alone_and_is_in_the_capture(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    told: list[object] = []
    monkeypatch.setattr(_torch, "is_traced", lambda: True)
    monkeypatch.setattr(_torch, "trace_artifact", lambda _name, value: told.append(value))
    monkeypatch.setattr(reporter if broken == "_described" else _torch, broken, lambda *_: 1 // 0)
    lens = ortlens.Lens()
    with pytest.warns(RuntimeWarning, match="integer division"):
        given = torch.compile(torch.cos, backend=lens)(torch.zeros(3))
    assert torch.equal(given, torch.ones(3))
    said = "ZeroDivisionError: integer division or modulo by zero"
    assert told == ([{"error": said}] if broken == "_described" else [])
    (finding,) = (row for row in lens.captured().findings if row.rule == "lens_failed")
    assert said in (finding.evidence or "")
    assert "structured trace" in finding.title
