"""The rules about a measured call as a whole, and about what PyTorch runs faster: thresholds, causes, and one finding per cause."""

from dataclasses import replace
from typing import Any

import pytest

from ortlens.analysis.problems.stream import problems_of
from ortlens.trace.records import Break, Capture, Figures, Finding, GuardCost, LedgerPart, Step
from ortlens.trace.schema import facts_of
from ortlens.units import time_from_ns
from ortlens.views.tiles import tiles_of
from tests.facts import head
from tests.unit.analysis.hand_made import (
    FILE,
    MICRO,
    MILLI,
    clean,
    fallback,
    found,
    graph,
    kernel,
    ledger,
    node,
    parted,
    partition,
    session,
)


def slow_call(plain: int, **parts: int) -> Capture:
    """A call whose parts were measured, beside one without torch.compile."""
    made = clean(graphs=(graph(entries_per_call=1.0, file=FILE, line=3),), ledger=ledger(**parts))
    made = replace(made, **head({**facts_of(made), "uncompiled_ns": str(plain)}))
    return replace(made, figures=replace(made.figures, freeze_call="ortlens.freeze(model, x)"))


def weighted(*, arguments: int = 1, plain: int = 300 * MICRO, frozen: int | None = 9) -> Capture:
    """A call with one large operator on a weight, and some on the argument, beside one that takes `plain` ns."""
    large = node("large", inputs=("w",), partition_id="p0", flops=1000, output_bytes=1, file=FILE, line=5)
    small = [node(f"n{place}", inputs=("x", "large"), partition_id="p0", flops=1, output_bytes=1) for place in range(arguments)]
    graphs = (graph(inputs=("x", "w"), weights=("w",), entries_per_call=1.0),)
    return replace(
        slow_call(plain, run=100 * MICRO, residual=0),
        graphs=graphs,
        nodes=(large, *small),
        partitions=(partition(),),
        sessions=(session(frozen_bytes=frozen),),
    )


def guarded(ns: int, source: str = "L['self'].__dict__['table']", **changes: Any) -> Capture:  # noqa: ANN401 - fields of a capture
    """A call that is mostly guards, of which those of one container take `ns`."""
    made = slow_call(30 * MICRO, guards=80 * MICRO, run=20 * MICRO, residual=0)
    costs = (GuardCost(source="L", count=4024, ns=60 * MICRO), GuardCost(source=source, count=4000, ns=ns, file=FILE, line=7))
    return replace(made, figures=replace(made.figures, guards=costs), **changes)


def generating(guards: int, **changes: Any) -> Capture:  # noqa: ANN401 - fields of a capture
    """A generation of three calls of the model, which takes 100 µs."""
    made = slow_call(300 * MICRO, guards=guards * MICRO, run=(100 - guards) * MICRO, residual=0)
    return replace(unfreezable(made), **{"steps": (Step(role="decode", calls=3.0, tokens=3.0, ns=100 * MICRO),)} | changes)


def unfreezable(capture: Capture) -> Capture:
    return replace(capture, figures=replace(capture.figures, freeze_call=None, freeze_refused="it returns an object"))


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


ENTERING = slow_call(50 * MICRO, guards=60 * MICRO, run=55 * MICRO, residual=0)
BROKEN = Break(break_id="b0", reason="why", file=FILE, line=9, occurrences=1)


def priced(ns: int) -> Capture:
    return replace(ENTERING, breaks=(replace(BROKEN, overhead_ns=ns, cost_ns=ns),))


def frozen_or_not(*breaks: Break) -> Capture:
    return replace(slow_call(30 * MICRO, guards=26 * MICRO, run=18 * MICRO, residual=0), breaks=breaks)


