"""The index of a capture: its look-ups, each built when first asked for, once per capture.

Functions rather than a class: whoever asks has the capture at hand, and `once` serves what is computed from it as well.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ortlens.trace.records import Capture, Fallback, Graph, Kernel, Node, Partition, Session

_K = TypeVar("_K")
_T = TypeVar("_T")
_N = TypeVar("_N", int, float)


def once(compute: Callable[[Capture], _T]) -> Callable[[Capture], _T]:
    """Have a function computed once per capture; callers must not change what it returns."""

    @functools.wraps(compute)
    def remembered(capture: Capture) -> _T:
        if remembered not in capture.memo:
            capture.memo[remembered] = compute(capture)
        found: _T = capture.memo[remembered]
        return found

    return remembered


def grouped(pairs: Iterable[tuple[_K, _T]]) -> dict[_K, list[_T]]:
    """Collect values by key, both in the order in which they come."""
    found: dict[_K, list[_T]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def summed(pairs: Iterable[tuple[_K, _N]]) -> dict[_K, _N]:
    """Add values up by key, in the order in which the keys come."""
    found: dict[_K, _N] = {}
    for key, value in pairs:
        found[key] = found.get(key, 0) + value
    return found


def parts_of(items: Iterable[_K], pairs: Iterable[tuple[_K, _K]]) -> list[list[_K]]:
    """Gather items into the connected parts that pairs of them make; a pair with something else joins nothing."""
    above = {item: item for item in items}

    def root(item: _K) -> _K:
        while above[item] != item:
            above[item] = item = above[above[item]]
        return item

    for one, other in pairs:
        if one in above and other in above:
            above[root(other)] = root(one)
    return list(grouped((root(item), item) for item in above).values())


def _rows_by(table: str, column: str) -> Callable[[Capture], dict[str, list[Any]]]:
    return once(lambda capture: grouped((getattr(row, column), row) for row in getattr(capture, table)))


graphs_by_id: Callable[[Capture], dict[str, Graph]] = once(lambda capture: {row.graph_id: row for row in capture.graphs})
partitions_by_id: Callable[[Capture], dict[str, Partition]] = once(lambda capture: {row.partition_id: row for row in capture.partitions})
sessions_by_id: Callable[[Capture], dict[str, Session]] = once(lambda capture: {row.session_id: row for row in capture.sessions})
nodes_by_name: Callable[[Capture], dict[tuple[str, str], Node]] = once(
    lambda capture: {(row.graph_id, row.node): row for row in capture.nodes}
)
graph_by_partition: Callable[[Capture], dict[str, str]] = once(
    lambda capture: {row.partition_id: row.graph_id for row in capture.partitions}
)
"""Graph ids by partition id."""

graph_by_session: Callable[[Capture], dict[str, str]] = once(
    lambda capture: {row.session_id: graph_by_partition(capture).get(row.partition_id, "") for row in capture.sessions}
)
"""Graph ids by session id; empty in a damaged capture."""

kernels_by_session: Callable[[Capture], dict[str, list[Kernel]]] = _rows_by("kernels", "session_id")
"""A session that was not profiled is absent."""

nodes_by_graph: Callable[[Capture], dict[str, list[Node]]] = _rows_by("nodes", "graph_id")
nodes_by_partition: Callable[[Capture], dict[str, list[Node]]] = once(
    lambda capture: grouped((row.partition_id, row) for row in capture.nodes if row.partition_id is not None)
)
"""Only the nodes that ONNX Runtime runs."""

partitions_by_graph: Callable[[Capture], dict[str, list[Partition]]] = _rows_by("partitions", "graph_id")
"""A graph without partitions is absent."""

sessions_by_partition: Callable[[Capture], dict[str, list[Session]]] = _rows_by("sessions", "partition_id")
"""In the order in which they were made."""


fallbacks_by_graph: Callable[[Capture], dict[str, list[Fallback]]] = _rows_by("fallbacks", "graph_id")


def latest_sessions(capture: Capture, graph: Graph) -> list[Session]:
    """List the newest session of each partition of a graph that has one."""
    sessions, parts = sessions_by_partition(capture), partitions_by_graph(capture).get(graph.graph_id, [])
    return [sessions[part.partition_id][-1] for part in parts if part.partition_id in sessions]


@once
def verdicts_by_value(capture: Capture) -> dict[tuple[str | None, str], bool | None]:
    """Tell by partition and node whether a value matches PyTorch's, None where that is open: as computed and as returned, it is one."""
    rows = grouped(((row.partition_id, row.node), row.ok) for row in capture.numerics)
    return {key: min((ok for ok in own if ok is not None), default=None) for key, own in rows.items()}


def profiled_sessions(capture: Capture) -> Iterator[tuple[Session, list[Kernel]]]:
    """Yield the sessions that were profiled, with their kernels."""
    kernels = kernels_by_session(capture)
    for session in capture.sessions:
        if session.session_id in kernels:
            yield session, kernels[session.session_id]
