"""Arguments of a call from files of numpy and PyTorch. Nothing in a file is executed, and none may claim more than it holds."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from ortlens._process import usable_bytes
from ortlens.errors import UsageError, near_hint

_WRITTEN_BY = {".npy": "numpy.save", ".npz": "numpy.savez", ".pt": "torch.save", ".pth": "torch.save"}
_NO_TENSORS = "it is damaged, or holds more than tensors and plain values, which might be code"


def calls_from_files(written: str, name: str | None) -> tuple[list[dict[str, Any]], bool]:
    """Read `FILE`, `FILE:KEY` or a folder, whose files are a call each; return what each call gets by name, and whether it is a folder.

    With a name, a file holds that argument (`""`: the next one by place); with None all, by their names. Raises `UsageError` of one line.
    """
    written = os.path.expanduser(written)  # noqa: PTH111 - that of Path raises where there is no such user
    ends = [len(written), *(place for place, each in enumerate(written) if each == ":" and place and name is not None)]
    end = next((end for end in ends if os.path.exists(written[:end])), ends[-1])  # noqa: PTH110 - that of Path may raise
    path, key = Path(written[:end] or "*"), None if name is None else written[end + 1 :]
    files = sorted(file for file in path.iterdir() if not file.name.startswith(".")) if path.is_dir() else [path]
    found = [_content(file, key) for file in files or [path / "*"]]
    return found if name is None else [{name: value} for value in found], path.is_dir()


def _content(path: Path, key: str | None) -> Any:  # noqa: ANN401 - an array, a tensor, or what else a dict holds
    """Read one value of a file; with None for the key, all of them by name; a single one without a name has that of the file."""
    suffix = path.suffix.lower()
    if suffix not in _WRITTEN_BY or not path.is_file():
        raise UsageError(f"--input: there is no file {str(path)!r} that ends in {', '.join(_WRITTEN_BY)} in {Path.cwd()}")
    try:
        _check(path, suffix)
        if suffix == ".npy":
            with path.open("rb") as file:  # `np.load` advises to load what is no array unsafely
                held: Any = np.lib.format.read_array(file, allow_pickle=False)
        elif suffix == ".npz":
            held = np.load(path, allow_pickle=False)
        else:
            import torch

            held = torch.load(path, map_location="cpu", weights_only=True)
        values = held if hasattr(held, "keys") else {path.stem: held}
        if key is None:
            return dict(values)
        chosen = next(iter(values)) if not key and len(values) == 1 else key
        if chosen in values:
            return values[chosen]
    except Exception as error:  # whatever numpy, zipfile and torch raise for a damaged or hostile file
        reason = str(error) or type(error).__name__ if suffix.startswith(".n") or isinstance(error, (OSError, ValueError)) else _NO_TENSORS
        raise UsageError(
            f"--input: {path} cannot be read: {' '.join(reason.split())[:200]}; write it with {_WRITTEN_BY[suffix]}"
        ) from error
    names = list(map(str, values))
    raise UsageError(f"--input: {path} has no value {key!r}.{near_hint(key, names)} It holds {', '.join(names)}; write @{path}:NAME")


def _check(path: Path, suffix: str) -> None:
    """Raise ValueError where the arrays of a file, which may be packed, take too much memory."""
    size = path.stat().st_size
    if suffix == ".npz" or (suffix != ".npy" and zipfile.is_zipfile(path)):
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
    if size > (usable_bytes() or size):
        raise ValueError(f"it takes {size:,} bytes, more memory than this process may use")
