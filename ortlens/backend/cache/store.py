"""Converted models on disk, for later processes.

There is one file per model, named by its key. A file is written to a temporary name and then moved, so that processes can share
a folder. It is read only if its checksum is correct. Anything else, such as an entry of another version, a truncated file or a
foreign file, is a miss and gets overwritten. Nothing in a file is executed: it holds JSON and an ONNX model.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx

_MAGIC = b"ortlens cache 1\n"
_DIGEST = 32
_LENGTH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedModel:
    """What is kept of one conversion.

    Attributes:
        model: The ONNX model, before the user's transforms.
        facts: Everything else that is needed to run it, as JSON.
    """

    model: onnx.ModelProto
    facts: dict[str, Any]


class ModelCache:
    """A folder of converted models. `load` alone decides between hit and miss."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Use a folder; it is created when the first model is stored.

        Args:
            folder: Whoever can write there decides which models run, as with any program.
        """
        self._folder = pathlib.Path(folder)

    def load(self, key: str | None) -> CachedModel | None:
        """Read a model.

        Args:
            key: See `keys.key_of`; None never hits.

        Returns:
            The model; None if there is none or its file is damaged.
        """
        import onnx

        if key is None:
            return None
        try:
            body = _checked(self._path(key).read_bytes(), key)
            length = int.from_bytes(body[:_LENGTH], "little")
            facts = json.loads(body[_LENGTH : _LENGTH + length])
            model = onnx.ModelProto.FromString(body[_LENGTH + length :])
        except Exception:  # noqa: BLE001 - json, protobuf and the system each raise their own errors; all of them are a miss
            return None
        return CachedModel(model=model, facts=facts)

    def store(self, key: str, cached: CachedModel) -> None:
        """Write a model, over whatever the key names now.

        Args:
            key: See `keys.key_of`.
            cached: The model.

        Raises:
            OSError: The folder cannot be written.
        """
        facts = json.dumps(cached.facts).encode()
        body = len(facts).to_bytes(_LENGTH, "little") + facts + cached.model.SerializeToString()
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
    """A checksum that includes the key, so that a renamed file is a miss."""
    return hashlib.sha256(key.encode() + body).digest()


def _checked(data: bytes, key: str) -> bytes:
    body = data[len(_MAGIC) + _DIGEST :]
    if not data.startswith(_MAGIC) or data[len(_MAGIC) : len(_MAGIC) + _DIGEST] != _digest(key, body):
        raise ValueError("the file is damaged")
    return body
