"""The index of a capture: its look-ups, each built when first asked for, once per capture.

Functions rather than a class: whoever asks has the capture at hand, and `once` serves what is computed from it as well.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ortlens.trace.records import Capture, Fallback, Graph, Node, Partition, Session

_T = TypeVar("_T")


def once(compute: Callable[[Capture], _T]) -> Callable[[Capture], _T]:
    """Have a function computed once per capture; callers must not change what it returns."""

    @functools.wraps(compute)
    def remembered(capture: Capture) -> _T:
        if remembered not in capture.memo:
            capture.memo[remembered] = compute(capture)
        found: _T = capture.memo[remembered]
        return found

    return remembered


@once
def graphs_by_id(capture: Capture) -> dict[str, Graph]:
    """Map graph ids to graphs."""
    return {graph.graph_id: graph for graph in capture.graphs}


@once
def partitions_by_id(capture: Capture) -> dict[str, Partition]:
    """Map partition ids to partitions."""
    return {partition.partition_id: partition for partition in capture.partitions}


@once
def sessions_by_id(capture: Capture) -> dict[str, Session]:
    """Map session ids to sessions."""
    return {session.session_id: session for session in capture.sessions}


@once
def nodes_by_name(capture: Capture) -> dict[tuple[str, str], Node]:
    """Map graph ids and names to nodes."""
    return {(node.graph_id, node.node): node for node in capture.nodes}


@once
def graph_by_partition(capture: Capture) -> dict[str, str]:
    """Map partition ids to graph ids."""
    return {partition.partition_id: partition.graph_id for partition in capture.partitions}


@once
def nodes_by_graph(capture: Capture) -> dict[str, list[Node]]:
    """Group the nodes by graph id."""
    return _grouped(capture.nodes, lambda row: row.graph_id)


@once
def nodes_by_partition(capture: Capture) -> dict[str, list[Node]]:
    """Group the nodes that ONNX Runtime runs by partition id."""
    return _grouped(capture.nodes, lambda row: row.partition_id)


@once
def partitions_by_graph(capture: Capture) -> dict[str, list[Partition]]:
    """Group the partitions by graph id; a graph without partitions is absent."""
    return _grouped(capture.partitions, lambda row: row.graph_id)


@once
def sessions_by_partition(capture: Capture) -> dict[str, list[Session]]:
    """Group the sessions by partition id, in the order in which they were made."""
    return _grouped(capture.sessions, lambda row: row.partition_id)


@once
def fallbacks_by_graph(capture: Capture) -> dict[str, list[Fallback]]:
    """Group what stays in PyTorch by graph id."""
    return _grouped(capture.fallbacks, lambda row: row.graph_id)


def _grouped(rows: Iterable[_T], key: Callable[[_T], str | None]) -> dict[str, list[_T]]:
    """Group rows by their key, in their order; those without one are left out."""
    found: dict[str, list[_T]] = defaultdict(list)
    for row in rows:
        if (value := key(row)) is not None:
            found[value].append(row)
    return dict(found)