def copying_state() -> Capture:
    capture = slow_call(5 * MICRO, guards=1 * MICRO, run=900 * MICRO, residual=0)
    size = 4 << 20
    copied = node("copied", target="aten.clone.default", inputs=("state",), bytes=size, output_bytes=size)
    write = node(
        "w", target="aten.index_put.default", inputs=("copied",), is_output=True, output_bytes=size, bytes=2 * size, file=FILE, line=12
    )
    return replace(capture, graphs=tuple(replace(row, inputs=("state",)) for row in capture.graphs), nodes=(copied, write))


def between_graphs(*breaks: Break) -> Capture:
    return replace(slow_call(50 * MICRO, eager=90 * MICRO, run=10 * MICRO, residual=0), breaks=breaks)


WORDED: tuple[tuple[str, Capture], ...] = (
    ("slower_call", slow_call(100 * MICRO, guards=30 * MICRO, run=82 * MICRO, residual=0)),
    ("slower_call", ENTERING),
    ("slower_call", slow_call(50 * MICRO, guards=10 * MICRO, run=90 * MICRO, residual=0)),
    ("slower_call", priced(30 * MICRO)),
    ("slower_call", replace(copying_state(), partitions=(partition(),))),
    ("slower_call", between_graphs()),
    # The finding names the frozen callable where the whole call is one graph.
    ("slower_call", frozen_or_not()),
    ("slower_call", frozen_or_not(BROKEN)),
    ("slower_call", unfreezable(frozen_or_not())),
    ("costly_guards", guarded(50 * MICRO, "L['self'].table")),
    ("costly_entry", generating(30)),
    ("costly_entry", slow_call(0, guards=20 * MICRO, run=60 * MICRO, residual=0)),
    ("costly_entry", unfreezable(slow_call(0, guards=20 * MICRO, run=60 * MICRO, residual=0))),
    ("costly_entry", replace(slow_call(0, guards=20 * MICRO, run=60 * MICRO, residual=0), figures=Figures(freeze_untried="calls"))),
)
"""Rules and captures whose findings name a cause in words."""


@pytest.mark.parametrize(
    ("capture", "clauses"),
    [
        (weighted(), ["1 of 2 operators depends on no argument and was computed once"]),
        (weighted(arguments=0), ["all operators depend on no argument and were computed once"]),
        (weighted(plain=299 * MICRO), []),  # less than three times as fast
        (weighted(arguments=2000), []),  # most work is that of every call
        (weighted(frozen=0), []),
    ],
)
def test_a_surprising_speed_has_the_operators_that_were_computed_once_as_its_reason(capture: Capture, clauses: list[str]) -> None:
    detail = tiles_of(capture)[0].detail
    assert [part for part in detail.split("; ") if "computed once" in part] == clauses


@pytest.mark.parametrize(
    ("capture", "rules"),
    [
        (guarded(30 * MICRO), ["costly_guards"]),  # half of the guards: no second finding about the rest
        (guarded(29 * MICRO), ["slower_call", "costly_guards"]),
        (guarded(10 * MICRO), ["slower_call", "costly_guards"]),
        (guarded(9 * MICRO), ["slower_call"]),
        (guarded(50 * MICRO, "L['self']._modules['child'].table"), ["costly_guards"]),
        (guarded(50 * MICRO, breaks=(BROKEN,)), ["slower_call"]),
    ],
)
def test_guards_of_one_container_are_one_finding_with_its_line(capture: Capture, rules: list[str]) -> None:
    assert [rule for rule in ("slower_call", "costly_guards", "costly_entry") if found(capture, rule)] == rules
    assert all((row.line, row.measured) == (7, True) for row in found(capture, "costly_guards"))


def test_no_call_is_slower_without_a_word_about_it_unless_the_machine_is_busy() -> None:
    capture = slow_call(100 * MICRO, guards=30 * MICRO, run=82 * MICRO, residual=0)
    assert len(problems_of(capture)[:3]) == 1
    busy = replace(capture, **head({**facts_of(capture), "ledger_others": "1.0", "ledger_idle": "0.0"}))
    assert problems_of(busy)[:3] == ()


