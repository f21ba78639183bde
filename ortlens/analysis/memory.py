"""How much memory a model takes, and where PyTorch and ONNX Runtime each hold a copy of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ortlens.analysis.coverage import current_graphs
from ortlens.analysis.index import (
    grouped,
    latest_sessions,
    nodes_by_graph,
    nodes_by_partition,
    once,
    partitions_by_graph,
    sessions_by_partition,
)
from ortlens.trace.records import column, optional, same

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from ortlens.trace.records import Capture, Graph, Node, Partition, Session

_SAME_MEMORY = re.compile(r"aten\.((view|_unsafe_view|reshape|squeeze|unsqueeze|alias|detach)\.default|squeeze\.dims?)")
"""Operators whose output is their input under another shape; ONNX Runtime runs them in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """Memory of a graph, or of one partition and one of its sessions."""

    graph_id: str = column("The graph.", brief=3)
    partition_id: str | None = optional("The partition; empty in the row of a whole graph.", brief=2)
    session_id: str | None = optional("The session; empty in the row of a whole graph, and of a partition without a session.", brief=1)
    weight_bytes: int | None = optional(
        "Parameters and buffers that it reads; PyTorch holds one copy for all sessions.", unit="bytes", brief=4
    )
    shared_bytes: int | None = optional("The share that ONNX Runtime reads as constants in PyTorch's memory, without a copy.", unit="bytes")
    copied_bytes: int | None = optional(
        "The share that ONNX Runtime packs or rearranges for itself, weights that are not contiguous, or all with `ort_session_options`.",
        unit="bytes",
        brief=5,
    )
    held_bytes: int | None = optional(
        "Heap memory that creating the session took: weights that ONNX Runtime packed or folded into its own copies, and its structures. "
        "Empty where the C library does not report it.",
        unit="bytes",
        brief=6,
    )
    input_bytes: int | None = optional("Bytes that enter per call, without weights.", unit="bytes")
    output_bytes: int | None = optional("Bytes that leave per call, held by PyTorch's allocator.", unit="bytes")
    live_bytes: int | None = optional(
        "Peak of the values alive at the same time, with outputs, without weights and inputs. Counted over the FX nodes in order, each "
        "value from its producer to its last reader, before any fusion.",
        unit="bytes",
        brief=7,
    )
    live_at: str | None = optional("FX node at which that peak is reached.")
    kept_bytes: int | None = optional(
        "What the session took from the system for activations, and keeps from run to run, measured on a second session. Empty where "
        "values alive at the same time take less than 32 MiB.",
        unit="bytes",
    )
    arena_bytes: int | None = optional(
        "Peak of what ONNX Runtime's allocator held for activations, after fusion and reuse. Empty without a profile.",
        unit="bytes",
        brief=8,
    )


class Peak(NamedTuple):
    """The most that nodes hold at a time, in bytes, and where."""

    bytes: int
    node: str | None


def memory(capture: Capture) -> tuple[MemoryRow, ...]:
    """Sum up the memory of each graph, and of each partition and session; symbolic sizes count with the hint of the compiled call."""
    return tuple(row for graph in capture.graphs if graph.graph_id in partitions_by_graph(capture) for row in _of_graph(capture, graph))


def _of_graph(capture: Capture, graph: Graph) -> Iterator[MemoryRow]:
    nodes = nodes_by_graph(capture).get(graph.graph_id, [])
    sizes = dict(zip(graph.inputs, graph.input_sizes, strict=False))
    weights = set(graph.weights)
    peak = peak_of(nodes, {node.node for node in nodes if node.is_output})
    yield MemoryRow(
        graph_id=graph.graph_id,
        weight_bytes=sum(size for name, size in sizes.items() if name in weights),
        input_bytes=sum(size for name, size in sizes.items() if name not in weights),
        output_bytes=sum(node.output_bytes or 0 for node in nodes if node.is_output),
        live_bytes=peak.bytes,
        live_at=peak.node,
    )
    for partition in partitions_by_graph(capture)[graph.graph_id]:
        own = nodes_by_partition(capture).get(partition.partition_id, [])
        names = {node.node for node in own}
        read_outside = {name for node in nodes if node.node not in names for name in node.inputs}
        peak = peak_of(own, {node.node for node in own if node.is_output or node.node in read_outside})
        for session in sessions_by_partition(capture).get(partition.partition_id) or (None,):
            yield _row(partition, session, peak)


