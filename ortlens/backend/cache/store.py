"""Converted models on disk, for later processes.

There is one file per model, named by its key. A file is written to a temporary name and then moved, so that processes can share
a folder. It is read only if its checksum is correct. Anything else, such as an entry of another version, a truncated file or a
foreign file, is a miss and gets overwritten. Nothing in a file is executed: it holds JSON and an ONNX model. No link is followed, and
what others can write is not read.

Entries go along with `torch.compiler.save_cache_artifacts`. Those that `load_cache_artifacts` brought are read where the folder has none.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pathlib
import stat
import tempfile
from dataclasses import dataclass
from typing import Any

import onnx

from ortlens import _torch

_MAGIC = b"ortlens cache 1\n"
_DIGEST = 32
_LENGTH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedModel:
    """What is kept of one conversion."""

    model: onnx.ModelProto  # the ONNX model, before the user's transforms
    facts: dict[str, Any]  # everything else that is needed to run it, as JSON

    def to_bytes(self) -> bytes:
        """Write it; nothing in it is executed when it is read."""
        facts = json.dumps(self.facts).encode()
        model: bytes = self.model.SerializeToString()
        return len(facts).to_bytes(_LENGTH, "little") + facts + model

    @staticmethod
    def from_bytes(body: bytes) -> CachedModel:
        """Read what `to_bytes` wrote; json and protobuf raise their own errors."""
        length = int.from_bytes(body[:_LENGTH], "little")
        facts = json.loads(body[_LENGTH : _LENGTH + length])
        return CachedModel(model=onnx.ModelProto.FromString(body[_LENGTH + length :]), facts=facts)


class ModelCache:
    """A folder of converted models. `load` alone decides between hit and miss."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Use a folder, which is created when the first model is stored; one in which others can put models is refused."""
        self._folder = pathlib.Path(folder)

    def load(self, key: str | None) -> CachedModel | None:
        """Read a model; None for the key None, and if there is no model or its file is damaged."""
        if key is None:
            return None
        try:
            data = self._read(key)
            found = CachedModel.from_bytes(_checked(data, key))
            _torch.record_artifact(key, data)
        except Exception:  # noqa: BLE001 - json, protobuf and the system each raise their own errors; all of them are a miss
            return None
        return found

    def _read(self, key: str) -> bytes:
        """Read an entry, of the folder or, if that has none, of what `torch.compiler.load_cache_artifacts` brought."""
        try:
            self._refuse_shared()
            return _read(self._path(key))
        except FileNotFoundError:
            data = _torch.loaded_artifact(key)
            if data is None:
                raise
            return data

    def store(self, key: str, cached: CachedModel) -> None:
        """Write a model, over whatever the key names now; raise `OSError` if the folder is not writable or others can write to it."""
        body = cached.to_bytes()
        data = _MAGIC + _digest(key, body) + body
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._refuse_shared()
        descriptor, temporary = tempfile.mkstemp(dir=self._folder, prefix=f".{key[:16]}-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            pathlib.Path(temporary).replace(self._path(key))
        except BaseException:
            pathlib.Path(temporary).unlink(missing_ok=True)
            raise
        _torch.record_artifact(key, data)

    def _refuse_shared(self) -> None:
        """Refuse a folder in which others can put models: a model decides what runs, and the checksum is no signature."""
        if os.name == "posix":
            _refuse_foreign(self._folder.stat(), self._folder, stat.S_IWOTH, "everybody")
            _refuse_owner(self._folder.lstat(), self._folder)

    def _path(self, key: str) -> pathlib.Path:
        return self._folder / f"{key}.ortlens"


def _read(path: pathlib.Path) -> bytes:
    """Read an entry: a plain file of this user's or root's, no link, that nobody else may write to."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("not a plain file")
        if os.name == "posix":
            _refuse_foreign(found, path, stat.S_IWOTH | stat.S_IWGRP, "another user")
        return file.read()


def _refuse_foreign(found: os.stat_result, path: pathlib.Path, writable: int, who: str) -> None:
    if found.st_mode & writable:
        raise PermissionError(errno.EPERM, f"{who} can write to it, so its models are not trusted; chmod go-w", str(path))
    _refuse_owner(found, path)


def _refuse_owner(found: os.stat_result, path: pathlib.Path) -> None:
    if found.st_uid not in (os.geteuid(), 0):
        raise PermissionError(errno.EPERM, "it belongs to another user, so its models are not trusted; use a folder of your own", str(path))


def _digest(key: str, body: bytes) -> bytes:
    """Compute a checksum that includes the key, so that a renamed file is a miss."""
    return hashlib.sha256(key.encode() + body).digest()


def _checked(data: bytes, key: str) -> bytes:
    body = data[len(_MAGIC) + _DIGEST :]
    if not data.startswith(_MAGIC) or data[len(_MAGIC) : len(_MAGIC) + _DIGEST] != _digest(key, body):
        raise ValueError("the file is damaged")
    return body
