"""The list of actions: one per change, ranked by what it brings, with the line to write or to paste where a rule knows it."""

import ast
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ortlens.analysis.problems.advice import line_after, settings_of_hint
from ortlens.analysis.problems.catalogue import advise, option_lines, remedy
from ortlens.analysis.problems.stream import findings_of, problems_of
from ortlens.backend.basis.options import OrtBackendOptions
from ortlens.trace.records import Break, Capture, Finding, Graph, Recompile
from ortlens.trace.schema import facts_of
from ortlens.units import time_from_ns
from ortlens.views.actions import action_facts
from ortlens.views.capture_view import SavedCapture
from ortlens.views.payload import payload_from_capture
from ortlens.views.sentences import verdict_sentence
from tests.facts import head
from tests.recorded import FILES, recorded
from tests.unit.views.sample_captures import SAMPLES, captured

ROOT = Path(__file__).resolve().parents[3]
TWELVE, SPLIT, DRY = map(recorded, ("twelve", "split", "dry"))


def facts(capture: Capture) -> list[dict[str, Any]]:
    return list(action_facts(capture))


@pytest.mark.parametrize("name", [name for name in (*SAMPLES, *FILES) if name != "huge"])  # whose findings are all the same
def test_the_first_actions_are_what_to_look_at_first(name: str) -> None:
    capture = captured(name)
    keys = [(action.kind, action.title, action.file, action.line) for action in problems_of(capture)]
    assert len(keys) == len(set(keys))
    shown = payload_from_capture(capture)["overview"]
    assert shown["verdict"]
    assert len(shown["gains"]) == len(findings_of(capture))
    assert [item["sentence"] for item in shown["actions"][:3]] == [item["sentence"] for item in shown["looks"]]


@pytest.mark.parametrize("name", ["twelve", "split", "nothing_runs"])
def test_the_frame_of_actions_has_a_row_for_each(name: str) -> None:
    frame, items = SavedCapture(captured(name)).actions, facts(captured(name))
    assert list(frame["rank"]) == list(range(1, len(items) + 1))
    assert [None if pd.isna(ns) else ns for ns in frame["gain_ns"]] == [item["gain_ns"] for item in items]
    shown = [(*row,) for row in frame[["subject_id", "kind", "do"]].itertuples(index=False)]
    assert shown == [(item["id"], item["subject"], item["do"]) for item in items]
    assert [list(lines) for lines in frame["settings"]] == [item["paste"] for item in items]


@pytest.mark.parametrize("guarded", ["___stack0 == 2.5", "tensor '___stack0' size mismatch at index 0", "___stack1 is odd"])
def test_no_name_of_dynamos_is_shown_for_what_a_break_left(guarded: str) -> None:
    capture = Capture(recompiles=(Recompile(compile_id="0/1", guard=guarded, reason=guarded),))
    (row,) = SavedCapture(capture).actions.itertuples()
    (item,) = facts(capture)
    assert "___" not in f"{row.subject} {row.do} {item['why']} {item['do']} {item['sentence']}"


def test_what_was_tried_says_so_in_the_frame_and_in_the_sentence() -> None:
    tried = Break(break_id="b0", reason="Tensor.item()", source="y = x.sum().item()", removed_by=("keep_in_tensor",))
    frame = SavedCapture(Capture(breaks=(tried, replace(tried, break_id="b1", source="y = x.item()", removed_by=())))).actions
    assert [(bool(row.tried), "tried" in str(row.do)) for row in frame.itertuples()] == [(True, True), (False, False)]


@pytest.mark.parametrize("measured", [False, True])
def test_threads_that_were_timed_were_tried(*, measured: bool) -> None:
    finding = Finding(rule="too_many_threads", severity="warning", title="t", gain_ns=9, measured=measured)
    assert list(SavedCapture(Capture(findings=(finding,))).actions["tried"]) == [measured]


def test_a_slow_operator_comes_before_a_cheap_break_and_says_how_it_is_known() -> None:
    items = facts(TWELVE)
    assert [(item["kind"], item["confidence"]) for item in items[:4]] == [
        ("stays in PyTorch", "measured"),
        ("stays in PyTorch", "measured"),
        ("graph break", "measured"),  # with what entering code behind it takes, which is no action of its own
        ("graph break", "measured"),
    ]
    for target, item in zip(("prims.bessel_j0.default", "aten.mode.default"), items, strict=False):
        spent = sum(row.call_ns or 0 for row in TWELVE.fallbacks if row.target == target)
        assert item["gain"] == f"takes {time_from_ns(spent)} per call in PyTorch"
    looks = [look for look in problems_of(TWELVE) if look.price_ns]
    ns = [look.weight_ns for look in looks]
    assert ns == sorted(ns, reverse=True)
    assert len(items) == 7


def test_lines_that_need_the_same_change_are_one_action_that_names_the_costliest_and_counts_the_others() -> None:
    printed = Break(break_id="b0", reason="print", file="m.py", line=1, occurrences=1, cost_ns=100_000, advice="Remove it")
    breaks = [replace(printed, break_id=f"b{line}", line=line, cost_ns=100_000 + 1000 * line) for line in (1, 2, 3)]
    breaks.append(replace(printed, break_id="b8", line=3, reason="another on a line that is named"))
    breaks.append(replace(printed, break_id="b9", line=9, advice="Return the tensor"))
    capture = Capture(breaks=tuple(breaks))
    first, second = facts(capture)
    assert (first["where"], first["count"], first["cost_ns"], first["id"]) == ("m.py:3 and 2 other lines", 4, 406_000, "break:b3")
    assert first["sentence"].startswith("m.py:3 and 2 other lines: remove it (the break costs 406 µs per call, measured")
    assert (second["where"], second["count"], second["cost_ns"]) == ("m.py:9", 1, 100_000)


