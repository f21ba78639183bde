import sys
from dataclasses import replace

import pandas as pd
import pytest

from ortlens.errors import CaptureError, OptionalDependencyError, UsageError
from ortlens.trace import records as r
from ortlens.trace import schema
from ortlens.trace.schema import TABLES, frame_from_records, table_by_name
from tests.counting import calls_within
from tests.unit.trace.strategies import small_capture

# The public promise, written down a second time on purpose: a renamed column must fail here.
PROMISED = {
    "graphs": "graph_id compile_id phase name file line node_count op_count partition_count fallback_count coverage dynamic_shapes"
    " recompile_of dynamo_ns aot_ns partition_ns convert_ns optimize_ns session_ns compile_ns",
    "breaks": "break_id gb_id reason explanation hints file line function source user_stack occurrences compile_ids cost_ns",
    "recompiles": "compile_id of_compile_id function file line guard reason",
    "frames": "frame file line status reason operators",
    "call_lines": "file line source function entry_file entry_line operators outside",
    "graph_inputs": "graph_id input name dtype shape low high histogram",
    "nodes": "graph_id node target module module_type file line source dtype shape partition_id supported reason_code reason flops"
    " bytes onnx_nodes",
    "partitions": "partition_id graph_id node_count input_count output_count input_bytes output_bytes weight_bytes flops model_id",
    "fallbacks": "graph_id node target reason_code reason file line source calls total_ns",
    "models": "model_id partition_id path opset node_count ops initializer_bytes size_bytes sha256 cached optimized_node_count",
    "sessions": "session_id partition_id model_id providers input_signature create_ns held_bytes threads spinning threads_reason "
    "calls total_ns mean_ns p50_ns p90_ns p99_ns max_ns",
    "placements": "session_id provider requested nodes pieces copies reason",
    "runs": "session_id call start_ns bind_ns run_ns output_ns total_ns thread",
    "kernels": "session_id kernel op_type provider calls total_ns mean_ns share node module file line confidence",
    "numerics": "partition_id node onnx_value max_abs max_rel ok first_divergence closer_to_fp64",
    "values": "graph_id node place is_input dtype shape norm low high nonfinite checksum sketch",
    "findings": "rule severity title file line evidence hazard mitigation gain_ns measured",
    "ledger": "graph_id part ns share",
    "steps": "role calls tokens ns uncompiled_ns graph_ids",
}
COLUMNS = {f"{table.name}.{column.name}": column for table in TABLES.values() for column in table.columns}


def frame_of(capture: r.Capture, name: str) -> pd.DataFrame:
    return frame_from_records(table_by_name(name), getattr(capture, name))


def test_tables_are_the_promised_ones_in_order() -> None:
    assert list(TABLES) == list(PROMISED)


def test_promised_columns_come_first_and_in_order() -> None:
    promised = {name: columns.split() for name, columns in PROMISED.items()}
    assert {name: [column.name for column in TABLES[name].columns][: len(columns)] for name, columns in promised.items()} == promised


def test_every_column_says_what_it_means() -> None:
    meanings = {name: column.meaning for name, column in COLUMNS.items()}
    assert {name: text for name, text in meanings.items() if not (text.endswith(".") and len(text) > len("An id."))} == {}


def test_units_follow_from_names() -> None:
    def follows(column: schema.Column) -> bool:
        for unit in ("ns", "bytes"):
            if column.name == unit or column.name.endswith(f"_{unit}"):
                return (column.unit, column.kind) == (unit, "int")
        return column.unit in {"", "flops", "of call", "of session"}

    assert [name for name, column in COLUMNS.items() if not follows(column)] == []


def test_dtypes_follow_from_annotations() -> None:
    expected = {
        "graphs.op_count": ("int64", False),
        "graphs.line": ("Int64", True),
        "graphs.coverage": ("float64", True),
        "graphs.dynamic_shapes": ("bool", False),
        "graphs.phase": ("string", False),
        "numerics.ok": ("boolean", True),
        "nodes.reason_code": ("string", True),
        "nodes.shape": ("object", True),
        "breaks.hints": ("object", False),
        "ledger.share": ("float64", False),
    }
    assert {name: (COLUMNS[name].dtype, COLUMNS[name].nullable) for name in expected} == expected


