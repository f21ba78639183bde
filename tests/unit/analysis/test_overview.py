from __future__ import annotations

from dataclasses import replace

import pytest

from ortlens.analysis.first_look import looks_of
from ortlens.analysis.guards import advice_for_recompile
from ortlens.analysis.overview import fallback_groups, graph_rows, overview_of
from ortlens.trace.records import Break, Capture, Fallback, Finding, Graph, LedgerPart, LedgerPartName, Node, Partition, Recompile, Session
from ortlens.views.payload import payload_from_capture
from ortlens.views.sentences import look_sentence
from ortlens.views.time_sentences import gain_words, price_words
from tests.unit.analysis.hand_made import fallback, graph, partition, runs, session
from tests.unit.views.sample_captures import FILE, SAMPLES


@pytest.mark.parametrize(("sample", "count"), [("empty", 0), ("demo_like", 3), ("training", 2), ("foreign", 1), ("huge", 3000)])
def test_graph_count_is_the_number_of_compile_ids(sample: str, count: int) -> None:
    assert overview_of(SAMPLES[sample]).graph_count == count


def test_graph_count_tells_functions_compiled_after_a_reset_apart() -> None:
    graphs = tuple(Graph(graph_id=name, compile_id="0/0", phase="inference", name=name, op_count=1) for name in "fg")
    assert overview_of(Capture(graphs=graphs)).graph_count == 2


def test_a_lone_backward_counts_as_a_graph() -> None:
    assert overview_of(Capture(graphs=(Graph(graph_id="g", compile_id="0/0", phase="backward", op_count=0),))).graph_count == 1


def test_breaks_are_ranked_by_cost_then_by_occurrences() -> None:
    breaks = (
        Break(break_id="once", reason=""),
        Break(break_id="often", reason="", occurrences=5),
        Break(break_id="dear", reason="", cost_ns=9),
    )
    overview = overview_of(Capture(breaks=breaks))
    assert [item.break_id for item in overview.breaks] == ["dear", "often", "once"]
    assert overview.break_occurrences == 7


def test_fallbacks_are_grouped_by_operator_and_reason() -> None:
    rows = (
        Fallback(graph_id="g", node="a", target="t", reason_code="dtype", reason="first", calls=2, total_ns=4),
        Fallback(graph_id="g", node="b", target="t", reason_code="dtype", reason="second", file=FILE, line=7, source="x", calls=3),
        Fallback(graph_id="g", node="c", target="t", reason_code="policy", reason="third", total_ns=5),
    )
    dear, pair = fallback_groups(Capture(fallbacks=rows))
    assert (dear.reason_code, dear.node_count) == ("policy", 1)
    assert (pair.node_count, pair.calls, pair.total_ns) == (2, 5, 4)
    assert (pair.file, pair.line, pair.source, pair.reason) == (FILE, 7, "x", "second")


def test_fallbacks_without_a_user_line_name_their_module() -> None:
    rows = tuple(Fallback(graph_id="g", node=name, target="t", reason_code="dtype", reason="") for name in "abc")
    nodes = (
        Node(graph_id="g", node="a", target="t", supported=False),
        Node(graph_id="g", node="b", target="t", supported=False, module="layers.1", module_type="GELU"),
        Node(graph_id="g", node="c", target="t", supported=False, module="layers.2"),
    )
    capture = Capture(fallbacks=rows, nodes=nodes)
    assert fallback_groups(capture)[0].module == "layers.1 (GELU)"
    assert fallback_groups(replace(capture, fallbacks=rows[2:]))[0].module == "layers.2"
    assert looks_of(overview_of(capture))[0].module == "layers.1 (GELU)"


def test_fallbacks_of_replaced_graphs_keep_their_time_but_are_not_counted() -> None:
    graphs = tuple(Graph(graph_id=f"g{n}", compile_id=f"0/{n}", phase="inference", op_count=1) for n in range(2))
    rows = tuple(Fallback(graph_id=f"g{n}", node="a", target="t", reason_code="dtype", reason="", total_ns=3) for n in range(2))
    gone = Fallback(graph_id="g0", node="b", target="only in the old version", reason_code="dtype", reason="")
    (group,) = fallback_groups(Capture(graphs=graphs, fallbacks=(*rows, gone)))
    assert (group.target, group.node_count, group.total_ns) == ("t", 1, 6)