def _row(partition: Partition, session: Session | None, peak: Peak) -> MemoryRow:
    frozen, copied = (None, None) if session is None else (session.frozen_bytes, session.copied_bytes)
    return MemoryRow(
        shared_bytes=None if frozen is None or copied is None else frozen - copied,
        live_bytes=peak.bytes,
        live_at=peak.node,
        **same(partition, "graph_id", "partition_id", "weight_bytes", "input_bytes", "output_bytes"),
        **({} if session is None else same(session, "session_id", "copied_bytes", "held_bytes", "kept_bytes", "arena_bytes")),
    )


def peak_of(nodes: Sequence[Node], kept: Collection[str]) -> Peak:
    """Find the most that nodes hold at a time, and the first node that reaches it; values in `kept` outlive the last node."""
    owner: dict[str, str] = {}
    for node in nodes:
        same = _SAME_MEMORY.fullmatch(node.target) and node.inputs
        owner[node.node] = owner.get(node.inputs[0], "") if same else node.node  # "" is an input of the partition
    last = {owner[name]: place for place, node in enumerate(nodes) for name in (*node.inputs, node.node) if name in owner}
    outliving = {owner[name] for name in kept if name in owner}
    dying = grouped((place, name) for name, place in last.items() if name not in outliving)
    sizes = {node.node: node.output_bytes or 0 for node in nodes}
    held, peak = 0, Peak(0, None)
    for place, node in enumerate(nodes):
        held += sizes[node.node] if owner[node.node] == node.node else 0
        if held > peak.bytes:
            peak = Peak(held, node.node)
        held -= sum(sizes.get(name, 0) for name in dying.get(place, ()))
    return peak


@dataclass(frozen=True, slots=True, kw_only=True)
class CallMemory:
    """What a measured call holds at most, besides weights and arguments."""

    bytes: int  # what sessions keep for activations, and what PyTorch allocates in the call
    uncompiled_bytes: int | None  # in eager PyTorch; None where not measured
    allocations: int  # how often PyTorch allocates memory in the call
    uncompiled_allocations: int | None  # likewise
    node: Node | None  # at which the most values are alive, in the partition whose session keeps most

    @property
    def times(self) -> float | None:
        """How many times as much as in eager PyTorch."""
        return None if self.uncompiled_bytes is None else self.bytes / max(self.uncompiled_bytes, 1)

    @property
    def is_much_more(self) -> bool:
        """Whether that is twice as much, and 64 MiB more."""
        plain = self.uncompiled_bytes
        return plain is not None and self.bytes >= max(_TWICE * plain, plain + _MUCH_MORE)


_TWICE, _MUCH_MORE = 2, 64 << 20


@once
def call_memory(capture: Capture) -> CallMemory | None:
    """Sum up the memory of a measured call; None where it was not measured."""
    peak = capture.figures.peak_bytes
    current = [graph for graph in current_graphs(capture) if graph.phase != "backward"]
    keeping = [session for graph in current for session in latest_sessions(capture, graph) if session.kept_bytes is not None]
    if peak is None or not keeping:
        return None
    largest = max(keeping, key=lambda session: session.kept_bytes or 0)
    own = nodes_by_partition(capture).get(largest.partition_id, [])
    name = peak_of(own, ()).node
    return CallMemory(
        bytes=peak + sum(session.kept_bytes or 0 for session in keeping),
        uncompiled_bytes=capture.figures.uncompiled_peak_bytes,
        allocations=capture.figures.allocations or 0,
        uncompiled_allocations=capture.figures.uncompiled_allocations,
        node=next((node for node in own if node.node == name), None),
    )
