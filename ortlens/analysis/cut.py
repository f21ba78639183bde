"""The cut of a graph into partitions, on plain data: fewest partitions, one pass.

The backend cuts by it what it compiles, and `whatif` cuts by it what a capture recorded, so that a prediction and what
comes true are made by the same lines.

The graph is cut into alternating waves: what PyTorch must run before, then one partition, then the next wave of
PyTorch, and so on. A node goes into the earliest wave its inputs allow, so a chain of operations is cut only where an
unsupported node really lies on it. A path with k runs of supported nodes needs k partitions whatever one does, and this
assignment uses no more than the longest such path needs: the number of partitions is minimal. It takes one pass, so
graphs of any size are cheap; torch's `CapabilityBasedPartitioner` keeps the set of descendants of every node and
is quadratic.

A second pass moves supported nodes to a later partition where that brings fewer bytes over the boundary, so that a
mask made of constants is made where it is used. The first number of a partition is 0.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Dag:
    """A graph as numbers: item k of each sequence describes node k; nodes are in execution order."""

    sources: Sequence[Sequence[int]]  # nodes that it reads, each once; inputs of the graph and constants are none
    readers: Sequence[Sequence[int]]
    returned: Sequence[bool]
    counted: Sequence[bool]
    anchored: Sequence[bool]  # makes a tuple, or is an item of one: it stays where its inputs put it
    roaming: Sequence[bool]  # a number made of sizes of the graph's inputs alone: computed wherever it is needed, part of no partition
    writes: Sequence[bool]  # changes what it reads; nothing after it may run before it
    size_of: Callable[[int], int]  # bytes of what a node makes. Asked for few nodes, since sizes are dear where they are symbolic


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Where each node runs."""

    count: int
    level: list[int]  # by node: what is in a partition runs in the one of that number, the others before it
    inside: list[bool]  # by node: whether it is in a partition
    # supported nodes that are in none because their partition would have been too small, with the number of compute nodes that it would
    # have had
    too_small: dict[int, int] = field(default_factory=dict)


def cut(dag: Dag, supported: Sequence[bool], ordered: Sequence[bool], *, min_nodes: int = 1) -> Cut:
    """Cut a graph; partitions with fewer compute nodes than `min_nodes`, and those of numbers alone, go back to PyTorch.

    `ordered` marks nodes that have to keep their place among others of the kind (checks, random draws).
    """
    inside = [takes and not roams for takes, roams in zip(supported, dag.roaming, strict=True)]
    too_small: dict[int, int] = {}
    while True:
        level = earliest_levels(dag, inside, ordered)
        sink(dag, inside, level)
        small = _small(dag, inside, level, max(min_nodes, 1))
        if not small:
            return _renumbered(inside, level, too_small)
        too_small.update(small)
        for node in small:
            inside[node] = False


def earliest_levels(dag: Dag, inside: Sequence[bool], ordered: Sequence[bool]) -> list[int]:
    """Find the earliest wave that the inputs of each node allow."""
    level: list[int] = []
    floor = 0  # nothing after a write may run before it
    last_ordered = 0  # checks and random draws keep the order the program gave them
    highest = highest_after = 0  # what a write must not come before: when it is in a partition, and when it is not
    for node, sources in enumerate(dag.sources):
        own, own_inside, writes = floor, inside[node], dag.writes[node]
        if writes:
            own = max(floor, highest if own_inside else highest_after)
        for source in sources:
            earliest = level[source]
            if inside[source] and not own_inside:
                earliest += 1
            if earliest > own:  # noqa: PLR1730 - max() costs as much as all the rest of this loop
                own = earliest
        if ordered[node]:
            own = last_ordered = max(own, last_ordered)
        if writes:
            floor = own
        level.append(own)
        highest, highest_after = max(highest, own), max(highest_after, own + own_inside)
    return level


def sink(dag: Dag, inside: Sequence[bool], level: list[int]) -> None:
    """Move supported nodes later, in `level`, where fewer bytes cross a boundary for it."""
    last = max(level, default=0)
    for node in range(len(level) - 1, -1, -1):
        readers = dag.readers[node]
        if dag.writes[node]:
            last = level[node] - (not inside[node])  # what comes before a write must not sink past it
        if not inside[node] or not readers or dag.returned[node] or dag.anchored[node]:
            continue
        latest = level[readers[0]]
        if not level[node] < latest <= last or not all(inside[reader] and level[reader] == latest for reader in readers):
            continue  # nowhere to go to, or it crosses a boundary wherever it is made
        if _newly_crossing(dag, inside, level, node, latest) <= dag.size_of(node):
            level[node] = latest


def _newly_crossing(dag: Dag, inside: Sequence[bool], level: Sequence[int], node: int, latest: int) -> int:
    """Sum up the bytes of inputs that would have to leave their partition only because of this move."""
    total = 0
    for source in dag.sources[node]:
        own = level[source]
        if not inside[source] or own >= latest or dag.returned[source]:
            continue
        if not any(reader != node and not (inside[reader] and level[reader] == own) for reader in dag.readers[source]):
            total += dag.size_of(source)
    return total


def _small(dag: Dag, inside: Sequence[bool], level: Sequence[int], least: int) -> dict[int, int]:
    """Find the nodes of partitions under the limit, with the number of compute nodes there."""
    counts = [0] * (max(level, default=-1) + 1)
    for node, own in enumerate(level):
        counts[own] += inside[node] and dag.counted[node]
    if all(count >= least for count in counts):
        return {}
    return {node: counts[own] for node, own in enumerate(level) if inside[node] and counts[own] < least}


def _renumbered(inside: list[bool], level: list[int], too_small: dict[int, int]) -> Cut:
    """Close the gaps between the waves that have a partition, keeping their order."""
    used = sorted({own for node, own in enumerate(level) if inside[node]})
    closed = [bisect_left(used, own) for own in range(max(level, default=-1) + 1)]
    return Cut(count=len(used), level=[closed[own] for own in level], inside=inside, too_small=too_small)