def test_graph_rows_say_which_version_is_current() -> None:
    rows = graph_rows(SAMPLES["demo_like"])
    assert [(row.graph.graph_id, row.is_current, row.ort_node_count, row.time.calls) for row in rows] == [
        ("g0", True, 19, 10),
        ("g1", False, 6, 9),
        ("g2", True, 8, 1),
    ]


def test_findings_come_errors_first() -> None:
    assert [finding.severity for finding in overview_of(SAMPLES["training"]).findings] == ["error", "info"]


def test_session_and_compile_time_are_summed() -> None:
    overview = overview_of(SAMPLES["demo_like"])
    assert (overview.session_ns, overview.compile_ns, len(overview.sessions)) == (3_040_000, 950_000_000, 4)


def test_looks_name_one_of_each_kind_first() -> None:
    capture = SAMPLES["demo_like"]
    looks = looks_of(overview_of(replace(capture, breaks=capture.breaks * 3)))
    assert [look.subject for look in looks] == ["break", "fallback", "recompile"]
    assert looks[1].ns_per_call == 12_000


@pytest.mark.parametrize(("count", "first"), [(3, "break"), (4, "recompile")])
def test_a_function_compiled_again_and_again_is_before_breaks(count: int, first: str) -> None:
    capture = SAMPLES["demo_like"]
    again = tuple(replace(capture.recompiles[0], compile_id=f"9/{number}", dynamo_ns=5_000_000) for number in range(count))
    overview = overview_of(replace(capture, recompiles=again))
    looks = {look.subject: look for look in looks_of(overview)}
    assert next(iter(looks)) == first
    assert looks["recompile"].recompile_ns == count * 5_000_000
    assert overview.compile_ns == overview_of(capture).compile_ns + count * 5_000_000
    assert sum(phase.total_ns for phase in overview.phases) == overview.compile_ns


def test_a_recompile_takes_what_its_graph_took() -> None:
    capture = SAMPLES["demo_like"]
    assert overview_of(capture).recompile_ns == {"1/1": next(row.compile_ns for row in capture.graphs if row.compile_id == "1/1")}


def test_a_function_that_pytorch_gave_up_is_before_other_breaks() -> None:
    capture = SAMPLES["demo_like"]
    limit = replace(capture.breaks[0], break_id="b9", reason="Dynamo recompile limit exceeded", line=60)
    looks = looks_of(overview_of(replace(capture, breaks=(*capture.breaks, limit))))
    assert [look.what for look in looks[:2]] == [limit.reason, capture.breaks[0].reason]


def test_looks_put_what_the_lens_reports_first_and_leave_out_mere_facts() -> None:
    (look,) = looks_of(overview_of(SAMPLES["training"]))
    assert (look.subject, look.what, look.line) == ("finding", "the break listener failed", 5)


def test_what_follows_from_another_look_is_none() -> None:
    stays = Fallback(
        graph_id="g0", node="n", target="aten.median.dim", reason_code="no_converter", reason="r", file="m.py", line=3, calls=1
    )
    graph = Graph(graph_id="g0", compile_id="0/0", phase="inference", op_count=3, node_count=3, coverage=0.5)

    def found(rule: str, *, line: int) -> Finding:
        return Finding(rule=rule, severity="warning", title=rule, file="m.py", line=line)

    beside = Capture(graphs=(graph,), fallbacks=(stays,), findings=(found("boundary_copies", line=5),))
    assert [look.subject for look in looks_of(overview_of(beside))] == ["fallback"]
    alone = replace(beside, fallbacks=())
    assert [look.what for look in looks_of(overview_of(alone))] == ["boundary_copies"]
    wrong = Capture(graphs=(graph,), findings=(found("call_differs", line=1), found("numbers_differ", line=2)))
    assert [look.what for look in looks_of(overview_of(wrong))] == ["numbers_differ"]
    assert [look.what for look in looks_of(overview_of(replace(wrong, findings=wrong.findings[:1])))] == ["call_differs"]


