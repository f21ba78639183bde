"""Rules about memory traffic: kernels that copy, chains of elementwise kernels, large results, inputs that are copied on every call."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from ortlens.analysis.costs import entries_per_call, kernel_ns, run_times, whole_by_graph
from ortlens.analysis.coverage import compiled_graphs
from ortlens.analysis.index import graph_by_partition, nodes_by_graph, nodes_by_partition, profiled_sessions, sessions_by_partition
from ortlens.analysis.ledger import time_base
from ortlens.analysis.memory import call_memory
from ortlens.analysis.problems.catalogue import remedy
from ortlens.analysis.problems.problem import Problem, rule
from ortlens.analysis.roofline import CPU
from ortlens.units import counted, percent, size_from_bytes, time_from_ns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ortlens.trace.records import Capture

_COPYING_SHARE = 0.2
_COPYING_NS = 50_000
_INPUT_NS = 50_000
_INPUT_SHARE = 0.1
LARGE_OUTPUTS = 32 << 20
"""Bytes of results from which their fresh memory is worth a finding."""


@rule(
    name="copying_kernels",
    looks_for="Kernels that only copy: Transpose, which changes a layout, and Cast, which changes a data type.",
    fires="At 20 % of the session's kernel time and 50 µs per call. CPU only, after profile().",
    hazard="Each reads and writes a whole tensor and computes nothing.",
)
def copying_kernels(capture: Capture) -> Iterator[Problem]:
    """Report sessions that spend much of their time on copies."""
    for session, profiled in profiled_sessions(capture):
        on_cpu = [kernel for kernel in profiled if kernel.provider == CPU]
        copying = [kernel for kernel in on_cpu if kernel.op_type in _COPYING_REMEDIES]
        whole, part = (sum(kernel.total_ns for kernel in some) for some in (on_cpu, copying))
        ns = kernel_ns(capture, session, copying) if part else 0
        if ns < _COPYING_NS or part / whole < _COPYING_SHARE:
            continue
        worst = max(copying, key=lambda kernel: kernel.total_ns)
        is_narrow = any(node.dtype in ("float16", "bfloat16") for node in nodes_by_partition(capture).get(session.partition_id, ()))
        kinds = ", ".join(f"{count} {op}" for op, count in Counter(kernel.op_type for kernel in copying).most_common())
        yield copying_kernels.problem(
            worst,
            subject=session.session_id,
            title=f"{counted(len(copying), 'kernel')} of {session.session_id} that only copy ({kinds}) take {time_from_ns(ns)} "
            f"per {time_base(capture)}, {percent(part / whole)} of its kernel time",
            evidence=f"the longest is {worst.op_type} from {worst.node or 'an unknown node'}; the gain is estimated as all of their time",
            **(_NARROW_REMEDY if worst.op_type == "Cast" and is_narrow else _COPYING_REMEDIES[worst.op_type]),
            gain_ns=round(ns),
        )


_COPYING_REMEDIES = {
    "Transpose": remedy("Keep one layout from layer to layer, so that no layer has to transpose what the previous one wrote."),
    "Cast": remedy("Keep one data type from layer to layer."),
}
_NARROW_REMEDY = remedy(
    "Keep one data type from layer to layer.",
    "The CPU kernels of ONNX Runtime compute float16 mostly in float32, with a Cast before and after.",
)


@rule(
    name="large_outputs",
    looks_for="Results that make up most of the memory that a graph touches.",
    fires="At 32 MiB per call and half of the bytes that the graph's nodes touch.",
    hazard="Each result is written to fresh memory, which can cost more than computing it: the system clears every page before.",
)
def large_outputs(capture: Capture) -> Iterator[Problem]:
    """Report graphs that return much more than they compute on."""
    fresh, entries = capture.figures.fresh_mib_ns, entries_per_call(capture)
    for graph in compiled_graphs(capture):
        nodes = nodes_by_graph(capture).get(graph.graph_id, [])
        made = [node for node in nodes if node.is_output and node.partition_id is not None]
        returned, touched = sum(node.output_bytes or 0 for node in made), sum(node.bytes or 0 for node in nodes)
        if graph.phase != "inference" or returned < LARGE_OUTPUTS or 2 * returned < touched:
            continue
        worst = max(made, key=lambda node: node.output_bytes or 0)
        gain = round((fresh or 0) * (returned >> 20) * entries.get(graph.graph_id, 0.0))
        yield large_outputs.problem(
            worst,
            graph,
            subject=graph.graph_id,
            title=f"{graph.graph_id} returns {size_from_bytes(returned)} on every call, {size_from_bytes(worst.output_bytes or 0)} of them "
            f"from {worst.target}",
            evidence=f"{percent(returned / touched)} of the bytes that its nodes read and write"
            + (f"; writing as much fresh memory takes {time_from_ns(gain)} longer here than writing it again" if gain else ""),
            mitigation="Return only what the caller reads: a reduction, a slice, or the values from which the caller can compute the rest.",
            gain_ns=gain or None,
            at_most=bool(gain),  # what is returned instead takes time as well
        )


@rule(
    name="memory_peak",
    looks_for="A call that holds much more memory than one in eager PyTorch.",
    fires="From twice as much and 64 MiB more, measured.",
    hazard="ONNX Runtime keeps the memory of all activations of a session in one block from run to run, where PyTorch frees each value.",
)
def memory_peak(capture: Capture) -> Iterator[Problem]:
    """Report where a call holds the most memory, if that is much more than in eager PyTorch."""
    memory = call_memory(capture)
    if memory is None or not memory.is_much_more:
        return
    node = memory.node
    yield memory_peak.problem(
        node,
        subject=node and node.graph_id,
        title=f"a call holds {size_from_bytes(memory.bytes)} for activations, eager "
        f"{size_from_bytes(memory.uncompiled_bytes or 0)}"
        + (f": most where {node.target} writes {size_from_bytes(node.output_bytes or 0)}" if node is not None else ""),
        evidence=f"measured: what sessions keep, and the most that PyTorch held of {counted(memory.allocations, 'allocation')} in a call, "
        f"{memory.uncompiled_allocations or 0:,} in eager",
        **remedy(
            "Call the function with fewer rows at a time, or compute that line with an operator that needs no value of that size.",
            "Parts that one graph computes are in memory side by side. Or set enable_cpu_mem_arena = False in ort_session_options: memory "
            "is freed after each run, and calls take longer, up to 2.3 times as long where they were tried.",
        ),
    )


def with_cost_of_copies(findings: Sequence[Problem], capture: Capture) -> list[Problem]:
    """Add what copies cost to the findings about copied inputs and devices, which were recorded before any times were known.

    Those about inputs whose copies take 50 µs and 10 % of a call become warnings.
    """
    copying: Counter[tuple[str, str]] = Counter((finding.rule, _partition_of(finding)) for finding in findings if _is_open(finding))
    if not copying:
        return list(findings)
    times, sessions = run_times(capture), sessions_by_partition(capture)
    entries, wholes = entries_per_call(capture), whole_by_graph(capture)
    graph_of = graph_by_partition(capture)
    made = []
    for finding in findings:
        partition_id = _partition_of(finding)
        graph_id = graph_of.get(partition_id, "")
        timed = [times[row.session_id] for row in sessions.get(partition_id, []) if row.session_id in times]
        is_whole = finding.rule == _DEVICE
        spent = timed[-1].crossing_ns - (0 if is_whole else timed[-1].output_ns) if timed else 0
        ns = round(spent * entries.get(graph_id, 0.0))
        is_worth = ns > 0 if is_whole else ns >= _INPUT_NS and ns >= _INPUT_SHARE * wholes.get(graph_id, 0)
        count = copying[finding.rule, partition_id]
        made.append(_with_cost(finding, ns, count, time_base(capture)) if _is_open(finding) and is_worth else finding)
    return made


_DEVICE = "device_copy"
_COPIES = {"layout_copy": "binding", _DEVICE: "moving them"}


def _is_open(finding: Problem) -> bool:
    return finding.rule in _COPIES and not finding.measured


def _partition_of(finding: Problem) -> str:
    return (finding.subject or "").partition(":")[0]


def _with_cost(finding: Problem, ns: int, inputs: int, per: str) -> Problem:
    shared, what = f", {counted(inputs, 'such input')} together" if inputs > 1 else "", _COPIES[finding.rule]
    return replace(
        finding,
        severity="warning",
        title=f"{finding.title}; {what} takes {time_from_ns(ns)} per {per}{shared}",
        evidence=f"{finding.evidence}; the gain is estimated as all the time of {what}",
        gain_ns=ns // inputs,
    )
