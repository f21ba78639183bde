"""ONNX models in a capture: what ONNX Runtime changed in them, and one that was explained, or a session that was watched."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal, TypeAlias

from ortlens.analysis.index import nodes_by_partition, once, profiled_sessions, summed
from ortlens.trace.records import Confidence, column, optional, same

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ortlens.trace.records import Capture, Kernel, Session


Change: TypeAlias = Literal["fused", "changed", "inserted", "unknown", "gone"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """One difference between the ONNX model and what ran."""

    partition_id: str = column("Partition of the model.")
    session_id: str = column("Session that was profiled.")
    change: Change = column(
        "`fused`: several nodes became one. `changed`: one became another operator. `inserted`: a new node between others. "
        "`unknown`: a node of unknown origin. `gone`: a node that no kernel computes, because it was folded into a constant, merged with "
        "an equal one, removed as a no-op, or is in a branch that was not taken."
    )
    kernel: str | None = optional("Name of the node that ran; empty for `gone`.")
    op_type: str | None = optional("Its operator.")
    provider: str | None = optional("Execution provider that ran it.")
    onnx_nodes: tuple[str, ...] = column("Nodes of the model before.", default=())
    onnx_ops: tuple[str, ...] = column("Their operators; empty for `gone`.", default=())
    nodes: tuple[str, ...] = column("FX nodes that it computes.", default=())
    file: str | None = optional("File of the user line.")
    line: int | None = optional("Number of the user line.")
    confidence: Confidence = column("Confidence of the origin.", default="none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimised:
    """Nodes of the ONNX model beside the kernel that computes them."""

    session_id: str
    # as of a `Fusion`; None where the node ran as it was; `shared` where several kernels may compute it
    change: Change | Literal["shared"] | None
    onnx_nodes: tuple[tuple[str, str], ...]  # nodes of the model, with their operators where known
    kernel: Kernel | None  # the kernel; None for nodes that none computes, or one of several


def optimised(capture: Capture) -> tuple[Optimised, ...]:
    """Lay each profiled model beside what ran of it, in the order of the model; empty where nothing was profiled.

    A kernel that ONNX Runtime inserted follows the one before it.
    """
    return tuple(row for session, kernels in profiled_sessions(capture) for row in _optimised(capture, session, kernels))


def _optimised(capture: Capture, session: Session, kernels: list[Kernel]) -> Iterator[Optimised]:
    model: dict[str, str] = {}  # the operator of each node, in order
    for node in nodes_by_partition(capture).get(session.partition_id, ()):
        model |= zip_longest(node.onnx_nodes, node.onnx_ops[: len(node.onnx_nodes)], fillvalue="")
    ops = model | {name: op for kernel in kernels for name, op in zip(kernel.onnx_nodes, kernel.onnx_ops, strict=False)}
    places = {name: number for number, name in enumerate(model)}
    own = own_nodes(kernels)
    placed: list[tuple[int, Optimised]] = []
    for kernel, names in zip(kernels, own, strict=True):
        nodes = tuple((name, ops.get(name, "")) for name in names)
        at = min((places[name] for name in names if name in places), default=placed[-1][0] if placed else -1)
        change = _change(replace(kernel, onnx_nodes=names, onnx_ops=tuple(op for _, op in nodes)))
        placed.append((at, Optimised(session_id=session.session_id, change=change, onnx_nodes=nodes, kernel=kernel)))
    computed = {name for kernel in kernels for name in kernel.onnx_nodes}
    for name in {**model, **dict.fromkeys(computed)}.keys() - {name for names in own for name in names}:
        what: Literal["shared", "gone"] = "shared" if name in computed else "gone"
        row = Optimised(session_id=session.session_id, change=what, onnx_nodes=((name, ops.get(name, "")),), kernel=None)
        placed.append((places.get(name, len(places)), row))
    yield from (row for _, row in sorted(placed, key=lambda item: item[0]))


def own_nodes(kernels: Sequence[Kernel]) -> list[tuple[str, ...]]:
    """Return for each kernel of one session the ONNX nodes that no other kernel may compute, in their order.

    Where ONNX Runtime renames a value, the nodes before it are among the origins of every kernel that reads it.
    """
    claims = Counter(name for kernel in kernels for name in set(kernel.onnx_nodes))
    return [tuple(name for name in kernel.onnx_nodes if claims[name] == 1) for kernel in kernels]


def fusions(capture: Capture) -> tuple[Fusion, ...]:
    """List what ONNX Runtime's rewrites changed in the profiled models; nodes that ran as they were have no row."""
    return tuple(row for session, kernels in profiled_sessions(capture) for row in _of_session(capture, session, kernels))


def _of_session(capture: Capture, session: Session, kernels: list[Kernel]) -> Iterator[Fusion]:
    for kernel in kernels:
        if (change := _change(kernel)) is not None:
            yield Fusion(
                partition_id=session.partition_id,
                session_id=session.session_id,
                change=change,
                **same(kernel, "kernel", "op_type", "provider", "onnx_nodes", "onnx_ops", "nodes", "file", "line", "confidence"),
            )
    yield from _gone(capture, session, {name for kernel in kernels for name in kernel.onnx_nodes})


