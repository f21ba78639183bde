"""The rule about what PyTorch runs faster: its threshold, its words, its cause."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ortlens.analysis.first_look import looks_of
from ortlens.analysis.overview import overview_of
from ortlens.analysis.timing import price_of
from ortlens.trace.records import Break, Finding, Kernel, LedgerPart
from tests.unit.analysis.hand_made import FILE, MICRO, MILLI, clean, fallback, found, graph, node, partition, runs, session

if TYPE_CHECKING:
    from ortlens.trace.records import Capture, Node


def kernel(op_type: str, total_ns: int, node_name: str) -> Kernel:
    return Kernel(session_id="s0", kernel=op_type, op_type=op_type, provider="CPUExecutionProvider", total_ns=total_ns, node=node_name)


def slower(torch_ns: int, *, ort_ns: int = MILLI, is_slower: bool = True, whole: int = MILLI, **changes: object) -> Capture:
    """A partition that was timed against PyTorch, in calls of so many ns."""
    timed = partition(ort_ns=ort_ns, torch_ns=torch_ns, is_slower=is_slower)
    rows = (LedgerPart(graph_id="g0", part="run", ns=whole, share=1.0), LedgerPart(graph_id="g0", part="residual", ns=0, share=0.0))
    loop = node("bag", target="aten._embedding_bag.default", onnx_ops=("Gather", "Loop"), file=FILE, line=7, bytes=1 << 10)
    made = clean(graphs=(graph(entries_per_call=1.0),), partitions=(timed,), ledger=rows, nodes=(node("a"), loop))
    return replace(made, **changes)  # type: ignore[arg-type]  # fields differ in type


def test_what_is_slower_is_named_with_its_cause_its_line_and_its_cost() -> None:
    (finding,) = found(slower(250 * MICRO), "slower_than_torch")
    cause = "aten._embedding_bag.default becomes a Loop over single elements"
    assert finding.title == f"p0 takes 1.00 ms per call, PyTorch 250 µs (4.0 times as long): {cause}"
    assert (finding.file, finding.line, finding.gain_ns, finding.measured) == (FILE, 7, 750 * MICRO, True)
    assert "75% of a call" in finding.evidence


def test_a_scatter_of_single_numbers_is_not_taken_for_a_copy() -> None:
    scatter = node("add", target="aten.scatter_add.default", onnx_ops=("Expand", "ScatterElements"), file=FILE, line=7, bytes=1 << 10)
    (finding,) = found(slower(250 * MICRO, nodes=(scatter,)), "slower_than_torch")
    assert finding.title.endswith("aten.scatter_add.default becomes a ScatterElements, which writes number by number")


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


def test_a_profile_says_which_kernel() -> None:
    kernels = (kernel("Loop", 800, "bag"), kernel("Gemm", 200, "a"))
    (finding,) = found(slower(1, kernels=kernels), "slower_than_torch")
    assert "80% of its time in ONNX Runtime goes into aten._embedding_bag.default (Loop): " in finding.title


def test_nodes_of_one_operator_are_one_cause() -> None:
    unrolled = tuple(node(f"pow_{n}", target="aten.pow.Tensor_Scalar", file=FILE, line=6) for n in range(9))
    kernels = (kernel("Gemm", 400, "a"), *(kernel("Pow", 90 + n, f"pow_{n}") for n in range(9)))
    (finding,) = found(slower(250 * MICRO, nodes=(node("a"), *unrolled), kernels=kernels), "slower_than_torch")
    assert finding.title.endswith("68% of its time in ONNX Runtime goes into aten.pow.Tensor_Scalar (Pow) at 9 nodes")
    assert (finding.file, finding.line) == (FILE, 6)


@pytest.mark.parametrize(("torch_ns", "gain_ns"), [(2 * MILLI, 735 * MICRO), (400 * MICRO, 300 * MICRO)])
def test_a_chain_costs_no_more_than_its_passes_take_in_pytorch(torch_ns: int, gain_ns: int) -> None:
    kernels = tuple(replace(kernel("Mul", 250 * MICRO, "a"), kernel=f"mul_{n}", calls=1) for n in range(4))
    (finding,) = found(slower(torch_ns, kernels=kernels), "elementwise_chain")
    assert finding.gain_ns == gain_ns
    assert ("of what PyTorch takes for the same passes" in finding.evidence) is (torch_ns < MILLI)


def test_a_graph_is_named_where_its_partitions_do_not_explain_it() -> None:
    write = node("put", target="aten.index_put.default", inputs=("cache",), is_output=True, output_bytes=4 << 20, onnx_ops=("ScatterND",))
    timed = graph(ort_ns=3 * MILLI, torch_ns=MILLI, is_slower=True, entries_per_call=2.0, inputs=("cache",))
    (finding,) = found(slower(900 * MICRO, graphs=(timed,), nodes=(write,)), "slower_than_torch")
    assert finding.title.startswith(
        "forward (g0) takes 6.00 ms per call, PyTorch 2.00 ms (3.0 times as long): aten.index_put.default changes"
    )
    assert finding.gain_ns == 4 * MILLI
    assert "torch.compiler.disable" in finding.mitigation
    known = replace(slower(900 * MICRO, graphs=(timed,), nodes=(write,)))
    assert found(known, "state_copies") == []  # its cost is known already


@pytest.mark.parametrize(("torch_ns", "subject"), [(250 * MICRO, "p0"), (250 * MICRO + 1, "g0")])
def test_a_partition_is_named_where_it_explains_three_quarters_of_its_graph(torch_ns: int, subject: str) -> None:
    timed = graph(ort_ns=2 * MILLI, torch_ns=MILLI, is_slower=True, entries_per_call=1.0)
    (finding,) = found(slower(torch_ns, graphs=(timed,)), "slower_than_torch")
    assert finding.subject == subject


def test_operators_of_a_partition_are_not_blamed_for_those_that_stay_in_pytorch() -> None:
    slow_graph = graph(entries_per_call=1.0, ort_ns=MILLI, torch_ns=250 * MICRO, is_slower=True)
    capture = slower(MILLI, is_slower=False, graphs=(slow_graph,), fallbacks=(fallback("svd"),))
    (finding,) = found(capture, "slower_than_torch")
    assert "no partition is slower by itself, so what stays in PyTorch" in finding.title
    assert "_embedding_bag" not in finding.title


def test_without_a_profile_the_cause_is_what_moves_or_computes_most() -> None:
    product = node("product", target="aten.addmm.default", flops=4 << 20, bytes=1 << 18)
    broadcast = node("broadcast", target="aten.mul.Tensor", flops=1 << 24, bytes=64 << 20, output_bytes=64 << 20)
    view = node("view", target="aten.t.default", bytes=128 << 20)
    ordered = node("ordered", target="aten.sort.default", bytes=4 << 20, onnx_ops=("TopK",))

    def cause(*nodes: Node) -> str:
        (finding,) = found(slower(250 * MICRO, nodes=nodes), "slower_than_torch")
        return finding.title.partition("the largest of its operators is ")[2].partition(",")[0]

    assert cause(product, broadcast, view) == "aten.mul.Tensor"
    assert cause(product, view) == "aten.addmm.default"
    assert cause(product, broadcast, ordered) == "aten.sort.default"


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
    assert [look.what for look in looks_of(overview_of(alone))] == ["guards"]
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
        "PyTorch and Python between graphs takes 90.0 µs"
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
    assert found(replace(capture, breaks=(broken,)), "costly_entry") == []