def test_unknown_table_is_refused_with_the_list() -> None:
    assert table_by_name("runs").record is TABLES["runs"].record
    with pytest.raises(UsageError, match=r"there is no table 'graph'. Did you mean graphs\? The tables are: graphs, breaks"):
        table_by_name("graph")


NODE = r.Node(graph_id="g0", node="add", target="aten.add.Tensor", supported=True)


@pytest.mark.parametrize("capture", [r.Capture(), small_capture()], ids=["empty", "filled"])
def test_columns_and_dtypes_are_exact(capture: r.Capture) -> None:
    for name, table in TABLES.items():
        frame = frame_of(capture, name)
        assert list(frame.columns) == [column.name for column in table.columns]
        assert [dtype == column.dtype for dtype, column in zip(frame.dtypes, table.columns, strict=True)] == [True] * frame.shape[1]
        assert len(frame) == len(getattr(capture, name))


def test_values_are_those_of_the_records() -> None:
    nodes = (
        r.Node(
            graph_id="g0", node="é", target="t", supported=True, line=2**53 + 1, shape=(2, "s0"), reason_code="dtype", onnx_nodes=("a",)
        ),
        NODE,
    )
    frame = frame_of(r.Capture(nodes=nodes), "nodes")
    assert frame["node"].tolist() == ["é", "add"]
    assert frame["line"].iloc[0] == 2**53 + 1  # a float would have rounded it
    assert frame["line"].isna().tolist() == [False, True]
    assert frame["shape"].tolist() == [(2, "s0"), None]
    assert frame["onnx_nodes"].tolist() == [("a",), ()]
    assert frame["reason_code"].isna().tolist() == [False, True]
    alike = tuple(replace(NODE, shape=(size, 2)) for size in range(3))
    assert frame_of(r.Capture(nodes=alike), "nodes")["shape"].tolist() == [(0, 2), (1, 2), (2, 2)]
    numerics = tuple(r.Numeric(partition_id="p0", node="n", ok=ok) for ok in (True, False, None))
    ok = frame_of(r.Capture(numerics=numerics), "numerics")["ok"]
    assert (ok.isna().tolist(), ok.sum()) == ([False, False, True], 1)


def test_lone_surrogates_are_spelled_out() -> None:
    rows = (r.Node(graph_id="g0", node="n", target="t", supported=True, file="caf\udce9é.py", shape=(1, "s\ud800")),)
    frame = frame_of(r.Capture(nodes=rows), "nodes")
    assert frame["file"].tolist() == ["caf\\udce9é.py"]
    assert frame["shape"].tolist() == [(1, "s\\ud800")]


def test_the_work_grows_with_the_rows_and_no_faster() -> None:
    def calls(count: int) -> int:
        rows = tuple(
            r.Node(graph_id="g0", node=f"n{i}", target="t", supported=True, line=i, shape=(i, "s0"), file="/a/b.py", source="x = é")
            for i in range(count)
        )
        capture = r.Capture(nodes=rows)
        frame_of(capture, "nodes")  # what is made once per process is not counted
        return len(calls_within(frame_of, capture, "nodes"))

    few, more, many = calls(300), calls(600), calls(900)
    assert many - more == pytest.approx(more - few, rel=0.003)
    assert 0 < more - few < 100 * 300


def test_integers_beyond_64_bits_and_unknown_tables_are_refused() -> None:
    rows = (r.Node(graph_id="g0", node="n", target="t", supported=True, flops=2**63),)
    with pytest.raises(CaptureError, match="column flops: a value does not fit Int64"):
        frame_of(r.Capture(nodes=rows), "nodes")
    with pytest.raises(UsageError, match="there is no table 'edges'"):
        frame_of(r.Capture(), "edges")
    with pytest.raises(CaptureError, match="column ns: a value does not fit int64"):
        frame_of(r.Capture(ledger=(r.LedgerPart(graph_id="g0", part="run", ns=2**63, share=0.0),)), "ledger")


def test_without_pandas_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(OptionalDependencyError, match="pip install pandas"):
        frame_of(r.Capture(), "nodes")


def test_frames_of_one_capture_are_independent() -> None:
    capture = r.Capture(nodes=(NODE,))
    frame = frame_of(capture, "nodes")
    frame.loc[0, "node"] = "changed"
    pd.testing.assert_frame_equal(frame_of(capture, "nodes"), frame_of(r.Capture(nodes=(NODE,)), "nodes"))