def _change(kernel: Kernel) -> Change | None:
    if not kernel.onnx_nodes:
        return "inserted" if kernel.node is not None else "unknown"
    if len(kernel.onnx_nodes) > 1:
        return "fused"
    return None if kernel.onnx_ops == (kernel.op_type,) else "changed"


def _gone(capture: Capture, session: Session, computed: set[str]) -> Iterator[Fusion]:
    for node in nodes_by_partition(capture).get(session.partition_id, ()):
        for onnx_node in node.onnx_nodes:
            if onnx_node not in computed:
                computed.add(onnx_node)  # of a node that several FX nodes share, one row
                yield Fusion(
                    partition_id=session.partition_id,
                    session_id=session.session_id,
                    change="gone",
                    onnx_nodes=(onnx_node,),
                    nodes=(node.node,),
                    file=node.file,
                    line=node.line,
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxFacts:
    """An ONNX model at a glance."""

    node_count: int  # its nodes, those in bodies of control flow among them
    ops: tuple[tuple[str, int], ...]  # operators and how many, most frequent first
    opset: int | None = None  # version of the default operator set; None where it is not known
    producer: str  # what made the model, as it says itself
    weight_bytes: int
    flops: int  # floating-point operations of a call
    inputs: str  # inputs of the latest call, as `x=f32[1,8]`; empty where none is known
    inputs_made: str  # how they were made, if ortlens made them; else empty
    runtime: str  # version of ONNX Runtime; empty where it was not recorded
    providers: tuple[str, ...] = ()  # execution providers of the session, in order; empty in a dry run
    placed: tuple[tuple[str, int], ...]  # nodes by the provider that runs them, most first; nodes whose provider is not known are left out
    strayed: tuple[tuple[str, int], ...]  # why nodes are not on the preferred provider, and how many, most frequent first
    copies: int  # copies between providers that ONNX Runtime inserted; known after a profile
    optimized_node_count: int | None = None  # nodes after ONNX Runtime's rewrites; None before a profile
    changes: Mapping[str, int]  # what the rewrites did, by kind of `Fusion`
    kernel_shares: tuple[tuple[str, float], ...]  # share of the kernel time by operator, largest first; empty before a profile
    calls: int = 0
    p50_ns: int | None = None  # median of a call; None before the first
    create_ns: int | None  # time to create the session; None where it is not known
    start: Mapping[str, int]  # what that time goes into, in ns, most first; empty before a profile
    held_bytes: int | None = None  # heap memory that this took
    threads: int | None = None  # threads that work on one operator, 0 where ONNX Runtime chooses; None without a session
    is_watched: bool


def is_onnx_model(capture: Capture) -> bool:
    """Tell whether a capture is of an ONNX model or a session, and not of something that was compiled."""
    return "onnx_model" in capture.environment


@once
def onnx_facts(capture: Capture) -> OnnxFacts | None:
    """Read the facts off a capture; None for a capture of anything but an ONNX model or a session."""
    if not is_onnx_model(capture):
        return None
    facts = capture.environment
    model, session = next(iter(capture.models), None), next(iter(capture.sessions), None)
    shares = Counter(summed((kernel.op_type, kernel.total_ns) for kernel in capture.kernels))
    spent = sum(shares.values())
    return OnnxFacts(
        node_count=len(capture.nodes),
        ops=tuple(Counter(node.target for node in capture.nodes).most_common()),
        producer=facts.get("onnx_producer", ""),
        weight_bytes=0 if model is None else model.initializer_bytes,
        flops=sum(part.flops or 0 for part in capture.partitions),
        inputs=facts.get("onnx_inputs", ""),
        inputs_made=facts.get("onnx_inputs_made", ""),
        runtime=facts.get("version_onnxruntime", ""),
        placed=tuple(Counter(node.provider for node in capture.nodes if node.provider).most_common()),
        strayed=tuple(Counter(node.reason for node in capture.nodes if node.reason).most_common()),
        copies=sum(kernel.op_type.startswith("Memcpy") for kernel in capture.kernels),
        changes=dict(Counter(row.change for row in fusions(capture))) if capture.kernels else {},
        kernel_shares=tuple((op, ns / spent) for op, ns in shares.most_common()) if spent else (),
        create_ns=None if session is None else session.create_ns or None,
        start={} if session is None else start_of(session),
        is_watched=facts.get("onnx_model") == "session",
        **({} if model is None else same(model, "opset", "optimized_node_count")),
        **({} if session is None else same(session, "providers", "calls", "p50_ns", "held_bytes", "threads")),
    )


SLOW_START_NS = 1_000_000_000


def start_of(session: Session) -> dict[str, int]:
    """Return what making a session took, by part, the longest first; empty where it was not divided."""
    parts = {"provider": session.provider_ns, "reading": session.load_ns, "rewriting": session.optimize_ns, "kernels": session.kernels_ns}
    return dict(sorted(((name, ns) for name, ns in parts.items() if ns is not None), key=lambda part: -part[1]))
