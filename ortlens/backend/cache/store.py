"""Converted models on disk, for the next process.

One file per model, named after the digest of all that it was made from. A file is written beside its place and moved there
whole, so that processes may share a folder; it is read back only if its own digest is right. Whatever else lies there (an entry
of another version, half a file, somebody else's) is passed over and written anew. Nothing in it is executed: it holds JSON and an
ONNX model.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ortlens.backend.cache import fingerprint

if TYPE_CHECKING:
    import onnx
    import torch.fx

_MAGIC = b"ortlens cache 1\n"
_DIGEST = 32
_LENGTH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What is kept of one conversion.

    Attributes:
        model: The ONNX model, before the user's transforms.
        facts: Whatever else is needed, as JSON.
    """

    model: onnx.ModelProto
    facts: dict[str, Any]


def key_of(module: torch.fx.GraphModule, *settings: object) -> str | None:
    """The name of an entry.

    Args:
        module: What it is made from.
        *settings: What else its making depends on; their `repr` counts.

    Returns:
        64 hexadecimal digits, or None for a graph that has no lasting name.
    """
    try:
        text = fingerprint.text_of(module)
    except fingerprint.Nameless:
        return None
    return digest_of("partition", settings, text)


def digest_of(kind: str, settings: tuple[object, ...], text: str) -> str:
    """The name of an entry, from all that it was made from and the surroundings.

    Args:
        kind: What it is an entry of.
        settings: Their `repr` counts.
        text: As given by `fingerprint.text_of`.

    Returns:
        64 hexadecimal digits.
    """
    return hashlib.sha256(f"{kind}\n{fingerprint.surroundings()}\n{settings!r}\n{text}".encode()).hexdigest()


class ModelCache:
    """A folder of entries."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Name the folder; it is made with the first entry.

        Args:
            folder: Who can write there decides which models run, as with any program.
        """
        self._folder = pathlib.Path(folder)

    def load(self, key: str) -> Entry | None:
        """Read an entry.

        Args:
            key: As given by `key_of`.

        Returns:
            The entry; None when there is none, or what is there is not whole.
        """
        import onnx

        try:
            data = self._path(key).read_bytes()
            body = _checked(data, key)
            length = int.from_bytes(body[:_LENGTH], "little")
            facts = json.loads(body[_LENGTH : _LENGTH + length])
            model = onnx.ModelProto.FromString(body[_LENGTH + length :])
        except Exception:  # noqa: BLE001 - whatever is wrong with it, it is not an entry: json, protobuf and the system each have errors
            return None
        return Entry(model=model, facts=facts)

    def store(self, key: str, entry: Entry) -> None:
        """Write an entry, over whatever is in its place.

        Args:
            key: As given by `key_of`.
            entry: The entry.

        Raises:
            OSError: The folder cannot be written.
        """
        facts = json.dumps(entry.facts).encode()
        body = len(facts).to_bytes(_LENGTH, "little") + facts + entry.model.SerializeToString()
        self._folder.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=self._folder, prefix=f".{key[:16]}-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(_MAGIC + _digest(key, body) + body)
            pathlib.Path(temporary).replace(self._path(key))
        except BaseException:
            pathlib.Path(temporary).unlink(missing_ok=True)
            raise

    def _path(self, key: str) -> pathlib.Path:
        return self._folder / f"{key}.ortlens"


def _digest(key: str, body: bytes) -> bytes:
    """Over the name too: an entry that was moved to another's place is none."""
    return hashlib.sha256(key.encode() + body).digest()


def _checked(data: bytes, key: str) -> bytes:
    body = data[len(_MAGIC) + _DIGEST :]
    if not data.startswith(_MAGIC) or data[len(_MAGIC) : len(_MAGIC) + _DIGEST] != _digest(key, body):
        raise ValueError("not a whole entry")
    return body
