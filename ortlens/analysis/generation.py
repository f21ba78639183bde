"""A generation of tokens: which graphs are its prefill and its decode, what their steps take, and what happens to the cache.

Roles come from what a graph computes, not from names: a decode graph takes a cache, returns it changed, and computes one position, as
its first embedding of tokens shows. Rejected: sizes of inputs alone, since an encoder-decoder model begins with one position, too.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from ortlens.analysis.coverage import code_key
from ortlens.analysis.index import nodes_by_graph, once, summed
from ortlens.analysis.ledger import SteppedCall, StepReading, middle_half
from ortlens.analysis.timing import graph_times
from ortlens.trace.records import Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ortlens.analysis.ledger import CallTrace
    from ortlens.trace.records import Capture, Figures, Graph, Node, StepRole

_ROLES: tuple[StepRole, ...] = ("tokenizer", "encode", "prefill", "decode", "python")
_EMBEDDING = "aten.embedding.default"
_KEEPS = re.compile(r"aten\.(cat|index_put|_unsafe_index_put|index_copy|slice_scatter|select_scatter|scatter)_?\.")
_REWRITES = re.compile(r"aten\.(copy|clone)_?\.")
_IN_PLACE = re.compile(r"aten\.\w+_\.")
_PART = "aten.slice.Tensor"
_COUNTER = 8  # bytes of a position that a cache counts itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """What a decode step does to the cache."""

    taken_bytes: int  # the caches that it changes, at the sizes that the graph was compiled for; of an ONNX model, in the last step
    copied_bytes: int  # of these, what it copies into new tensors although it stays the same
    new_bytes: int  # what it adds or writes anew
    is_growing: bool  # whether it returns more than it takes
    is_recomputed: bool  # whether nothing of it stays the same, as in the state of a recurrent model
    node: Node | None  # one of the operations that do it; None for an ONNX model


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What is known about a generation."""

    steps: tuple[Step, ...]  # what each kind of step takes, in the order of `_ROLES`; empty where no call was measured
    # entries into the graphs of each role, over all calls, and their mean time inside the graph, in ns
    entries: Mapping[StepRole, tuple[int, float]]
    versions: Mapping[StepRole, int]  # compilations of each role
    cache: Cache | None  # what a decode step does to the cache; None where it is not known


def steps_of(calls: Sequence[CallTrace], uncompiled: Sequence[SteppedCall]) -> tuple[Step, ...]:
    """Compute what each kind of step takes: a row per role that occurs, whose times add up to the wall time of a call."""
    stepped = [SteppedCall(call.wall_ns, call.steps) for call in calls]
    if not any(call.readings for call in stepped):
        return ()
    times, plain = [_times(call) for call in stepped], [_times(call) for call in middle_half(uncompiled)]
    steps = []
    for role in _ROLES:
        of_role = [[reading for known, reading in _with_roles(call.readings) if known == role] for call in stepped]
        if role != "python" and not any(of_role):
            continue
        steps.append(
            Step(
                role=role,
                calls=float(median(map(len, of_role))),
                tokens=float(median(sum(reading.rows * reading.positions for reading in readings) for readings in of_role)),
                ns=round(sum(time[role] for time in times) / len(times)),
                uncompiled_ns=round(sum(time[role] for time in plain) / len(plain)) if plain else None,
                graph_ids=tuple(dict.fromkeys(_entered(calls, role))),
            )
        )
    return tuple(steps)


def first_token_ns(calls: Iterable[CallTrace]) -> int | None:
    """Return the mean time until the first call of the model, which computes the first token, is done; None without one."""
    ends = [(call.started_ns, reading.ended_ns) for call in calls for role, reading in _with_roles(call.steps) if role == "prefill"]
    firsts = dict(reversed(ends))  # of several in a call, the first
    return round(sum(ended - started for started, ended in firsts.items()) / len(firsts)) if firsts else None


def _with_roles(readings: Iterable[StepReading]) -> Iterator[tuple[StepRole, StepReading]]:
    is_first = True
    for reading in readings:
        if reading.apart:
            yield reading.apart, reading
        else:
            yield ("prefill" if is_first or reading.positions > 1 else "decode"), reading
            is_first = False


def _times(call: SteppedCall) -> Counter[StepRole]:
    times = Counter(summed((role, reading.ended_ns - reading.started_ns) for role, reading in _with_roles(call.readings)))
    times["python"] = call.wall_ns - sum(times.values())
    return times


def _entered(calls: Iterable[CallTrace], role: StepRole) -> Iterator[str]:
    for call in calls:
        for known, reading in _with_roles(call.steps):
            if known == role:
                yield from (visit.graph_id for visit in call.visits if reading.started_ns <= visit.entered_ns <= reading.ended_ns)


def with_roles(capture: Capture) -> Capture:
    """Set the role of each graph of a generation; the same capture if nothing was generated."""
    roles = _roles(capture)
    if not roles:
        return capture
    return replace(capture, graphs=tuple(replace(graph, role=roles.get(graph.graph_id)) for graph in capture.graphs))


