"""Nodes that stay in PyTorch because conversion or session creation failed for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ortlens.backend.error_text import full_text, short_text
from ortlens.backend.partitioning.support import Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ortlens.backend.partitioning.extraction import Partition
    from ortlens.trace.records import ReasonCode


class Exclusions:
    """The excluded nodes of one graph; they only grow.

    Attributes:
        verdicts: Node name -> why ONNX Runtime does not run it.
    """

    def __init__(self, verdicts: Mapping[str, Verdict]) -> None:
        """Start with nodes that are excluded from the beginning.

        Args:
            verdicts: Node name -> why ONNX Runtime does not run it.
        """
        self.verdicts: dict[str, Verdict] = dict(verdicts)

    def conversion_failed(self, failures: Mapping[str, Exception]) -> None:
        """Exclude the nodes whose ONNX functions raised.

        Args:
            failures: Node name -> exception.
        """
        for name, error in failures.items():
            reason = f"its ONNX function raised {short_text(error)}"
            self.verdicts[name] = Verdict(supported=False, code="converter_raised", reason=reason, exception=full_text(error))

    def partition_failed(self, partition: Partition, code: ReasonCode, reason: str, exception: str | None = None) -> None:
        """Exclude all nodes of a partition that are not excluded yet.

        Args:
            partition: The partition.
            code: The reason code.
            reason: Why.
            exception: The exception with its class, as text.
        """
        for node in partition.nodes:
            self.verdicts.setdefault(node.name, Verdict(supported=False, code=code, reason=reason, exception=exception))

    def session_refused(self, partition: Partition, origins: Mapping[str, str], error: Exception) -> None:
        """Exclude what ONNX Runtime refuses.

        Args:
            partition: The partition.
            origins: ONNX node name -> FX node name, for its model.
            error: The exception. The nodes that its message names are excluded, with the nodes of the same operator and dtype; when
                it names none, the whole partition is.
        """
        message, reason, exception = str(error), f"ONNX Runtime refused it: {short_text(error)}", full_text(error)
        named = {fx for onnx_name, fx in origins.items() if f"'{onnx_name}'" in message or f"({onnx_name})" in message}
        targets = {node.target for node in partition.nodes if node.name in named}
        dtypes = {_dtype_of(node) for node in partition.nodes if node.name in named}
        refused = [node for node in partition.nodes if node.target in targets and _dtype_of(node) in dtypes]
        for node in refused:
            self.verdicts[node.name] = Verdict(supported=False, code="session_refused", reason=reason, exception=exception)
        if not refused:
            self.partition_failed(partition, "session_refused", reason, exception)


def _dtype_of(node: Any) -> Any:
    return getattr(node.meta.get("val"), "dtype", None)
