from dataclasses import replace
from typing import Any

import pytest

from ortlens.analysis.answers.overview import break_occurrences, compilation_count, graph_rows
from ortlens.analysis.answers.verdict import ort_share
from ortlens.analysis.costs import fallback_groups
from ortlens.analysis.coverage import coverage_of, current_graphs, ort_node_count
from ortlens.analysis.problems.stream import problems_of
from ortlens.analysis.timing import compile_phases, compile_total_ns, costliest_breaks
from ortlens.trace.records import Break, Capture, Fallback, FallbackCause, Finding, Graph, Partition, ReasonCode, Recompile
from tests.facts import head
from tests.unit.analysis.hand_made import fallback, graph, ledger, node, parted, partition, session
from tests.unit.views.sample_captures import FILE, SAMPLES


def test_graph_count_is_the_number_of_compile_ids() -> None:
    assert {name: compilation_count(SAMPLES[name]) for name in ("empty", "demo_like", "training", "foreign")} == {
        "empty": 0,
        "demo_like": 3,
        "training": 2,
        "foreign": 1,
    }
    after_a_reset = tuple(Graph(graph_id=name, compile_id="0/0", phase="inference", name=name, op_count=1) for name in "fg")
    assert compilation_count(Capture(graphs=after_a_reset)) == 2
    assert compilation_count(Capture(graphs=(Graph(graph_id="g", compile_id="0/0", phase="backward", op_count=0),))) == 1


def test_breaks_are_ranked_by_cost_then_by_occurrences() -> None:
    breaks = (
        Break(break_id="once", reason=""),
        Break(break_id="often", reason="", occurrences=5),
        Break(break_id="dear", reason="", cost_ns=9),
    )
    found = Capture(breaks=breaks)
    assert [item.break_id for item in costliest_breaks(found)] == ["dear", "often", "once"]
    assert break_occurrences(found) == 7


def staying(node: str, total_ns: int = 0, **changes: Any) -> Fallback:  # noqa: ANN401 - fields have types of their own
    """A node of one operator, stopped by its dtype."""
    plain = {"target": "t", "reason_code": "dtype", "reason": "", "file": None, "line": None}
    return fallback(node, **{**plain, "total_ns": total_ns, **changes})


def test_fallbacks_are_grouped_by_operator_and_reason() -> None:
    rows = (
        staying("a", 4, reason="first", calls=2),
        staying("b", reason="second", file=FILE, line=7, source="x", calls=3),
        staying("c", 5, reason_code="policy", reason="third"),
    )
    dear, pair = fallback_groups(Capture(fallbacks=rows))
    assert (dear.reason_code, dear.node_count) == ("policy", 1)
    assert (pair.node_count, pair.calls, pair.total_ns) == (2, 5, 4)
    assert (pair.file, pair.line, pair.source, pair.reason) == (FILE, 7, "x", "second")


def test_fallbacks_without_a_user_line_name_their_module() -> None:
    modules = {"a": {}, "b": {"module": "layers.1", "module_type": "GELU"}, "c": {"module": "layers.2"}}
    capture = Capture(fallbacks=tuple(map(staying, "abc")), nodes=tuple(node(name, **module) for name, module in modules.items()))
    assert fallback_groups(capture)[0].module == "layers.1 (GELU)"
    assert fallback_groups(replace(capture, fallbacks=capture.fallbacks[2:]))[0].module == "layers.2"
    assert problems_of(capture)[:3][0].module == "layers.1 (GELU)"


def test_fallbacks_of_replaced_graphs_keep_their_time_but_are_not_counted() -> None:
    graphs = tuple(graph(f"g{n}", compile_id=f"0/{n}") for n in range(2))
    rows = (*(staying("a", 3, graph_id=f"g{n}") for n in range(2)), staying("b", target="only in the old version"))
    (group,) = fallback_groups(Capture(graphs=graphs, fallbacks=rows))
    assert (group.target, group.node_count, group.total_ns) == ("t", 1, 6)


def test_graph_rows_say_which_version_is_current() -> None:
    rows = graph_rows(SAMPLES["demo_like"])
    assert [(row.graph.graph_id, row.is_current, row.ort_node_count, row.time.calls) for row in rows] == [
        ("g0", True, 19, 10),
        ("g1", False, 6, 9),
        ("g2", True, 8, 1),
    ]


