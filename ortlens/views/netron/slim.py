"""ONNX models without their weights: large tensors become references that keep name, element type and shape.

A viewer draws the same graph from them. Numbers of fields are those of onnx.proto3 (onnx 1.19).
"""

from __future__ import annotations

from dataclasses import dataclass

from ortlens.views.netron.wire import BYTES, VARINT, Field, WireError, field_bytes, fields

KEPT_TENSOR_BYTES = 256
"""Tensors up to this size stay whole: scalars, axes and shapes are part of what a graph says."""

REFERENCE = b"(left out by ortlens)"
"""Where the values of a tensor are said to be that was left out."""

_MAX_DEPTH = 32  # graphs within graphs; Python's own stack is the limit that must not be met

# Where tensors are in a message, and messages that may hold some; by number of field.
_MODEL = {7: "graph", 20: "training", 25: "function"}
_TRAINING = {1: "graph", 2: "graph"}
_FUNCTION = {7: "node", 11: "attribute"}
_GRAPH = {1: "node", 5: "tensor", 15: "sparse"}
_NODE = {5: "attribute"}
_ATTRIBUTE = {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"}
_SPARSE = {1: "tensor", 2: "tensor"}
_INSIDE = {
    "model": _MODEL,
    "training": _TRAINING,
    "function": _FUNCTION,
    "graph": _GRAPH,
    "node": _NODE,
    "attribute": _ATTRIBUTE,
    "sparse": _SPARSE,
}

# Fields of TensorProto.
_DIMS, _DATA_TYPE, _NAME, _EXTERNAL_DATA, _DATA_LOCATION = 1, 2, 8, 13, 14
_SHAPE_ONLY = (_DIMS, _DATA_TYPE, _NAME)
_EXTERNAL = 1  # DataLocation.EXTERNAL
_LOCATION = field_bytes(_EXTERNAL_DATA, field_bytes(1, b"location") + field_bytes(2, REFERENCE))

# Fields of NodeProto, ModelProto and OperatorSetIdProto.
_OP_TYPE, _OP_DOMAIN, _OPSET_IMPORT, _MODEL_GRAPH, _OPSET_DOMAIN, _OPSET_VERSION = 4, 7, 8, 7, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SlimModel:
    """A model that can be drawn, and what it is made of."""

    data: bytes
    """The model, serialised."""
    node_count: int
    """Nodes of the model, those inside other graphs included."""
    operators: frozenset[tuple[str, str]]
    """Domain and type of every operator; the domain of ONNX itself is `ai.onnx`."""
    opsets: tuple[tuple[str, int], ...]
    """Domain and version of the operator sets that it imports."""
    left_out_tensors: int
    """Tensors that became references."""
    left_out_bytes: int
    """Bytes of the model that those took."""


def slim_model(model: bytes) -> SlimModel:
    """Put a reference in place of each tensor of more than `KEPT_TENSOR_BYTES` in a serialised ONNX model."""
    slimming = _Slimming()
    data = slimming.message(model, "model", 0)
    opsets = tuple(_opset(field) for field in fields(model) if field.number == _OPSET_IMPORT)
    if not any(field.number == _MODEL_GRAPH for field in fields(model)):
        raise WireError("it has no graph")
    return SlimModel(
        data=data,
        node_count=slimming.nodes,
        operators=frozenset(slimming.operators),
        opsets=opsets,
        left_out_tensors=slimming.tensors,
        left_out_bytes=slimming.left_out,
    )


class _Slimming:
    """One walk through a model, counting on the way."""

    def __init__(self) -> None:
        self.nodes = 0
        self.operators: set[tuple[str, str]] = set()
        self.tensors = 0
        self.left_out = 0

    def message(self, message: bytes, kind: str, depth: int) -> bytes:
        """Return a message of the model with the tensors inside it replaced."""
        if depth > _MAX_DEPTH:
            raise WireError(f"graphs are nested deeper than {_MAX_DEPTH} levels")
        if kind == "node":
            self._count(message)
        inside = _INSIDE[kind]
        return b"".join(self._field(field, inside.get(field.number), depth) for field in fields(message))

    def _field(self, field: Field, kind: str | None, depth: int) -> bytes:
        if kind is None:
            return field.raw
        value = _bytes_of(field)
        if kind != "tensor":
            return field_bytes(field.number, self.message(value, kind, depth + 1))
        return field.raw if len(value) <= KEPT_TENSOR_BYTES else field_bytes(field.number, self._reference(value))

    def _reference(self, tensor: bytes) -> bytes:
        kept = b"".join(field.raw for field in fields(tensor) if field.number in _SHAPE_ONLY)
        self.tensors += 1
        self.left_out += len(tensor) - len(kept)
        return kept + _LOCATION + field_bytes(_DATA_LOCATION, _EXTERNAL)

    def _count(self, node: bytes) -> None:
        named = {field.number: _bytes_of(field) for field in fields(node) if field.number in {_OP_TYPE, _OP_DOMAIN}}
        self.nodes += 1
        self.operators.add((_domain(named.get(_OP_DOMAIN, b"")), named.get(_OP_TYPE, b"").decode("utf-8", "replace")))


def _opset(field: Field) -> tuple[str, int]:
    domain, version = b"", 0
    for inner in fields(_bytes_of(field)):
        if inner.number == _OPSET_DOMAIN:
            domain = _bytes_of(inner)
        elif inner.number == _OPSET_VERSION and inner.kind == VARINT:
            version = int(inner.value)
    return _domain(domain), version


def _domain(name: bytes) -> str:
    return name.decode("utf-8", "replace") or "ai.onnx"


def _bytes_of(field: Field) -> bytes:
    if field.kind != BYTES or not isinstance(field.value, bytes):
        raise WireError(f"field {field.number} is a number where a message or text belongs")
    return field.value
