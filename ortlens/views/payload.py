"""What the explorer is given: a capture as one compact JSON object, with its screen.

`{version, meta, overview, modules, flame, sources, texts, tables: {name: {meaning, rows, total, columns: {name: {kind, unit, meaning, enc,
...}}}}}`.
Generic over the column table, so a new column travels without a change here. The views in Python and the explorer say the same because the
sentences come from here.

Columns are packed: shared strings, differences where they are shorter, each list once. The browser unpacks them (`frontend/src/data.js`).
NaN and infinities travel as their names, and integers beyond 2**53 lose their last digits there, as every number in a browser does.
"""

from __future__ import annotations

import gzip
import itertools
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeAlias

from ortlens.analysis.answers.overview import graph_rows
from ortlens.analysis.answers.verdict import numbers_of, recompiles_by_role
from ortlens.analysis.costs import fallback_groups, slow_lines
from ortlens.analysis.coverage import coverage_of, current_ids, state_of
from ortlens.analysis.index import grouped
from ortlens.analysis.ledger import time_base
from ortlens.analysis.onnx_model import onnx_facts
from ortlens.analysis.problems.stream import findings_of, problems_of
from ortlens.analysis.roofline import Roof, roofs
from ortlens.analysis.timing import call_time, call_times, compile_phases, compile_total_ns, entries_by_graph
from ortlens.trace.codec import json_float, plain
from ortlens.trace.records import same
from ortlens.trace.schema import SHOWN_TABLES, facts_of, table_from_record
from ortlens.trace.sources import sources_of
from ortlens.views.actions import action_facts, problem_id, records_of
from ortlens.views.flame import breaks_ahead, current_in_call_order, flame_of, packed_flame
from ortlens.views.redaction import redacted_capture
from ortlens.views.screen import Screen, capture_screen
from ortlens.views.sentences import (
    MAX_PROBLEMS,
    consequence_sentences,
    problem_sentence,
    reason_words,
    recompiles_sentence,
    undecided_sentence,
)
from ortlens.views.time_sentences import average_words, busy_sentence, gain_words, generate_ns
from ortlens.views.wording import PHASE_WORDS, REASON_WORDS, SAVED, WANTS, foreign_words, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ortlens.trace.records import Capture
    from ortlens.trace.schema import Column, Table
    from ortlens.views.wording import Hints


VERSION = 1  # raised when an older explorer could not read the data
MAX_RUNS = 100_000  # calls that are shown, the newest
MAX_ROWS = 50_000  # rows of any other table that are shown, the first: a page of 100,000 nodes is useless
_MAX_GROUPS = 50
_MAX_CODE = 80  # lines of the target
_LEVEL = 6  # 9 takes four times as long for 3 % less


def payload_from_capture(capture: Capture, *, redact: bool = False, hints: Hints = SAVED) -> dict[str, Any]:
    """Return any capture as plain JSON data for the explorer; `meta.left_out` says in words which rows are not in it."""
    shown = redacted_capture(capture) if redact else capture
    return payload_from_screen(capture_screen(shown, hints), shown, redacted=redact, hints=hints)


def payload_from_screen(screen: Screen, shown: Capture, *, redacted: bool, hints: Hints) -> dict[str, Any]:
    """Return the payload of a capture, with the screen that was made of it; `redacted` only tells the explorer that it was redacted."""
    texts: Texts = {}
    records = {name: records_of(shown, name) for name in SHOWN_TABLES}
    kept = {name: _kept(name, rows) for name, rows in records.items()}
    tables = {name: packed_table(table, kept[name], len(records[name]), texts) for name, table in SHOWN_TABLES.items()}
    if found := roofs(shown):
        tables["roofline"] = packed_table(table_from_record("roofline", Roof), found[:MAX_ROWS], len(found), texts)
    left_out = [_left_out(name, len(kept[name]), len(rows)) for name, rows in records.items() if len(kept[name]) < len(rows)]
    missing = {want: hints.text(want, is_onnx=onnx_facts(shown) is not None) for want in WANTS}  # what to type for it, in all panels
    return {
        "version": VERSION,
        "meta": bounded(_meta(shown, redact=redacted) | {"left_out": left_out, "hints": missing}),
        "overview": bounded(overview_facts(screen, shown)),
        "modules": bounded(_modules(kept["nodes"])),
        "flame": bounded(packed_flame(flame_of(shown, max_rows=MAX_ROWS))),
        "sources": bounded(sources_of(shown.attachments)),
        "tables": tables,
        "texts": list(texts),
    }