def measured(*rows: Fallback, findings: tuple[Finding, ...] = ()) -> Capture:
    """A capture of calls of 1 ms, measured."""
    parts: tuple[tuple[LedgerPartName, int], ...] = (("guards", 100_000), ("run", 880_000), ("residual", 20_000))
    ledger = tuple(LedgerPart(graph_id="g0", part=part, ns=ns, share=ns / 1_000_000) for part, ns in parts)
    return Capture(
        graphs=(graph(fallback_count=len(rows)),), fallbacks=rows, ledger=ledger, sessions=(session(calls=9),), findings=findings
    )


def test_what_no_measured_call_ran_is_no_look() -> None:
    unused = Fallback(graph_id="g0", node="n", target="aten.a.default", reason_code="no_converter", reason="r", file="m.py", line=3)
    ran = replace(unused, node="m", target="aten.b.default", calls=9, total_ns=9 * 50_000)
    assert [look.what for look in looks_of(overview_of(measured(unused, ran)))] == ["aten.b.default"]


def test_what_stays_on_purpose_is_a_look_where_it_takes_a_tenth_of_a_call() -> None:
    kept = Fallback(
        graph_id="g0", node="n", target="aten.a.default", reason_code="policy", reason="it is faster there", file="m.py", line=3, calls=9
    )
    for per_call, looks in ((99_000, []), (101_000, ["aten.a.default"])):
        assert [look.what for look in looks_of(overview_of(measured(replace(kept, total_ns=9 * per_call))))] == looks


def test_what_stays_on_purpose_counts_with_all_that_stays_for_its_reason() -> None:
    kept = Fallback(
        graph_id="g0", node="n", target="aten.a.default", reason_code="policy", reason="it writes in place", file="m.py", line=3, calls=9
    )
    parts = (replace(kept, total_ns=9 * 80_000), replace(kept, node="m", target="aten.b.default", total_ns=9 * 50_000))
    (look,) = looks_of(overview_of(measured(*parts)))
    assert (look.what, look.count, look.ns_per_call) == ("aten.a.default", 2, 130_000)


def test_a_graph_compiled_for_training_in_vain_comes_before_what_it_makes_slow() -> None:
    def found(rule: str, gain: int | None = None) -> Finding:
        return Finding(rule=rule, severity="warning", title=rule, file="m.py", line=3, gain_ns=gain, measured=gain is not None)

    capture = measured(findings=(found("slower_than_torch", 300_000), found("training_forward"), found("numbers_differ")))
    assert [look.subject for look in looks_of(overview_of(capture))] == ["finding", "for_training", "slower"]


def test_random_numbers_are_drawn_outside_or_by_nothing() -> None:
    drawn = Fallback(
        graph_id="g0", node="n", target="aten.randn_like.default", reason_code="side_effect", reason="it draws random numbers", file="m.py"
    )
    (look,) = looks_of(overview_of(Capture(graphs=(graph(),), fallbacks=(drawn,))))
    assert "draw the random numbers of aten.randn_like.default outside" in look_sentence(look)


def test_a_break_that_costs_nothing_is_no_look() -> None:
    free = Break(break_id="b0", reason="why", file="m.py", line=7, occurrences=1, overhead_ns=0)
    assert looks_of(overview_of(Capture(breaks=(free,)))) == ()
    assert len(looks_of(overview_of(Capture(breaks=(replace(free, overhead_ns=5),))))) == 1


def test_what_one_change_mends_is_one_look() -> None:
    breaks = [Break(break_id=f"b{n}", reason=f"why {n}", file="m.py", line=7, occurrences=2, overhead_ns=10 * n) for n in (1, 2)]
    elsewhere = Break(break_id="b3", reason="why 1", file="m.py", line=8, occurrences=1, overhead_ns=5)
    again = [
        Recompile(compile_id=f"0/{n}", guard=f"layers[{n}].size == {n}", reason="r", file="m.py", line=9, advice=f"Keep layers[{n}]")
        for n in (1, 2, 3)
    ]
    looks = looks_of(overview_of(Capture(breaks=(*breaks, elsewhere), recompiles=tuple(again))))
    assert [(look.subject, look.line, look.count, look.ns_per_call) for look in looks] == [
        ("break", 7, 4, 30),
        ("recompile", 9, 3, None),
        ("break", 8, 1, 5),
    ]


