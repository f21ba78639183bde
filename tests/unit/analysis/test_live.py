"""The figures of a running program, from records made by hand."""

import os
import subprocess
import sys

import pytest

from ortlens._process import is_running, resident_bytes
from ortlens.trace.records import Capture, Fallback, Graph, Run, Session
from ortlens.views.live import LivePoint, live_figures, live_line, thinned

MS = 1_000_000
GRAPHS = (
    Graph(graph_id="g0", compile_id="0/0", name="step", phase="forward", op_count=3),
    Graph(graph_id="g1", compile_id="0/0", phase="backward", op_count=0),
    Graph(graph_id="g2", name="unused", phase="inference", op_count=1),
)


def run(session: str | None, graph: str, call: int, start_ms: float, took_ms: float) -> Run:
    return Run(session_id=session, graph_id=graph, call=call, start_ns=int(start_ms * MS), total_ns=int(took_ms * MS))


def training(first_call: int = 0, calls: int = 10) -> Capture:
    """A step every 10 ms: forward for 2 ms in one session, backward for 1 and 3 ms in two; sessions of another size ran before."""
    runs = [run("old", "g0", at, at, 0.5) for at in range(3)]
    for at in range(first_call, first_call + calls):
        runs += [run("s0", "g0", at, 100 + 10 * at, 2), run("s1", "g1", at, 103 + 10 * at, 1), run("s2", "g1", at, 104 + 10 * at, 3)]
    sessions = tuple(Session(session_id=name, partition_id="p", calls=first_call + calls, held_bytes=100) for name in ("s0", "s1", "s2"))
    fallbacks = tuple(
        Fallback(graph_id="g0", node=f"n{at}", target=target, reason_code="no_converter", reason="none", calls=10, total_ns=spent)
        for at, (target, spent) in enumerate([("aten.sort", 5), ("aten.fft", 90), ("aten.sort", 5)])
    )
    return Capture(graphs=GRAPHS, sessions=sessions, runs=tuple(runs), fallbacks=fallbacks)


def test_a_training_loop() -> None:
    figures = live_figures(training(), memory_bytes=3 << 20)
    assert (figures.runs, figures.period_ns, figures.busy_ns) == (30, 10 * MS, 6 * MS)
    assert [(graph.graph_id, graph.phase, graph.call_ns) for graph in figures.graphs] == [
        ("g0", "forward", 2 * MS),
        ("g1", "backward", 4 * MS),
    ], "sessions that are no longer called do not count, nor graphs that never were"
    assert figures.session_count == 3
    assert figures.fallbacks == ("aten.fft", "aten.sort")
    assert live_line(figures) == (
        "30 runs; 10.0 ms from call to call; 6.00 ms (60.0 %) of it in sessions; 0 graph breaks; 0 recompiles; 3 sessions; "
        "2 operators in PyTorch; 3.00 MiB memory of the process; median of the latest: step (forward) 2.00 ms, step (backward) 4.00 ms"
    )


def test_runs_that_are_no_longer_kept_do_not_make_the_loop_look_idle() -> None:
    """Of one session the latest 20 runs are kept, of the one that runs ten times as often as well."""
    slow = [run("s0", "g0", at, 10 * at, 1) for at in range(80, 100)]
    quick = [run("s1", "g0", at, at + 5, 0.5) for at in range(975, 995)]
    figures = live_figures(Capture(graphs=GRAPHS, runs=(*slow, *quick)))
    assert (figures.period_ns, figures.busy_ns) == (MS, round((19 * 0.5 + 2 * 1) * MS / 19))


def test_little_ran_or_whole_graphs_of_another_backend() -> None:
    nothing, once, foreign = (
        live_figures(Capture(graphs=GRAPHS, runs=made))
        for made in ((), (run(None, "g0", 0, 1, 2),), tuple(run(None, "g2", at, 4 * at, 1) for at in range(5)))
    )
    assert (nothing.runs, nothing.period_ns, nothing.busy_ns, nothing.graphs) == (0, None, None, ())
    assert live_line(nothing) == "no run yet"
    assert (once.runs, once.period_ns, [graph.call_ns for graph in once.graphs]) == (1, None, [2 * MS])
    assert (foreign.runs, foreign.period_ns, foreign.busy_ns) == (5, 4 * MS, MS)
    assert "25.0 %) of it in compiled graphs" in live_line(foreign)


def test_a_curve_stays_short_and_keeps_its_ends() -> None:
    figures = live_figures(Capture())
    points: list[LivePoint] = []
    for at in range(1000):
        points = thinned([*points, LivePoint(at_s=at, figures=figures)], 60)
    assert 30 <= len(points) <= 60
    assert (points[0].at_s, points[-1].at_s) == (0, 999)


def test_what_the_system_knows_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "kill", None)  # on Windows, signal 0 is CTRL_C_EVENT
    assert is_running(os.getpid())
    assert 1 << 20 < (resident_bytes(os.getpid()) or 0) < 1 << 40
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not is_running(child.pid), "it waits to be reaped"
    assert [(is_running(pid), resident_bytes(pid)) for pid in (child.pid, -1)] == [(False, None)] * 2
