"""What a capture says about an ONNX model that was explained, or about a session that was watched."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortlens.analysis.fusions import fusions
from ortlens.analysis.index import once, summed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ortlens.trace.records import Capture


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxFacts:
    """An ONNX model at a glance."""

    node_count: int  # its nodes, those in bodies of control flow among them
    ops: tuple[tuple[str, int], ...]  # operators and how many, most frequent first
    opset: int | None  # version of the default operator set; None where it is not known
    producer: str  # what made the model, as it says itself
    weight_bytes: int
    flops: int  # floating-point operations of a call
    inputs: str  # inputs of the latest call, as `x=f32[1,8]`; empty where none is known
    inputs_made: str  # how they were made, if ortlens made them; else empty
    runtime: str  # version of ONNX Runtime; empty where it was not recorded
    providers: tuple[str, ...]  # execution providers of the session, in order; empty in a dry run
    placed: tuple[tuple[str, int], ...]  # nodes by the provider that runs them, most first; nodes whose provider is not known are left out
    strayed: tuple[tuple[str, int], ...]  # why nodes are not on the preferred provider, and how many, most frequent first
    copies: int  # copies between providers that ONNX Runtime inserted; known after a profile
    optimized_node_count: int | None  # nodes after ONNX Runtime's rewrites; None before a profile
    changes: Mapping[str, int]  # what the rewrites did, by kind: `fused`, `changed`, `inserted`, `removed`
    kernel_shares: tuple[tuple[str, float], ...]  # share of the kernel time by operator, largest first; empty before a profile
    calls: int
    p50_ns: int | None  # median of a call; None before the first
    create_ns: int | None  # time to create the session; None where it is not known
    held_bytes: int | None  # heap memory that this took
    threads: int | None  # threads that work on one operator, 0 where ONNX Runtime chooses; None without a session
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
        opset=None if model is None else model.opset,
        producer=facts.get("onnx_producer", ""),
        weight_bytes=0 if model is None else model.initializer_bytes,
        flops=sum(part.flops or 0 for part in capture.partitions),
        inputs=facts.get("onnx_inputs", ""),
        inputs_made=facts.get("onnx_inputs_made", ""),
        runtime=facts.get("version_onnxruntime", ""),
        providers=() if session is None else session.providers,
        placed=tuple(Counter(node.provider for node in capture.nodes if node.provider).most_common()),
        strayed=tuple(Counter(node.reason for node in capture.nodes if node.reason).most_common()),
        copies=sum(kernel.op_type.startswith("Memcpy") for kernel in capture.kernels),
        optimized_node_count=None if model is None else model.optimized_node_count,
        changes=dict(Counter(row.change for row in fusions(capture))) if capture.kernels else {},
        kernel_shares=tuple((op, ns / spent) for op, ns in shares.most_common()) if spent else (),
        calls=0 if session is None else session.calls,
        p50_ns=None if session is None else session.p50_ns,
        create_ns=None if session is None else session.create_ns or None,
        held_bytes=None if session is None else session.held_bytes,
        threads=None if session is None else session.threads,
        is_watched=facts.get("onnx_model") == "session",
    )