def test_looks_name_one_of_each_kind_first() -> None:
    capture = SAMPLES["demo_like"]
    looks = problems_of(replace(capture, breaks=capture.breaks * 3))[:3]
    assert [look.kind for look in looks] == ["break", "fallback", "recompile"]
    assert (looks[1].gain_ns, looks[1].cost_ns) == (None, 12_000)
    uncalled = replace(capture, sessions=(), runs=(), fallbacks=tuple(replace(row, calls=0, total_ns=0) for row in capture.fallbacks))
    assert [look.price_ns for look in problems_of(uncalled)[:3]] == [None] * 3, "no time was measured"
    free, cheap = (Break(break_id="b0", reason="why", file="m.py", line=7, cost_ns=ns) for ns in (0, 5))
    assert [len(problems_of(Capture(breaks=(item,)))[:3]) for item in (free, cheap)] == [0, 1]


def test_what_the_lens_reports_and_functions_that_pytorch_gave_up_come_first() -> None:
    (look,) = problems_of(SAMPLES["training"])[:3]
    assert (look.kind, look.title, look.line) == ("finding", "the break listener failed", 5), "mere facts are left out"
    capture = SAMPLES["demo_like"]
    limit = replace(capture.breaks[0], break_id="b9", reason="Dynamo recompile limit exceeded", line=60)
    looks = problems_of(replace(capture, breaks=(*capture.breaks, limit)))[:3]
    assert [look.title for look in looks[:2]] == [limit.reason, capture.breaks[0].reason]


@pytest.mark.parametrize(("count", "first"), [(3, "break"), (4, "recompile")])
def test_a_function_compiled_again_and_again_is_before_breaks(count: int, first: str) -> None:
    capture = SAMPLES["demo_like"]
    again = tuple(replace(capture.recompiles[0], compile_id=f"9/{number}", dynamo_ns=5_000_000) for number in range(count))
    found = replace(capture, recompiles=again)
    looks = {look.kind: look for look in problems_of(found)[:3]}
    assert next(iter(looks)) == first
    assert looks["recompile"].recompile_ns == count * 5_000_000
    assert compile_total_ns(found) == compile_total_ns(capture) + count * 5_000_000
    assert sum(phase.total_ns for phase in compile_phases(found)) == compile_total_ns(found)


def warned(rule: str, line: int = 3, gain: int | None = None) -> Finding:
    return Finding(rule=rule, severity="warning", title=rule, file=FILE, line=line, gain_ns=gain, measured=gain is not None)


def test_what_follows_from_another_look_is_none() -> None:
    wrong = Capture(graphs=(graph(coverage=0.5),), findings=(warned("call_differs", 1), warned("numbers_differ", 2)))
    assert [look.title for look in problems_of(wrong)] == ["numbers_differ"]
    assert [look.title for look in problems_of(replace(wrong, findings=wrong.findings[:1]))] == ["call_differs"]


def measured(*rows: Fallback, findings: tuple[Finding, ...] = ()) -> Capture:
    """A capture of calls of 1 ms, measured."""
    parts = ledger(guards=100_000, run=880_000, residual=20_000)
    graphs, sessions = (graph(fallback_count=len(rows)),), (session(calls=9),)
    return Capture(graphs=graphs, fallbacks=rows, ledger=parts, sessions=sessions, findings=findings)


KEPT = fallback(target="aten.a.default", reason_code="policy", reason="it is faster there", calls=9)


def test_what_no_measured_call_ran_is_no_look() -> None:
    unused = replace(KEPT, reason_code="no_converter", calls=0)
    ran = replace(unused, node="m", target="aten.b.default", calls=9, total_ns=9 * 50_000)
    assert [look.title for look in problems_of(measured(unused, ran))[:3]] == ["aten.b.default"]


def test_what_stays_on_purpose_is_no_look_whatever_it_takes_since_nobody_can_change_it() -> None:
    assert problems_of(measured(replace(KEPT, total_ns=9 * 500_000)))[:3] == ()


@pytest.mark.parametrize(
    ("row", "gain", "subjects"),
    [
        ({"reason_code": "no_converter", "total_ns": 9 * 50_000}, 100_000, ["fallback"]),
        ({"reason_code": "no_converter", "total_ns": 9 * 49_000}, 100_000, ["slower", "fallback"]),  # it does not explain the half of it
        ({"reason_code": "policy", "total_ns": 9 * 500_000}, 100_000, ["slower"]),
        ({"reason_code": "dtype", "cause": "bfloat16", "total_ns": 9 * 500_000}, 100_000, ["slower"]),
    ],
)
def test_a_graph_that_is_slower_for_what_stays_in_pytorch_is_one_look(row: dict[str, Any], gain: int, subjects: list[str]) -> None:
    staying = fallback(calls=9, file=FILE, line=48, **row)
    slower = replace(warned("slower_than_torch", gain=gain), subject="g0", file=FILE, line=48)
    looks = problems_of(measured(staying, findings=(slower,)))[:3]
    assert [look.kind for look in looks] == subjects