def payload_bytes(capture: Capture, *, hints: Hints = SAVED) -> bytes:
    """Return the payload as gzip'd JSON; equal captures give equal bytes."""
    return packed_payload(payload_from_capture(capture, hints=hints))


def packed_payload(data: dict[str, Any]) -> bytes:
    """Pack a payload as gzip'd JSON; equal data give equal bytes."""
    return gzip.compress(json.dumps(data, separators=(",", ":"), allow_nan=False).encode(), compresslevel=_LEVEL, mtime=0)


def _kept(name: str, records: Sequence[Any]) -> Sequence[Any]:
    if name == "runs":
        return sorted(records, key=lambda run: run.start_ns)[-MAX_RUNS:]
    return records[:MAX_ROWS]


def _meta(capture: Capture, *, redact: bool) -> dict[str, Any]:
    return {
        "name": visible(capture.name),
        "backend": visible(capture.backend),
        "created": capture.created,
        "environment": facts_of(capture),
        "redacted": redact,
    }


def _left_out(name: str, shown: int, total: int) -> str:
    which = "newest" if name == "runs" else "first"
    return f"the {which} {shown:,} of {total:,} {name} are shown; the frame `.{name}` has all"


def _modules(nodes: Sequence[Any]) -> list[list[str | None]]:
    """List module paths with their types, in the order in which the nodes name them."""
    types: dict[str, str | None] = {}
    for node in nodes:
        if node.module:
            types.setdefault(node.module, node.module_type)
    return [[path, kind] for path, kind in types.items()]


def overview_facts(screen: Screen, capture: Capture) -> dict[str, Any]:
    """Return the screen of a capture, and what panels of the explorer compute with."""
    # Of each finding the place of the action that is its cause, from 1; None where it has one of its own, or none.
    entries = entries_by_graph(capture)
    causes = {each.index: place for place, item in enumerate(problems_of(capture), start=1) for each in item.consequences}
    return {
        **same(screen, "title", "verdict", "alert", "dry_run"),
        "tiles": [asdict(tile) | {"sign": tile.sign} for tile in screen.tiles],
        "answers": {answer.name: list(answer.said) for answer in screen.answers},
        "undecided_sentence": undecided_sentence(numbers_of(capture)),
        "busy_sentence": busy_sentence(capture),
        "recompiles_sentence": recompiles_sentence(capture),
        "coverage": asdict(coverage_of(capture)),
        "foreign": foreign_words(capture),
        "looks": [
            {"sentence": problem_sentence(item), "consequences": consequence_sentences(item), "id": problem_id(item, capture)}
            for item in problems_of(capture)[:MAX_PROBLEMS]
        ],
        "actions": action_facts(capture),
        "call": _call(capture),
        "per": time_base(capture),
        "code": _code_of_target(capture),
        "line_states": _line_states(capture),
        "generate_ns": generate_ns(capture),
        "compile_ns": compile_total_ns(capture),
        "phases": [{"name": PHASE_WORDS[phase.phase], "ns": phase.total_ns} for phase in compile_phases(capture)],
        "fallbacks": [asdict(group) | {"reason": reason_words(group)} for group in fallback_groups(capture)[:_MAX_GROUPS]],
        "fallback_groups": len(fallback_groups(capture)),
        "graphs": [_graph(row) | {"entries": entries.get(row.graph.graph_id, 1.0)} for row in graph_rows(capture)],
        "call_order": _call_order(capture),
        "slow_lines": [asdict(line) for line in slow_lines(capture)],
        "recompile_count": sum(recompiles_by_role(capture).values()),
        "causes": [causes.get(index) for index in range(len(findings_of(capture)))],
        "gains": [gain_words(finding) for finding in findings_of(capture)],
        "reasons": dict(REASON_WORDS),
    }


