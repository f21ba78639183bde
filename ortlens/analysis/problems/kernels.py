"""Rules about what ONNX Runtime really executed: providers, copies between them, element types."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ortlens.analysis.costs import entries_per_call, kernel_ns, most_common
from ortlens.analysis.coverage import compiled_graphs
from ortlens.analysis.identity import nodes_of
from ortlens.analysis.index import graph_by_session, grouped, nodes_by_graph, profiled_sessions, sessions_by_id
from ortlens.analysis.ledger import time_base
from ortlens.analysis.onnx_model import is_onnx_model
from ortlens.analysis.placement import borders, refusal_words, short_name
from ortlens.analysis.problems.catalogue import remedy
from ortlens.analysis.problems.problem import Problem, rule
from ortlens.analysis.roofline import CPU, PRODUCTS
from ortlens.units import counted, percent, size_from_bytes, time_from_ns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ortlens.trace.records import Capture, Graph, Kernel, Node

_STRAY_SHARE = 0.05
_COPY_SHARE = 0.02
_IDLE_SHARE = 0.25
_IDLE_NS = 10_000
_WIDE_SHARE = 0.1
_CASTS = re.compile("Cast")
_INNER_CAST = "prims.convert_element_type.default"
_NUMBER_BYTES = 64


def _shares(kernels: list[Kernel]) -> tuple[int, float]:
    return sum(kernel.total_ns for kernel in kernels), sum(kernel.share or 0.0 for kernel in kernels)


@rule(
    name="kernels_on_cpu",
    looks_for="Kernels that run on the CPU in a session of another execution provider.",
    fires="At 5 % of the session's kernel time: shapes and small constants run on the CPU on purpose.",
    hazard="ONNX Runtime silently runs on the CPU what a provider does not support, and copies data back and forth around it.",
)
def kernels_on_cpu(capture: Capture) -> Iterator[Problem]:
    """Report sessions with stray kernels on the CPU."""
    for session, kernels in profiled_sessions(capture):
        wanted = session.providers[0] if session.providers else CPU
        stray = [kernel for kernel in kernels if kernel.provider == CPU and not kernel.op_type.startswith("Memcpy")]
        spent, share = _shares(stray)
        if wanted == CPU or share < _STRAY_SHARE:
            continue
        worst = max(stray, key=lambda kernel: kernel.total_ns)
        copies = sum(kernel.copies_ns or 0 for kernel in stray)
        why = "" if worst.refusal is None else f"; {refusal_words(wanted, worst.op_type, worst.refusal, worst.refused)}"
        yield kernels_on_cpu.problem(
            worst,
            subject=session.session_id,
            title=f"{counted(len(stray), 'kernel')} of {session.session_id} on the CPU instead of {wanted}: "
            f"{percent(share)} of its kernel time",
            evidence=f"{most_common([kernel.op_type for kernel in stray])}; {time_from_ns(spent)} while profiled; "
            f"shares of the profiled run{why}"
            + (f"; copies next to them take {time_from_ns(copies)} per {time_base(capture)}" if copies else ""),
            mitigation=_INSTEAD.get(worst.refusal or "", _ELSEWHERE).format(
                op=worst.op_type, provider=wanted, types=", ".join(worst.refused)
            ),
        )


@rule(
    name="provider_fallback",
    looks_for="An execution provider that was asked for and is not in use.",
    fires="For each such provider of a session: ONNX Runtime has it, and did not register it.",
    hazard="The model may run on a slower device than you expect.",
)
def provider_fallback(capture: Capture) -> Iterator[Problem]:
    """Report providers that ONNX Runtime did not register."""
    for row in capture.placements:
        session = sessions_by_id(capture).get(row.session_id)  # none in a dry run
        if session is not None and row.provider not in session.providers:
            yield provider_fallback.problem(
                kind="finding",
                subject=row.session_id,
                title=f"{row.provider} is not in use; {row.session_id} runs on {', '.join(session.providers) or 'nothing'}",
                evidence=row.reason or "ONNX Runtime says nothing about it",
                **_NOT_STARTED,
            )


_NOT_STARTED = remedy(
    "See why in the messages of the table sessions: ONNX Runtime has this provider, and could not start it.",
    "A library that it needs may be missing, which `ortlens doctor` may name; no other build of ONNX Runtime is needed.",
)


@rule(
    name="provider_declined",
    looks_for="A session whose preferred execution provider runs nothing, or runs it in several pieces.",
    fires="Where it runs no node; where it has pieces, as a warning below 8 nodes each or, after profile(), where kernels elsewhere and "
    "copies take as long as its own. Nodes that ONNX Runtime leaves to the CPU on purpose, as shapes, do not count.",
    hazard="What a provider does not take runs on the CPU, and at each border values are copied and devices wait.",
)
def provider_declined(capture: Capture) -> Iterator[Problem]:
    """Report sessions that a preferred provider does not run, or runs in pieces."""
    profiled = {session.session_id: kernels for session, kernels in profiled_sessions(capture)}
    for border in borders(capture):
        row, provider = border.row, short_name(border.row.provider)
        if row.nodes and (row.pieces <= 1 or not row.lacking):
            continue
        ran = profiled.get(row.session_id, [])
        own = sum(kernel.total_ns for kernel in ran if kernel.provider == row.provider and not kernel.op_type.startswith("Memcpy"))
        many = 2 * own <= sum(kernel.total_ns for kernel in ran) if ran else row.nodes < _FEW_NODES * row.pieces
        found = most_common([op for node in border.cutting for op in node.onnx_ops if op in row.lacking])
        because = f", {'because of' if not row.nodes else 'cut by'} {found}" if found else ""
        runs = f"{row.nodes:,} of the" if row.nodes else "none of the"
        then = "" if border.pieces_then is None else f"; with it, there would be {counted(border.pieces_then, 'piece')}"
        yield provider_declined.problem(
            *border.cutting,
            kind="finding" if not row.nodes or many else "rule",
            subject=row.session_id,
            severity="warning" if not row.nodes or many else "info",
            title=f"{provider} runs {runs} {counted(border.node_count, 'node')} of {row.session_id}"
            + (f" in {row.pieces:,} pieces" if row.nodes else "")
            + because,
            evidence=f"{row.reason or 'ONNX Runtime says nothing about it'}{then}"
            + (f"; {counted(row.copies, 'value')} cross its border" if row.nodes and row.copies else ""),
            mitigation=_JOIN.format(ops=" and ".join(row.lacking[:_MOST_OPS]), provider=provider)
            if row.lacking
            else f"Look at the column `reason` of `placements` and the options of {provider}, or leave it out.",
        )


_FEW_NODES = 8
_MOST_OPS = 3
_JOIN = "Replace {ops} by operators that {provider} has, look at the options of {provider}, or leave it out."
_ELSEWHERE = "Replace {op} by operators and data types that {provider} supports, or leave it to PyTorch on the device."
_INSTEAD = {
    "no_kernel": "Replace {op} by operators that {provider} has, or leave it to PyTorch on the device.",
    "opset": "Convert the model to another operator set, for which {provider} has a kernel of {op}.",
    "dtype": "Give {op} another type than {types}, or leave it to PyTorch on the device.",
    "chosen": "Nothing, if {op} computes shapes; else report it to ONNX Runtime.",
}


@rule(
    name="provider_copies",
    looks_for="Copies between devices that ONNX Runtime inserted into a model (MemcpyToHost, MemcpyFromHost).",
    fires="At 2 % of the session's kernel time as a warning, below as information: each copy also waits for the device.",
    hazard="Each copy waits for the device to finish and keeps later kernels from being queued.",
)
def provider_copies(capture: Capture) -> Iterator[Problem]:
    """Report sessions with copies between providers."""
    for session, kernels in profiled_sessions(capture):
        copies = [kernel for kernel in kernels if kernel.op_type.startswith("Memcpy")]
        if not copies:
            continue
        spent, share = _shares(copies)
        moved = sum(kernel.bytes or 0 for kernel in copies)
        stray = [kernel.op_type for kernel in kernels if kernel.provider == CPU and kernel not in copies]
        yield provider_copies.problem(
            copies[0],
            subject=session.session_id,
            severity="warning" if share >= _COPY_SHARE else "info",
            title=f"{counted(len(copies), 'copy', 'copies')} between devices in {session.session_id}: {percent(share)} of its kernel time",
            evidence=f"{most_common([kernel.op_type for kernel in copies])}; {time_from_ns(spent)} while profiled"
            + (f", {size_from_bytes(moved)}" if moved else "")
            + (f"; kernels on the CPU: {most_common(stray)}" if stray else ""),
            mitigation="Replace or remove the operators on the CPU, which need the copies."
            if stray
            else "Pass and return tensors on the device of the session.",
        )


@rule(
    name="device_idle",
    looks_for="A device that waits for the host between the kernels of a session.",
    fires="From 25 % of the time between its first and last kernel, and 10 µs per run, after profile(). As information where ONNX Runtime "
    "copies between devices inside the model, which `provider_copies` reports. Not where calls replay a CUDA graph.",
    hazard="The host launches kernels more slowly than the device runs them, so a faster device or faster kernels would gain nothing.",
)
def device_idle(capture: Capture) -> Iterator[Problem]:
    """Report sessions whose device is idle for a large part of a run."""
    graph_of, entries = graph_by_session(capture), entries_per_call(capture)
    for session, kernels in profiled_sessions(capture):
        busy, idle = session.device_busy_ns or 0, session.device_idle_ns or 0
        if idle < _IDLE_NS or idle < _IDLE_SHARE * (busy + idle) or session.cuda_graph == "replayed":
            continue  # a profile runs its kernels one by one, also where calls replay a graph of them
        copies = any(kernel.op_type.startswith("Memcpy") for kernel in kernels)
        launching = _LAUNCHES_REMEDY if session.cuda_graph in (None, "waiting") else _FEWER_REMEDY
        yield device_idle.problem(
            subject=session.session_id,
            severity="info" if copies else "warning",
            title=f"the device is idle {percent(idle / (busy + idle))} of a run of {session.session_id}"
            + (", which copies between devices" if copies else ": launches are the limit"),
            evidence=f"busy {time_from_ns(busy)} and idle {time_from_ns(idle)} between its first and its last work; "
            f"{counted(session.launches or 0, 'launch', 'launches')} per run, {time_from_ns(session.launch_ns or 0)} of the host under "
            "torch's profiler; the gain is estimated as all of the idle time",
            **(_COPIES_REMEDY if copies else _LARGER_REMEDY if is_onnx_model(capture) else launching),
            gain_ns=round(idle * entries.get(graph_of[session.session_id], 1.0)),
        )


_LARGER_REMEDY = remedy("Use larger batches, so that each kernel has more work.")
_LAUNCHES_REMEDY = remedy(
    "cuda_graph=True records the launches once and replays them in one, for fixed sizes.",
    "Or use larger batches, so that each kernel has more work.",
    cuda_graph=True,
)
_FEWER_REMEDY = remedy("Use larger batches, so that each kernel has more work; `sessions.cuda_graph` says why no CUDA graph is replayed.")
_COPIES_REMEDY = remedy("Remove the copies between devices first; see `provider_copies`.")


@rule(
    name="float64_nodes",
    looks_for="Computation in float64.",
    fires="At 10 % of a graph's floating-point operations or, where none are counted, of its bytes: a few float64 numbers cost nothing. "
    "Single numbers, as Python floats are, and what an operator of float32 computes in float64 by itself, as a long sum, do not count.",
    hazard="A core does half as many operations, moves twice the bytes, and has fewer ONNX Runtime kernels to choose from.",
)
def float64_nodes(capture: Capture) -> Iterator[Problem]:
    """Report graphs that compute in double precision."""
    for graph, nodes, computing in _computing_in(capture, ("float64",)):
        wide = _of_tensors(computing)
        share, what = _weight(nodes, wide)
        if share < _WIDE_SHARE:
            continue
        first, spent = next((node for node in wide if node.file), wide[0]), _kernel_ns(capture, graph, wide)
        casts = spent - _kernel_ns(capture, graph, wide, besides=_CASTS)
        yield float64_nodes.problem(
            first,
            subject=graph.graph_id,
            title=f"{percent(share)} of the {what} of {graph.graph_id} are in float64, at {counted(len(wide), 'node')}"
            + (f"; their kernels take {time_from_ns(spent)} per {time_base(capture)}" if spent else ""),
            evidence=f"{most_common([node.target for node in wide])}; first at {first.node}"
            + ("; the gain is estimated as if float32 took half as long and needed no Cast" if spent else ""),
            mitigation=_EXPORT_WIDE
            if is_onnx_model(capture)
            else "Make the model and its inputs float32 (model.float(), x.float()); numpy arrays are float64 by default.",
            gain_ns=round((spent + casts) / 2) or None,
        )


_EXPORT_WIDE = "Export the model again from a module in float32 (module.float()), with example inputs in float32."


def _of_tensors(wide: list[Node]) -> list[Node]:
    """Leave out single numbers, and what operators compute in float64 between casts of their own: no other float64 goes in or out."""
    readers = grouped((source, node.node) for node in wide for source in node.inputs)
    inside = {node.node: node for node in wide}
    met = [node for node in wide if node.is_output or not (node.target == _INNER_CAST or (node.inputs and inside.keys() >= {*node.inputs}))]
    given = {node.node for node in met}
    while met:
        node = met.pop()
        near = {*node.inputs, *readers.get(node.node, ())} & inside.keys() - given
        given |= near
        met += [inside[name] for name in near]
    return [node for node in wide if node.node in given and not (node.shape == () and (node.bytes or 0) <= _NUMBER_BYTES)]


@rule(
    name="float16_nodes",
    looks_for="Computation in float16 or bfloat16 by ONNX Runtime on the CPU.",
    fires="At 10 % of a graph's floating-point operations or, where none are counted, of its bytes; not of types that `upcast` lists.",
    hazard="The CPU kernels of ONNX Runtime compute most operators in float32, with a Cast before and after.",
)
def float16_nodes(capture: Capture) -> Iterator[Problem]:
    """Report graphs that compute in half precision on the CPU."""
    on_cpu = {session.partition_id for session in capture.sessions if session.providers[:1] == (CPU,)}
    halves = tuple(dtype for dtype in ("float16", "bfloat16") if dtype not in capture.figures.option_upcast)
    for graph, nodes, computing in _computing_in(capture, halves):
        narrow = [node for node in computing if node.partition_id in on_cpu]  # what stays in PyTorch is no matter of these kernels
        share, what = _weight(nodes, narrow)
        if share < _WIDE_SHARE:
            continue
        first = next((node for node in narrow if node.file), narrow[0])
        spent = _kernel_ns(capture, graph, narrow, besides=PRODUCTS)
        yield float16_nodes.problem(
            first,
            subject=graph.graph_id,
            title=f"{percent(share)} of the {what} of {graph.graph_id} are in {first.dtype} on the CPU, at {counted(len(narrow), 'node')}",
            evidence=f"{most_common([node.target for node in narrow])}; first at {first.node}"
            + (
                "; the gain is estimated as all the time of their kernels but products, which float32 fuses or does not need"
                if spent
                else ""
            ),
            **remedy(_EXPORT_WIDE)
            if is_onnx_model(capture)
            else remedy(
                "Make the model and its inputs float32 on the CPU (model.float(), x.float(), without torch.autocast).",
                f'options={{"upcast": ("{first.dtype}",)}} does so inside ONNX Runtime and keeps the types outside: results are rounded '
                "less often than PyTorch's, and a frozen weight takes 4 more bytes per element.",
                upcast=(first.dtype,),
            ),
            gain_ns=round(spent) or None,
        )


def _computing_in(capture: Capture, dtypes: tuple[str, ...]) -> Iterator[tuple[Graph, list[Node], list[Node]]]:
    """Yield the graphs that do much of their work in some data types, with all nodes and those that compute in them."""
    for graph in compiled_graphs(capture):
        nodes = nodes_by_graph(capture).get(graph.graph_id, [])
        chosen = [node for node in nodes if node.dtype in dtypes and node.kind == "compute"]
        if chosen and _weight(nodes, chosen)[0] >= _WIDE_SHARE:
            yield graph, nodes, chosen


def _weight(nodes: list[Node], chosen: list[Node]) -> tuple[float, str]:
    """Compute the share of some nodes in the work of all, and say what it counts."""
    measure = "flops" if any(node.flops for node in nodes) else "bytes"
    whole, part = (sum(getattr(node, measure) or 0 for node in some) for some in (nodes, chosen))
    return part / whole if whole else 0.0, "floating-point operations" if measure == "flops" else "bytes"


def _kernel_ns(capture: Capture, graph: Graph, nodes: list[Node], *, besides: re.Pattern[str] | None = None) -> float:
    """Sum up the kernels of some nodes per call, without those of some operators; 0 where they were not profiled."""
    names = {node.node for node in nodes}
    return sum(
        kernel_ns(
            capture,
            session,
            [kernel for kernel in kernels if names.intersection(nodes_of(kernel)) and not (besides and besides.search(kernel.op_type))],
        )
        for session, kernels in profiled_sessions(capture)
        if graph_by_session(capture)[session.session_id] == graph.graph_id
    )
