"""How long a call takes by its records, its slowest lines, and when a difference of times counts."""

import random
from dataclasses import replace
from itertools import cycle
from math import comb

import pytest

from ortlens.analysis.costs import entries_per_call, runs_per_call, slow_lines
from ortlens.analysis.ledger import ledger_from_logs, time_base
from ortlens.analysis.speed import MIN_ROUNDS, AbTiming, median_interval, verdict_of_passes, verdict_of_ratio
from ortlens.analysis.timing import (
    call_time,
    call_times,
    compile_phases,
    compile_total_ns,
    fallback_ns,
    graph_times,
    slowest_sessions,
)
from ortlens.trace.records import Capture, Graph, Kernel, Run
from ortlens.views.flame import flame_of
from ortlens.views.rendering import summary
from ortlens.views.time_sentences import average_words
from tests.unit.analysis.hand_made import FILE, fallback, graph, kernel, ledger, node, partition, session
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


@pytest.mark.parametrize(("entries", "calls", "ns"), [((None, None), 12, 20), ((None, 3.0), 4, 60), ((1.0, 2.0), 4, 50)])
def test_calls_are_those_of_the_target_where_somebody_counted_them(entries: tuple[float | None, float | None], calls: int, ns: int) -> None:
    graphs = tuple(
        Graph(graph_id=f"g{n}", compile_id=f"1/{n}", phase="inference", op_count=1, entries_per_call=entries[n]) for n in range(2)
    )
    runs = tuple(Run(session_id=None, graph_id=f"g{n}", call=3 + 4 * n, start_ns=0, total_ns=10 * (n + 1)) for n in range(2))
    capture = Capture(graphs=graphs, runs=runs)
    call = call_time(capture)
    assert (call.calls, call.foreign_ns, call.is_call) == (calls, ns, entries[1] is not None)
    assert average_words(call) == f"median of {calls} {'calls' if call.is_call else 'runs of compiled code'}"
    assert sum(part.ns for part in ledger_from_logs(capture)) == ns
    root = flame_of(capture).root
    assert sum(frame.width for frame in root.children) == root.ns == ns, "versions that were replaced are no part of a call"
    assert time_base(capture) == ("call" if call.is_call else "run")


def test_graph_times_of_another_backend_extrapolate_from_the_kept_runs() -> None:
    time = graph_times(SAMPLES["foreign"])["g0"]
    assert (time.calls, time.foreign_ns) == (6, 6000)  # calls 2 to 5 are kept, 1000 ns each
    without_a_graph = replace(SAMPLES["foreign"], runs=(Run(session_id=None, call=0, start_ns=0, total_ns=5),))
    assert graph_times(without_a_graph)["g0"].calls == 0


def test_call_time_divides_by_the_calls_of_the_first_graph() -> None:
    call = call_time(SAMPLES["demo_like"])
    assert (call.calls, call.function, call.ort_ns, call.eager_ns) == (10, "forward", 300_000, 12_000)
    assert call.total_ns == 312_000
    assert (call_time(SAMPLES["whole"]).calls, call_time(SAMPLES["empty"]).total_ns) == (0, 0)


def test_a_slow_first_call_does_not_change_what_a_call_takes() -> None:
    usual = replace(two_functions(), sessions=tuple(replace(row, p50_ns=1_000) for row in two_functions().sessions))
    assert [call.ort_ns for call in call_times(usual)] == [1_000, 2_000]
    parts = {part.graph_id: part.ns for part in ledger_from_logs(usual) if part.part == "run"}
    assert parts == {}, "without recorded runs, nobody knows how a session's time divides"
    foreign = SAMPLES["foreign"]
    slow_first = replace(foreign, runs=(replace(foreign.runs[0], total_ns=10**9), *foreign.runs[1:]))
    assert call_time(slow_first).foreign_ns == call_time(foreign).foreign_ns


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
    assert entries_per_call(two_functions()) == {"g0": 1.0, "g1": 1.0, "g2": 1.0}


def test_a_backward_graph_belongs_to_the_function_of_its_forward() -> None:
    forward = Graph(graph_id="g0", compile_id="0/0", phase="forward", op_count=1, target="step")
    capture = replace(two_functions(), graphs=(forward, Graph(graph_id="g1", compile_id="0/0", phase="backward", op_count=0)))
    assert [call.graph_ids for call in call_times(capture)] == [("g0", "g1")]


@pytest.mark.parametrize("count", [10, 11, 60])
def test_the_interval_misses_the_median_in_1_percent_at_most_and_no_wider_one_is_needed(count: int) -> None:
    low, high = median_interval([float(value) for value in range(count)])
    below = int(low)  # values that are smaller than the lower end
    assert high == count - 1 - below

    def missed(most: int) -> float:
        return float(2 * sum(comb(count, number) for number in range(most + 1)) / 2**count)

    assert missed(below) <= 0.01 < missed(below + 1)