def _code_of_target(capture: Capture) -> dict[str, Any] | None:
    """Return the source of the function that was compiled first, each line with where its operators run; None where none were counted."""
    first = next(iter(capture.frames), None)
    if first is None or first.line is None:
        return None
    led = grouped((line.entry_line, line) for line in capture.call_lines if line.entry_line and line.entry_file == first.file)
    kept = sources_of(capture.attachments).get(first.file or "", [])
    sources = {line.line: line.source for line in capture.call_lines if line.file == first.file} | dict(enumerate(kept, start=1))
    last = min(max(led, default=0), first.line + _MAX_CODE)
    rows = [(number, sources[number], led.get(number, [])) for number in range(first.line, last + 1) if sources.get(number)]
    return {
        "function": first.frame,
        "file": first.file,
        "lines": [
            {"line": number, "text": text, "state": state_of(lines, capture), "operators": sum(line.operators for line in lines)}
            for number, text, lines in rows
        ],
    }


def _line_states(capture: Capture) -> list[dict[str, Any]]:
    """List the lines that run operators in a call, with where they run; those outside of graphs with what their functions run there."""
    known = grouped(((frame.frame.partition(" after line ")[0], frame.file), name) for frame in capture.frames for name in frame.ops)
    by_line = grouped(((line.file, line.line), line) for line in capture.call_lines if line.file)
    names = {place: sorted({name for line in own for name in known.get((line.function, line.file), ())}) for place, own in by_line.items()}
    return [
        {"id": f"line:{place[0]}:{place[1]}", "source": lines[0].source, "state": state_of(lines, capture), "names": names[place]}
        | {"outside": sum(line.outside for line in lines)}
        for place, lines in by_line.items()
    ]


def _call(capture: Capture) -> dict[str, Any]:
    call, several = call_time(capture), len(call_times(capture)) > 1
    of = f" of {visible(call.function or 'the function compiled first')}" if several else ""
    figures = same(call, "calls", "function", "is_call", "ort_ns", "eager_ns", "foreign_ns", "total_ns")
    return figures | {"of": of, "average": average_words(call)}


def _graph(row: Any) -> dict[str, Any]:  # noqa: ANN401 - a GraphRow, whose parts are spelled out here
    figures = same(row, "ort_node_count", "is_current") | same(row.time, "calls", "ort_ns", "eager_ns", "foreign_ns")
    return {"graph_id": row.graph.graph_id} | figures


def _call_order(capture: Capture) -> dict[str, Any]:
    """List the current graphs in the order of a call, and the rows of the breaks before each and behind the last."""
    ahead, behind = breaks_ahead(capture)
    found: dict[str, list[int]] = {}
    met: list[int] = []  # also before versions that are not shown
    for graph in current_in_call_order(capture):
        met += ahead.get(graph.graph_id, ())
        if graph.graph_id in current_ids(capture):
            found[graph.graph_id], met = met, []
    return {"graphs": list(found), "ahead": {graph_id: rows for graph_id, rows in found.items() if rows}, "behind": [*met, *behind]}


Packed: TypeAlias = dict[str, Any]

_MAX_TEXT = 10_000  # characters of one text; a name of a megabyte must not sink the page
_PLAIN = frozenset({str, int, float, bool, tuple, type(None)})
_SUMS: Mapping[tuple[str, str], tuple[str, ...]] = {("runs", "total_ns"): ("bind_ns", "run_ns", "output_ns")}


Texts: TypeAlias = dict[str, int]
"""The strings of all columns, each once, in the order in which they came, with their places."""


def _code(texts: Texts, text: object) -> int:
    """Return the place of a text, which is kept when it is first met; -1 for None."""
    return -1 if text is None else texts.setdefault(bounded(str(text)), len(texts))