@pytest.mark.parametrize(("capture", "gain_ns"), [(ENTERING, 60 * MICRO), (unfreezable(ENTERING), 65 * MICRO)])
def test_a_slow_call_has_the_line_of_its_graph_and_gains_what_its_advice_saves(capture: Capture, gain_ns: int) -> None:
    (entering,) = found(capture, "slower_call")
    assert (entering.file, entering.line, entering.measured, entering.gain_ns) == (FILE, 3, False, gain_ns)


def explained(crossing: int) -> Capture:
    """Two partitions, of whose crossings half are gone with the operator between them; 65 µs are lost."""
    capture = slow_call(50 * MICRO, bind=60 * MICRO, run=55 * MICRO, residual=0)
    made = parted(*capture.graphs, count=2, timed={"bind": crossing * MICRO, "output": 0})
    return replace(capture, partitions=made.partitions, sessions=made.sessions, runs=made.runs, fallbacks=(fallback(),))


def holding(*, is_slower: bool) -> Capture:
    """A slow partition, which explains less than half of the 100 µs that are lost."""
    loop = node("bag", target="aten._embedding_bag.default", onnx_ops=("Gather", "Loop"), file=FILE, line=7)
    timed = partition(ort_ns=80 * MICRO, torch_ns=40 * MICRO, is_slower=is_slower)
    return replace(slow_call(50 * MICRO, run=150 * MICRO, residual=0), partitions=(timed,), nodes=(node("a"), loop))


def mostly_entered(guards: int = 20, run: int = 60, **changes: Any) -> Capture:  # noqa: ANN401 - fields of a capture
    return replace(slow_call(0, guards=guards * MICRO, run=run * MICRO, residual=0), **changes)


TRAINED = tuple(replace(row, phase="forward") for row in mostly_entered().graphs)


@pytest.mark.parametrize(
    ("rule", "capture", "gains"),
    [
        ("slower_call", priced(33 * MICRO), []),  # the break explains it
        ("slower_call", priced(30 * MICRO), [35 * MICRO]),  # what is entered behind the break has its price there
        ("slower_call", between_graphs(replace(BROKEN, overhead_ns=1, cost_ns=1, between_ns=80 * MICRO)), []),
        ("slower_call", between_graphs(BROKEN), [50 * MICRO]),  # without a price, as of two breaks behind the last graph
        ("slower_call", explained(33), []),  # the operator explains it
        ("slower_call", explained(31), [34 * MICRO]),
        ("slower_call", replace(explained(33), fallbacks=()), [65 * MICRO]),
        ("slower_call", holding(is_slower=True), []),
        ("slower_call", holding(is_slower=False), [100 * MICRO]),
        ("slower_than_torch", holding(is_slower=True), [40 * MICRO]),
        ("costly_entry", mostly_entered(1, 9), [MICRO]),  # a tenth of the call, however short
        ("costly_entry", mostly_entered(10, 91), []),
        ("costly_entry", mostly_entered(graphs=TRAINED), []),
        ("costly_entry", mostly_entered(partitions=()), []),  # nothing runs in ONNX Runtime, frozen or not
        ("costly_entry", mostly_entered(breaks=(BROKEN,)), []),
        ("costly_entry", unfreezable(mostly_entered()), [None]),  # which says why
        ("costly_entry", generating(20), [20 * MICRO]),
        ("costly_entry", generating(19), []),
        ("costly_entry", generating(20, breaks=(BROKEN,)), []),
        ("costly_entry", mostly_entered(sessions=(session(cause="weights"),)), []),  # what changes would be a constant
        ("slower_call", frozen_or_not(), [26 * MICRO]),  # a slow call and its costly entry are one finding; frozen, it is faster than eager
        ("costly_entry", frozen_or_not(), []),
    ],
)
def test_one_cause_is_one_finding(rule: str, capture: Capture, gains: list[int]) -> None:
    assert [row.gain_ns for row in found(capture, rule)] == gains


