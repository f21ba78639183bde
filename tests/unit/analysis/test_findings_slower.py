"""The rule about what PyTorch runs faster: its threshold and its cause."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ortlens.trace.records import Break, Figures, GuardCost
from tests.unit.analysis.hand_made import FILE, MICRO, MILLI, clean, fallback, found, graph, kernel, ledger, node, partition

if TYPE_CHECKING:
    from ortlens.trace.records import Capture, LedgerPart


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


WORDED: tuple[tuple[str, Capture], ...] = (
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