def test_ways_in_turns_are_compared_round_by_round() -> None:
    chance = random.Random(0)  # noqa: S311 - noise, no secret
    eager = [round(100_000 * chance.uniform(1, 3)) for _ in range(40)]  # the machine: three times as slow at times
    rows = {factor: AbTiming(eager, [round(time * factor) for time in eager]).verdict for factor in (0.5, 0.95, 1.0, 1.02, 1.1)}
    assert rows == {0.5: "faster", 0.95: "faster", 1.0: "same", 1.02: "same", 1.1: "slower"}
    noisy = AbTiming(eager, [round(time * chance.uniform(0.5, 1.6)) for time in eager])
    assert noisy.verdict == "same"
    assert AbTiming([1] * (MIN_ROUNDS - 1), [1] * (MIN_ROUNDS - 1)).verdict == "unmeasured"


def test_a_ratio_counts_from_a_threshold_on_in_either_direction() -> None:
    assert [verdict_of_ratio(ratio, 1.25) for ratio in (0.79, 0.8, 1.25, 1.26)] == ["faster", "same", "same", "slower"]


@pytest.mark.parametrize(
    ("passes", "verdict"),
    [
        ((0.5, 0.6), "faster"),
        ((2, 3), "slower"),
        ((0.9, 1.2), "same"),
        ((1.05, 1.5), "unclear"),
        ((2, 3.1), "slower"),
        ((0.12, 0.37), "faster"),
        ((0.7, 1.2), "unclear"),
        ((), "unmeasured"),
    ],
)
def test_a_side_is_what_all_passes_say(passes: tuple[float, float], verdict: str) -> None:
    assert verdict_of_passes(passes, 1.1) == verdict


def test_passes_are_the_halves_and_the_shortest_times() -> None:
    assert AbTiming([10, 10, 20, 20], [30, 30, 80, 20]).pass_ratios == (3.0, 2.5, 2.0)
    assert AbTiming([10, 20, 20], [20, 20, 10]).pass_ratios == (2.0, 0.75, 1.0)


@pytest.mark.parametrize(
    ("pairs", "faster", "slower", "gain"),
    [
        ([(100, 90)] * 8, True, False, 10),
        ([(100, 98)] * 8, False, False, 2),
        ([(90, 100)] * 8, False, True, -10),
        ([(100, 60), (100, 140)] * 4, False, False, 0),
        ([(100, 80)] * 6 + [(100, 500)] * 1, True, False, 20),
        ([(100, 80)] * 5 + [(100, 120)] * 3, False, False, 20),
    ],
    ids=["surely faster", "not worth it", "surely slower", "noise", "one disturbed", "too often slower"],
)
def test_a_difference_counts_when_it_is_sure_and_worth_it(pairs: list[tuple[int, int]], *, faster: bool, slower: bool, gain: int) -> None:
    compared = AbTiming(*zip(*pairs, strict=True))
    assert (compared.is_faster, compared.is_slower, compared.gain_ns, compared.rounds) == (faster, slower, gain, len(pairs))


def test_a_machine_that_changes_its_speed_changes_both_sides() -> None:
    """Every second pair is timed while the machine is ten times slower: the pairs still agree."""
    factors = cycle([1, 10])
    pairs = [(100 * factor, 80 * factor) for factor in (next(factors) for _ in range(20))]
    assert AbTiming(*zip(*pairs, strict=True)).is_faster


def timed(name: str, line: int | None, ns: int) -> Kernel:
    return kernel(name, calls=2, total_ns=2 * ns, mean_ns=ns, file=FILE if line else None, line=line, confidence="exact")


def capture() -> Capture:
    return Capture(
        graphs=(graph(entries_per_call=1.0),),
        nodes=(node("sort", target="aten.sort", file=FILE, line=7, source="  y = x.sort()"),),
        partitions=(partition(),),
        sessions=(session(calls=10, total_ns=6000),),
        kernels=(timed("TopK", 7, 500), timed("Cast", 7, 100), timed("Add", 8, 30), timed("Reorder", None, 900)),
        fallbacks=(fallback("svd", line=9, call_ns=200, calls=10),),
        ledger=ledger(run=700, eager=250, residual=50),
    )


def test_kernels_and_operators_of_a_line_add_up() -> None:
    first, second = slow_lines(capture())
    assert (first.line, first.ns, first.is_torch, first.source) == (7, 600, False, "  y = x.sort()")
    assert first.share == pytest.approx(0.6)
    assert (second.line, second.ns, second.is_torch, second.source) == (9, 200, True, None)
    assert 8 not in {line.line for line in slow_lines(capture())}, "it takes little"
    assert slow_lines(replace(capture(), ledger=())) == slow_lines(replace(capture(), kernels=())) == (), "a line may have no time there"


def test_a_line_counts_as_often_as_a_call_runs_it() -> None:
    made = capture()
    twice = replace(made, graphs=(replace(made.graphs[0], entries_per_call=2.0),))
    assert runs_per_call(twice) == {"s0": 2.0}
    assert slow_lines(twice)[0].ns == 1200
    assert slow_lines(twice)[0].share == 1.0


def test_the_summary_names_the_slowest_lines_in_onnx_runtime_once() -> None:
    text = summary(capture(), width=80)
    assert text.count("model.py:7") == 1
    assert "600 ns, 60.0 % y = x.sort()" in " ".join(text.split())
    assert "Slowest in ORT" not in summary(replace(capture(), kernels=()), width=80)
