"""Each export of one real capture, read by the tool that it is for."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import torch

import ortlens
from ortlens.analysis.key_figures import key_figures
from ortlens.errors import UsageError
from ortlens.trace.frames import frame_from_records
from ortlens.trace.schema import TABLES
from ortlens.views.plain_tables import records_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ortlens.trace.records import Capture

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


# ------------------------------------------------------------------------------------------------------------ Parquet


@pytest.mark.parametrize("name", TABLES)
def test_parquet_gives_pandas_the_same_frame(name: str, lens: ortlens.Lens, capture: Capture, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install pyarrow")
    import pandas as pd

    (file,) = lens.export(tmp_path, "parquet", tables=[name])
    wanted = frame_from_records(TABLES[name], records_of(capture, name))
    read = pd.read_parquet(file)
    assert read.dtypes.astype(str).to_dict() == wanted.dtypes.astype(str).to_dict()
    assert len(read) == len(wanted)
    for column in TABLES[name].columns:
        if column.kind != "tuple":
            pd.testing.assert_series_equal(read[column.name], wanted[column.name])
            continue
        text = len(set(column.items)) > 1
        for one, other in zip(read[column.name], wanted[column.name], strict=True):
            assert (one is None) == (other is None)
            assert one is None or list(one) == [str(item) if text else item for item in other]


def test_parquet_keeps_types_units_and_meanings_without_pandas(lens: ortlens.Lens, tmp_path: Path) -> None:
    parquet: Any = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: pip install pyarrow")
    files = {path.stem: path for path in lens.export(tmp_path, "parquet") if path.suffix == ".parquet"}
    assert set(files) == set(TABLES)
    for name, file in files.items():
        schema = parquet.read_schema(file)
        assert schema.names == [column.name for column in TABLES[name].columns]
        assert not any(str(kind) in ("null", "list<item: null>") for kind in schema.types), name
    field = parquet.read_schema(files["graphs"]).field("compile_ns")
    assert (str(field.type), field.metadata[b"unit"]) == ("int64", b"ns")
    assert str(parquet.read_schema(files["breaks"]).field("hints").type) in ("list<item: string>", "list<element: string>")


# ----------------------------------------------------------------------------------------------------------- Perfetto


@dataclasses.dataclass
class Slice:
    """A slice as a viewer stacks it."""

    name: str
    category: str
    start: int
    end: int
    depth: int
    parent: Slice | None


def stacked(trace: dict[str, Any]) -> dict[tuple[str, str], list[Slice]]:
    """Read a trace by the rules of the Trace Event Format: slices of one track nest or follow each other, never overlap in part."""
    assert set(trace) <= {"traceEvents", "displayTimeUnit", "otherData"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    processes: dict[int, str] = {}
    tracks: dict[tuple[int, int], str] = {}
    complete: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in trace["traceEvents"]:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        if event["ph"] == "M":
            if event["name"] == "process_name":
                processes[event["pid"]] = event["args"]["name"]
            else:
                assert event["name"] == "thread_name"
                tracks[event["pid"], event["tid"]] = event["args"]["name"]
        elif event["ph"] == "i":
            assert event["s"] in ("t", "p", "g")
            assert event["ts"] >= 0
        elif event["ph"] == "C":
            assert event["ts"] >= 0
            assert all(isinstance(value, int) for value in event["args"].values())
        else:
            assert event["ph"] == "X"
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            complete.setdefault((event["pid"], event["tid"]), []).append(event)
    assert set(complete) <= set(tracks), "every track has a name"
    assert {pid for pid, _ in complete} <= set(processes), "every process has a name"
    return {(processes[pid], tracks[pid, tid]): list(_nested(events)) for (pid, tid), events in complete.items()}


def _nested(events: list[dict[str, Any]]) -> Iterator[Slice]:
    open_: list[Slice] = []
    for event in sorted(events, key=lambda event: (round(event["ts"] * 1000), -round(event["dur"] * 1000))):
        start = round(event["ts"] * 1000)
        end = start + round(event["dur"] * 1000)
        while open_ and open_[-1].end <= start:
            open_.pop()
        assert not open_ or end <= open_[-1].end, f"{event['name']} overlaps {open_[-1].name} in part"
        made = Slice(event["name"], event.get("cat", ""), start, end, len(open_), open_[-1] if open_ else None)
        open_.append(made)
        yield made


def test_the_trace_obeys_the_format_and_names_what_happened(lens: ortlens.Lens, capture: Capture, tmp_path: Path) -> None:
    (file,) = lens.export(tmp_path, "trace")
    tracks = stacked(json.loads(file.read_text(encoding="utf-8")))
    slices = [each for own in tracks.values() for each in own]

    def of(category: str) -> list[Slice]:
        return [each for each in slices if each.category == category]

    assert len(of("call")) == len(capture.runs)
    assert {each.name for each in of("part")} == {"bind", "run", "output"}
    assert all(each.parent in of("call") for each in of("part"))
    calls = len(capture.runs) // 3
    assert [each.name for each in of("break")] == ["graph break b0"] * calls
    assert [each.name for each in of("eager")] == ["PyTorch: aten._fft_r2c.default, aten.abs.default"] * calls
    assert all(each.depth == 0 for each in of("break"))
    assert [each.name for each in of("graph")] == ["graph g1"] * calls
    assert all(each.parent in of("graph") for each in of("eager"))
    assert {each.parent.name for each in of("profiled") if each.parent} == {"run"}
    assert len(of("profiled")) == calls * len(capture.kernels)
    assert len(of("compile")) == len(capture.graphs)
    assert {"tracing", "converting to ONNX", "loading sessions"} <= {each.name for each in of("phase")}
    kernels = [own for (process, _), own in tracks.items() if process.startswith("kernels")]
    assert len(kernels) == len({kernel.session_id for kernel in capture.kernels})
    assert sum(map(len, kernels)) == len(kernels) + len(capture.kernels)


@pytest.mark.parametrize("start", [5.0, 25.0])
def test_the_reader_notices_slices_that_overlap(start: float) -> None:
    slices = [{"name": name, "ph": "X", "pid": 1, "tid": 1, "ts": ts, "dur": 10.0} for name, ts in (("a", 0.0), ("b", start))]
    names = [{"name": name, "ph": "M", "pid": 1, "tid": 1, "args": {"name": "x"}} for name in ("process_name", "thread_name")]
    trace = {"traceEvents": [*names, *slices], "displayTimeUnit": "ms"}
    if start < 10:
        with pytest.raises(AssertionError, match="overlaps a in part"):
            stacked(trace)
    else:
        assert len(stacked(trace)["x", "x"]) == 2


@pytest.mark.slow
def test_perfettos_own_trace_processor_reads_it(lens: ortlens.Lens, capture: Capture, tmp_path: Path) -> None:
    api: Any = pytest.importorskip("perfetto.trace_processor", reason="perfetto is not installed: pip install perfetto")
    (file,) = lens.export(tmp_path, "trace")
    try:
        processor = api.TraceProcessor(trace=str(file))
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"the package downloads the trace processor when it is first used, which failed: {error}")
    with processor:
        names = [row.name for row in processor.query("select name from slice")]
        lost = list(processor.query("select name, value from stats where severity in ('error', 'data_loss') and value > 0"))
        tracks = {row.name for row in processor.query("select name from thread")}
    assert lost == []
    assert sum(" of g" in name for name in names) == len(capture.runs)
    assert names.count("PyTorch: aten._fft_r2c.default, aten.abs.default") == len(capture.runs) // 3
    assert any(name and name.startswith("session ") for name in tracks)


# ----------------------------------------------------------------------------------------------------- Model Explorer


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


def test_a_capture_without_measurements_has_no_node_data(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"lens\.profile"):
        ortlens.Lens().export(tmp_path, "model-explorer")


# ------------------------------------------------------------------------------------------------------------ figures


def test_figures_are_plain_numbers_of_what_was_measured(lens: ortlens.Lens, capture: Capture) -> None:
    figures = lens.figures()
    assert all(type(value) in (int, float) for value in figures.values())
    assert (figures["graphs"], figures["breaks"], figures["partitions"], figures["values_that_differ"]) == (2, 1, 3, 0)
    assert 0 < figures["coverage"] < 1
    assert figures["coverage"] == figures["nodes_in_ort"] / figures["nodes"]
    assert 0 < figures["ort_ns"] < figures["call_ns"]
    timed = dataclasses.replace(capture, environment={**capture.environment, "uncompiled_ns": "7000000"})
    assert key_figures(timed)["speedup"] == pytest.approx(7_000_000 / figures["call_ns"])
    assert 0 <= figures["max_abs"] < 1e-5


def test_what_was_not_measured_is_not_among_the_figures() -> None:
    assert not {"call_ns", "speedup", "max_abs", "coverage"} & set(ortlens.Lens().figures())
