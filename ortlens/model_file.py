"""ONNX models as bytes, read without the onnx package, and what a model reads and calls. Standard library only.

ONNX Runtime trusts a model: one that names a file elsewhere is followed in some versions, and functions that call each other too often
exhaust its memory or its stack. So a model from a stranger is checked here before ONNX Runtime gets it.

`Frozen.save` copies this file beside its models.

Source:
    "Encoding", Protocol Buffers documentation: a message is a run of tags, each a varint of number and type, and values. Numbers of fields
    are those of onnx.proto3 (onnx 1.19), which never change.
"""

from __future__ import annotations

import pathlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Function: TypeAlias = tuple[str, str, str]
"""Domain, name and overload."""

INSIDE = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}
"""Kind of message -> field -> kind of message in it, as far as tensors and nodes are concerned."""
_INNER = {**INSIDE, "tensor": {13: "entry"}}
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # how a field is written; of a tag the last three bits
_FIXED = {FIXED64: 8, FIXED32: 4}
_MAX_VARINT_BYTES = 10  # 64 bits, seven at a time
_NODE = (7, 4, 8)  # fields of domain, operator and overload
_FUNCTION = (10, 1, 13)  # likewise of a function: domain, name and overload
_DEEPEST = 100  # messages in each other, as protobuf allows
_DEEPEST_CALLS = 256  # functions that call each other: ONNX Runtime ends with a segmentation fault somewhere above a thousand
_MOST_NODES = 200_000  # that functions may expand to; a large language model has tens of thousands
_LONGEST_NUMBER = 19  # digits of 64 bits
_MEMORY = "*/_ORT_MEM"  # how ONNX Runtime marks the address of a tensor in its own process


class WireError(ValueError):
    """The bytes are no message: cut off, or not of this format at all."""


class Field(NamedTuple):
    """A field of a message: its number, how it is written, the number of a varint or else bytes, and tag and value to be copied."""

    number: int
    kind: int
    value: int | memoryview
    raw: memoryview

    @property
    def content(self) -> memoryview:
        """The value of a message or text."""
        if isinstance(self.value, int) or self.kind != BYTES:
            raise WireError(f"field {self.number} is a number where a message or text belongs")
        return self.value


def fields(message: bytes | memoryview) -> Iterator[Field]:
    """Yield the fields of a message in order; one that is cut off, or of a type that nothing writes any more, raises `WireError`."""
    data, at = memoryview(message), 0
    while at < len(data):
        start = at
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        length = _FIXED.get(kind, 0)
        if kind in (VARINT, BYTES):
            length, at = _varint(data, at)
        elif not length:
            raise WireError(f"byte {at}: unknown field type {kind}")
        if kind == VARINT:
            yield Field(number, kind, length, data[start:at])
            continue
        if at + length > len(data):
            raise WireError(f"byte {at}: {length:,} bytes expected, {len(data) - at:,} left")
        yield Field(number, kind, data[at : at + length], data[start : at + length])
        at += length


def text_of(content: bytes | memoryview) -> str:
    """Read a text; what is no UTF-8 in it is replaced."""
    return bytes(content).decode("utf-8", "replace")


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    result = 0
    for shift in range(_MAX_VARINT_BYTES):
        if at + shift >= len(message):
            raise WireError(f"byte {at}: the data ends inside a number")
        byte = message[at + shift]
        result |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:  # noqa: PLR2004 - the bit that says that more follows
            return result, at + shift + 1
    raise WireError(f"byte {at}: a number of more than {_MAX_VARINT_BYTES} bytes")


@dataclass(slots=True)
class ModelFile:
    """What a model reads and calls."""

    # The entries of each tensor with external data, such as `location` and `offset`, wherever it is in the model.
    external: list[dict[str, str]] = field(default_factory=list)
    calls: list[Function] = field(default_factory=list)  # the operators of the nodes of its graphs, inner graphs included
    functions: dict[Function, list[Function]] = field(default_factory=dict)  # those of the nodes of each of its functions

    @property
    def locations(self) -> set[str]:
        """The files that its tensors name."""
        return {entries["location"] for entries in self.external if "location" in entries}


def read_model(model: bytes) -> ModelFile:
    """Find what a serialized ModelProto reads and calls; raises ValueError for anything else."""
    found = ModelFile()
    _walk(memoryview(model), "model", found, found.calls, 0)
    return found


