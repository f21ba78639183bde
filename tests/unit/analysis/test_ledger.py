"""The books of a call: everything is in them once, and each gap lies where it belongs."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortlens.analysis.ledger import (
    PARTS,
    CallTrace,
    GraphVisit,
    Ledger,
    SessionTime,
    StepReading,
    Surroundings,
    ledger_from_calls,
    ledger_from_logs,
    lookups_ahead,
    totals_of,
)
from ortlens.trace.records import Capture, Fallback, Graph, LedgerPart, LedgerPartName, Partition, Run, Session


def call(*readings: int, shift: int = 0, eager: int = 0) -> CallTrace:
    """A call through graphs `g0`, `g1`, ... from its clock readings: start, in, out, in, out, ..., end."""
    start, *doors, end = (reading + shift for reading in readings)
    stays = list(zip(doors[::2], doors[1::2], strict=True))
    return CallTrace(
        started_ns=start,
        ended_ns=end,
        visits=tuple(GraphVisit(graph_id=f"g{n}", entered_ns=entered, left_ns=left) for n, (entered, left) in enumerate(stays)),
        sessions={"g0": SessionTime(bind_ns=10, run_ns=70, output_ns=5)},
        eager_ns={"g0": eager},
    )


def booked(ledger: Ledger, graph_id: str) -> dict[LedgerPartName, int]:
    return {row.part: row.ns for row in ledger.parts if row.graph_id == graph_id and row.ns}


def test_one_graph_and_no_break() -> None:
    ledger = ledger_from_calls([call(0, 20, 120, 126, eager=9)], Surroundings())
    assert booked(ledger, "g0") == {"guards": 26, "bind": 10, "run": 70, "output": 5, "eager": 9, "residual": 6}
    assert [row.part for row in ledger.parts] == [part for part in PARTS if part not in {"foreign", "wait"}], "nothing was waited for"
    assert ledger.between_ns == {}
    unclocked = ledger_from_calls([call(0, 20, 420, 420)], Surroundings(unclocked={"g0"}))
    assert booked(unclocked, "g0") == {"guards": 20, "bind": 10, "run": 70, "output": 5, "eager": 315}, "what sessions leave is PyTorch's"
    for outside in ([], [CallTrace(started_ns=0, ended_ns=50, visits=())]):
        assert ledger_from_calls(outside, Surroundings()) == Ledger(parts=(), between_ns={}, calls=0)


def test_the_gap_of_a_break_is_guards_and_python_and_its_price() -> None:
    around = Surroundings(lookup_ns={"g1": 12.0}, break_ahead={"g1": "b0"})
    ledger = ledger_from_calls([call(0, 20, 120, 1120, 1150, 1156)], around)
    assert booked(ledger, "g1") == {"guards": 12 + 6, "eager": 988, "residual": 30}
    assert booked(ledger, "g0") == {"guards": 20, "bind": 10, "run": 70, "output": 5, "residual": 15}
    assert (ledger.between_ns, ledger.overhead_ns) == ({"b0": 988}, {"b0": 12}), "the program's own, and Dynamo's"


def test_inside_the_calls_of_a_whole_model_the_rest_is_entering_its_graphs() -> None:
    first = StepReading(apart=None, started_ns=30, ended_ns=130, rows=1, positions=4)
    steps = (first, first._replace(started_ns=200, ended_ns=260, positions=1))
    made = replace(call(0, 40, 120, 210, 250, 300), steps=steps)
    around = Surroundings(has_python_before=True, has_python_after=True, is_whole_model=True)
    rows = ledger_from_calls([made], around).parts
    around_model = (30 - 0) + (200 - 130) + (300 - 260)
    assert sum(row.ns for row in rows if row.part == "eager") == around_model
    assert sum(row.ns for row in rows if row.part == "guards") == (40 - 30) + (130 - 120) + (210 - 200) + (260 - 250)
    broken = ledger_from_calls([made], replace(around, is_whole_model=False)).parts
    assert sum(row.ns for row in broken if row.part == "guards") == 0, "what no graph explains may be the program's own"


def test_entering_the_graph_behind_a_break_goes_with_it() -> None:
    times = {"g1": SessionTime(bind_ns=8, run_ns=10, output_ns=4)}
    made = replace(call(0, 20, 120, 1120, 1150, 1156), sessions=times, eager_ns={"g1": 3})
    around = Surroundings(break_ahead={"g1": "b0"}, partitions={"g1": 2})
    assert ledger_from_calls([made], around).entering_ns == {"b0": (8 + 4) // 2 + (30 - 8 - 10 - 4 - 3)}, "one of two, and the code around"
    assert ledger_from_calls([made], replace(around, unclocked={"g1"})).entering_ns == {"b0": 6}
    assert ledger_from_calls([made], Surroundings(break_ahead={"g1": "b0"})).entering_ns == {}, "of another backend nothing is known"
    first = replace(around, break_ahead={"g0": "b0"}, partitions={"g0": 1})
    assert ledger_from_calls([made], first).entering_ns == {}, "the first graph is entered anyway"


def test_a_break_before_the_first_graph_costs_what_is_no_guard() -> None:
    around = Surroundings(lookup_ns={"g0": 15.0}, break_ahead={"g0": "b0"})
    ledger = ledger_from_calls([call(0, 500, 600, 606)], around)
    assert booked(ledger, "g0") == {"guards": 15 + 6, "eager": 485, "bind": 10, "run": 70, "output": 5, "residual": 15}
    assert (ledger.between_ns, ledger.overhead_ns) == ({"b0": 485}, {"b0": 0}), "guards run with or without it"


def test_python_after_the_last_graph_is_the_last_breaks() -> None:
    around = Surroundings(last_lookup_ns=4.0, last_break="b7", has_python_after=True)
    ledger = ledger_from_calls([call(0, 20, 120, 1120)], around)
    assert booked(ledger, "g0") == {"guards": 24, "bind": 10, "run": 70, "output": 5, "eager": 996, "residual": 15}
    assert (ledger.between_ns, ledger.overhead_ns) == ({"b7": 996}, {"b7": 4})
    unknown = ledger_from_calls([call(0, 20, 120, 1120)], Surroundings(has_python_after=True))
    assert (booked(unknown, "g0")["eager"], unknown.between_ns) == (1000, {}), "of several, nobody knows which it is"


def test_a_graph_entered_twice_has_one_row_per_part() -> None:
    twice = CallTrace(
        started_ns=0,
        ended_ns=100,
        visits=(GraphVisit(graph_id="g0", entered_ns=10, left_ns=40), GraphVisit(graph_id="g0", entered_ns=55, left_ns=90)),
        sessions={"g0": SessionTime(run_ns=60)},
    )
    ledger = ledger_from_calls([twice], Surroundings(lookup_ns={"g0": 5.0}))
    assert booked(ledger, "g0") == {"guards": 10 + 5 + 10, "eager": 10, "run": 60, "residual": 5}


def test_waiting_for_a_device_is_a_part_of_its_own_and_the_rows_still_add_up() -> None:
    waiting = [replace(call(0, 20, 120, 130, 230, 736), waited_ns=500)]
    ledger = ledger_from_calls(waiting, Surroundings())
    assert booked(ledger, "g0") == {"guards": 20, "bind": 10, "run": 70, "output": 5, "residual": 15}
    assert booked(ledger, "g1") == {"guards": 6, "eager": 10, "residual": 100, "wait": 500}
    assert sum(row.ns for row in ledger.parts) == 736
    around = Surroundings(has_python_after=True, last_lookup_ns=4.0, last_break="b0")
    ledger = ledger_from_calls(waiting, around)
    assert booked(ledger, "g1")["wait"] == 500
    assert (ledger.between_ns, ledger.overhead_ns) == ({"b0": 2}, {"b0": 4}), "the price of a break has no waiting in it"
    totals = totals_of(ledger.parts)
    assert totals is not None
    assert totals.ns["wait"] == 500


def test_the_steps_of_a_generation_wait_for_the_device_between_the_graphs() -> None:
    around = Surroundings(has_python_before=True, is_whole_model=True, has_python_after=True)
    steps = (
        StepReading(apart=None, started_ns=10, ended_ns=330, rows=1, positions=4, waited_ns=200),
        StepReading(apart=None, started_ns=340, ended_ns=650, rows=1, positions=1, waited_ns=190),
    )
    stepped = replace(call(0, 20, 120, 350, 450, 700), steps=steps)
    ledger = ledger_from_calls([stepped], around)
    assert booked(ledger, "g0") == {"guards": 10, "bind": 10, "run": 70, "output": 5, "residual": 15, "eager": 10, "wait": 200}
    assert booked(ledger, "g1") == {"guards": 10 + 10 + 10, "eager": 10 + 50, "residual": 100, "wait": 190}
    assert sum(row.ns for row in ledger.parts) == 700


def test_slow_and_lucky_calls_stay_outside() -> None:
    usual = [call(0, 20, 120, 126, shift=1000 * n) for n in range(6)]
    odd = [call(0, 20, 900_000, 900_006, shift=-2_000_000), call(0, 1, 87, 87, shift=-9000)]
    assert ledger_from_calls([*odd, *usual], Surroundings()).parts == ledger_from_calls(usual, Surroundings()).parts


def test_the_parts_share_out_the_time_of_a_call_without_clocks() -> None:
    clocked, around = call(0, 20, 120, 1120, 1150, 1200), Surroundings(lookup_ns={"g1": 12.0}, break_ahead={"g1": "b0"})
    whole, half = ledger_from_calls([clocked], around), ledger_from_calls([clocked], around, 600.0)
    assert sum(part.ns for part in half.parts) == 600
    assert (half.scale, half.between_ns, half.overhead_ns) == (0.5, {"b0": whole.between_ns["b0"] / 2}, {"b0": whole.overhead_ns["b0"] / 2})
    assert [part.share for part in half.parts] == pytest.approx([part.share for part in whole.parts], abs=0.002)


@given(
    st.lists(st.lists(st.integers(0, 10**9), min_size=4, max_size=12).filter(lambda r: len(r) % 2 == 0), min_size=1, max_size=9),
    st.floats(0, 1e9),
    st.booleans(),
)
def test_shares_add_to_one_and_rows_to_the_wall_time(steps: list[list[int]], lookup: float, after: bool) -> None:  # noqa: FBT001
    calls = []
    for step in steps:
        readings = [sum(step[: n + 1]) for n in range(len(step))]
        plain = call(*readings)
        calls.append(CallTrace(started_ns=plain.started_ns, ended_ns=plain.ended_ns, visits=plain.visits))
    around = Surroundings(lookup_ns={"g0": lookup, "g1": lookup}, last_lookup_ns=lookup, break_ahead={"g1": "b0"}, has_python_after=after)
    ledger = ledger_from_calls(calls, around)
    walls = sorted(c.ended_ns - c.started_ns for c in calls)
    quarter = len(walls) // 4
    middle = walls[quarter : len(walls) - quarter]
    assert sum(row.ns for row in ledger.parts) == pytest.approx(sum(middle) / len(middle), abs=len(ledger.parts))
    assert all(row.ns >= 0 for row in ledger.parts)
    total = sum(row.share for row in ledger.parts)
    assert math.isclose(total, 1) or not any(row.ns for row in ledger.parts)


def test_lookups_and_what_compiled_code_gathers_lie_ahead_of_a_graph() -> None:
    def listened(extra: int) -> CallTrace:
        heard = (
            (True, 5, 12),
            (False, 14, 130),
            (True, 140, 142 + extra),
            (False, 145, 146),
            (True, 150, 153),
            (False, 154, 300),
            (True, 310, 319),
        )
        plain = call(0, 20, 120, 160, 280, 330)
        return CallTrace(started_ns=plain.started_ns, ended_ns=plain.ended_ns, visits=plain.visits, heard=heard)

    ahead, after = lookups_ahead([listened(0), listened(1), listened(2)])
    assert ahead == {"g0": 7 + 6, "g1": 3 + 3 + 6}, "a frame without a graph was entered on the way to g1; of three calls, the median"
    assert after == 9
    assert lookups_ahead([]) == ({}, 0)
    assert lookups_ahead([call(0, 20, 120, 126)]) == ({"g0": 0}, 0)


def logged(**changes: object) -> Capture:
    tables: dict[str, object] = {
        "graphs": (Graph(graph_id="g0", compile_id="0/0", phase="inference", op_count=3),),
        "partitions": (Partition(partition_id="p0", graph_id="g0", node_count=2, input_count=1, output_count=1),),
        "fallbacks": (Fallback(graph_id="g0", node="n", target="t", reason_code="dtype", reason="", calls=10, total_ns=500),),
        "sessions": (Session(session_id="s0", partition_id="p0", calls=10, total_ns=2000),),
        "runs": (Run(session_id="s0", graph_id="g0", call=9, start_ns=0, bind_ns=20, run_ns=70, output_ns=10, total_ns=100),),
    }
    return Capture(**{**tables, **changes})  # type: ignore[arg-type]  # tables by name


def test_logs_alone_tell_what_is_inside_the_graphs() -> None:
    rows = ledger_from_logs(logged())
    assert {row.part: row.ns for row in rows} == {"bind": 40, "run": 140, "output": 20, "eager": 50}
    assert sum(row.share for row in rows) == pytest.approx(1)
    totals = totals_of(rows)
    assert totals is not None
    assert (totals.total_ns, totals.is_measured) == (250, False)
    assert totals.share["run"] == pytest.approx(0.56)


def test_logs_that_do_not_tell_give_no_ledger() -> None:
    assert ledger_from_logs(Capture()) == ()
    assert ledger_from_logs(logged(runs=())) == (), "how the session's time divides is not known any more"


def test_the_whole_graph_of_another_backend_is_a_part_of_its_own() -> None:
    runs = tuple(Run(session_id=None, graph_id="g0", call=n, start_ns=n, total_ns=30) for n in range(4))
    (row,) = ledger_from_logs(logged(partitions=(), fallbacks=(), sessions=(), runs=runs))
    assert (row.part, row.ns, row.share) == ("foreign", 30, 1.0)


def test_totals_of_a_model_are_sums_over_its_graphs() -> None:
    rows = [LedgerPart(graph_id=g, part=part, ns=ns, share=0.25) for g in ("g0", "g1") for part, ns in (("run", 30), ("residual", 20))]  # type: ignore[arg-type]  # literals
    totals = totals_of(rows)
    assert totals is not None
    assert (totals.ns, totals.total_ns, totals.is_measured) == ({"run": 60, "residual": 40}, 100, True)
    assert totals.share == {"run": 0.6, "residual": 0.4}
    assert totals_of([]) is None
