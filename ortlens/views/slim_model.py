"""ONNX models without their weights: large tensors become references that keep name, element type and shape.

A viewer draws the same graph from them. Models are read without the onnx package, which readers of captures do not need.
"""

from __future__ import annotations

from dataclasses import dataclass

from ortlens.model_file import BYTES, INSIDE, VARINT, WireError, fields, text_of

KEPT_TENSOR_BYTES = 256  # tensors up to this size stay whole: scalars, axes and shapes are part of what a graph says
_MAX_DEPTH = 32  # graphs within graphs; Python's own stack is the limit that must not be met

_SHAPE_ONLY = (1, 2, 8)  # of TensorProto: dims, data_type, name
_OP_TYPE, _OP_DOMAIN = 4, 7  # of NodeProto
_MODEL_GRAPH, _OPSET_IMPORT = 7, 8  # of ModelProto


def field_bytes(number: int, value: bytes | int) -> bytes:
    """Write one field: bytes or a message as such, an integer of 0 or more as a varint."""
    if isinstance(value, int):
        return _varint_bytes(number << 3 | VARINT) + _varint_bytes(value)
    return _varint_bytes(number << 3 | BYTES) + _varint_bytes(len(value)) + value


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
    tensors: list[memoryview] = []

    def without_tensors(message: bytes | memoryview, kind: str, depth: int) -> bytes:
        if depth > _MAX_DEPTH:
            raise WireError(f"graphs are nested deeper than {_MAX_DEPTH} levels")
        if kind == "node":
            named = {field.number: field.content for field in fields(message) if field.number in (_OP_TYPE, _OP_DOMAIN)}
            nodes.append((_domain(named.get(_OP_DOMAIN, b"")), text_of(named.get(_OP_TYPE, b""))))
        parts: list[bytes | memoryview] = []
        for field in fields(message):
            inside = INSIDE[kind].get(field.number)
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


def _opset(message: memoryview) -> tuple[str, int]:
    found = {field.number: field for field in fields(message)}
    domain, version = found.get(1), found.get(2)  # of OperatorSetIdProto
    return _domain(domain.content if domain else b""), version.value if version and isinstance(version.value, int) else 0


def _domain(name: bytes | memoryview) -> str:
    return text_of(name) or "ai.onnx"
