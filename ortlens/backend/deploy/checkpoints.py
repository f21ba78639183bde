"""Read weights lazily from safetensors files, sharded indexes, torch checkpoints or mappings of tensors."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ortlens._optional import require
from ortlens.errors import OrtLensError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SAFETENSORS_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWeight:
    """A weight that is loaded on demand."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None  # its element type; None if torch has no counterpart to the file's
    load: Callable[[], torch.Tensor]  # returns the tensor
    origin: str  # where it comes from, for messages


def open_weights(source: object) -> dict[str, StoredWeight]:
    """List the weights of a checkpoint by name, without reading the tensors.

    A source is a `.safetensors` file, a `*.index.json` of a sharded one, a torch checkpoint (`.pt`, `.pth`, `.bin`), a folder with one of
    these, a mapping of names to tensors, or a sequence of sources, of which later ones override earlier ones.
    """
    if isinstance(source, Mapping):
        return {str(name): stored_tensor(tensor, f"the mapping given for {name}") for name, tensor in source.items()}
    if isinstance(source, (list, tuple)):
        merged: dict[str, StoredWeight] = {}
        for part in source:
            merged.update(open_weights(part))
        return merged
    path = _checkpoint_in(pathlib.Path(str(source)))
    try:
        return dict(_read(path))
    except OrtLensError:
        raise
    except Exception as error:
        said = next(iter(str(error).splitlines()), "")[:300]
        raise UsageError(f"cannot read weights from {path}: {type(error).__name__}: {said}") from error


def _checkpoint_in(path: pathlib.Path) -> pathlib.Path:
    if path.is_dir():
        for pattern in ("*.safetensors.index.json", "*.safetensors", "*.bin.index.json", "*.bin", "*.pt", "*.pth"):
            found = sorted(path.glob(pattern))
            if found:
                return found[0]
        raise UsageError(f"the folder {path} contains no checkpoint (.safetensors, .bin, .pt, .pth or an index of them)")
    if not path.is_file():
        raise UsageError(f"there is no checkpoint {path}")
    return path


def _read(path: pathlib.Path) -> Iterator[tuple[str, StoredWeight]]:
    if path.name.endswith(".index.json"):
        index = json.loads(path.read_text(encoding="utf-8"))
        for shard in sorted(set(index["weight_map"].values())):
            yield from _read(path.parent / pathlib.PurePosixPath(shard).name)  # a shard outside the index's folder is not read
    elif path.suffix == ".safetensors":
        yield from _read_safetensors(path)
    else:
        yield from _read_torch(path)


def _read_safetensors(path: pathlib.Path) -> Iterator[tuple[str, StoredWeight]]:
    safetensors = require("safetensors", "Reading a .safetensors file")

    def loader(name: str) -> Callable[[], torch.Tensor]:
        def load() -> torch.Tensor:
            with safetensors.safe_open(str(path), framework="pt") as file:
                tensor: torch.Tensor = file.get_tensor(name)
                return tensor

        return load

    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            entries = [(name, file.get_slice(name)) for name in file.keys()]  # noqa: SIM118 - not a mapping
    except safetensors.SafetensorError as error:
        raise ValueError(str(error)) from error
    for name, entry in entries:
        dtype = _SAFETENSORS_DTYPES.get(entry.get_dtype())
        yield name, StoredWeight(shape=tuple(entry.get_shape()), dtype=dtype, load=loader(name), origin=path.name)


def _read_torch(path: pathlib.Path) -> Iterator[tuple[str, StoredWeight]]:
    """Read a torch checkpoint through a memory map; only tensors are unpickled."""
    try:
        content: Any = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except RuntimeError:  # written by torch before 1.6: not a zip file, so it cannot be mapped
        content = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if not isinstance(content, Mapping):
        raise TypeError(f"it contains a {type(content).__name__}, not a mapping of names to tensors")
    for name, tensor in content.items():
        if isinstance(tensor, torch.Tensor):
            yield str(name), stored_tensor(tensor, path.name)


def stored_tensor(tensor: Any, origin: str) -> StoredWeight:
    """Wrap a tensor that is already loaded; raise `UsageError` for anything else, with `origin` in the message."""
    if not isinstance(tensor, torch.Tensor):
        raise UsageError(f"{origin} is a {type(tensor).__name__}, not a tensor")
    return StoredWeight(shape=tuple(tensor.shape), dtype=tensor.dtype, load=lambda: tensor, origin=origin)