def test_that_nothing_runs_is_under_computing_in_float64() -> None:
    capture = SAMPLES["nothing_runs"]
    wide = tuple(node(row.node, dtype="float64", bytes=8, partition_id=None) for row in capture.fallbacks)
    first, *_ = problems_of(replace(capture, nodes=wide))[:3]
    assert (first.rule, [look.kind for look in first.consequences]) == ("float64_nodes", ["nothing_runs"])


def test_a_graph_compiled_for_training_in_vain_comes_before_what_it_makes_slow() -> None:
    capture = measured(findings=(warned("slower_than_torch", gain=300_000), warned("training_forward"), warned("numbers_differ")))
    assert [look.kind for look in problems_of(capture)[:3]] == ["finding", "for_training", "slower"]


def test_what_one_change_mends_is_one_look() -> None:
    breaks = [Break(break_id=f"b{n}", reason=f"why {n}", file="m.py", line=7, occurrences=2, cost_ns=10 * n) for n in (1, 2)]
    elsewhere = Break(break_id="b3", reason="why 1", file="m.py", line=8, occurrences=1, cost_ns=5)
    again = [Recompile(compile_id=f"0/{n}", guard=f"len(layers[{n}]) == {n}", reason="r", file="m.py", line=9) for n in (1, 2, 3)]
    looks = problems_of(Capture(breaks=(*breaks, elsewhere), recompiles=tuple(again)))[:3]
    assert [(look.kind, look.line, look.count, look.price_ns) for look in looks] == [
        ("break", 7, 4, 30),
        ("recompile", 9, 3, None),
        ("break", 8, 1, 5),
    ]


def test_a_recompile_for_size_one_is_no_look() -> None:
    guard = "tensor 'x' size mismatch at index 1"
    expected = Recompile(compile_id="0/1", guard=guard, reason=guard, values=("7", "1"))
    assert problems_of(Capture(recompiles=(expected,)))[:3] == ()
    assert len(problems_of(Capture(recompiles=(replace(expected, values=("7", "5")),)))[:3]) == 1


BFLOAT16 = "ONNX Runtime's CPU provider has no arithmetic in bfloat16; float32 and float16 run there"
COMPLEX = "{} on complex numbers has no ONNX function"
DRAWS = "it draws random numbers; only PyTorch's generator reproduces them from the seed"
CAUSES: dict[str, FallbackCause] = {BFLOAT16: "bfloat16", COMPLEX: "complex", DRAWS: "random"}


def kept(*targets: str, reason: str = BFLOAT16, code: ReasonCode = "dtype", sample: str = "demo_like", **facts: str) -> Capture:
    """Operators that stay in PyTorch for one reason; in the first sample, beside some that run in ONNX Runtime."""
    first = replace(SAMPLES[sample].fallbacks[0], reason_code=code, cause=CAUSES.get(reason))
    rows = tuple(replace(first, node=target, target=target, reason=reason.format(target)) for target in targets)
    return replace(SAMPLES[sample], fallbacks=rows, breaks=(), recompiles=(), **head(facts))


def costing(plain: int) -> Capture:
    """Calls of 100 µs in which nothing runs in ONNX Runtime, beside so many µs without torch.compile."""
    parts = ledger(guards=30_000, eager=70_000, residual=0)
    return replace(SAMPLES["nothing_runs"], ledger=parts, **head({"uncompiled_ns": str(plain * 1000)}))


def test_looks_explain_once_why_much_or_all_stays_in_pytorch() -> None:
    (look,) = problems_of(kept("aten.mul", "aten.tanh.default", "aten.mm.default"))[:3]
    assert (look.kind, look.count) == ("fallback", 3)
    (look,) = problems_of(SAMPLES["nothing_runs"])[:3]
    assert (look.kind, look.title, look.count, look.gain_ns) == ("nothing_runs", "aten.histc.default", 2, None)
    assert [problems_of(SAMPLES[name])[:3] for name in ("empty", "whole", "foreign", "no_compute")] == [()] * 4


