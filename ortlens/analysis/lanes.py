"""Partition counts of one graph for many sets of operators at once: which of hundreds of pairs are worth a cut of their own.

The number of partitions is that of the longest alternation of supported and unsupported nodes on any path, which is one maximum and
one sum per node, here over all sets side by side. What `cut` knows beyond that is left out: partitions under the limit. The
figures that are shown come from `cut`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ortlens.analysis.recut import RecordedGraph

_MOST_LANES = 1024  # a level of two bytes for each of 10,000 nodes makes 20 MB


def partition_counts(graph: RecordedGraph, lanes: Sequence[frozenset[str]], *, otherwise: int) -> list[int]:
    """Count the partitions that a graph would have with each set of supported operators.

    `otherwise` is the answer for an empty set. Partitions that `min_partition_nodes` would give back are counted.
    """
    asked = list({lane for lane in lanes if lane})
    counts = {frozenset[str](): otherwise}
    for start in range(0, len(asked), _MOST_LANES):
        chunk = asked[start : start + _MOST_LANES]
        counts.update(zip(chunk, _counts(graph, chunk), strict=True))
    return [counts[lane] for lane in lanes]


def _counts(graph: RecordedGraph, lanes: Sequence[frozenset[str]]) -> list[int]:
    support = {op: np.array([op in lane for lane in lanes]) for op in frozenset[str]().union(*lanes)}
    inside: list[Any] = [  # one truth for all lanes, or one per lane
        False if roams else True if takes else support.get(record.target, False)
        for record, takes, roams in zip(graph.records, graph.supported, graph.dag.roaming, strict=True)
    ]
    return [int(count) for count in _longest(graph, inside, np.zeros(len(lanes), dtype=np.int16))]


def _longest(graph: RecordedGraph, inside: Sequence[Any], zero: Any) -> Any:  # noqa: ANN401 - numpy arrays, one entry per lane
    """Count the runs of supported nodes on the longest path: the recurrence of `cut.earliest_levels`, with a lane per set."""
    levels: list[Any] = []  # by place; what a supported reader starts from
    closed: list[Any] = []  # what a reader that is not supported starts from: the run before it has ended
    floor: Any = zero
    ordered, peak, most = floor, floor, floor
    for place, sources in enumerate(graph.dag.sources):
        here, writes = inside[place], graph.dag.writes[place]
        joined = floor if here is False else _highest(np.maximum(floor, peak) if writes else floor, levels, sources)
        apart = floor if here is True else _highest(np.maximum(floor, most) if writes else floor, closed, sources)
        own = joined if here is True else apart if here is False else np.where(here, joined, apart)
        if graph.ordered[place]:
            kept = np.maximum(own, ordered)
            own, ordered = np.where(here, own, kept), np.where(here, ordered, kept)
        floor = own if writes else floor
        levels.append(own)
        closed.append(own if here is False else own + here)
        peak = own if peak is own else np.maximum(peak, own)
        most = np.maximum(most, closed[-1])
    return most


def _highest(first: Any, found: list[Any], sources: Sequence[int]) -> Any:  # noqa: ANN401 - numpy arrays, one entry per lane
    for source in sources:
        other = found[source]
        first = other if first is other else np.maximum(first, other)
    return first