def _roles(capture: Capture) -> dict[str, StepRole]:
    nodes = nodes_by_graph(capture)
    plain = [graph for graph in capture.graphs if graph.phase == "inference"]
    roles: dict[str, StepRole] = {}
    for graph in plain:
        own = nodes.get(graph.graph_id, [])
        if _positions(own) == 1 and _cache_writes(graph, own):
            roles[graph.graph_id] = "decode"
    same_code = {code_key(replace(graph, role=None)) for graph in plain if graph.graph_id in roles}
    roles |= {
        graph.graph_id: "prefill" for graph in plain if graph.graph_id not in roles and code_key(replace(graph, role=None)) in same_code
    }
    for step in capture.steps:  # of another backend there are no nodes
        for graph_id in step.graph_ids:
            roles.setdefault(graph_id, step.role)
    return roles


def _positions(nodes: Iterable[Node]) -> int | str | None:
    first = next((node for node in nodes if node.target == _EMBEDDING), None)
    return first.shape[-2] if first is not None and first.shape and len(first.shape) > 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Write:
    """A node that returns or makes a changed cache, the bytes of the cache that it takes, and those of the cache afterwards."""

    node: Node
    taken: int
    left: int


def _cache_writes(graph: Graph, nodes: Sequence[Node]) -> list[_Write]:
    """Find what changes a cache; of a cache with a sliding window, the last positions of what is made are returned."""
    given = {name: size for name, size in zip(graph.inputs, graph.input_sizes, strict=False) if name not in graph.weights}
    parts = {node.inputs[0]: node for node in nodes if node.target == _PART and node.is_output and node.inputs}
    found = []
    for node in nodes:
        taken = max((given[name] for name in node.inputs if name in given), default=0)
        kept = node if node.is_output or node.mutates else parts.get(node.node) if _KEEPS.match(node.target) else None
        if kept is None or not (_KEEPS.match(node.target) or _REWRITES.match(node.target)):
            continue
        left = kept.output_bytes or 0
        if taken > _COUNTER and left >= taken:
            found.append(_Write(node=node, taken=taken, left=left))
    return found


@once
def generation_of(capture: Capture) -> Generation | None:
    """Collect what is known about a generation; None where no graph has a role and no steps were measured."""
    graphs = [graph for graph in capture.graphs if graph.role is not None]
    if not graphs and not capture.steps:
        return None
    times = graph_times(capture)
    entries: dict[StepRole, tuple[int, float]] = {}
    for role in _ROLES:
        own = [times[graph.graph_id] for graph in graphs if graph.role == role]
        count = sum(time.calls for time in own)
        if count:
            entries[role] = count, sum(time.total_ns for time in own) / count
    versions = Counter(graph.role for graph in graphs if graph.role is not None)
    return Generation(
        steps=capture.steps,
        entries=entries,
        versions={role: versions[role] for role in _ROLES if versions[role]},
        cache=_cache(graphs, nodes_by_graph(capture)) or _cache_in_onnx(capture.figures),
    )


def _cache(graphs: Iterable[Graph], nodes: Mapping[str, list[Node]]) -> Cache | None:
    """Describe the cache of the newest decode graph; None where nothing writes to one."""
    decode = [graph for graph in graphs if graph.role == "decode"]
    writes = _cache_writes(decode[-1], nodes.get(decode[-1].graph_id, [])) if decode else []
    if not writes:
        return None
    made = {node.node: node for node in nodes[decode[-1].graph_id]}
    copied = new = 0
    for write in writes:
        if _REWRITES.match(write.node.target):
            new += write.left
        else:
            copied += 0 if _IN_PLACE.match(write.node.target) else write.taken
            new += (write.left - write.taken) or _written_bytes(write.node, made)
    return Cache(
        taken_bytes=sum(write.taken for write in writes),
        copied_bytes=copied,
        new_bytes=new,
        is_growing=any(write.left > write.taken for write in writes),
        is_recomputed=all(_REWRITES.match(write.node.target) for write in writes),
        node=writes[0].node,
    )


def _cache_in_onnx(figures: Figures) -> Cache | None:
    if figures.cache_bytes is None:
        return None
    copied, new = figures.cache_copied_bytes or 0, figures.cache_new_bytes or 0
    return Cache(taken_bytes=figures.cache_bytes, copied_bytes=copied, new_bytes=new, is_growing=copied > 0, is_recomputed=False, node=None)


def _written_bytes(node: Node, made: Mapping[str, Node]) -> int:
    """Return the bytes of the last tensor that a write reads, which is what it writes."""
    source = made.get(node.inputs[-1]) if node.inputs else None
    if source is None:
        return 0
    items = dict(zip(source.items, source.item_sizes, strict=False))
    return next((items[name] for name in node.item_inputs if name in items), source.output_bytes or 0)
