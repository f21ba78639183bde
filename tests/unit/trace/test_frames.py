from __future__ import annotations

import sys
from dataclasses import replace

import pandas as pd
import pytest

from ortlens.errors import CaptureError, OptionalDependencyError, UsageError
from ortlens.trace import records as r
from ortlens.trace.schema import TABLES, frame_from_capture
from tests.counting import calls_within
from tests.unit.trace.strategies import small_capture

NODE = r.Node(graph_id="g0", node="add", target="aten.add.Tensor", supported=True)


@pytest.mark.parametrize("capture", [r.Capture(), small_capture()], ids=["empty", "filled"])
def test_columns_and_dtypes_are_exact(capture: r.Capture) -> None:
    for name, table in TABLES.items():
        frame = frame_from_capture(capture, name)
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
    frame = frame_from_capture(r.Capture(nodes=nodes), "nodes")
    assert frame["node"].tolist() == ["é", "add"]
    assert frame["line"].iloc[0] == 2**53 + 1  # a float would have rounded it
    assert frame["line"].isna().tolist() == [False, True]
    assert frame["shape"].tolist() == [(2, "s0"), None]
    assert frame["onnx_nodes"].tolist() == [("a",), ()]
    assert frame["reason_code"].isna().tolist() == [False, True]
    alike = tuple(replace(NODE, shape=(size, 2)) for size in range(3))
    assert frame_from_capture(r.Capture(nodes=alike), "nodes")["shape"].tolist() == [(0, 2), (1, 2), (2, 2)]
    numerics = tuple(r.Numeric(partition_id="p0", node="n", ok=ok) for ok in (True, False, None))
    ok = frame_from_capture(r.Capture(numerics=numerics), "numerics")["ok"]
    assert (ok.isna().tolist(), ok.sum()) == ([False, False, True], 1)


def test_lone_surrogates_are_spelled_out() -> None:
    rows = (r.Node(graph_id="g0", node="n", target="t", supported=True, file="caf\udce9é.py", shape=(1, "s\ud800")),)
    frame = frame_from_capture(r.Capture(nodes=rows), "nodes")
    assert frame["file"].tolist() == ["caf\\udce9é.py"]
    assert frame["shape"].tolist() == [(1, "s\\ud800")]


def test_the_work_grows_with_the_rows_and_no_faster() -> None:
    def calls(count: int) -> int:
        rows = tuple(
            r.Node(graph_id="g0", node=f"n{i}", target="t", supported=True, line=i, shape=(i, "s0"), file="/a/b.py", source="x = é")
            for i in range(count)
        )
        capture = r.Capture(nodes=rows)
        frame_from_capture(capture, "nodes")  # what is made once per process is not counted
        return len(calls_within(frame_from_capture, capture, "nodes"))

    few, more, many = calls(300), calls(600), calls(900)
    assert many - more == pytest.approx(more - few, rel=0.003)
    assert 0 < more - few < 100 * 300


def test_integers_beyond_64_bits_and_unknown_tables_are_refused() -> None:
    rows = (r.Node(graph_id="g0", node="n", target="t", supported=True, flops=2**63),)
    with pytest.raises(CaptureError, match="column flops: a value does not fit Int64"):
        frame_from_capture(r.Capture(nodes=rows), "nodes")
    with pytest.raises(UsageError, match="there is no table 'edges'"):
        frame_from_capture(r.Capture(), "edges")
    with pytest.raises(CaptureError, match="column ns: a value does not fit int64"):
        frame_from_capture(r.Capture(ledger=(r.LedgerPart(graph_id="g0", part="run", ns=2**63, share=0.0),)), "ledger")


def test_without_pandas_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(OptionalDependencyError, match="pip install pandas"):
        frame_from_capture(r.Capture(), "nodes")


def test_frames_of_one_capture_are_independent() -> None:
    capture = r.Capture(nodes=(NODE,))
    frame = frame_from_capture(capture, "nodes")
    frame.loc[0, "node"] = "changed"
    pd.testing.assert_frame_equal(frame_from_capture(capture, "nodes"), frame_from_capture(r.Capture(nodes=(NODE,)), "nodes"))
