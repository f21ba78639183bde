"""Converted models on disk, for later processes.

There is one file per model, named by its key, and written whole or not at all, so that processes can share a folder. It is read only if
its checksums are correct. Anything else, such as an entry of another version, a truncated or a foreign file, is a miss and is overwritten.
Nothing in a file is executed: it holds JSON and an ONNX model. No link is followed, and what others can write is not read.

Entries go along with `torch.compiler.save_cache_artifacts`. Those that `load_cache_artifacts` brought are read where the folder has none.
"""

from __future__ import annotations

import errno
import os
import pathlib
import stat
from dataclasses import dataclass, replace

import onnx

from ortlens import _torch
from ortlens._files import replaced_file
from ortlens.backend.basis.saved_graph import SavedGraph

_MODEL = "model.onnx"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedModel:
    """The model of a partition, and what else is needed to run it."""

    model: onnx.ModelProto
    permutations: tuple[tuple[int, ...] | None, ...]  # memory order of each output; None where an output is contiguous
    output_names: tuple[str, ...]  # as converted, before the user's transforms
    is_optimized: bool = True

    def saved(self) -> SavedGraph:
        """Write it; nothing in it is executed when it is read."""
        facts = {"permutations": self.permutations, "outputs": self.output_names}
        return SavedGraph(manifest=facts, files={_MODEL: self.model.SerializeToString()})

    @staticmethod
    def restored(saved: SavedGraph) -> ConvertedModel:
        """Read what `saved` wrote; protobuf raises its own errors."""
        orders = (None if order is None else tuple(order) for order in saved.manifest["permutations"])
        model = onnx.ModelProto.FromString(saved.files[_MODEL])
        return ConvertedModel(model=model, permutations=tuple(orders), output_names=tuple(saved.manifest["outputs"]))


class ModelCache:
    """A folder of converted models. `load` alone decides between hit and miss."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Use a folder, which is created when the first model is stored; one in which others can put models is refused."""
        self._folder = pathlib.Path(folder)

    def load(self, key: str | None) -> SavedGraph | None:
        """Read an entry; None for the key None, and if there is no entry, or its file is damaged or was renamed."""
        if key is None:
            return None
        try:
            data = self._read(key)
            found = SavedGraph.from_bytes(data)
            if found.manifest.pop("key") != key:
                return None
            _torch.record_artifact(key, data)
        except Exception:  # noqa: BLE001 - json and the system each raise their own errors; all of them are a miss
            return None
        return found

    def model(self, key: str | None) -> ConvertedModel | None:
        """Read the model of a partition; None as for `load`."""
        found = self.load(key)
        return None if found is None else ConvertedModel.restored(found)

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

    def store(self, key: str, saved: SavedGraph) -> None:
        """Write an entry, over whatever the key names now; raise `OSError` if the folder is not writable or others can write to it."""
        data = replace(saved, manifest={**saved.manifest, "key": key}).to_bytes()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._refuse_shared()
        with replaced_file(self._path(key), mode=0o600) as file:
            file.write(data)
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
