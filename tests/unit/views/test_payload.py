"""What the explorer is given: nothing lost, nothing unbounded, nothing told when it must not be."""

import gzip
import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortlens.trace import records as r
from ortlens.trace.schema import SHOWN_TABLES, TABLES
from ortlens.views import payload as payload_module
from ortlens.views.payload import packed_column, payload_bytes, payload_from_capture
from ortlens.views.redaction import redacted_capture
from tests.recorded import recorded
from tests.unit.views.sample_captures import SAMPLES, captured, hostile

ROOT = Path(__file__).parents[3]
_NAMES = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def unpacked(packed: dict[str, Any], rows: int, texts: list[str], columns: dict[str, Any]) -> list[Any]:
    """A column as the browser unpacks it."""
    decode = {
        "const": lambda: [_value(packed["value"], packed["kind"])] * rows,
        "text": lambda: [None if code < 0 else texts[code] for code in _ints(packed["codes"])],
        "ints": lambda: _ints(packed["values"]),
        "floats": lambda: [_value(value, "float") for value in packed["values"]],
        "bools": lambda: [None if value is None else bool(value) for value in packed["values"]],
        "sum": lambda: [
            sum(parts) for parts in zip(*(unpacked(columns[part], rows, texts, columns) for part in packed["of"]), strict=True)
        ],
        "lists": lambda: _lists(packed, texts),
    }
    return list(decode[packed["enc"]]())


def _value(value: object, kind: str) -> object:
    return _NAMES[value] if kind == "float" and isinstance(value, str) else value


def _ints(packed: list[Any] | dict[str, Any]) -> list[Any]:
    return packed if isinstance(packed, list) else list(itertools.accumulate([packed["base"], *packed["delta"]]))


def _lists(packed: dict[str, Any], texts: list[str]) -> list[Any]:
    items = iter([texts[code] for code in _ints(packed["items"])] if packed["text"] else packed["items"])
    distinct = [None if length < 0 else tuple(itertools.islice(items, length)) for length in packed["lengths"]]
    return distinct if "codes" not in packed else [distinct[code] for code in _ints(packed["codes"])]


def _same(one: object, other: object) -> bool:
    return one == other or (isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other))


RECORDED = ("pieces", "models", "gpt2_steps", "dropout_steps", "twelve")


@pytest.mark.parametrize("name", [name for name in (*SAMPLES, *RECORDED) if name != "huge"])
def test_every_value_of_every_row_arrives(name: str) -> None:
    capture = captured(name)
    data = json.loads(gzip.decompress(payload_bytes(capture)))
    for table in TABLES.values():
        if table.name == "findings":  # the rules add to them
            continue
        records = (
            sorted(getattr(capture, table.name), key=lambda run: run.start_ns) if table.name == "runs" else getattr(capture, table.name)
        )
        packed = data["tables"][table.name]
        assert packed["rows"] == packed["total"] == len(records)
        for column in table.columns:
            values = unpacked(packed["columns"][column.name], len(records), data["texts"], packed["columns"])
            wanted = [getattr(record, column.name) for record in records]
            assert len(values) == len(wanted)
            assert all(map(_same, values, wanted)), f"{table.name}.{column.name}"


_VALUES = {
    "str": st.none() | st.text(max_size=5),
    "int": st.none() | st.integers(-(2**62), 2**62),
    "float": st.none() | st.floats(),
    "bool": st.none() | st.booleans(),
    "tuple": st.none() | st.lists(st.text(max_size=2) | st.integers(0, 9), max_size=3).map(tuple),
}
_COLUMNS = {"str": "reason", "int": "cost_ns", "float": "max_abs", "bool": "ok", "tuple": "shape"}
_TABLES_OF = {"str": "breaks", "int": "breaks", "float": "numerics", "bool": "numerics", "tuple": "nodes"}