def test_what_is_not_known_is_not_promised() -> None:
    for item in facts(DRY):
        assert (item["gain"], item["confidence"]) == ("gain unknown", "unknown")


@pytest.mark.parametrize(
    ("cost", "gain", "confidence"),
    [(9_000, "no time measured, besides 9.00 µs of PyTorch and Python between the graphs", "measured"), (None, "gain unknown", "unknown")],
)
def test_a_measured_price_of_nothing_is_a_figure(cost: int | None, gain: str, confidence: str) -> None:
    broken = Break(break_id="b0", reason="r", file="m.py", line=1, cost_ns=cost and 0, overhead_ns=cost and 0, between_ns=cost)
    (item,) = facts(Capture(graphs=(Graph(graph_id="g0", phase="inference", op_count=1),), breaks=(broken,)))
    assert (item["gain"], item["confidence"]) == (gain, confidence)
    assert f"- Per call: {gain} ({confidence})" in item["issue"]
    timed = replace(TWELVE, fallbacks=tuple(replace(row, call_ns=0) for row in TWELVE.fallbacks))
    told = {(item["gain"], item["confidence"]) for item in facts(timed) if item["subject"] == "fallback"}
    assert told == {("no time measured", "measured")}


def test_a_busy_machine_is_told() -> None:
    busy = replace(SPLIT, **head({**facts_of(SPLIT), "ledger_spread": "3.0"}))
    assert facts(busy)[0]["confidence"] == "measured on a busy machine"


@pytest.mark.parametrize(
    ("source", "kind", "after"),
    [
        ("torch._dynamo.graph_break()", "delete_graph_break", ""),
        ("scale = x.mean().item()", "keep_in_tensor", "scale = x.mean()"),
        ("if x.abs().max() > 1e6:", "choose_with_where", "result = torch.where(x.abs().max() > 1e6, result_if_true, result_if_false)"),
        ("return x.cos() if x.sum() > 0 else x.tanh()", "choose_with_where", "return torch.where(x.sum() > 0, x.cos(), x.tanh())"),
        ("if a > 0 and b:", "choose_with_where", None),
        ("kept = x[x[:, 0] > -100]", "mask_with_where", None),
        ("y = helper(x)", "call_outside", None),
    ],
)
def test_a_line_is_rewritten_where_a_rule_can(source: str, kind: str, after: str | None) -> None:
    assert line_after(source, advise(kind, call=".item()" if kind == "keep_in_tensor" else None)) == after


def test_a_setting_is_a_line_to_paste() -> None:
    scalars = "torch._dynamo.config.capture_scalar_outputs = True"
    assert settings_of_hint(f"Set `{scalars}`") == advise("keep_in_tensor", setting=scalars).settings == (scalars,)
    listed = advise("print_outside", listed="reorderable_logging_functions")
    assert listed.settings == ("torch._dynamo.config.reorderable_logging_functions.add(print)",)
    logged = advise("log_outside", listed="ignore_logging_functions", method="info")
    assert logged.settings == ("torch._dynamo.config.ignore_logging_functions.add(logging.Logger.info)",)
    (upcast,) = advise("bfloat16", unknown=True).settings
    assert upcast == 'model = torch.compile(model, backend="ortlens", options={"upcast": ("bfloat16",)})'
    assert option_lines(on_error="raise") == ('model = torch.compile(model, backend="ortlens", options={"on_error": "raise"})',)
    assert remedy("Use it.", "Or not.", min_partition_nodes=9) == {
        "mitigation": "Use it. Or not.",
        "todo": "Use it",
        "settings": ('model = torch.compile(model, backend="ortlens", options={"min_partition_nodes": 9})',),
    }


def test_the_options_that_are_pasted_exist() -> None:
    """Of every remedy in the sources: a keyword behind the sentences is an option."""
    texts = [text for path in (ROOT / "ortlens").rglob("*.py") if "remedy(" in (text := path.read_text(encoding="utf-8"))]
    calls = [node for text in texts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    made = [node for node in calls if isinstance(node.func, ast.Name) and node.func.id == "remedy"]
    named = {keyword.arg for node in made for keyword in node.keywords if keyword.arg}
    assert named
    assert named <= {field.name for field in fields(OrtBackendOptions)}


def test_a_finding_says_why_it_matters_and_not_its_title_again() -> None:
    found = Finding(rule="training_forward", severity="warning", title="a title", hazard="Nothing is frozen.", mitigation="Use no_grad.")
    capture = Capture(graphs=(Graph(graph_id="g0", compile_id="0/0", phase="forward", op_count=1),), findings=(found,))
    (item,) = facts(capture)
    assert (item["title"], item["why"], item["kind"]) == ("a title", "Nothing is frozen.", "compiled for training")


def test_the_headline_of_an_uncompiled_function_is_a_sentence() -> None:
    broken = Capture(breaks=(Break(break_id="b0", reason="r"),))
    assert "could not compile" in verdict_sentence(broken)
