"""What exporters write: events of a trace."""

import json
from dataclasses import replace
from typing import Any

import pytest

from ortlens.analysis.coverage import coverage_of
from ortlens.analysis.ledger import ledger_from_logs
from ortlens.trace.records import Capture, Run, same
from ortlens.views.exporting import trace_from_capture
from ortlens.views.flame import flame_of
from ortlens.views.flame_files import flame_svg
from ortlens.views.payload import payload_from_capture
from ortlens.views.sentences import partitions_sentence
from tests.recorded import recorded
from tests.unit.analysis.hand_made import graph, kernel, session
from tests.unit.views.sample_captures import SAMPLES, captured


def slices(trace: dict[str, Any], category: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event.get("cat") == category]


def timed(call: int, start_ns: int, *, run_ns: int = 80, output_ns: int = 10, thread: int | None = None) -> Run:
    times = {"start_ns": start_ns, "bind_ns": 10, "run_ns": run_ns, "output_ns": output_ns, "total_ns": 100}
    return Run(session_id="s0", call=call, graph_id="g0", thread=thread, **times)  # type: ignore[arg-type]  # by name


def two_threads() -> Capture:
    runs = (timed(1, 5000, thread=2**60), timed(0, 3000, run_ns=85, output_ns=0, thread=7))
    return Capture(name="net", graphs=(graph(),), sessions=(session(providers=("CPU",), input_signature="f32[2]", calls=9),), runs=runs)


def test_a_slice_per_call_with_its_parts_inside_on_a_track_per_thread() -> None:
    trace = trace_from_capture(two_threads())
    first, second = slices(trace, "call")
    assert (first["name"], first["ts"], first["dur"]) == ("p0 of g0", 0.0, 0.1)
    assert (second["ts"], second["dur"]) == (2.0, 0.1)
    of_graph = {"call": 0, "graph": "g0", "compile_id": "0/0", "phase": "inference"}
    assert first["args"] == of_graph | {"session": "s0", "partition": "p0", "providers": ["CPU"], "inputs": "f32[2]"}
    parts = [(part["name"], part["tid"], part["ts"], part["dur"]) for part in slices(trace, "part")]
    assert parts == [
        ("bind", 0, 0.0, 0.01),
        ("run", 0, 0.01, 0.085),
        ("bind", 1, 2.0, 0.01),
        ("run", 1, 2.01, 0.08),
        ("output", 1, 2.09, 0.01),
    ]
    named = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name" and event["pid"] == 1}
    assert named == {0: "thread 7", 1: f"thread {2**60}"}
    assert (trace["otherData"]["calls"], trace["otherData"]["calls in this trace"]) == ("9", "2")


def test_a_graph_of_another_backend_is_a_call_without_parts() -> None:
    run = Run(call=0, start_ns=1, run_ns=9, total_ns=9, graph_id="g0")
    trace = trace_from_capture(Capture(graphs=(graph(),), runs=(run,)))
    assert [event["name"] for event in slices(trace, "call")] == ["graph g0"]
    assert slices(trace, "part") == []


@pytest.mark.parametrize("capture", [*SAMPLES.values(), recorded("demo")], ids=[*SAMPLES, "recorded"])
def test_every_capture_gives_a_sound_trace(capture: Capture) -> None:
    trace = json.loads(json.dumps(trace_from_capture(capture), allow_nan=False))
    calls = slices(trace, "call")
    assert len(calls) == len(capture.runs)
    assert all(event["ts"] >= 0 and event["dur"] >= 0 and event["ph"] == "X" for event in calls)
    assert all(isinstance(event["name"], str) for event in trace["traceEvents"])


def test_parts_of_a_recorded_capture_lie_inside_their_calls() -> None:
    trace = trace_from_capture(recorded("demo"))
    calls = {(event["tid"], event["ts"]): event["ts"] + event["dur"] for event in slices(trace, "call")}
    inside = 0
    for part in slices(trace, "part"):
        end = min(stop for (thread, start), stop in calls.items() if thread == part["tid"] and start <= part["ts"] < stop)
        assert part["ts"] + part["dur"] <= end + 1e-6
        inside += 1
    assert inside > len(calls)


def profiled(*lengths: int, calls: int = 2) -> Capture:
    """Calls of one session with a run of 80 ns, kernels of the given lengths, and a peak of activations."""
    runs = tuple(timed(call, 1000 * call) for call in range(calls))
    kernels = tuple(kernel("Add", kernel=f"k{at}", mean_ns=ns) for at, ns in enumerate(lengths))
    return Capture(sessions=(session(arena_bytes=64),), runs=runs, kernels=kernels)


@pytest.mark.parametrize(
    ("lengths", "drawn"),
    [((20, 30), [(10, 20), (30, 30)]), ((120, 40), [(10, 60), (70, 20)])],
    ids=["shorter than the run", "shortened to the run"],
)
def test_kernels_of_a_profile_lie_inside_a_run(lengths: tuple[int, ...], drawn: list[tuple[int, int]]) -> None:
    first = slices(trace_from_capture(profiled(*lengths, calls=1)), "profiled")
    assert [(round(each["ts"] * 1000), round(each["dur"] * 1000)) for each in first] == drawn
    assert [each["args"]["mean_ns"] for each in first] == list(lengths)
    assert {each["args"]["measured"] for each in first} == {"in profiled calls, not in this one"}


def test_kernels_are_written_for_the_latest_calls_alone() -> None:
    trace = trace_from_capture(profiled(*[1] * 7000, calls=4))
    assert len(slices(trace, "profiled")) == 14_000
    assert min(each["ts"] for each in slices(trace, "profiled")) >= 2.0
    assert trace["otherData"]["calls with kernels of the profile"] == "2"


def test_a_counter_has_the_profiled_peak_while_a_call_lasts() -> None:
    counts = [event for event in trace_from_capture(profiled(calls=1))["traceEvents"] if event["ph"] == "C"]
    assert [(round(event["ts"] * 1000), event["args"]["bytes"]) for event in counts] == [(0, 64), (100, 0)]


def test_the_code_of_another_backend_has_its_name() -> None:
    capture = captured("foreign")
    assert payload_from_capture(capture)["overview"]["foreign"] == "graphs of inductor"
    assert ">graphs of inductor</text>" in (svg := flame_svg(capture))
    assert "ONNX Runtime" not in svg


def test_the_graphs_of_two_backends_are_told_apart() -> None:
    ours, other = two_threads(), captured("foreign")
    theirs = replace(other.graphs[0], graph_id="f", compile_id="0/1", target="other", **same(ours.graphs[0], "name", "file", "line"))
    runs = tuple(replace(run, graph_id="f") for run in other.runs)
    both = replace(ours, backend="inductor, ortlens", graphs=(*ours.graphs, theirs), runs=(*ours.runs, *runs))
    rows = {(row.graph_id, row.part): row.ns for row in ledger_from_logs(both)}
    assert rows["f", "foreign"] == runs[0].total_ns
    assert {part for graph_id, part in rows if graph_id == "f"} == {"foreign"}
    root = flame_of(both).root
    assert {child.kind for frame in root.children if frame.ref == len(ours.graphs) for child in frame.children} == {"foreign"}
    assert ">graphs of inductor</text>" in flame_svg(both)
    assert coverage_of(both).foreign_graph_count == 1
    assert partitions_sentence(both).startswith("none, in 1 graph")
    assert coverage_of(both).node_count == coverage_of(ours).node_count