def test_what_leaving_the_only_graph_saves_is_no_more_than_what_is_said_to_take_long() -> None:
    capture = holding(is_slower=False)
    whole = replace(capture.graphs[0], ort_ns=36 * MICRO, torch_ns=20 * MICRO, is_slower=True)
    (slow,) = found(replace(capture, graphs=(whole,)), "slower_than_torch")
    eager, call = capture.figures.uncompiled_ns or 0, sum(part.ns for part in capture.ledger)
    assert slow.gain_ns == call - eager == 100 * MICRO
    assert f"takes {time_from_ns(call)} per call, PyTorch {time_from_ns(eager)}" in slow.title


def test_gains_of_breaks_and_of_the_rest_of_a_call_are_no_more_than_it_loses() -> None:
    capture = slow_call(50 * MICRO, guards=40 * MICRO, bind=45 * MICRO, run=30 * MICRO, residual=0)
    broken = Break(break_id="b0", reason="r", file=FILE, line=9, overhead_ns=10 * MICRO, cost_ns=30 * MICRO, entering_ns=20 * MICRO)
    capture = replace(capture, breaks=(broken,))
    gains = [finding.gain_ns or 0 for finding in found(capture, "slower_call")]
    assert gains
    assert sum(gains) + (broken.cost_ns or 0) <= 65 * MICRO


def test_guards_that_the_prices_of_breaks_contain_are_not_an_action_of_their_own() -> None:
    capture = slow_call(100 * MICRO, guards=60 * MICRO, run=40 * MICRO, residual=0)
    guards = Finding(rule="heavy_guards", severity="warning", title="guards", evidence="", hazard="", mitigation="Remove.", gain_ns=50_000)
    broken = Break(break_id="b0", reason="r", file=FILE, line=9, overhead_ns=50 * MICRO, cost_ns=50 * MICRO)
    alone, behind = replace(capture, findings=(guards,)), replace(capture, findings=(guards,), breaks=(broken,))
    assert [look.title for look in problems_of(alone)[:3]] == ["guards"]  # `costly_entry` would say the same
    assert [look.kind for look in problems_of(behind)[:3]] == ["break"]


def test_a_slow_call_in_training_names_the_line_of_the_copied_state() -> None:
    (finding,) = found(replace(copying_state(), partitions=(partition(),)), "slower_call")
    assert finding.line == 12


@pytest.mark.parametrize(("guards", "run", "count"), [(11, 89, 1), (9, 91, 0)])
def test_what_would_save_much_of_a_call_stands_out(guards: int, run: int, count: int) -> None:
    capture = slow_call(0, guards=guards * MICRO, run=run * MICRO, residual=0)
    looks = problems_of(capture)[:3]
    assert len(looks) == count
    assert all((look.at_most, look.gain_ns) == (False, guards * MICRO) for look in looks)
    busy = replace(capture, figures=replace(capture.figures, ledger_others=1.0, ledger_idle=0.0))
    assert [look.is_busy for look in problems_of(busy)[:3]] == [True] * count


def test_where_nothing_runs_the_finding_and_the_advice_say_one_gain() -> None:
    capture = replace(slow_call(30 * MICRO, guards=50 * MICRO, run=0, residual=10 * MICRO), partitions=(), fallbacks=(fallback(),))
    capture = replace(capture, graphs=tuple(replace(row, coverage=0.0) for row in capture.graphs))
    (finding,) = found(capture, "slower_call")
    (look,) = problems_of(capture)[:3]
    assert (look.kind, look.gain_ns, look.measured) == ("nothing_runs", finding.gain_ns, finding.measured)
    assert (finding.gain_ns, finding.measured) == (30 * MICRO, True)


@pytest.mark.parametrize(("measured", "gain", "count"), [(None, 30, 1), (40, 40, 1), (0, 0, 0)])
def test_what_a_frozen_call_saves_is_as_measured(measured: int | None, gain: int, count: int) -> None:
    capture = slow_call(0, guards=30 * MICRO, bind=20 * MICRO, run=30 * MICRO, residual=0)
    known = replace(capture.figures, freeze_gain_ns=None if measured is None else measured * MICRO)
    capture = replace(capture, figures=known)
    (finding,) = found(capture, "costly_entry")
    assert (finding.gain_ns, finding.measured) == (gain * MICRO, measured is not None)
    assert len(problems_of(capture)[:3]) == count


