"""Dumps ONNX models and the text of their FX graphs, for users who want to look at them."""

from __future__ import annotations

import collections
import os
import pathlib
import threading
from typing import TYPE_CHECKING

from ortlens._files import whole_file

if TYPE_CHECKING:
    import onnx
    import torch.fx

    from ortlens.backend.options import OrtBackendOptions

_numbers: dict[str, int] = collections.defaultdict(int)
_lock = threading.Lock()


def dump_prefix(options: OrtBackendOptions) -> str:
    """Return the option `dump_path`, else the environment variable `ONNXRT_DUMP_PATH`; empty when nothing is dumped."""
    return str(options.dump_path or os.environ.get("ONNXRT_DUMP_PATH") or "")


def dump_model(model: onnx.ModelProto, module: torch.fx.GraphModule, options: OrtBackendOptions) -> str | None:
    """Write a model and the text of its FX graph; return the path of the model, None when nothing is dumped.

    Files are numbered from 0 for each prefix, across all backends of the process.
    """
    prefix = dump_prefix(options)
    if not prefix:
        return None
    with _lock:
        number = _numbers[prefix]
        _numbers[prefix] += 1
    path = pathlib.Path(f"{prefix}{number}.onnx")
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as binary, whole_file(path.with_suffix(".txt")) as text:  # both are on the disk before either is in its place
        binary.write(model.SerializeToString())
        binary.flush()
        os.fsync(binary.fileno())
        text.write(f"{module.graph}\n".encode())
    return str(path)