def test_a_recompile_for_size_one_is_no_look() -> None:
    guard = "tensor 'x' size mismatch at index 1"
    again = Recompile(compile_id="0/1", guard=guard, reason=guard, values=("7", "1"))
    expected = replace(again, advice=advice_for_recompile(again))
    assert looks_of(overview_of(Capture(recompiles=(expected,)))) == ()
    assert len(looks_of(overview_of(Capture(recompiles=(again,))))) == 1


def test_looks_explain_why_nothing_runs_once() -> None:
    (look,) = looks_of(overview_of(SAMPLES["nothing_runs"]))
    assert (look.subject, look.what, look.count) == ("nothing_runs", "aten.histc.default", 2)
    assert look.ns_per_call is None


def test_a_reason_that_names_the_operator_is_said_once() -> None:
    reason = "aten._embedding_bag.default stays in PyTorch on purpose: it is faster"
    kept = tuple(
        replace(row, reason_code="policy", reason=reason, target="aten._embedding_bag.default") for row in SAMPLES["nothing_runs"].fallbacks
    )
    (look,) = looks_of(overview_of(replace(SAMPLES["nothing_runs"], fallbacks=kept)))
    assert look_sentence(look) == f"nothing runs in ONNX Runtime: {reason}; so leave the function uncompiled"


def test_complex_numbers_get_advice_that_can_be_followed_once_for_all_operators() -> None:
    targets = ("aten.bmm.default", "aten.mul.Tensor")
    rows = SAMPLES["nothing_runs"].fallbacks
    kept = tuple(
        replace(rows[0], node=target, target=target, reason_code="dtype", reason=f"{target} on complex numbers has no ONNX function")
        for target in targets
    )
    (look,) = looks_of(overview_of(replace(SAMPLES["nothing_runs"], fallbacks=kept)))
    assert "torch.view_as_real" in look_sentence(look)
    assert "another data type" not in look_sentence(look)


@pytest.mark.parametrize(("plain", "saved"), [(40, "otherwise leave the function uncompiled; saves 60.0 µs per call, measured"), (92, "")])
def test_where_nothing_runs_the_first_sentence_says_what_that_costs(plain: int, saved: str) -> None:
    spent: dict[LedgerPartName, int] = {"guards": 30_000, "eager": 70_000, "residual": 0}
    parts = tuple(LedgerPart(graph_id="g0", part=part, ns=ns, share=ns / 100_000) for part, ns in spent.items())
    capture = replace(SAMPLES["nothing_runs"], ledger=parts, environment={"uncompiled_ns": str(plain * 1000)})
    (look,) = looks_of(overview_of(capture))
    assert look_sentence(look).endswith(saved or "otherwise leave the function uncompiled")


def test_bfloat16_in_pytorch_is_one_look_that_names_the_option() -> None:
    capture = SAMPLES["demo_like"]
    reason = "ONNX Runtime's CPU provider has no arithmetic in bfloat16; float32 and float16 run there"
    first = replace(capture.fallbacks[0], reason_code="dtype", reason=reason)
    rows = (first, replace(first, node="tanh", target="aten.tanh.default"), replace(first, node="mm", target="aten.mm.default", line=9))
    looks = [look for look in looks_of(overview_of(replace(capture, fallbacks=rows))) if look.subject == "fallback"]
    assert [look.count for look in looks] == [len(rows)]
    assert '"upcast": ("bfloat16",)' in look_sentence(looks[0])
    left_alone = replace(capture, fallbacks=rows, environment={"cpu_bfloat16": "yes"})
    (look,) = (look for look in looks_of(overview_of(left_alone)) if look.subject == "fallback")
    assert "1.0 to 1.6 times PyTorch's time" in look_sentence(look)
    others = replace(capture, fallbacks=tuple(replace(row, reason="float8") for row in rows))
    assert all("upcast" not in look_sentence(look) for look in looks_of(overview_of(others)))
    stopped = SAMPLES["nothing_runs"]
    stopped = replace(stopped, fallbacks=tuple(replace(row, reason_code="dtype", reason=reason) for row in stopped.fallbacks))
    (look,) = looks_of(overview_of(stopped))
    assert "nothing runs in ONNX Runtime: set options={" in look_sentence(look)