def packed_table(table: Table, records: Sequence[Any], total: int, texts: Texts) -> Packed:
    """Pack the shown records of one kind, `total` being how many were recorded; strings go to `texts`."""
    columns = {column.name: [getattr(record, column.name) for record in records] for column in table.columns}
    packed = {
        column.name: {"kind": "list" if column.kind == "tuple" else column.kind, "unit": column.unit, "meaning": column.meaning}
        | (_sum(table.name, column.name, columns) or packed_column(column, columns[column.name], texts))
        for column in table.columns
    }
    return {"meaning": table.meaning, "rows": len(records), "total": total, "columns": packed}


def packed_column(column: Column, values: list[Any], texts: Texts) -> Packed:
    """Pack the values of one column as `enc` and what it needs; a constant is stored once, strings go to `texts`."""
    values = values if set(map(type, values)) <= _PLAIN else [plain(value) for value in values]
    if column.kind != "tuple" and _all_same(values):
        value = values[0] if values else None
        return {"enc": "const", "value": json_float(value) if isinstance(value, float) else bounded(value)}
    pack: Mapping[str, Callable[[list[Any]], Packed]] = {
        "str": lambda found: {"enc": "text", "codes": _ints([_code(texts, value) for value in found])},
        "int": lambda found: {"enc": "ints", "values": _ints(found)},
        "float": lambda found: {"enc": "floats", "values": [None if value is None else json_float(value) for value in found]},
        "bool": lambda found: {"enc": "bools", "values": [None if value is None else int(value) for value in found]},
        "tuple": lambda found: _lists(found, texts),
    }
    return pack[column.kind](values)


def _all_same(values: list[Any]) -> bool:
    # By identity or by equality within a type: NaN is not itself, and True must not pass for 1.
    return not values or all(value is values[0] or (type(value) is type(values[0]) and value == values[0]) for value in values)


def _ints(values: list[Any]) -> list[Any] | Packed:
    """Pack whole numbers as they are, or as differences where that is shorter."""
    if len(values) < 2 or None in values:  # noqa: PLR2004 - one value has no difference
        return values
    steps = [after - before for before, after in itertools.pairwise(values)]
    return {"base": values[0], "delta": steps} if len(json.dumps(steps)) < len(json.dumps(values)) else values


def _lists(values: list[Any], texts: Texts) -> Packed:
    """Pack tuples; each distinct one once, when that saves something."""
    distinct = list(dict.fromkeys(values))
    shared = len(distinct) * 2 < len(values)
    stored = distinct if shared else values
    items = [item for value in stored if value is not None for item in value]
    text = all(isinstance(item, str) for item in items)
    packed: Packed = {
        "enc": "lists",
        "text": text,
        "items": _ints([_code(texts, item) for item in items]) if text else bounded(items),
        "lengths": [-1 if value is None else len(value) for value in stored],
    }
    if shared:
        places = {value: place for place, value in enumerate(distinct)}
        packed["codes"] = _ints([places[value] for value in values])
    return packed


def _sum(table: str, column: str, columns: Mapping[str, list[Any]]) -> Packed | None:
    """Store a column that is the sum of others as such; None where it is not.

    Calls of another backend are not split, so the sum must hold for all rows.
    """
    parts = _SUMS.get((table, column))
    if parts is None or not columns[column]:
        return None
    added = map(sum, zip(*(columns[part] for part in parts), strict=True))
    return {"enc": "sum", "of": list(parts)} if all(map(int.__eq__, added, columns[column])) else None


def bounded(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Cut every text in plain data to what a page can bear; long ones have their length behind their head."""
    if isinstance(value, str):
        return value if len(value) <= _MAX_TEXT else f"{value[:_MAX_TEXT]}… ({len(value):,} characters)"
    if isinstance(value, dict):
        return {key: bounded(item) for key, item in value.items()}
    return [bounded(item) for item in value] if isinstance(value, (list, tuple)) else value
