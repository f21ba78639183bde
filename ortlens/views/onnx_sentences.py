"""Sentences about an ONNX model: what it is, where it runs, what ONNX Runtime made of it, and what a call takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortlens.units import counted, percent, size_from_bytes, time_from_ns
from ortlens.views.wording import visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ortlens.analysis.onnx_model import OnnxFacts
    from ortlens.analysis.overview import Overview

_OPS = 4  # operators that a sentence names
_GIGA = 1e9


def onnx_title(overview: Overview, facts: OnnxFacts) -> str:
    """Name the capture, say that it is an ONNX model, and give ONNX Runtime's version."""
    what = "running session" if facts.is_watched else "ONNX model"
    with_what = f" in onnxruntime {visible(facts.runtime)}" if facts.runtime else ""
    return f"{visible(overview.name)}: {what}{with_what}{', dry run' if overview.is_dry_run else ''}"


def onnx_answers(overview: Overview, facts: OnnxFacts) -> Iterator[tuple[str, str]]:
    """Yield labels and sentences about the model, without full stops, in order; what is not known is left out."""
    if overview.is_dry_run:
        yield "Dry run", "the model was read, and its types and shapes inferred; no session was made"
    yield "Model", _model(facts)
    if facts.inputs:
        yield "Inputs", visible(facts.inputs) + (f" ({visible(facts.inputs_made)})" if facts.inputs_made else "")
    if facts.providers:
        yield "Runs on", _placement(facts)
    if facts.optimized_node_count is not None:
        yield "Optimiser", _optimiser(facts)
    if facts.p50_ns is not None:
        yield "Time per call", _call(facts)
    if facts.kernel_shares:
        yield "Kernels", ", ".join(f"{visible(op)} {percent(share)}" for op, share in facts.kernel_shares[:_OPS]) + _rest(facts)
    if facts.create_ns is not None:
        held = f"; {size_from_bytes(facts.held_bytes)} of heap" if facts.held_bytes else ""
        yield "Load time", f"{time_from_ns(facts.create_ns)}{held}"


def _rest(facts: OnnxFacts) -> str:
    left = facts.kernel_shares[_OPS:]
    return f" of the kernel time, {counted(len(left), 'more operator')} {percent(sum(share for _, share in left))}" if left else ""


def _model(facts: OnnxFacts) -> str:
    if not facts.node_count and facts.opset is None:
        return "its structure is not known: neither its file nor its bytes are at hand"
    ops = ", ".join(f"{count:,} {visible(op)}" for op, count in facts.ops[:_OPS])
    more = f" and {counted(len(facts.ops) - _OPS, 'more operator')}" if len(facts.ops) > _OPS else ""
    parts = [f"{counted(facts.node_count, 'node')}{f': {ops}{more}' if ops else ''}"]
    parts += [f"{size_from_bytes(facts.weight_bytes)} of weights"] if facts.weight_bytes else []
    parts += [f"operator set {facts.opset}"] if facts.opset is not None else []
    parts += [f"made by {visible(facts.producer)}"] if facts.producer not in ("", "not recorded") else []
    return "; ".join(parts)


def _placement(facts: OnnxFacts) -> str:
    first = facts.providers[0]
    threads = (
        "" if facts.threads is None else f"; {counted(facts.threads, 'thread')}" if facts.threads else "; one thread per physical core"
    )
    if len(facts.providers) == 1:
        return f"{visible(first)}, all nodes{threads}"
    counts = ", ".join(f"{counted(count, 'node')} on {visible(provider)}" for provider, count in facts.placed)
    said = counts or f"{', '.join(map(visible, facts.providers))}; which node runs where is known after profile()"
    why = f"; {visible(facts.strayed[0][0])} ({counted(facts.strayed[0][1], 'node')})" if facts.strayed else ""
    copies = f"; {counted(facts.copies, 'copy', 'copies')} between providers" if facts.copies else ""
    return f"{said}{why}{copies}{threads}"


def _optimiser(facts: OnnxFacts) -> str:
    words = {"fused": "fused", "changed": "replaced by another operator", "inserted": "inserted", "removed": "removed"}
    done = ", ".join(f"{facts.changes[kind]:,} {word}" for kind, word in words.items() if facts.changes.get(kind))
    return f"{counted(facts.node_count, 'node')} became {facts.optimized_node_count:,}" + (f": {done}" if done else "")


def _call(facts: OnnxFacts) -> str:
    taken = time_from_ns(facts.p50_ns or 0)
    how = "one call" if facts.calls == 1 else f"median of {facts.calls:,} calls"
    rate = facts.flops / facts.p50_ns if facts.p50_ns else 0.0  # operations per ns are giga per second
    speed = f"; {facts.flops / _GIGA:.3g} GFLOP, {rate:.3g} GFLOP/s" if facts.flops >= _GIGA / 1000 else ""
    return f"{taken} ({how}{speed})"
