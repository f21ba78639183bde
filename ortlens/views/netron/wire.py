"""Protocol Buffers' wire format, as much of it as it takes to go through an ONNX model without the onnx package.

Source:
    "Encoding", Protocol Buffers documentation: a message is a run of tags, each a varint of number and type, and values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

_FIXED = {FIXED64: 8, FIXED32: 4}
_MAX_VARINT_BYTES = 10  # 64 bits, seven at a time


class WireError(ValueError):
    """The bytes are no message: cut off, or not of this format at all."""


class Field(NamedTuple):
    """One field of a message."""

    number: int
    """Which field, as the message's definition counts them."""
    kind: int
    """How the value is written: `VARINT`, `FIXED64`, `BYTES` or `FIXED32`."""
    value: int | bytes
    """The number of a varint; the bytes of everything else."""
    raw: bytes
    """Tag and value together, to be copied."""


def fields(message: bytes) -> Iterator[Field]:
    """Yield the fields of a message in order; one that is cut off, or of a type that nothing writes any more, raises `WireError`."""
    at = 0
    while at < len(message):
        start = at
        tag, at = _varint(message, at)
        value, at = _value(message, at, tag & 7)
        yield Field(tag >> 3, tag & 7, value, message[start:at])


def field_bytes(number: int, value: bytes | int) -> bytes:
    """Write one field: bytes or a message as such, an integer of 0 or more as a varint."""
    if isinstance(value, int):
        return _varint_bytes(number << 3 | VARINT) + _varint_bytes(value)
    return _varint_bytes(number << 3 | BYTES) + _varint_bytes(len(value)) + value


def _value(message: bytes, at: int, kind: int) -> tuple[int | bytes, int]:
    if kind == VARINT:
        return _varint(message, at)
    if kind == BYTES:
        length, at = _varint(message, at)
    elif kind in _FIXED:
        length = _FIXED[kind]
    else:
        raise WireError(f"byte {at}: unknown field type {kind}")
    if at + length > len(message):
        raise WireError(f"byte {at}: {length:,} bytes expected, {len(message) - at:,} left")
    return message[at : at + length], at + length


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
