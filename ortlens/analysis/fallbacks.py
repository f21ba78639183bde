"""What stays in PyTorch: nodes with one operator and one reason, and what they take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortlens.analysis.costs import splitting_costs
from ortlens.analysis.coverage import current_graphs
from ortlens.analysis.index import grouped, once
from ortlens.analysis.timing import fallback_ns
from ortlens.trace.records import column, same

if TYPE_CHECKING:
    from ortlens.trace.records import Capture, Fallback, FallbackCause, Node, ReasonCode


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackGroup:
    """Nodes with one operator and one reason that stay in PyTorch."""

    target: str = column("Operator, as `aten.median.dim`.", brief=1)
    reason_code: ReasonCode = column("Why, as a code.")
    reason: str = column("Why, in words, of the first node.", brief=3)
    exception: str | None = column("What was raised, with its class, of the first node that has one.")
    node_count: int = column("Nodes of the current graphs.", brief=2)
    file: str | None = column("File of the first user line known.", brief=4)
    line: int | None = column("Its number.")
    source: str | None = column("Its text.", brief=6)
    module: str | None = column(
        "Path and class of the nn.Module of that node, or of the first that has one, as `layers.0 (GELU)`.", brief=5
    )
    calls: int = column("How often PyTorch ran them, earlier versions of the graphs included.")
    total_ns: int = column("Time it spent in them, likewise.", unit="ns")
    call_ns: int | None = column("Time in them per call of the model, see `timing.fallback_ns`; None without calls.", unit="ns", brief=7)
    splitting_ns: int = column(
        "Besides, about what entering ONNX Runtime again behind them costs per call; 0 where they split nothing.", unit="ns"
    )
    cause: FallbackCause | None = column("What else is known of why, of the first node.")
    graph_ids: tuple[str, ...] = column("The current graphs that they are in.")
    dtype: str | None = column("Data type of the first node.")


@once
def fallback_groups(capture: Capture) -> tuple[FallbackGroup, ...]:
    """Group what stays in PyTorch by operator and reason, slowest first, then most frequent.

    Nodes are counted in the current graphs, so that the counts agree with the coverage; times are summed over every version, since that
    time was really spent.
    """
    replaced = {graph.graph_id for graph in capture.graphs} - {graph.graph_id for graph in current_graphs(capture.graphs)}
    prices, splitting = fallback_ns(capture), splitting_costs(capture)
    members = grouped(((row.target, row.reason_code), row) for row in capture.fallbacks)
    dtypes = {(node.graph_id, node.node): node.dtype for node in capture.nodes}
    modules = {(node.graph_id, node.node): _module(node) for node in capture.nodes if node.module}
    counts = {cause: sum(row.graph_id not in replaced for row in rows) for cause, rows in members.items()}

    def group(rows: list[Fallback], node_count: int) -> FallbackGroup:
        placed = min(rows, key=lambda row: (not row.file, (row.graph_id, row.node) not in modules))  # the first of the best
        priced = [prices[row.graph_id, row.node] for row in rows if row.calls and prices]
        return FallbackGroup(
            exception=next((row.exception for row in (placed, *rows) if row.exception), None),
            node_count=node_count,
            module=modules.get((placed.graph_id, placed.node)),
            calls=sum(row.calls for row in rows),
            total_ns=sum(row.total_ns for row in rows),
            call_ns=round(sum(priced)) if priced else None,
            splitting_ns=round(sum(splitting.get((row.graph_id, row.node), 0.0) for row in rows)),
            graph_ids=tuple(dict.fromkeys(row.graph_id for row in rows if row.graph_id not in replaced)),
            dtype=dtypes.get((placed.graph_id, placed.node)),
            **same(placed, "target", "reason_code", "reason", "file", "line", "source", "cause"),
        )

    kept = [group(rows, counts[cause]) for cause, rows in members.items() if counts[cause]]
    return tuple(sorted(kept, key=lambda group: (-(group.call_ns or 0), -group.total_ns, -group.node_count, group.target)))


def _module(node: Node) -> str:
    return f"{node.module} ({node.module_type})" if node.module_type else f"{node.module}"
