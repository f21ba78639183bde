import math
from typing import Any

import numpy as np
import pytest

from ortlens.errors import CaptureError
from ortlens.trace import codec
from ortlens.trace import records as r
from ortlens.trace.codec import columns_from_records, record_from_row, records_from_columns, row_from_record
from ortlens.trace.schema import TABLES
from tests.unit.trace.strategies import small_capture

LEDGER = TABLES["ledger"]
NODES = TABLES["nodes"]
NODE = {"graph_id": "g0", "node": "add", "target": "aten.add.Tensor", "supported": True}


def test_floats_that_json_lacks_travel_as_text() -> None:
    rows = [row_from_record(LEDGER, r.LedgerPart(graph_id="g0", part="run", ns=1, share=x)) for x in (math.nan, math.inf, -math.inf, 1)]
    assert [row["share"] for row in rows] == ["NaN", "Infinity", "-Infinity", 1.0]
    assert repr(record_from_row(LEDGER, rows[0])).endswith("share=nan)")


def test_unknown_columns_are_ignored_and_missing_ones_take_defaults() -> None:
    record = record_from_row(NODES, {**NODE, "colour": {"from": "the future"}})
    assert record == r.Node(graph_id="g0", node="add", target="aten.add.Tensor", supported=True)


@pytest.mark.parametrize("missing", NODE)
def test_missing_required_column_is_named(missing: str) -> None:
    row = {name: value for name, value in NODE.items() if name != missing}
    with pytest.raises(CaptureError, match=f"table nodes: column {missing} is missing"):
        record_from_row(NODES, row)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"node": 3}, "column node: 3 is not text"),
        ({"node": None}, "column node: None is not text"),
        ({"supported": 1}, "column supported: 1 is not true or false"),
        ({"line": True}, "column line: True is not an integer"),
        ({"line": 1.0}, "column line: 1.0 is not an integer"),
        ({"line": 2**63}, "column line: an integer of 64 bits is not a 64-bit integer"),
        ({"line": -(2**63) - 1}, "is not a 64-bit integer"),
        ({"reason_code": "because"}, "column reason_code: 'because' is not one of no_converter, converter_raised"),
        ({"shape": "3"}, "column shape: '3' is not a list"),
        ({"shape": [1.5]}, "column shape: 1.5 is not int or str"),
        ({"shape": [True]}, "column shape: True is not int or str"),
        ({"shape": [2**70]}, "column shape: an integer of 71 bits is not a 64-bit integer"),
        ({"onnx_nodes": [1]}, "column onnx_nodes: 1 is not str"),
        ({"onnx_nodes": None}, "column onnx_nodes: None is not a list"),
    ],
)
def test_wrong_values_are_refused_with_their_place(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CaptureError, match=f"table nodes, row 0, {message}|{message}"):
        record_from_row(NODES, {**NODE, **changes})


@pytest.mark.parametrize(
    ("value", "message"), [("nan", "'nan' is not a number"), (True, "not a number"), (10**400, "an integer of 1329 bits")]
)
def test_wrong_floats_are_refused(value: object, message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        record_from_row(LEDGER, {"graph_id": "g0", "part": "run", "ns": 1, "share": value})


@pytest.mark.parametrize("sketch", [["NaN"], [10**400], [math.inf], "0" * 16])
def test_a_sketch_without_a_number_is_refused(sketch: object) -> None:
    row = row_from_record(TABLES["values"], small_capture().values[0])
    with pytest.raises(CaptureError, match=r"column sketch: .* is not a (list|finite number)"):
        record_from_row(TABLES["values"], {**row, "sketch": sketch})


def test_a_message_counts_the_row_and_cuts_the_value() -> None:
    columns = {"graph_id": ["g0"] * 3, "part": ["run"] * 3, "ns": [1, 2, "3" * 10**6], "share": [0.1] * 3}
    with pytest.raises(CaptureError, match=r"table ledger, row 2, column ns: '33.* is not an integer") as caught:
        records_from_columns(LEDGER, 3, columns)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("columns", "message"),
    [({"graph_id": "g0"}, "column graph_id is 'g0', not a list"), ({"graph_id": ["g0"] * 3}, "column graph_id has 3 values for 2 rows")],
)
def test_columns_must_be_lists_of_one_length(columns: dict[str, Any], message: str) -> None:
    whole = {"graph_id": ["g0"] * 2, "part": ["run"] * 2, "ns": [1] * 2, "share": [0.1] * 2}
    with pytest.raises(CaptureError, match=message):
        records_from_columns(LEDGER, 2, {**whole, **columns})


def test_scalars_of_array_libraries_become_numbers() -> None:
    numeric = r.Numeric(partition_id="p0", node="add", max_abs=np.float32(0.5), ok=np.bool_(True))  # type: ignore[arg-type]  # that is the point  # noqa: FBT003
    row = row_from_record(TABLES["numerics"], numeric)
    assert (type(row["max_abs"]), type(row["ok"])) == (float, bool)
    node = r.Node(graph_id="g0", node="add", target="t", supported=True, line=np.int64(7), shape=(np.int32(2), "s0"))  # type: ignore[arg-type]  # same
    again = row_from_record(NODES, node)
    assert (type(again["line"]), again["shape"]) == (int, [2, "s0"])


def test_a_field_of_the_wrong_type_cannot_be_saved() -> None:
    node = r.Node(graph_id="g0", node="add", target="t", supported=True, shape=7)  # type: ignore[arg-type]  # that is the point
    with pytest.raises(CaptureError, match="table nodes, row 0, column shape: 7 is not a tuple"):
        columns_from_records(NODES, (node,))


def test_more_rows_than_allowed_are_refused_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_ROWS", 1)
    part = r.LedgerPart(graph_id="g0", part="run", ns=1, share=0.1)
    with pytest.raises(CaptureError, match="2 rows are more than the 1"):
        columns_from_records(LEDGER, (part, part))
    with pytest.raises(CaptureError, match="table ledger: 2 rows are more than the 1"):
        records_from_columns(LEDGER, 2, {})
