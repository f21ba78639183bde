from __future__ import annotations

from dataclasses import replace

from ortlens.analysis.costs import entries_per_call
from ortlens.analysis.ledger import ledger_from_logs
from ortlens.analysis.timing import (
    call_time,
    call_times,
    calls_by_graph,
    compile_phases,
    compile_total_ns,
    fallback_ns,
    graph_times,
    slowest_sessions,
)
from ortlens.trace.records import Capture, Graph, Run
from ortlens.views.time_sentences import average_words
from tests.unit.analysis.hand_made import fallback, graph, partition, session
from tests.unit.views.sample_captures import SAMPLES


def test_graph_times_add_up_the_sessions_of_one_partition() -> None:
    calls = (("p0", 3, 30), ("p0", 4, 40), ("p1", 5, 7), ("gone", 99, 99))
    sessions = tuple(session(n, name, calls=count, total_ns=ns) for n, (name, count, ns) in enumerate(calls))
    row = fallback(calls=5, total_ns=5)
    capture = Capture(graphs=(graph(),), partitions=(partition(), partition(1)), sessions=sessions, fallbacks=(row,))
    time = graph_times(capture)["g0"]
    assert (time.calls, time.ort_ns, time.eager_ns, time.foreign_ns) == (7, 77, 5, 0)


def test_a_session_that_was_replaced_after_its_slow_call_does_not_change_what_a_call_takes() -> None:
    slow = session(0, "p0", calls=1, total_ns=4_950_000, p50_ns=4_950_000)
    usual = session(1, "p0", calls=7, total_ns=7_000_000, p50_ns=890_000)
    capture = Capture(graphs=(graph(),), partitions=(partition(),), sessions=(slow, usual))
    assert (call_time(capture).ort_ns, call_time(capture).calls) == (890_000, 8)
    even = replace(capture, sessions=(slow, replace(usual, calls=1)))
    assert call_time(even).ort_ns == (4_950_000 + 890_000) / 2


def test_a_mean_of_versions_is_not_called_a_median() -> None:
    first, second = (Graph(graph_id=f"g{n}", compile_id=f"0/{n}", phase="inference", op_count=1) for n in range(2))
    runs = tuple(Run(session_id=None, graph_id=f"g{n}", call=4, start_ns=0, total_ns=10) for n in range(2))
    assert average_words(call_time(Capture(graphs=(first, second), runs=runs))) == "mean of 2 versions in 10 calls"
    assert average_words(call_time(Capture(graphs=(first,), runs=runs[:1]))) == "median of 5 calls"


def test_graph_times_of_another_backend_extrapolate_from_the_kept_runs() -> None:
    time = graph_times(SAMPLES["foreign"])["g0"]
    assert (time.calls, time.foreign_ns) == (6, 6000)  # calls 2 to 5 are kept, 1000 ns each
    without_a_graph = replace(SAMPLES["foreign"], runs=(Run(session_id=None, call=0, start_ns=0, total_ns=5),))
    assert graph_times(without_a_graph)["g0"].calls == 0


def test_call_time_divides_by_the_calls_of_the_first_graph() -> None:
    call = call_time(SAMPLES["demo_like"])
    assert (call.calls, call.function, call.ort_ns, call.eager_ns) == (10, "forward", 304_000, 12_000)
    assert call.total_ns == 316_000
    assert (call_time(SAMPLES["whole"]).calls, call_time(SAMPLES["empty"]).total_ns) == (0, 0)


def test_a_slow_first_call_does_not_change_what_a_call_takes() -> None:
    usual = replace(two_functions(), sessions=tuple(replace(row, p50_ns=1_000) for row in two_functions().sessions))
    assert [call.ort_ns for call in call_times(usual)] == [1_000, 2_000]
    parts = {part.graph_id: part.ns for part in ledger_from_logs(usual) if part.part == "run"}
    assert parts == {}, "without recorded runs, nobody knows how a session's time divides"
    foreign = SAMPLES["foreign"]
    slow_first = replace(foreign, runs=(replace(foreign.runs[0], total_ns=10**9), *foreign.runs[1:]))
    assert call_time(slow_first).foreign_ns == call_time(foreign).foreign_ns


def test_call_time_adds_up_the_versions_of_the_first_graph() -> None:
    capture = Capture(
        graphs=tuple(Graph(graph_id=f"g{n}", compile_id=f"0/{n}", phase="inference", op_count=1) for n in range(2)),
        runs=tuple(Run(session_id=None, graph_id=f"g{n}", call=4, start_ns=0, total_ns=10 * (n + 1)) for n in range(2)),
    )
    call = call_time(capture)
    assert (call.calls, call.foreign_ns) == (10, 15)


def test_slowest_sessions_are_ranked_and_share_the_whole() -> None:
    costs = slowest_sessions(SAMPLES["demo_like"])
    assert [cost.session.session_id for cost in costs] == ["s0", "s1", "s2", "s3"]
    assert sum(cost.share for cost in costs) == 1
    assert costs[0].graph_id == "g0"
    (unused,) = slowest_sessions(Capture(sessions=(session(0, "gone", calls=0, total_ns=0),)))
    assert (unused.share, unused.graph_id) == (0.0, None)


def test_compile_phases_are_complete_and_in_order() -> None:
    phases = compile_phases(SAMPLES["demo_like"])
    assert [phase.phase for phase in phases] == ["dynamo", "aot", "partition", "convert", "optimize", "session", "other"]
    assert sum(phase.total_ns for phase in phases) == compile_total_ns(SAMPLES["demo_like"]) == 950_000_000
    assert compile_phases(SAMPLES["foreign"]) == ()
    assert [phase.phase for phase in compile_phases(SAMPLES["training"])] == ["convert"]


def two_functions() -> Capture:
    """`encode` is called once and `decode` a hundred times, in a graph that breaks; both are recorded by one lens."""
    names = (("forward", "Encoder"), ("forward", "Decoder"), ("torch_dynamo_resume_in_forward_at_9", "Decoder"))
    calls = ((1, 9_000), (100, 2_000), (100, 1_000))
    return Capture(
        graphs=tuple(graph(f"g{n}", name=name, target=target) for n, (name, target) in enumerate(names)),
        partitions=tuple(partition(n, f"g{n}") for n in range(3)),
        sessions=tuple(session(n, calls=count, total_ns=count * ns, mean_ns=ns) for n, (count, ns) in enumerate(calls)),
        fallbacks=(fallback(graph_id="g2", calls=100, total_ns=50_000),),
    )


def test_each_function_has_its_own_time_per_call() -> None:
    encode, decode = call_times(two_functions())
    assert (encode.function, encode.calls, encode.total_ns) == ("Encoder", 1, 9_000)
    assert (decode.function, decode.calls, decode.ort_ns, decode.eager_ns) == ("Decoder", 100, 3_000, 500)
    assert call_time(two_functions()) == encode
    assert fallback_ns(two_functions()) == {("g2", "n"): 500.0}
    assert calls_by_graph(two_functions()) == {"g0": 1, "g1": 100, "g2": 100}
    assert entries_per_call(two_functions()) == {"g0": 1.0, "g1": 1.0, "g2": 1.0}


def test_a_backward_graph_belongs_to_the_function_of_its_forward() -> None:
    forward = Graph(graph_id="g0", compile_id="0/0", phase="forward", op_count=1, target="step")
    capture = replace(two_functions(), graphs=(forward, Graph(graph_id="g1", compile_id="0/0", phase="backward", op_count=0)))
    assert [call.graph_ids for call in call_times(capture)] == [("g0", "g1")]
