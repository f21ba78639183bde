"""ONNX models without their weights: large tensors become references that keep name, element type and shape.

A viewer draws the same graph from them. Models are read without the onnx package, which readers of captures do not need.

Source:
    "Encoding", Protocol Buffers documentation: a message is a run of tags, each a varint of number and type, and values. Numbers of fields
    are those of onnx.proto3 (onnx 1.19).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

KEPT_TENSOR_BYTES = 256  # tensors up to this size stay whole: scalars, axes and shapes are part of what a graph says
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # how a field is written; of a tag the last three bits
_FIXED = {FIXED64: 8, FIXED32: 4}
_MAX_VARINT_BYTES = 10  # 64 bits, seven at a time
_MAX_DEPTH = 32  # graphs within graphs; Python's own stack is the limit that must not be met

# Where tensors are in a message, and messages that may hold some; by number of field.
_INSIDE = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}
_SHAPE_ONLY = (1, 2, 8)  # of TensorProto: dims, data_type, name
_OP_TYPE, _OP_DOMAIN = 4, 7  # of NodeProto
_MODEL_GRAPH, _OPSET_IMPORT = 7, 8  # of ModelProto


class WireError(ValueError):
    """The bytes are no message: cut off, or not of this format at all."""


class Field(NamedTuple):
    """A field of a message: its number, how it is written, the number of a varint or else bytes, and tag and value to be copied."""

    number: int
    kind: int
    value: int | bytes
    raw: bytes

    @property
    def content(self) -> bytes:
        """The value of a message or text."""
        if isinstance(self.value, int) or self.kind != BYTES:
            raise WireError(f"field {self.number} is a number where a message or text belongs")
        return self.value


def fields(message: bytes) -> Iterator[Field]:
    """Yield the fields of a message in order; one that is cut off, or of a type that nothing writes any more, raises `WireError`."""
    at = 0
    while at < len(message):
        start = at
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        length = _FIXED.get(kind, 0)
        if kind in (VARINT, BYTES):
            length, at = _varint(message, at)
        elif not length:
            raise WireError(f"byte {at}: unknown field type {kind}")
        if kind == VARINT:
            yield Field(number, kind, length, message[start:at])
            continue
        if at + length > len(message):
            raise WireError(f"byte {at}: {length:,} bytes expected, {len(message) - at:,} left")
        yield Field(number, kind, message[at : at + length], message[start : at + length])
        at += length


def field_bytes(number: int, value: bytes | int) -> bytes:
    """Write one field: bytes or a message as such, an integer of 0 or more as a varint."""
    if isinstance(value, int):
        return _varint_bytes(number << 3 | VARINT) + _varint_bytes(value)
    return _varint_bytes(number << 3 | BYTES) + _varint_bytes(len(value)) + value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    result = 0
    for shift in range(_MAX_VARINT_BYTES):
        if at + shift >= len(message):
            raise WireError(f"byte {at}: the data ends inside a number")
        byte = message[at + shift]
        result |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:  # noqa: PLR2004 - the bit that says that more follows
            return result, at + shift + 1
    raise WireError(f"byte {at}: a number of more than {_MAX_VARINT_BYTES} bytes")


def _varint_bytes(value: int) -> bytes:
    result = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - as above
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)


# Of TensorProto: the location of external data, as a pair of texts, and that there is external data.
_REFERENCE = field_bytes(13, field_bytes(1, b"location") + field_bytes(2, b"(left out by ortlens)")) + field_bytes(14, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlimModel:
    """A model that can be drawn, and what it is made of."""

    data: bytes  # the model, serialised
    node_count: int  # nodes of the model, those inside other graphs included
    operators: frozenset[tuple[str, str]]  # domain and type of every operator; the domain of ONNX itself is `ai.onnx`
    opsets: tuple[tuple[str, int], ...]  # domain and version of the operator sets that it imports
    left_out_tensors: int  # tensors that became references


def slim_model(model: bytes) -> SlimModel:
    """Put a reference in place of each tensor of more than `KEPT_TENSOR_BYTES` in a serialised ONNX model."""
    nodes: list[tuple[str, str]] = []
    tensors: list[bytes] = []

    def without_tensors(message: bytes, kind: str, depth: int) -> bytes:
        if depth > _MAX_DEPTH:
            raise WireError(f"graphs are nested deeper than {_MAX_DEPTH} levels")
        if kind == "node":
            named = {field.number: field.content for field in fields(message) if field.number in (_OP_TYPE, _OP_DOMAIN)}
            nodes.append((_domain(named.get(_OP_DOMAIN, b"")), named.get(_OP_TYPE, b"").decode("utf-8", "replace")))
        parts = []
        for field in fields(message):
            inside = _INSIDE[kind].get(field.number)
            if inside is None or (inside == "tensor" and len(field.content) <= KEPT_TENSOR_BYTES):
                parts.append(field.raw)
            elif inside == "tensor":
                tensors.append(field.content)
                kept = b"".join(part.raw for part in fields(field.content) if part.number in _SHAPE_ONLY)
                parts.append(field_bytes(field.number, kept + _REFERENCE))
            else:
                parts.append(field_bytes(field.number, without_tensors(field.content, inside, depth + 1)))
        return b"".join(parts)

    data = without_tensors(model, "model", 0)
    found = list(fields(model))
    if not any(field.number == _MODEL_GRAPH for field in found):
        raise WireError("it has no graph")
    opsets = tuple(_opset(field.content) for field in found if field.number == _OPSET_IMPORT)
    return SlimModel(data=data, node_count=len(nodes), operators=frozenset(nodes), opsets=opsets, left_out_tensors=len(tensors))


def _opset(message: bytes) -> tuple[str, int]:
    domain, version = b"", 0
    for field in fields(message):
        if field.number == 1:
            domain = field.content
        elif field.number == 2 and isinstance(field.value, int):  # noqa: PLR2004 - of OperatorSetIdProto
            version = field.value
    return _domain(domain), version


def _domain(name: bytes) -> str:
    return name.decode("utf-8", "replace") or "ai.onnx"