@pytest.mark.parametrize(
    ("break_ns", "is_measured", "order"),
    [
        (90_000, True, ["break", "fallback", "recompile"]),
        (10_000, True, ["fallback", "break", "recompile"]),
        (10_000, False, ["break", "fallback", "recompile"]),  # logs alone do not price breaks
    ],
)
def test_what_has_a_price_is_ranked_by_it_where_a_call_was_measured(break_ns: int, order: list[str], *, is_measured: bool) -> None:
    capture = Capture(
        graphs=(graph(coverage=0.5),),
        breaks=(Break(break_id="b0", reason="why", cost_ns=break_ns, advice="Print elsewhere"),),
        partitions=(partition(node_count=5),),
        sessions=(session(calls=10, total_ns=100_000),),
        fallbacks=(staying("n", 500_000, calls=10),),
        recompiles=(Recompile(compile_id="0/1", guard="n == 2", reason="n == 2", advice="Pass a tensor"),),
        ledger=ledger(residual=100) if is_measured else ledger(run=100),
    )
    assert [look.kind for look in problems_of(capture)[:3]] == order


def test_a_recompile_names_the_line_that_reads_what_changed() -> None:
    reason = f'0/0: self.seen == 1\nUser stack trace:\n  File "/lib/x.py", line 3, in g\n  File "{FILE}", line 9, in f\n    if self.seen:'
    made = Recompile(compile_id="0/1", of_compile_id="0/0", function="f", file=FILE, line=7, guard="self.seen == 1", reason=reason)
    (look,) = problems_of(Capture(recompiles=(made,)))[:3]
    assert (look.kind, look.file, look.line) == ("recompile", FILE, 9)
    (bare,) = problems_of(Capture(recompiles=(replace(made, reason="0/0: self.seen == 1"),)))[:3]
    assert bare.line == 7


CHEAP = Break(break_id="b0", reason="python", file=FILE, line=4, cost_ns=20_000, overhead_ns=20_000, between_ns=880_000)
DEAR = Break(break_id="b1", reason="print", file=FILE, line=5, cost_ns=50_000, overhead_ns=50_000, between_ns=10_000)
BETWEEN_GRAPHS = Capture(breaks=(CHEAP, DEAR), ledger=ledger("g", run=1_000_000, residual=1_000_000))


def test_python_between_graphs_counts_for_the_rank_of_its_break() -> None:
    first, second = problems_of(BETWEEN_GRAPHS)[:3]
    assert (first.line, first.cost_ns, first.own_code_ns) == (4, 20_000, 880_000)
    assert (second.line, second.own_code_ns) == (5, 10_000)


@pytest.mark.parametrize(("price", "order"), [(25_000, ["break", "rule"]), (24_000, ["rule", "break"])])
def test_a_cause_that_has_a_price_comes_before_what_the_call_loses_besides(price: int, order: list[str]) -> None:
    broken = Break(break_id="b0", reason="why", file=FILE, line=4, cost_ns=price, overhead_ns=price)
    capture = replace(measured(findings=(warned("slower_call", gain=99_000),)), breaks=(broken,))
    assert [look.kind for look in problems_of(capture)[:3]] == order


SPLITTING = replace(
    parted(graph(partition_count=2, fallback_count=2), count=2, calls=10),
    fallbacks=(fallback("n", calls=10, total_ns=40_000), fallback("m", calls=10, total_ns=40_000)),
)


def test_an_operator_that_splits_a_graph_costs_more_than_its_own_time() -> None:
    (group,) = fallback_groups(SPLITTING)
    assert (group.call_ns, group.splitting_ns) == (8_000, 20_000)  # half of what crossing both takes
    (whole,) = fallback_groups(replace(SPLITTING, partitions=SPLITTING.partitions[:1], sessions=SPLITTING.sessions[:1]))
    assert whole.splitting_ns == 0, "it splits nothing"


def gaining(spread: str = "1.0", *, measured: bool = True) -> Capture:
    finding = Finding(rule="device_idle", severity="warning", title="slow", gain_ns=2_000, measured=measured, mitigation="Stop.")
    dear = Break(break_id="b0", reason="r", cost_ns=900, overhead_ns=900)
    return Capture(findings=(finding,), breaks=(dear,), **head({"ledger_spread": spread}))


ON_PURPOSE = "aten.sum stays in PyTorch on purpose: it is fast"

DRAWN = tuple(f"aten.{name}" for name in ("randn_like.default", "native_dropout.default", "bernoulli.p", "multinomial.default"))
EFFECTS = ("aten._assert_scalar.default", "mine.log.default")
"""Operators that are no functions, each with a remedy of its own."""