@pytest.mark.parametrize("reason", ["aten.sum stays in PyTorch on purpose: it is fast", "it is fast"])
def test_what_stays_on_purpose_says_so_once(reason: str) -> None:
    capture = SAMPLES["demo_like"]
    row = replace(capture.fallbacks[0], target="aten.sum", reason_code="policy", reason=reason)
    (look,) = (look for look in looks_of(overview_of(replace(capture, fallbacks=(row,)))) if look.subject == "fallback")
    assert look_sentence(look).count("aten.sum stays in PyTorch on purpose: it is fast") == 1
    assert look_sentence(look).count("on purpose") == 1


@pytest.mark.parametrize("sample", ["empty", "whole", "foreign", "no_compute"])
def test_looks_are_empty_when_nothing_stands_out(sample: str) -> None:
    assert looks_of(overview_of(SAMPLES[sample])) == ()


def test_looks_give_no_time_that_was_not_measured() -> None:
    capture = replace(SAMPLES["demo_like"], sessions=(), runs=())
    uncalled = replace(capture, fallbacks=tuple(replace(row, calls=0, total_ns=0) for row in capture.fallbacks))
    assert [look.ns_per_call for look in looks_of(overview_of(uncalled))] == [None, None, None]


def test_what_has_a_price_is_ranked_by_it_where_a_call_was_measured() -> None:
    def looks(*, break_ns: int, measured: bool) -> list[str]:
        part: LedgerPartName = "residual" if measured else "run"
        capture = Capture(
            graphs=(Graph(graph_id="g0", compile_id="0/0", phase="inference", node_count=9, op_count=9, partition_count=1, coverage=0.5),),
            breaks=(Break(break_id="b0", reason="why", cost_ns=break_ns, advice="Print elsewhere"),),
            partitions=(Partition(partition_id="p0", graph_id="g0", node_count=5, input_count=1, output_count=1),),
            sessions=(Session(session_id="s0", partition_id="p0", calls=10, total_ns=100_000),),
            fallbacks=(Fallback(graph_id="g0", node="n", target="aten.x", reason_code="dtype", reason="", calls=10, total_ns=500_000),),
            recompiles=(Recompile(compile_id="0/1", guard="n == 2", reason="n == 2", advice="Pass a tensor"),),
            ledger=(LedgerPart(graph_id="g0", part=part, ns=100, share=1.0),),
        )
        return [look.subject for look in looks_of(overview_of(capture))]

    assert looks(break_ns=90_000, measured=True) == ["break", "fallback", "recompile"]
    assert looks(break_ns=10_000, measured=True) == ["fallback", "break", "recompile"]
    assert looks(break_ns=10_000, measured=False) == ["break", "fallback", "recompile"], "logs alone do not price breaks"


def test_a_recompile_names_the_line_that_reads_what_changed() -> None:
    reason = f'0/0: self.seen == 1\nUser stack trace:\n  File "/lib/x.py", line 3, in g\n  File "{FILE}", line 9, in f\n    if self.seen:'
    made = Recompile(compile_id="0/1", of_compile_id="0/0", function="f", file=FILE, line=7, guard="self.seen == 1", reason=reason)
    (look,) = looks_of(overview_of(Capture(recompiles=(made,))))
    assert (look.subject, look.file, look.line) == ("recompile", FILE, 9)
    (bare,) = looks_of(overview_of(Capture(recompiles=(replace(made, reason="0/0: self.seen == 1"),))))
    assert bare.line == 7