@pytest.mark.parametrize("kind", _VALUES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_column_survives_the_way_through_json(kind: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(_VALUES[kind], max_size=12))
    column = next(item for item in TABLES[_TABLES_OF[kind]].columns if item.name == _COLUMNS[kind])
    texts: dict[str, int] = {}
    packed = json.loads(json.dumps(packed_column(column, values, texts), allow_nan=False)) | {"kind": column.kind}
    strings = json.loads(json.dumps(list(texts)))
    assert all(map(_same, unpacked(packed, len(values), strings, {}), values))


def test_numbers_and_texts_are_packed_as_what_they_are() -> None:
    numpy = pytest.importorskip("numpy")
    (error,) = (item for item in TABLES["numerics"].columns if item.name == "max_abs")
    assert packed_column(error, [numpy.float32(0.5), None], {})["values"] == [0.5, None]
    count = next(column for column in TABLES["graphs"].columns if column.kind == "int")
    assert packed_column(count, [1, True], {})["enc"] != "const"
    assert packed_column(count, [1, 1], {})["enc"] == "const"
    texts: dict[str, int] = {}
    packed_column(next(column for column in TABLES["graphs"].columns if column.kind == "str"), ["", "x" * 1_000_000], texts)
    _, kept = texts
    assert len(kept) < 11_000
    assert kept.endswith("(1,000,000 characters)")


def verdict(capture: r.Capture) -> str:
    return str(payload_from_capture(capture)["overview"]["verdict"])


def test_the_verdict_states_partitions_breaks_and_correctness() -> None:
    pieces = recorded("pieces")
    assert [part for part in ("5 graph breaks", "results match PyTorch where compared") if part not in verdict(pieces)] == []
    compared = {item.partition_id for item in pieces.numerics}
    whole = replace(pieces, partitions=tuple(item for item in pieces.partitions if item.partition_id in compared))
    assert verdict(whole).endswith("results match PyTorch")
    wrong = replace(pieces, numerics=(replace(pieces.numerics[0], ok=False), *pieces.numerics[1:]))
    assert verdict(wrong).endswith("1 value out of tolerance")
    slower = r.Finding(rule="slower_than_torch", severity="warning", title="", gain_ns=3_000_000, measured=True)
    assert "3.00 ms of a call lost" in verdict(replace(recorded("bert"), findings=(slower,)))


def test_what_to_look_at_first_can_be_selected() -> None:
    facts = payload_from_capture(recorded("pieces"))["overview"]
    kinds = [(action["subject"], look["id"].partition(":")[0]) for look, action in zip(facts["looks"], facts["actions"], strict=False)]
    assert len(kinds) == 3
    assert set(kinds) <= {("break", "break"), ("fallback", "line"), ("recompile", "recompile"), ("slower", "finding")}
    demo = SAMPLES["demo_like"]
    placeless = replace(demo, breaks=(), fallbacks=tuple(replace(item, file=None, line=None) for item in demo.fallbacks))
    assert payload_from_capture(placeless)["overview"]["looks"][0]["id"] == "node:g0/median"


def test_of_many_calls_the_newest_are_shown_and_the_rest_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload_module, "MAX_RUNS", 10)
    monkeypatch.setattr(payload_module, "MAX_ROWS", 20)
    pieces = recorded("pieces")
    data = payload_from_capture(replace(pieces, runs=pieces.runs[::-1]))
    runs = data["tables"]["runs"]
    newest = sorted(run.start_ns for run in pieces.runs)[-10:]
    assert unpacked(runs["columns"]["start_ns"], 10, data["texts"], runs["columns"]) == newest
    assert (runs["rows"], runs["total"]) == (10, len(pieces.runs))
    assert f"the newest 10 of {len(pieces.runs):,} runs are shown; the frame `.runs` has all" in data["meta"]["left_out"]
    assert any(text.startswith("the first 20 of ") and "nodes" in text for text in data["meta"]["left_out"])


def test_a_long_name_is_shortened() -> None:
    assert len(gzip.decompress(payload_bytes(hostile("x" * 1_000_000)))) < 2_000_000


def test_a_redacted_guard_keeps_its_condition_and_its_file() -> None:
    (item,) = redacted_capture(recorded("demo")).recompiles
    assert item.guard == "want_logits == False"
    assert item.file == "demo.py"
    assert "self.head" not in item.reason
    assert "demo.py" in item.reason


def test_files_of_one_name_are_told_apart_in_any_order() -> None:
    graphs = tuple(
        r.Graph(graph_id=f"g{n}", phase="inference", op_count=1, file=file, line=1)
        for n, file in enumerate(("/a/model.py", "/b/model.py", "C:\\work\\other.py", "/a/model.py.orig"))
    )
    said = r.Finding(
        rule="x", severity="info", title="see /b/model.py:3, /a/model.py.orig:3, /etc/x/secret.txt and https://pytorch.org/docs/stable"
    )
    one = redacted_capture(r.Capture(graphs=graphs, findings=(said,)))
    two = redacted_capture(r.Capture(graphs=graphs[::-1]))
    files = [graph.file for graph in one.graphs]
    assert len(set(files)) == 4
    assert files[2] == "other.py"
    assert all(str(file).startswith("model.py~") for file in files[:2])
    assert files == [graph.file for graph in two.graphs][::-1]
    assert one.findings[0].title == f"see {files[1]}:3, model.py.orig:3, secret.txt and https://pytorch.org/docs/stable"


IDS = ("graph_id", "node", "partition_id", "session_id", "kernel", "break_id")


def test_redaction_leaves_ids_and_numbers_alone_and_drops_attachments() -> None:
    capture = replace(recorded("pieces"), attachments={"models/m0.onnx": b"/home/ada/model.py"})
    shown = redacted_capture(capture)
    for name, table in TABLES.items():
        for column in table.columns:
            if column.kind in ("int", "float", "bool") or column.name in IDS:
                assert [getattr(x, column.name) for x in getattr(shown, name)] == [getattr(x, column.name) for x in getattr(capture, name)]
    assert shown.attachments == {}


def test_the_fixture_of_the_browser_tests_is_of_this_version() -> None:
    fixture = json.loads(gzip.decompress((ROOT / "frontend" / "test" / "pieces.payload.gz").read_bytes()))
    assert fixture["version"] == payload_module.VERSION
    assert list(fixture["tables"]) == list(SHOWN_TABLES)
    assert set(fixture["overview"]) == set(payload_from_capture(recorded("pieces"))["overview"])
