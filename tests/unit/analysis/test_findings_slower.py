"""The rule about what PyTorch runs faster: its threshold, its words, its cause."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ortlens.trace.records import Kernel, LedgerPart
from tests.unit.analysis.hand_made import FILE, MICRO, MILLI, clean, fallback, found, graph, node, partition

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