def test_information_without_a_gain_or_with_a_small_one_does_not_stand_out() -> None:
    capture = slow_call(0, run=100 * MICRO, residual=0)
    said = Finding(rule="launch_times", severity="info", title="threads", evidence="", hazard="", mitigation="Set.", gain_ns=None)
    for gain, count in ((None, 0), (9 * MICRO, 0), (10 * MICRO, 1)):
        held = replace(capture, findings=(replace(said, gain_ns=gain),))
        assert len(problems_of(held)[:3]) == count


def slower(torch_ns: int, *, ort_ns: int = MILLI, is_slower: bool = True, whole: int = MILLI, **changes: object) -> Capture:
    """A partition that was timed against PyTorch, in calls of so many ns."""
    timed = partition(ort_ns=ort_ns, torch_ns=torch_ns, is_slower=is_slower)
    loop = node("bag", target="aten._embedding_bag.default", onnx_ops=("Gather", "Loop"), file=FILE, line=7, bytes=1 << 10)
    made = clean(graphs=(graph(entries_per_call=1.0),), partitions=(timed,), ledger=ledger(run=whole, residual=0), nodes=(node("a"), loop))
    return replace(made, **changes)  # type: ignore[arg-type]  # fields differ in type


SCATTER = node("add", target="aten.scatter_add.default", onnx_ops=("Expand", "ScatterElements"), file=FILE, line=7, bytes=1 << 10)
UNROLLED = tuple(node(f"pow_{n}", target="aten.pow.Tensor_Scalar", file=FILE, line=6) for n in range(9))
CACHE = node("put", target="aten.index_put.default", inputs=("cache",), is_output=True, output_bytes=4 << 20, onnx_ops=("ScatterND",))
PRODUCT = node("product", target="aten.addmm.default", flops=4 << 20, bytes=1 << 18)
BROADCAST = node("broadcast", target="aten.mul.Tensor", flops=1 << 24, bytes=64 << 20, output_bytes=64 << 20)
VIEW = node("view", target="aten.t.default", bytes=128 << 20)
ORDERED = node("ordered", target="aten.sort.default", bytes=4 << 20, onnx_ops=("TopK",))
PROFILED_NODES = (kernel("Gemm", total_ns=400, node="a"), *(kernel("Pow", total_ns=90 + n, node=f"pow_{n}") for n in range(9)))
SLOW_GRAPH = graph(ort_ns=3 * MILLI, torch_ns=MILLI, is_slower=True, entries_per_call=2.0, inputs=("cache",))
MIXED = graph(entries_per_call=1.0, ort_ns=MILLI, torch_ns=250 * MICRO, is_slower=True)
SLOWER_GRAPH = slower(900 * MICRO, graphs=(SLOW_GRAPH,), nodes=(CACHE,))
SLOWER_BY_PROFILE = slower(250 * MICRO, nodes=(node("a"), *UNROLLED), kernels=PROFILED_NODES)


WORDED_BESIDE_TORCH: tuple[tuple[str, Capture], ...] = (
    ("slower_than_torch", slower(250 * MICRO)),
    ("slower_than_torch", slower(250 * MICRO, nodes=(SCATTER,))),  # a scatter of single numbers is no copy
    ("slower_than_torch", slower(1, kernels=(kernel("Loop", total_ns=800, node="bag"), kernel("Gemm", total_ns=200, node="a")))),
    ("slower_than_torch", SLOWER_BY_PROFILE),  # nodes of one operator are one cause
    ("slower_than_torch", SLOWER_GRAPH),
    # Operators of a partition are not blamed for those that stay in PyTorch.
    ("slower_than_torch", slower(MILLI, is_slower=False, graphs=(MIXED,), fallbacks=(fallback("svd"),))),
    # Without a profile, the cause is what moves or computes most.
    *(
        ("slower_than_torch", slower(250 * MICRO, nodes=nodes))
        for nodes in ((PRODUCT, BROADCAST, VIEW), (PRODUCT, VIEW), (PRODUCT, BROADCAST, ORDERED))
    ),
)
"""Rules and captures whose findings name a cause in words."""


