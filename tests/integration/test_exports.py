"""Each export of one real capture, read by the tool that it is for."""

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import ortlens
from ortlens.analysis.answers.overview import key_figures
from ortlens.errors import UsageError
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


def test_model_explorer_reads_the_node_data(lens: ortlens.Lens, tmp_path: Path) -> None:
    builder: Any = pytest.importorskip("model_explorer.node_data_builder", reason="not installed: pip install ai-edge-model-explorer")
    dacite: Any = pytest.importorskip("dacite", reason="comes with ai-edge-model-explorer")
    files = [path for path in lens.export(tmp_path, "model-explorer") if path.suffix == ".json"]
    assert {path.name.partition(".")[2] for path in files} == {"kernel_time.json", "share.json", "max_abs.json"}
    for path in files:
        data = json.loads(path.read_text(encoding="utf-8"))
        made = dacite.from_dict(builder.GraphNodeData, data, dacite.Config(strict=True))
        assert json.loads(made.to_json_string())["results"] == data["results"]
        if path.name.endswith("share.json"):
            assert sum(each["value"] for each in data["results"].values()) == pytest.approx(100)


def test_model_explorer_finds_the_nodes_in_the_models(lens: ortlens.Lens, tmp_path: Path) -> None:
    """The ids of nodes are those of the extension that opens ONNX files."""
    onnx_extension: Any = pytest.importorskip("model_explorer_onnx.main", reason="not installed: pip install model-explorer-onnx")
    files = lens.export(tmp_path, "model-explorer")
    adapter = onnx_extension.ONNXAdapter()
    checked = 0
    for path in (path for path in files if path.suffix == ".json"):
        model = tmp_path / "models" / f"{path.name.partition('.')[0]}.onnx"
        ids = {node.id for graph in adapter.convert(str(model), {})["graphs"] for node in graph.nodes}
        keys = set(json.loads(path.read_text(encoding="utf-8"))["results"])
        assert keys <= ids
        checked += len(keys)
    assert checked > 6


def test_a_capture_without_measurements_has_neither_node_data_nor_figures_of_calls(tmp_path: Path) -> None:
    assert not {"call_ns", "speedup", "max_abs", "coverage"} & set(ortlens.Lens().figures())
    with pytest.raises(UsageError, match=r"lens\.profile"):
        ortlens.Lens().export(tmp_path, "model-explorer")


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
