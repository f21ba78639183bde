"""Nodes that stay in PyTorch because conversion or session creation failed for them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ortlens.backend.conversion.functions.basics import NotConvertibleError
from ortlens.backend.error_text import full_text, short_text
from ortlens.backend.lowering.provenance import tensors_in
from ortlens.backend.partitioning.support import Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ortlens.backend.partitioning.extraction import Partition
    from ortlens.trace.records import ReasonCode


class Exclusions:
    """The excluded nodes of one graph; they only grow.

    Attributes:
        verdicts: Node name -> why ONNX Runtime does not run it.
    """

    def __init__(self, verdicts: Mapping[str, Verdict]) -> None:
        """Start with nodes that are excluded from the beginning."""
        self.verdicts: dict[str, Verdict] = dict(verdicts)

    def conversion_failed(self, failures: Mapping[str, Exception]) -> None:
        """Exclude the nodes whose ONNX functions raised."""
        for name, error in failures.items():
            if (known := _not_convertible(error)) is not None:
                self.verdicts[name] = Verdict(supported=False, code="no_converter", reason=f"it has no ONNX form for this call: {known}")
                continue
            reason = f"its ONNX function raised {short_text(error)}"
            self.verdicts[name] = Verdict(supported=False, code="converter_raised", reason=reason, exception=full_text(error))

    def promotion_failed(self, failures: Mapping[str, Exception]) -> None:
        """Exclude the nodes whose implicit conversions between element types are not known."""
        for name, error in failures.items():
            reason = f"how it converts element types is not known: {short_text(error)}"
            self.verdicts[name] = Verdict(supported=False, code="converter_raised", reason=reason, exception=full_text(error))

    def partition_failed(self, partition: Partition, code: ReasonCode, reason: str, exception: str | None = None) -> None:
        """Exclude all nodes of a partition that are not excluded yet."""
        for node in partition.nodes:
            self.verdicts.setdefault(node.name, Verdict(supported=False, code=code, reason=reason, exception=exception))

    def session_refused(self, partition: Partition, origins: Mapping[str, str], error: Exception, *, broadly: bool = False) -> None:
        """Exclude the nodes that the message of ONNX Runtime names, with their equals; the whole partition if it names none.

        Equals have the same operator, attributes, dtypes and, unless a kernel is missing, sizes. After many refusals, `broadly` ignores
        sizes and attributes: each would cost another plan. `origins` maps ONNX names to FX names.
        """
        message, exception = str(error), full_text(error)
        named = _named(origins, message)
        sized = not broadly and not any(text in message for text in _NO_KERNEL)
        kinds = {_kind_of(node, sized=sized, exactly=not broadly) for node in partition.nodes if node.name in named}
        refused = [node for node in partition.nodes if _kind_of(node, sized=sized, exactly=not broadly) in kinds]
        for node in refused:
            self.verdicts[node.name] = Verdict(supported=False, code="session_refused", reason=_reason([node], error), exception=exception)
        if not refused:
            self.partition_failed(partition, "session_refused", _reason(partition.nodes, error), exception)


def lacks_kernel(origins: Mapping[str, str], error: Exception) -> bool:
    """Tell whether ONNX Runtime refuses a model for lack of a kernel, which is no failure: like an operator without an ONNX function."""
    return _MISSING.search(str(error)) is not None and bool(_named(origins, str(error)))


def _not_convertible(error: BaseException | None) -> NotConvertibleError | None:
    while error is not None and not isinstance(error, NotConvertibleError):
        error = error.__cause__
    return error


def _named(origins: Mapping[str, str], message: str) -> set[str]:
    return {fx for name, fx in origins.items() if any(form.format(name) in message for form in _FORMS)}


_FORMS = ("'{}'", "({})", '("{}", ', "Name: {} ")
"""How messages of ONNX Runtime name a node."""
_NO_KERNEL = ("NOT_IMPLEMENTED", "Could not find an implementation")
"""What ONNX Runtime says when it has no kernel for an operator and element types, whatever the sizes."""
_MISSING = re.compile(r"Could not find an implementation for (?P<operator>\w+)\(\d+\)")

_UNDEFINED = re.compile(r"Type 'tensor\((?P<type>\w+)\)' of input parameter \([^)]*\) of operator \((?P<operator>\w+)\)")


def _reason(nodes: Sequence[torch.fx.Node], error: Exception) -> str:
    """Explain why ONNX Runtime refuses nodes: for a missing kernel its operator and element types, else the message."""
    missing, undefined = _MISSING.search(str(error)), _UNDEFINED.search(str(error))
    if undefined is not None:
        return f"ONNX defines no {undefined['operator']} of {undefined['type']}"
    if missing is None:
        return f"ONNX Runtime refused it: {short_text(error)}"
    values = [tensor for node in nodes for source in (node, *node.all_input_nodes) for tensor in tensors_in(source.meta.get("val"))]
    kinds = " and ".join(dict.fromkeys(str(tensor.dtype).removeprefix("torch.") for tensor in values))
    return f"ONNX Runtime has no kernel of {missing['operator']} for {kinds} on this device"


def _kind_of(node: torch.fx.Node, *, sized: bool, exactly: bool) -> tuple[Any, ...]:
    """Collect what decides whether ONNX Runtime takes a node: equal for nodes that share their fate."""
    values = [_value_text(source.meta.get("val"), sized=sized) for source in (node, *node.all_input_nodes)]
    attributes = [_without_nodes(node.args), _without_nodes(node.kwargs)] if exactly else []
    return (node.target, *values, *map(repr, attributes))


def _without_nodes(arguments: Any) -> Any:
    return torch.fx.node.map_arg(arguments, lambda _: None)


def _value_text(value: Any, *, sized: bool) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{list(value.shape) if sized else ''}"
    return ", ".join(_value_text(item, sized=sized) for item in value) if isinstance(value, (list, tuple)) else type(value).__name__