@pytest.mark.parametrize(
    ("capture", "place", "gain_ns"),
    [
        (slower(250 * MICRO), (FILE, 7), 750 * MICRO),
        (SLOWER_BY_PROFILE, (FILE, 6), 750 * MICRO),
        (SLOWER_GRAPH, (FILE, 10), 4 * MILLI),
    ],
)
def test_what_is_slower_has_the_line_of_its_cause_and_its_cost(capture: Capture, place: tuple[str, int], gain_ns: int) -> None:
    (finding,) = found(capture, "slower_than_torch")
    assert ((finding.file, finding.line), finding.gain_ns, finding.measured) == (place, gain_ns, True)


@pytest.mark.parametrize(
    ("also", "changes", "gain_ns"),
    [
        ((), {}, 900 * MICRO),
        (ledger("g1", run=1), {}, 750 * MICRO),
        ((), {"breaks": (Break(break_id="b0", reason="r"),)}, 750 * MICRO),
        ((), {"figures": Figures(uncompiled_ns=300 * MICRO, guards=(GuardCost(source="L", count=9, ns=1),) * 2)}, 750 * MICRO),
    ],
)
def test_leaving_the_only_graph_uncompiled_saves_entering_it_as_well(
    also: tuple[LedgerPart, ...], changes: dict[str, Any], gain_ns: int
) -> None:
    row = graph(ort_ns=MILLI, torch_ns=250 * MICRO, is_slower=True, entries_per_call=1.0)
    parts = (*ledger(guards=200 * MICRO, run=MILLI, residual=0), *also)
    changes = {"figures": Figures(uncompiled_ns=300 * MICRO), **changes}
    capture = slower(MILLI, is_slower=False, graphs=(row,), ledger=parts, **changes)
    assert [finding.gain_ns for finding in found(capture, "slower_than_torch")] == [gain_ns]


@pytest.mark.parametrize(
    ("capture", "severities"),
    [
        (slower(769_230), ["warning"]),
        (slower(769_232), []),
        (slower(100, is_slower=False), []),
        (slower(950_000, ort_ns=2 * MILLI, whole=11 * MILLI), []),
        (slower(50 * MICRO, ort_ns=100 * MICRO), []),
        (slower(50 * MICRO, ort_ns=100 * MICRO, whole=500 * MICRO), ["warning"]),
        (slower(50 * MICRO, ort_ns=100 * MICRO, whole=500 * MICRO + 1), []),
        (slower(50 * MICRO + 1, ort_ns=100 * MICRO, whole=100 * MICRO), ["info"]),
        (slower(10 * MICRO, ort_ns=20 * MICRO, whole=50 * MICRO), ["info"]),
        (slower(10 * MICRO + 1, ort_ns=20 * MICRO, whole=50 * MICRO), []),
    ],
)
def test_slowness_counts_when_it_is_sure_and_worth_it(capture: Capture, severities: list[str]) -> None:
    assert [finding.severity for finding in found(capture, "slower_than_torch")] == severities


@pytest.mark.parametrize(("torch_ns", "subject"), [(250 * MICRO, "p0"), (250 * MICRO + 1, "g0")])
def test_a_partition_is_named_where_it_explains_three_quarters_of_its_graph(torch_ns: int, subject: str) -> None:
    timed = graph(ort_ns=2 * MILLI, torch_ns=MILLI, is_slower=True, entries_per_call=1.0)
    (finding,) = found(slower(torch_ns, graphs=(timed,)), "slower_than_torch")
    assert finding.subject == subject
