"""Limits and baselines: each verdict, and that nothing passes unmeasured."""

import math
from dataclasses import replace
from typing import Any

import pytest

from ortlens.analysis.answers.check import VerdictRow, limits_from, verdicts_of
from ortlens.errors import UsageError
from ortlens.trace.records import Break, Capture, Finding, Graph, Node, Numeric, Placement, Recompile
from ortlens.trace.schema import facts_of
from tests.facts import head
from tests.recorded import recorded
from tests.unit.analysis import hand_made

BREAK = Break(break_id="b0", reason="print", file="/a/model.py", line=3)
RECOMPILE = Recompile(compile_id="0/1", reason="size", guard="x.size()[0] == 4")
NUMERIC = Numeric(partition_id="p0", node="add", max_abs=1e-3, ok=True)
FAR = Numeric(node="y", scope="call", reference_value="y", sqnr_db=30.0)


def only(capture: Capture, baseline: Capture | None = None, **limits: Any) -> VerdictRow:  # noqa: ANN401 - limits have types of their own
    (row,) = (row for row in verdicts_of(capture, limits_from(**limits), baseline) if row.limit != "baseline")
    return row


def against(baseline: Capture, capture: Capture) -> dict[str, str]:
    return {row.subject: row.verdict for row in verdicts_of(capture, {}, baseline)}


@pytest.mark.parametrize(
    ("limit", "changes", "passes", "fails"),
    [
        ("max_breaks", {"breaks": (BREAK, replace(BREAK, break_id="b1"))}, 2, 1),
        ("max_recompiles", {"recompiles": (RECOMPILE,)}, 1, 0),
        ("min_coverage", {"graphs": (hand_made.graph(coverage=0.75),)}, 0.75, 0.76),
        ("max_abs_err", {"numerics": (NUMERIC,)}, 1e-3, 0.9e-3),
        ("min_sqnr", {"numerics": (replace(FAR, sqnr_db=None, ok=None, scope="value"), FAR)}, 30.0, 30.1),
        ("min_sqnr", {"numerics": (FAR, replace(FAR, sqnr_db=math.inf))}, 30.0, 31.0),
    ],
)
def test_a_limit_holds_up_to_its_value(limit: str, changes: dict[str, Any], passes: float, fails: float) -> None:
    capture = hand_made.clean(**changes)
    kept, broken = (only(capture, None, **{limit: value}) for value in (passes, fails))
    assert (kept.verdict, kept.allowed) == ("passed", passes)
    assert (broken.verdict, broken.holds) == ("failed", False)


def test_offenders_are_named() -> None:
    capture = hand_made.clean(
        breaks=(BREAK,),
        recompiles=(RECOMPILE,),
        graphs=(hand_made.graph(coverage=0.5),),
        fallbacks=(hand_made.fallback(),),
        numerics=(NUMERIC, replace(NUMERIC, node="worst", max_abs=0.5, ok=False, file="/a/model.py", line=7)),
    )
    found = verdicts_of(capture, limits_from(max_breaks=0, max_recompiles=0, min_coverage=1, max_abs_err=0.1))
    assert [(row.value, row.detail, row.line) for row in found] == [
        (1.0, "print", 3),
        (1.0, "x.size()[0] == 4", None),
        (0.5, "aten.median.dim stays in PyTorch: aten.median.dim has no ONNX function", 48),
        (0.5, "worst", 7),
    ]


FOREIGN = Capture(backend="inductor", name="net", graphs=(Graph(graph_id="g0", phase="inference", op_count=3),), **head({"cpu_count": "4"}))
DRY = hand_made.clean(sessions=(), runs=(), **head({"dry_run": "1"}))
ENDED = replace(DRY, findings=(Finding(rule="dry_run_ended", severity="warning", title="ended"),))


@pytest.mark.parametrize(
    ("capture", "limits", "why"),
    [
        (Capture(), {"max_breaks": 0}, "nothing was compiled"),
        (Capture(), {"max_abs_err": 0.5}, "the results were not verified"),
        (hand_made.clean(numerics=(NUMERIC,)), {"min_sqnr": 1}, "no output was compared with that of another ONNX model"),
        (hand_made.clean(numerics=(FAR, replace(FAR, node="z", sqnr_db=None))), {"min_sqnr": 1}, "z was not compared"),
        (FOREIGN, {"min_coverage": 0.5}, "does not partition graphs"),
        (hand_made.clean(graphs=(hand_made.graph(node_count=0, coverage=None),)), {"min_coverage": 0.5}, "no graph computes anything"),
        (DRY, {"max_recompiles": 0}, "a dry run calls nothing again"),
        (ENDED, {"max_breaks": 0}, "ended before the function did"),
        (hand_made.clean(numerics=(replace(NUMERIC, max_abs=None, ok=None),)), {"max_abs_err": 1}, "no value could be compared"),
        (
            hand_made.clean(numerics=(NUMERIC, replace(NUMERIC, max_abs=None, ok=None, left_out=True))),
            {"max_abs_err": 1},
            "the time of verify was over",
        ),
    ],
)
def test_what_was_not_measured_does_not_pass(capture: Capture, limits: dict[str, Any], why: str) -> None:
    row = only(capture, **limits)
    assert (row.verdict, row.holds) == ("unmeasured", False)
    assert why in row.detail


