"""Each export of one real capture, read by the tool that it is for."""

import dataclasses
import io
import json
from pathlib import Path

import pandas as pd
import pytest
import torch

import ortlens
from ortlens.analysis.answers.overview import key_figures
from ortlens.trace.records import Capture
from ortlens.trace.schema import TABLES, facts_of
from tests.facts import head

X = torch.linspace(-1, 1, 32).reshape(4, 8)


@pytest.fixture(scope="module")
def lens() -> ortlens.Lens:
    """Two graphs at a break; in the second, two partitions with an operator in PyTorch between them. Profiled and verified."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(8, 8)

    def model(x: torch.Tensor) -> torch.Tensor:
        y = layer(x).relu()
        torch._dynamo.graph_break()
        values = torch.fft.fft(torch.sin(y + 1)).abs()
        result: torch.Tensor = values * 2 + torch.tanh(values)
        return result

    with torch.no_grad():
        made = ortlens.explain(model, calls=8)(X)
        made.profile(X)
        made.verify(X)
    return made


@pytest.fixture(scope="module")
def capture(lens: ortlens.Lens) -> Capture:
    return lens.captured()


def test_pandas_writes_the_frames_as_parquet_and_reads_them_back(lens: ortlens.Lens) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install pyarrow")
    for name in TABLES:
        frame = getattr(lens, name)
        read = pd.read_parquet(io.BytesIO(frame.to_parquet()))
        assert read.dtypes.equals(frame.dtypes), name
        assert len(read) == len(frame)


def test_the_trace_names_what_happened(lens: ortlens.Lens, capture: Capture, tmp_path: Path) -> None:
    (file,) = lens.export(tmp_path, "trace")
    events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    names = {
        category: [each["name"] for each in slices if each.get("cat") == category] for category in {each.get("cat") for each in slices}
    }
    calls = len(capture.runs) // 3
    assert len(names["call"]) == len(capture.runs)
    assert set(names["part"]) == {"bind", "run", "output"}
    assert names["break"] == ["graph break b0"] * calls
    assert names["eager"] == ["PyTorch: aten._fft_r2c.default, aten.abs.default"] * calls
    assert names["graph"] == ["graph g1"] * calls
    assert len(names["profiled"]) == calls * len(capture.kernels)
    assert len(names["compile"]) == len(capture.graphs)
    assert {"tracing", "converting to ONNX", "loading sessions"} <= set(names["phase"])
    processes = {event["pid"] for event in events if event["name"] == "process_name" and event["args"]["name"].startswith("kernels")}
    sessions = {kernel.session_id for kernel in capture.kernels}
    assert sum(each["pid"] in processes for each in slices) == len(sessions) + len(capture.kernels)


def test_a_capture_without_measurements_has_no_figures_of_calls() -> None:
    assert not {"call_ns", "speedup", "max_abs", "coverage"} & set(ortlens.Lens().figures())


def test_figures_are_plain_numbers_of_what_was_measured(lens: ortlens.Lens, capture: Capture) -> None:
    figures = lens.figures()
    assert all(type(value) in (int, float) for value in figures.values())
    assert (figures["graphs"], figures["breaks"], figures["partitions"], figures["values_that_differ"]) == (2, 1, 3, 0)
    assert 0 < figures["coverage"] < 1
    assert figures["coverage"] == figures["nodes_in_ort"] / figures["nodes"]
    assert 0 < figures["ort_ns"] < figures["call_ns"]
    timed = dataclasses.replace(capture, **head({**facts_of(capture), "uncompiled_ns": "7000000"}))
    assert key_figures(timed)["speedup"] == pytest.approx(7_000_000 / figures["call_ns"])
    assert 0 <= figures["max_abs"] < 1e-5