def refuse_unsafe(found: ModelFile, model: pathlib.Path) -> None:
    """Refuse, by a ValueError, a model that would read outside its folder, or that expands without end.

    The folder of a link and the folder it leads to both count as the model's. A missing file is left to ONNX Runtime, which names it.
    """
    sizes: dict[str, int | None] = {}  # of each file, looked up once: a model may have thousands of tensors in one
    for entries in found.external:
        location = entries.get("location", "")
        if location not in sizes:
            sizes[location] = _size_inside(location, model)
        offset, length = (_number(entries, name) for name in ("offset", "length"))
        size = sizes[location]
        if size is not None and offset + length > size:
            raise ValueError(f"a tensor takes {length:,} bytes at {offset:,} of {location!r}, which has {size:,}")
    known: dict[Function, tuple[int, int]] = {}
    if _expanded(found.calls, found.functions, known, ())[0] > _MOST_NODES + len(found.calls):
        raise ValueError(f"its functions expand to more than {_MOST_NODES:,} nodes")


def _size_inside(location: str, model: pathlib.Path) -> int | None:
    """Return the size of a file in the model's folder; None if it is missing."""
    named = pathlib.Path(location)
    if not location or "\0" in location or location.startswith(_MEMORY) or named.is_absolute() or ".." in named.parts:
        raise ValueError(f"a tensor lies in {location!r}, which is no path inside the model's folder")
    path = model.parent / named
    resolved = path.resolve()
    if not any(resolved.is_relative_to(folder) for folder in (model.parent.resolve(), model.resolve().parent)):
        raise ValueError(f"a tensor lies in {location!r}, a link that leads out of the model's folder")
    if not resolved.exists():
        return None
    if not resolved.is_file():
        raise ValueError(f"a tensor lies in {location!r}, which is no plain file")
    return resolved.stat().st_size


def _number(entries: Mapping[str, str], name: str) -> int:
    text = entries.get(name, "0")
    if not (text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER):
        raise ValueError(f"the {name} of a tensor in another file is {text[:40]!r}, which is no size")
    return int(text)


def _expanded(
    calls: list[Function], functions: Mapping[Function, list[Function]], known: dict[Function, tuple[int, int]], path: tuple[Function, ...]
) -> tuple[int, int]:
    """Count the nodes that some nodes expand to, and how deeply functions call each other below them."""
    nodes = depth = 0
    for call in calls:
        if call not in functions:
            nodes += 1
            continue
        if call not in known:
            if call in path:
                raise ValueError(f"the function {call[1]!r} calls itself")
            if len(path) >= _DEEPEST_CALLS:
                raise ValueError(f"its functions call each other more than {_DEEPEST_CALLS} deep")
            known[call] = _expanded(functions[call], functions, known, (*path, call))
        nodes, depth = nodes + known[call][0], max(depth, known[call][1] + 1)
    if depth > _DEEPEST_CALLS:
        raise ValueError(f"its functions call each other more than {_DEEPEST_CALLS} deep")
    return nodes, depth


def _walk(data: memoryview, kind: str, found: ModelFile, calls: list[Function], depth: int) -> None:
    if depth > _DEEPEST:
        raise ValueError("the model is nested too deeply")
    if kind == "function":
        calls = found.functions.setdefault(_named(data, _FUNCTION), [])
    elif kind == "node":
        calls.append(_named(data, _NODE))
    entries: dict[str, str] = {}
    for given in fields(data):
        inner = _INNER[kind].get(given.number)
        if inner == "entry":
            key, text = _texts(given.content, (1, 2))
            entries[key] = text
        elif inner is not None:
            _walk(given.content, inner, found, calls, depth + 1)
    if entries:
        found.external.append(entries)


def _named(data: memoryview, fields: tuple[int, int, int]) -> Function:
    domain, name, overload = _texts(data, fields)
    return ("" if domain == "ai.onnx" else domain, name, overload)


def _texts(data: memoryview, numbers: tuple[int, ...]) -> list[str]:
    """Return the texts of fields: the last of those given twice, as in protobuf, and an empty one for a missing field."""
    given = {each.number: each.content for each in fields(data) if each.number in numbers and each.kind == BYTES}
    return [text_of(given.get(number, b"")) for number in numbers]