def test_python_between_graphs_counts_for_the_rank_of_its_break() -> None:
    cheap = Break(break_id="b0", reason="python", file=FILE, line=4, cost_ns=900_000, overhead_ns=20_000)
    dear = Break(break_id="b1", reason="print", file=FILE, line=5, cost_ns=60_000, overhead_ns=50_000)
    parts: tuple[LedgerPartName, ...] = ("run", "residual")
    ledger = tuple(LedgerPart(graph_id="g", part=part, ns=1_000_000, share=0.5) for part in parts)
    first, second = looks_of(overview_of(Capture(breaks=(cheap, dear), ledger=ledger)))
    assert (first.line, first.ns_per_call, first.own_code_ns) == (4, 20_000, 880_000)
    assert "besides 880 µs of PyTorch and Python between the graphs" in look_sentence(first)
    assert (second.line, second.own_code_ns) == (5, 10_000)
    assert "besides" not in look_sentence(second)
    (free,) = looks_of(overview_of(Capture(breaks=(replace(cheap, overhead_ns=0),), ledger=ledger)))
    assert "(nothing for the break itself; 900 µs of PyTorch and Python between the graphs, measured)" in look_sentence(free)


def test_what_an_operator_in_pytorch_leads_to_is_no_second_look() -> None:
    graphs = (Graph(graph_id="g0", phase="inference", node_count=12, op_count=12, partition_count=4, fallback_count=4),)
    partitions = tuple(Partition(partition_id=f"p{n}", graph_id="g0", node_count=2, input_count=1, output_count=1) for n in range(4))
    rows = tuple(
        Fallback(graph_id="g0", node=f"n{n}", target="t", reason_code="no_converter", reason="", file=FILE, line=7) for n in range(4)
    )
    overview = overview_of(Capture(graphs=graphs, partitions=partitions, fallbacks=rows))
    assert "small_partitions" in {finding.rule for finding in overview.findings}
    assert [look.subject for look in looks_of(overview)] == ["fallback"]


def test_an_operator_that_splits_a_graph_costs_more_than_its_own_time() -> None:
    parts = (partition(), partition(1))
    rows = (fallback("n", calls=10, total_ns=40_000), fallback("m", calls=10, total_ns=40_000))
    capture = Capture(
        graphs=(graph(partition_count=2, fallback_count=2),),
        partitions=parts,
        sessions=(session(calls=10), session(1, calls=10)),
        runs=(*runs(), *runs(1)),
        fallbacks=rows,
    )
    (group,) = overview_of(capture).fallbacks
    assert (group.ns_per_call, group.splitting_ns) == (8_000, 20_000)  # half of what crossing both takes
    look = next(look for look in looks_of(overview_of(capture)) if look.subject == "fallback")
    assert "(takes 8.00 µs per call, measured; about 20.0 µs to enter ONNX Runtime again)" in look_sentence(look)
    (whole,) = overview_of(replace(capture, partitions=parts[:1], sessions=capture.sessions[:1])).fallbacks
    assert whole.splitting_ns == 0, "it splits nothing"


@pytest.mark.parametrize(
    ("measured", "said"), [(True, "saves 2.00 ms per call, measured"), (False, "would save about 2.00 ms per call, estimated")]
)
def test_a_gain_says_whether_it_was_measured(measured: bool, said: str) -> None:  # noqa: FBT001 - a case
    finding = Finding(rule="tiny_graph", severity="warning", title="slow", gain_ns=2_000_000, measured=measured, mitigation="Stop.")
    (look,) = looks_of(overview_of(Capture(findings=(finding,))))
    assert look_sentence(look) == f"slow; {said}; stop"


@pytest.mark.parametrize(("spread", "said"), [("1.49", "measured"), ("1.5", "measured on a busy machine")])
def test_a_busy_machine_lowers_the_confidence_of_every_time(spread: str, said: str) -> None:
    finding = Finding(rule="tiny_graph", severity="warning", title="slow", gain_ns=2_000, measured=True, mitigation="Stop.")
    broken = Break(break_id="b0", reason="r", cost_ns=900, overhead_ns=900)
    capture = Capture(findings=(finding,), breaks=(broken,), environment={"ledger_spread": spread})
    overview = overview_of(capture)
    assert gain_words(overview.findings[0], is_busy=overview.is_busy) == f"2.00 µs, {said}"
    assert price_words(broken, is_busy=overview.is_busy) == f"900 ns per call, {said}"
    assert [f"per call, {said}" in look_sentence(look) for look in looks_of(overview)] == [True, True]
    assert payload_from_capture(capture)["overview"]["gains"] == [f"2.00 µs, {said}"]
