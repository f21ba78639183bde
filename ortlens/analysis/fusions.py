"""What ONNX Runtime changed in a model: nodes that it fused, changed, inserted or removed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from ortlens.trace.records import Confidence, column

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ortlens.trace.records import Capture, Kernel, Session

Change: TypeAlias = Literal["fused", "changed", "inserted", "unknown", "gone"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """One difference between the ONNX model and what ran."""

    partition_id: str = column("Partition of the model.")
    session_id: str = column("Session that was profiled.")
    change: Change = column(  # noqa: RUF009 - field() in disguise
        "`fused`: several nodes became one. `changed`: one became another operator. `inserted`: a new node between others. "
        "`unknown`: a node of unknown origin. `gone`: a node that no kernel computes, because it was folded into a constant, merged with "
        "an equal one, removed as a no-op, or is in a branch that was not taken."
    )
    kernel: str | None = column("Name of the node that ran; empty for `gone`.", default=None)
    op_type: str | None = column("Its operator.", default=None)
    provider: str | None = column("Execution provider that ran it.", default=None)
    onnx_nodes: tuple[str, ...] = column("Nodes of the model before.", default=())
    onnx_ops: tuple[str, ...] = column("Their operators; empty for `gone`.", default=())
    nodes: tuple[str, ...] = column("FX nodes that it computes.", default=())
    file: str | None = column("File of the user line.", default=None)
    line: int | None = column("Number of the user line.", default=None)
    confidence: Confidence = column("Confidence of the origin.", default="none")  # noqa: RUF009 - likewise


def fusions(capture: Capture) -> tuple[Fusion, ...]:
    """List what ONNX Runtime's rewrites changed in the profiled models.

    Args:
        capture: Any capture; the kernels of `profile` show what ran.

    Returns:
        What differs, session by session, kernels first; nodes that ran as they were have no row. Empty where nothing was profiled.
    """
    by_session: dict[str, list[Kernel]] = {}
    for kernel in capture.kernels:
        by_session.setdefault(kernel.session_id, []).append(kernel)
    sessions = {session.session_id: session for session in capture.sessions}
    return tuple(row for name, kernels in by_session.items() if name in sessions for row in _of_session(capture, sessions[name], kernels))


def _of_session(capture: Capture, session: Session, kernels: list[Kernel]) -> Iterator[Fusion]:
    for kernel in kernels:
        change = _change(kernel)
        if change is not None:
            yield Fusion(
                partition_id=session.partition_id,
                session_id=session.session_id,
                change=change,
                kernel=kernel.kernel,
                op_type=kernel.op_type,
                provider=kernel.provider,
                onnx_nodes=kernel.onnx_nodes,
                onnx_ops=kernel.onnx_ops,
                nodes=kernel.nodes,
                file=kernel.file,
                line=kernel.line,
                confidence=kernel.confidence,
            )
    yield from _gone(capture, session, {name for kernel in kernels for name in kernel.onnx_nodes})


def _change(kernel: Kernel) -> Change | None:
    if not kernel.onnx_nodes:
        return "inserted" if kernel.node is not None else "unknown"
    if len(kernel.onnx_nodes) > 1:
        return "fused"
    return None if kernel.onnx_ops == (kernel.op_type,) else "changed"


def _gone(capture: Capture, session: Session, computed: set[str]) -> Iterator[Fusion]:
    for node in capture.nodes:
        if node.partition_id != session.partition_id:
            continue
        for onnx_node in node.onnx_nodes:
            if onnx_node not in computed:
                computed.add(onnx_node)  # of a node that several FX nodes share, one row
                yield Fusion(
                    partition_id=session.partition_id,
                    session_id=session.session_id,
                    change="gone",
                    onnx_nodes=(onnx_node,),
                    nodes=(node.node,),
                    file=node.file,
                    line=node.line,
                )
