"""The rules about a measured call as a whole: their thresholds, their words, and one finding per cause."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ortlens.analysis.first_look import looks_of
from ortlens.analysis.overview import overview_of
from ortlens.analysis.timing import price_of
from ortlens.trace.records import Break, Finding, LedgerPart
from tests.unit.analysis.hand_made import FILE, MICRO, clean, fallback, found, graph, node, partition, runs, session

if TYPE_CHECKING:
    from ortlens.trace.records import Capture


def slow_call(plain: int, **parts: int) -> Capture:
    """A call whose parts were measured, beside one without torch.compile."""
    whole = sum(parts.values())
    rows = tuple(LedgerPart(graph_id="g0", part=part, ns=ns, share=ns / whole) for part, ns in parts.items())  # type: ignore[arg-type]  # names
    made = clean(graphs=(graph(entries_per_call=1.0, file=FILE, line=3),), ledger=rows)
    return replace(made, environment={**made.environment, "uncompiled_ns": str(plain)})


@pytest.mark.parametrize(
    ("total", "plain", "severities"),
    [
        (130, 100, ["warning"]),
        (130, 101, ["info"]),  # less than 1.3 times as long
        (111, 100, ["info"]),
        (120, 110, []),  # less than 1.1 times as long
        (60, 40, ["warning"]),
        (60, 41, ["info"]),
        (30, 20, ["info"]),
        (30, 21, []),
    ],
)
def test_a_call_that_takes_longer_than_uncompiled(total: int, plain: int, severities: list[str]) -> None:
    capture = slow_call(plain * MICRO, guards=(total - 10) * MICRO, run=10 * MICRO, residual=0)
    assert [finding.severity for finding in found(capture, "slower_call")] == severities


def test_no_call_is_slower_without_a_word_about_it_unless_the_machine_is_busy() -> None:
    capture = slow_call(100 * MICRO, guards=30 * MICRO, run=82 * MICRO, residual=0)
    (look,) = looks_of(overview_of(capture))
    assert look.what.startswith("a call takes 112 µs, without torch.compile 100 µs (1.1 times as long)")
    busy = replace(capture, environment={**capture.environment, "ledger_others": "1.0", "ledger_idle": "0.0"})
    assert looks_of(overview_of(busy)) == ()


def test_the_part_that_makes_a_call_slow_is_named() -> None:
    (entering,) = found(slow_call(50 * MICRO, guards=60 * MICRO, run=55 * MICRO, residual=0), "slower_call")
    assert entering.title == "a call takes 115 µs, without torch.compile 50.0 µs (2.3 times as long): entering compiled code takes 60.0 µs"
    assert (entering.file, entering.line, entering.measured) == (FILE, 3, False)
    assert entering.gain_ns == 60 * MICRO  # of the 65 that the call loses, no more than the part that the advice is about
    (running,) = found(slow_call(50 * MICRO, guards=10 * MICRO, run=90 * MICRO, residual=0), "slower_call")
    assert running.title.endswith("ONNX Runtime takes 90.0 µs")


def test_a_slow_call_that_a_break_explains_is_the_breaks() -> None:
    capture = slow_call(50 * MICRO, guards=60 * MICRO, run=55 * MICRO, residual=0)
    broken = Break(break_id="b0", reason="why", file=FILE, line=9, occurrences=1, overhead_ns=33 * MICRO, cost_ns=33 * MICRO)
    assert found(replace(capture, breaks=(broken,)), "slower_call") == []
    (rest,) = found(replace(capture, breaks=(replace(broken, overhead_ns=30 * MICRO, cost_ns=30 * MICRO),)), "slower_call")
    # What is entered behind the break has its price there, so neither the time nor the gain has it a second time.
    assert rest.title.endswith("entering compiled code takes 30.0 µs besides what graph breaks and operators in PyTorch cost")
    assert rest.gain_ns == 30 * MICRO
    assert "graph break" not in rest.mitigation


def test_gains_of_breaks_and_of_the_rest_of_a_call_are_no_more_than_it_loses() -> None:
    capture = slow_call(50 * MICRO, guards=40 * MICRO, bind=45 * MICRO, run=30 * MICRO, residual=0)
    broken = Break(break_id="b0", reason="r", file=FILE, line=9, overhead_ns=10 * MICRO, cost_ns=10 * MICRO, entering_ns=20 * MICRO)
    capture = replace(capture, breaks=(broken,))
    gains = [finding.gain_ns or 0 for finding in found(capture, "slower_call")]
    assert gains
    assert sum(gains) + (price_of(broken) or 0) <= 65 * MICRO


def test_guards_that_the_prices_of_breaks_contain_are_not_an_action_of_their_own() -> None:
    capture = slow_call(100 * MICRO, guards=60 * MICRO, run=40 * MICRO, residual=0)
    guards = Finding(rule="heavy_guards", severity="warning", title="guards", evidence="", hazard="", mitigation="Remove.", gain_ns=50_000)
    broken = Break(break_id="b0", reason="r", file=FILE, line=9, overhead_ns=50 * MICRO, cost_ns=50 * MICRO)
    alone, behind = replace(capture, findings=(guards,)), replace(capture, findings=(guards,), breaks=(broken,))
    assert [look.what for look in looks_of(overview_of(alone))] == ["guards"]  # `costly_entry` would say the same
    assert [look.subject for look in looks_of(overview_of(behind))] == ["break"]


@pytest.mark.parametrize(("crossing", "count"), [(33, 0), (31, 1)])
def test_a_slow_call_that_an_operator_between_partitions_explains_is_the_operators(crossing: int, count: int) -> None:
    # Two partitions: with the operator gone, half of the crossings are; 65 µs are lost.
    capture = slow_call(50 * MICRO, bind=60 * MICRO, run=55 * MICRO, residual=0)
    parts, held = (partition(0), partition(1)), (session(0), session(1))
    timed = tuple(run for number in (0, 1) for run in runs(number, bind=crossing * MICRO, output=0))
    split = replace(capture, partitions=parts, sessions=held, runs=timed, fallbacks=(fallback(),))
    assert len(found(split, "slower_call")) == count
    assert len(found(replace(split, fallbacks=()), "slower_call")) == 1


def test_a_slow_call_in_training_names_the_copied_state_and_its_line() -> None:
    capture = slow_call(5 * MICRO, guards=1 * MICRO, run=900 * MICRO, residual=0)
    size = 4 << 20
    copied = node("copied", target="aten.clone.default", inputs=("state",), bytes=size, output_bytes=size)
    write = node(
        "w", target="aten.index_put.default", inputs=("copied",), is_output=True, output_bytes=size, bytes=2 * size, file=FILE, line=12
    )
    held = replace(capture, graphs=tuple(replace(row, inputs=("state",)) for row in capture.graphs), nodes=(copied, write))
    (finding,) = found(replace(held, partitions=(partition(),)), "slower_call")
    assert "perhaps because aten.index_put.default changes a part of a buffer, and all 4.00 MiB of it are copied" in finding.title
    assert finding.line == 12
    assert [row.line for row in found(held, "state_copies")] == [12]


def test_a_slow_call_that_goes_into_breaks_is_told_by_them() -> None:
    capture = slow_call(50 * MICRO, eager=90 * MICRO, run=10 * MICRO, residual=0)
    assert [finding.title.rpartition(": ")[2] for finding in found(capture, "slower_call")] == [
        "PyTorch operators and Python between graphs take 90.0 µs"
    ]
    broken = Break(break_id="b0", reason="why", file=FILE, line=9, occurrences=1, overhead_ns=1, cost_ns=80 * MICRO)
    assert found(replace(capture, breaks=(broken,)), "slower_call") == []
    without_price = replace(broken, overhead_ns=None, cost_ns=None)  # as of two breaks behind the last graph
    assert len(found(replace(capture, breaks=(without_price,)), "slower_call")) == 1


@pytest.mark.parametrize(
    ("guards", "run", "count"),
    [(20, 60, 1), (20, 61, 0), (19, 1, 0)],  # a quarter of the call, and 20 µs
)
def test_a_call_that_is_mostly_entered_is_to_be_frozen(guards: int, run: int, count: int) -> None:
    capture = slow_call(0, guards=guards * MICRO, run=run * MICRO, residual=0)
    findings = found(capture, "costly_entry")
    assert [(row.severity, row.gain_ns) for row in findings] == [("info", guards * MICRO)] * count
    training = tuple(replace(row, phase="forward") for row in capture.graphs)
    broken = Break(break_id="b0", reason="why", file=FILE, line=9, occurrences=1)
    assert found(replace(capture, graphs=training), "costly_entry") == []
    assert found(replace(capture, partitions=()), "costly_entry") == []  # nothing runs in ONNX Runtime, frozen or not
    assert found(replace(capture, breaks=(broken,)), "costly_entry") == []


def test_a_slow_call_and_its_costly_entry_are_one_finding_that_names_the_frozen_callable() -> None:
    capture = slow_call(30 * MICRO, guards=26 * MICRO, run=18 * MICRO, residual=0)
    (call,) = found(capture, "slower_call")
    assert found(capture, "costly_entry") == []
    assert "ortlens.freeze" in call.mitigation
    several = replace(capture, breaks=(Break(break_id="b0", reason="why", file=FILE, line=9, occurrences=1),))
    (call,) = found(several, "slower_call")
    assert "ortlens.freeze" not in call.mitigation


def test_a_slow_call_whose_slow_partition_is_known_is_one_finding() -> None:
    capture = slow_call(50 * MICRO, run=150 * MICRO, residual=0)
    loop = node("bag", target="aten._embedding_bag.default", onnx_ops=("Gather", "Loop"), file=FILE, line=7)
    timed = partition(ort_ns=80 * MICRO, torch_ns=40 * MICRO, is_slower=True)  # less than half of the 100 µs that are lost
    known = replace(capture, partitions=(timed,), nodes=(node("a"), loop))
    assert [row.line for row in found(known, "slower_than_torch")] == [7]
    assert found(known, "slower_call") == []
    assert len(found(replace(known, partitions=(replace(timed, is_slower=False),)), "slower_call")) == 1


@pytest.mark.parametrize(("guards", "run", "count"), [(26, 74, 1), (24, 76, 0)])
def test_what_would_save_much_of_a_call_stands_out(guards: int, run: int, count: int) -> None:
    capture = slow_call(0, guards=guards * MICRO, run=run * MICRO, residual=0)
    looks = looks_of(overview_of(capture))
    assert len(looks) == count
    assert all((look.at_most, look.ns_per_call) == (True, guards * MICRO) for look in looks)
    busy = replace(capture, environment={**capture.environment, "ledger_others": "1.0", "ledger_idle": "0.0"})
    assert [look.is_busy for look in looks_of(overview_of(busy))] == [True] * count


def test_information_without_a_gain_or_with_a_small_one_does_not_stand_out() -> None:
    capture = slow_call(0, run=100 * MICRO, residual=0)
    said = Finding(rule="thread_count", severity="info", title="threads", evidence="", hazard="", mitigation="Set.", gain_ns=None)
    for gain, count in ((None, 0), (9 * MICRO, 0), (10 * MICRO, 1)):
        held = replace(capture, findings=(replace(said, gain_ns=gain),))
        assert len(looks_of(overview_of(held))) == count
