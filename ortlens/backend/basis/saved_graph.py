"""The saved form of a compiled graph: a manifest in JSON, and files such as ONNX models and state, as a folder or as bytes.

The folder of a frozen callable, the entries of the cache and what is compiled ahead of time have this form. The manifest has the size and
the SHA-256 of each file, and reading compares them. Nothing is executed. Standard library only: `Frozen.save` copies this file beside its
model.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterable, Mapping

MANIFEST = "manifest.json"
_FORMAT, _SCHEMA = "ortlens frozen", 1
_LARGEST_MANIFEST = 1 << 24
_DIGEST, _LENGTH = 32, 8  # bytes before the manifest: its SHA-256, and how long it is


class DamagedError(ValueError):
    """Something was changed since it was saved, is of another version, or names files elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedGraph:
    """A compiled graph in memory: a manifest, which JSON can hold, and the content of files by name."""

    manifest: dict[str, Any]
    files: dict[str, bytes]

    def to_bytes(self) -> bytes:
        """Write the manifest, after its checksum and its length, and then the files."""
        files = {name: _entry(data) for name, data in self.files.items()}
        manifest = json.dumps({**self.manifest, "files": files}).encode()
        return b"".join([hashlib.sha256(manifest).digest(), len(manifest).to_bytes(_LENGTH, "little"), manifest, *self.files.values()])

    @staticmethod
    def from_bytes(data: bytes) -> SavedGraph:
        """Read what `to_bytes` wrote; raise `DamagedError` for anything else."""
        start = _DIGEST + _LENGTH
        end = start + int.from_bytes(data[_DIGEST:start], "little")
        if hashlib.sha256(data[start:end]).digest() != data[:_DIGEST]:
            raise DamagedError("the manifest was changed, or is none")
        manifest = json.loads(data[start:end])
        files = {}
        for name, known in manifest.pop("files").items():
            files[name] = data[end : end + known["bytes"]]
            end += known["bytes"]
            _refuse_changed(name, _entry(files[name]), known)
        return SavedGraph(manifest=manifest, files=files)


def write_manifest(folder: pathlib.Path, manifest: Mapping[str, Any], names: Iterable[str]) -> None:
    """Write the manifest of a folder, with an entry for each file in `names`."""
    content = {"format": _FORMAT, "schema": _SCHEMA, **manifest, "files": {name: _entry(folder / name) for name in names}}
    (folder / MANIFEST).write_text(json.dumps(content, indent=1, allow_nan=False), encoding="utf-8")


def read_manifest(folder: pathlib.Path) -> dict[str, Any]:
    """Read the manifest of a folder, and compare the files with it; raise `DamagedError` where they differ, and what `json` raises."""
    path = file_in(folder, MANIFEST)
    if path.stat().st_size > _LARGEST_MANIFEST:
        raise DamagedError(f"{path} has {path.stat().st_size:,} bytes, which no manifest has")
    manifest = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise DamagedError(f"{path} is no manifest of a frozen callable")
    if manifest.get("schema") != _SCHEMA:
        raise DamagedError(f"{path} has schema {manifest.get('schema')!r}; this version reads {_SCHEMA}")
    for name, known in manifest["files"].items():
        path = file_in(folder, name)
        _refuse_changed(path, _entry(path), known)
    return manifest


def file_in(folder: pathlib.Path, name: object) -> pathlib.Path:
    """Resolve a name from a manifest to a plain file of the folder; raise `DamagedError` for any other place."""
    if not isinstance(name, str) or name in ("", ".", "..") or not set("/\\:\0").isdisjoint(name):
        raise DamagedError(f"{name!r} in the manifest is no name of a file in {folder}")
    path = folder / name
    if path.is_symlink() or not path.is_file():
        raise DamagedError(f"{path} is missing, or no plain file")
    return path


def _entry(content: bytes | pathlib.Path) -> dict[str, Any]:
    if isinstance(content, bytes):
        return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    with content.open("rb", buffering=0) as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return {"bytes": stream.tell(), "sha256": digest}


def _refuse_changed(what: object, found: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    if found["bytes"] != known["bytes"]:
        raise DamagedError(f"{what} has {found['bytes']:,} bytes, the manifest says {known['bytes']!r}: the file was changed")
    if found["sha256"] != known["sha256"]:
        raise DamagedError(f"{what} has sha256 {found['sha256']}, the manifest says {known['sha256']!r}: the file was changed")