@pytest.mark.parametrize(("pieces", "verdict"), [(0, "failed"), (1, "passed"), (2, "failed")])
def test_a_provider_that_runs_nothing_is_not_in_few_pieces(pieces: int, verdict: str) -> None:
    rows = (
        Placement(session_id="s0", provider="QNN", nodes=pieces, pieces=pieces),
        Placement(session_id="s0", provider="P", nodes=1, pieces=1),
    )
    (row,) = verdicts_of(Capture(placements=rows), {"max_pieces": 1}, provider="qnn")
    assert (row.verdict, row.value) == (verdict, pieces)


def test_what_is_beyond_its_limit_fails_though_more_may_follow_or_it_cannot_be_compared() -> None:
    assert only(replace(ENDED, breaks=(BREAK,)), max_breaks=0).verdict == "failed"
    strides = replace(NUMERIC, max_abs=0.0, max_rel=0.0, atol=1e-7, rtol=1e-5, ok=False)  # the numbers are right
    rows = (
        replace(NUMERIC, max_abs=None, ok=False),
        replace(NUMERIC, max_abs=float("nan")),
        replace(NUMERIC, max_abs=float("inf")),
        strides,
    )
    for wrong in rows:
        assert only(hand_made.clean(numerics=(NUMERIC, wrong)), max_abs_err=1e9).verdict == "failed"


NONSENSE: dict[str, tuple[object, ...]] = {
    "max_breaks": (-1, 1.5),
    "max_recompiles": (True,),
    "min_coverage": (90, "x"),
    "max_abs_err": (float("nan"),),
    "max_slowdown": (-0.1,),
}


@pytest.mark.parametrize("limit", NONSENSE)
def test_limits_that_make_no_sense_are_refused(limit: str) -> None:
    for value in NONSENSE[limit]:
        with pytest.raises(UsageError, match=limit):
            limits_from(**{limit: value})  # type: ignore[arg-type]  # what the test is about


def test_a_check_without_a_limit_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing to check; set max_breaks"):
        verdicts_of(Capture(), {})
    with pytest.raises(UsageError, match="max_slowdown needs a baseline"):
        verdicts_of(Capture(), limits_from(max_slowdown=1.1))
    assert {limits_from(max_slowdown=given)["max_slowdown"] for given in (0.25, 1.25)} == {1.25}, "a factor, or what is added"


# ------------------------------------------------------------------------------------------------------------- baseline


def test_a_capture_is_no_worse_than_itself() -> None:
    assert set(against(recorded("plain2"), recorded("plain2")).values()) == {"passed"}
    assert only(recorded("plain3"), recorded("plain2"), max_slowdown=1.0).verdict == "passed"


def test_a_slower_partition_is_named_and_held_against_the_limit() -> None:
    row = only(recorded("planted2"), recorded("plain2"), max_slowdown=1.1)
    assert (row.verdict, row.allowed) == ("failed", 1.1)
    assert row.detail.startswith("partition p1 (back) 1.2")
    assert only(recorded("planted2"), recorded("plain2"), max_slowdown=1.5).verdict == "passed"
    assert against(recorded("plain2"), recorded("planted2"))["times"] == "failed"
    elsewhere = replace(recorded("planted2"), **head({**facts_of(recorded("planted2")), "cpu_count": "64"}))
    assert only(elsewhere, recorded("plain2"), max_slowdown=1.1).detail.endswith(
        "; the baseline is of another machine or number of threads"
    )


def test_times_of_too_few_calls_fail_only_where_they_were_asked_for() -> None:
    few = replace(recorded("plain2"), runs=recorded("plain2").runs[:9])
    asked = only(few, recorded("plain2"), max_slowdown=1.1)
    assert (asked.verdict, asked.holds) == ("unmeasured", False)
    (row,) = (row for row in verdicts_of(few, {}, recorded("plain2")) if row.subject == "times")
    assert (row.verdict, row.holds) == ("unmeasured", True)


def test_what_got_worse_since_the_baseline() -> None:
    before = hand_made.clean(
        name="net",
        nodes=tuple(hand_made.node(name, module=name) for name in "abc"),
        numerics=(NUMERIC,),
    )
    moved = Node(graph_id="g0", node="c", module="c", target="aten.add.Tensor", supported=False, reason="no ONNX function")
    after = replace(
        before,
        graphs=(hand_made.graph(coverage=0.5),),
        nodes=(*before.nodes[:2], moved),
        breaks=(BREAK,),
        recompiles=(RECOMPILE,),
        numerics=(replace(NUMERIC, ok=False),),
        findings=(Finding(rule="made_up", severity="error", title="broken"),),
    )
    found = against(before, after)
    times = found.pop("times")
    assert found == dict.fromkeys(("breaks", "recompiles", "operators", "coverage", "results", "findings"), "failed")
    assert times == "unmeasured", "the last operator left what is timed of a call"
    rows = verdicts_of(after, {}, before)
    assert next(row.detail for row in rows if row.subject == "operators") == "aten.add.Tensor: ONNX Runtime -> PyTorch: no ONNX function"
    found = against(after, before)
    assert found.pop("times") == "unmeasured"
    assert set(found.values()) == {"passed"}


def test_results_are_unmeasured_where_only_the_baseline_was_verified() -> None:
    before = hand_made.clean(name="net", numerics=(NUMERIC,))
    assert against(before, replace(before, numerics=()))["results"] == "unmeasured"
    assert "results" not in against(replace(before, numerics=()), before)
