"""Kinds of nodes, and the verdict on one; apart from what decides it, which imports all that converts."""

from __future__ import annotations

import operator
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from ortlens import _torch

if TYPE_CHECKING:
    import torch.fx

    from ortlens.trace.records import FallbackCause, ReasonCode


class NodeKind(Enum):
    """The kinds of nodes that the partitioner tells apart."""

    COMPUTE = "compute"  # computes tensors
    TUPLE = "tuple"  # takes an item of a tuple; runs where its producer runs
    SIZE = "size"  # computes a number
    EFFECT = "effect"  # computes nothing, such as an assertion
    OTHER = "other"  # placeholder, get_attr, output


class Verdict(NamedTuple):
    """Whether ONNX Runtime supports a node, and if not, why."""

    supported: bool
    code: ReasonCode | None = None
    reason: str | None = None
    exception: str | None = None  # its text, if conversion or session creation raised one
    cause: FallbackCause | None = None


def kind_of(node: torch.fx.Node) -> NodeKind:
    """Classify a node."""
    if node.op != "call_function":
        return NodeKind.OTHER
    if node.target is operator.getitem:
        return NodeKind.TUPLE
    value = node.meta.get("val")
    if _torch.is_symbolic(value) or isinstance(value, (int, float, bool)):
        return NodeKind.SIZE
    return NodeKind.EFFECT if value is None else NodeKind.COMPUTE