WORDED: tuple[Capture, ...] = (
    kept("aten.mul", "aten.tanh.default", "aten.mm.default"),
    kept("aten.mul", cpu_bfloat16="yes"),
    kept("aten.mul", reason="float8"),
    kept("aten.sum", reason=ON_PURPOSE, code="policy"),
    kept("aten.sum", reason="it is fast", code="policy"),
    *(kept(target, reason=DRAWS, code="side_effect") for target in DRAWN),
    *(kept(target, reason="it has an effect", code="side_effect") for target in EFFECTS),
    kept("aten.mul", reason=BFLOAT16, sample="nothing_runs"),
    kept("aten.sum", reason=ON_PURPOSE, code="policy", sample="nothing_runs"),
    kept("aten.bmm.default", "aten.mul.Tensor", reason=COMPLEX, sample="nothing_runs"),
    costing(40),
    costing(92),
    BETWEEN_GRAPHS,
    replace(BETWEEN_GRAPHS, breaks=(replace(CHEAP, cost_ns=0, overhead_ns=0),)),
    SPLITTING,
    gaining(),
    gaining("1.5"),
    gaining(measured=False),
)
"""Captures whose first sentences differ in words."""


def test_onnx_runtime_has_its_share_of_the_time_that_a_device_is_waited_for() -> None:
    def share(**ns: int) -> float | None:
        return ort_share(Capture(graphs=(graph(),), ledger=ledger(guards=10, bind=0, output=0, residual=10, **ns)))

    assert share(run=60, eager=20) == pytest.approx(0.6)
    assert share(run=30, eager=10, wait=40) == pytest.approx(0.6)
    assert share(run=0, eager=40, wait=40) == 0


def _graph(graph_id: str, compile_id: str | None, nodes: int | None = 10, coverage: float | None = None, name: str = "f") -> Graph:
    return Graph(graph_id=graph_id, compile_id=compile_id, phase="inference", name=name, node_count=nodes, op_count=1, coverage=coverage)


@pytest.mark.parametrize(
    ("graphs", "current"),
    [
        ((_graph("a", "0/0"), _graph("b", "1/0"), _graph("c", "0/2"), _graph("d", "0/1"), _graph("e", "0/10")), "be"),
        ((_graph("a", "0/0", name="f"), _graph("b", "0/1", name="g")), "ab"),
        *(((_graph("a", odd), _graph("b", odd)), "ab") for odd in (None, "odd", "!1/x/y")),
    ],
)
def test_current_graphs_are_the_newest_attempts_of_each_function(graphs: tuple[Graph, ...], current: str) -> None:
    assert "".join(graph.graph_id for graph in current_graphs(Capture(graphs=graphs))) == current


def test_coverage_counts_recompiled_code_once() -> None:
    capture = Capture(graphs=(_graph("a", "0/0", 10, 1.0), _graph("b", "1/0", 10, 0.0), _graph("c", "1/1", 10, 0.5)))
    coverage = coverage_of(capture)
    assert (coverage.node_count, coverage.ort_node_count) == (20, 15)


def test_coverage_counts_partitions_of_current_graphs_only() -> None:
    parts = tuple(Partition(partition_id=f"p{g}", graph_id=g, node_count=10, input_count=1, output_count=1) for g in ("a", "b"))
    capture = Capture(graphs=(_graph("a", "0/0", 10, 1.0), _graph("b", "0/1", 10, 1.0)), partitions=parts)
    coverage = coverage_of(capture)
    assert (coverage.partition_count, coverage.whole_graph_count, coverage.verdict) == (1, 1, "whole")
    in_two = replace(capture, partitions=(parts[1], replace(parts[1], partition_id="p2")))
    assert coverage_of(in_two).whole_graph_count == 0


def test_ort_node_count_falls_back_on_the_partitions() -> None:
    assert ort_node_count(_graph("a", "0/0"), {"a": 7}) == 7
    assert ort_node_count(_graph("a", "0/0"), {}) == 0
    assert ort_node_count(_graph("a", "0/0", None), {"a": 7}) is None


@pytest.mark.parametrize(
    ("sample", "verdict", "share"),
    [
        ("empty", "empty", None),
        ("foreign", "foreign", None),
        ("no_compute", "no_compute", None),
        ("nothing_runs", "none", 0.0),
        ("whole", "whole", 1.0),
        ("demo_like", "part", 27 / 28),
        ("training", "whole", 1.0),
    ],
)
def test_verdict(sample: str, verdict: str, share: float | None) -> None:
    coverage = coverage_of(SAMPLES[sample])
    assert coverage.verdict == verdict
    assert coverage.share == (None if share is None else pytest.approx(share))
