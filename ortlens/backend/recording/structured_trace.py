"""Partitions in torch's structured trace (`TORCH_TRACE`), from which tlparse makes its pages."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ortlens import _torch
from ortlens.backend.lowering import provenance
from ortlens.backend.partitioning.support import NodeKind, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch.fx

    from ortlens.backend.lowering.lowered import LoweredGraph
    from ortlens.backend.partitioning.plan import Plan

ARTIFACT = "ortlens_partitions"
"""Name of the artifact of each graph."""


def trace_partitions(lowered: LoweredGraph, plan: Callable[[], Plan]) -> Exception | None:
    """Write where each node of a graph runs into the trace, if torch writes one.

    Return what failed, for the capture; the trace holds it in place of the entry. `plan` is not called without a trace.
    """
    if not _torch.is_traced():
        return None
    failure = None
    try:
        entry = _described(lowered, plan())
    except Exception as error:  # noqa: BLE001 - observing never breaks the observed
        failure, entry = error, {"error": f"{type(error).__name__}: {error}"[:2000]}
    try:
        _torch.trace_artifact(ARTIFACT, entry)
    except Exception as error:  # noqa: BLE001 - likewise
        failure = failure or error
    return failure


def _described(lowered: LoweredGraph, plan: Plan) -> dict[str, Any]:
    partitions: dict[int, list[torch.fx.Node]] = {}
    outside = []
    for node, verdict in plan.verdicts.items():
        if plan.in_partition(node):
            partitions.setdefault(plan.level[node], []).append(node)
        elif kind_of(node) in (NodeKind.COMPUTE, NodeKind.EFFECT):
            outside.append(_placed(node) | {"reason_code": verdict.code, "reason": verdict.reason})
    return {
        "phase": lowered.phase,
        "partitions": [
            {
                "partition": number,
                "operators": dict(Counter(provenance.target_name(node) for node in nodes).most_common()),
                "nodes": [node.name for node in nodes],
            }
            for number, nodes in enumerate(partitions[level] for level in sorted(partitions))
        ],
        "in_pytorch": outside,
    }


def _placed(node: torch.fx.Node) -> dict[str, Any]:
    line = provenance.user_line(node)
    return {"node": node.name, "operator": provenance.target_name(node), "file": line.file, "line": line.line, "source": line.source}
