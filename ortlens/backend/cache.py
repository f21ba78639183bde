"""Converted models on disk, for later processes, and the fingerprint of a graph, of which their keys are made.

There is one file per model, named by its key, and written whole or not at all, so that processes can share a folder. It is read only if
its checksums are correct. Anything else, such as an entry of another version, a truncated or a foreign file, is a miss and is overwritten.
Nothing in a file is executed: it holds JSON and an ONNX model. No link is followed, and what others can write is not read.

Entries go along with `torch.compiler.save_cache_artifacts`. Those that `load_cache_artifacts` brought are read where the folder has none.

A fingerprint is a text that is equal for graphs that the backend compiles alike, in this process and in later ones. One that leaves
something out leads to wrong results, one that includes too much leads to cache misses. A graph that contains anything not known to be safe
has no fingerprint and is always compiled.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import importlib.metadata
import os
import pathlib
import platform
import stat
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import onnx
import torch

import ortlens
from ortlens import _torch
from ortlens._files import replaced_file
from ortlens._versions import installed
from ortlens.backend.basis.memory_order import raw_bytes
from ortlens.backend.basis.provenance import attribute_of
from ortlens.backend.basis.saved_graph import SavedGraph

if TYPE_CHECKING:
    from collections.abc import Sequence

_PLAIN = (bool, int, float, complex, str, type(None), type(...), torch.dtype, torch.device, torch.layout, torch.memory_format)
_MAKES_MODELS = ("_torch", "analysis", "backend")
_KNOWN_NAMESPACES = frozenset({"aten", "prims", "prim"})


class NoFingerprint(Exception):  # noqa: N818 - not an error: such a graph is not cached
    """A graph contains something whose text may change from one process to the next."""


@functools.cache
def surroundings() -> str:
    """Describe what a cached model depends on beside the graph, in one line: all package versions, this source code, the machine."""
    versions = " ".join(f"{name}={version}" for name, version in sorted(installed().items()))
    onnx_ir = importlib.metadata.version("onnx-ir")  # not imported for it: a graph from the cache needs none of it
    return f"{versions} onnx-ir={onnx_ir} python={platform.python_version()} machine={platform.machine()} code={_own_code()}"


def _own_code() -> str:
    """Compute a digest of the sources that produce models, because a working copy changes without changing its version."""
    package = pathlib.Path(ortlens.__file__).parent
    digest = hashlib.sha256()
    for folder in _MAKES_MODELS:
        for path in sorted((package / folder).rglob("*.py")):
            digest.update(str(path.relative_to(package)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def text_of(module: torch.fx.GraphModule, inputs: Sequence[Any] | None = None) -> str:
    """Write a graph as text, a line per node: operators, arguments, constants, and the dtype, shape and layout of every value.

    `inputs` are for a graph of Dynamo, which has no `meta["val"]`. Raise `NoFingerprint` if something has no stable text.
    """
    given, nodes = iter(inputs or ()), module.graph.nodes
    values = (next(given) if inputs is not None and node.op == "placeholder" else node.meta.get("val") for node in nodes)
    return "\n".join(map(_line, nodes, values))


def state_text() -> str:
    """Describe the process-wide settings of PyTorch that change what a graph computes."""
    autocast = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")]
    modes = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.are_deterministic_algorithms_enabled())
    return f"{autocast} {modes} {torch.get_default_dtype()} {[_torch.allows_tf32(kind) for kind in ('matmul', 'conv', 'rnn')]}"


def _line(node: torch.fx.Node, seen: Any) -> str:
    value = _constant(node) if node.op == "get_attr" else _value(seen)
    kwargs = ", ".join(f"{key}={_argument(item)}" for key, item in sorted(node.kwargs.items()))
    return f"{node.op} {node.name} {_target(node)} ({', '.join(_argument(item) for item in node.args)}) {{{kwargs}}} -> {value}"


def _target(node: torch.fx.Node) -> str:
    if node.op == "call_module":
        raise NoFingerprint(f"module {node.target} has code and state beside its name")
    if isinstance(node.target, str):
        return node.target
    name = _torch.qualified_name(node.target)
    known = name is not None and name.startswith(("_operator.", "math.", "builtins.", "torch."))
    if name is None or not known or (name.startswith("torch.ops.") and name.split(".")[2] not in _KNOWN_NAMESPACES):
        raise NoFingerprint(f"{node.target} is not PyTorch's own")  # its code may change while its name stays
    return name


def _argument(item: Any) -> str:
    if isinstance(item, torch.fx.Node):
        return f"%{item.name}"
    if isinstance(item, (list, tuple)):
        return f"[{', '.join(_argument(part) for part in item)}]"
    if isinstance(item, slice):
        return f"slice({_argument(item.start)}, {_argument(item.stop)}, {_argument(item.step)})"
    if _torch.is_symbolic(item):
        return _torch.expression_of(item)
    if type(item) in _PLAIN:
        return f"{type(item).__name__}:{item!r}"
    raise NoFingerprint(f"an argument of type {type(item).__name__} has no stable text")


def _value(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        sizes = ",".join(_size(size) for size in value.shape)
        strides = ",".join(_size(stride) for stride in value.stride()) if value.layout is torch.strided else str(value.layout)
        return f"{value.dtype}[{sizes}]({strides})@{value.device}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value(part) for part in value)}]"
    if _torch.is_symbolic(value):
        return f"{type(value).__name__}:{_size(value)}"
    if value is None or type(value) in (bool, int, float):
        return f"{type(value).__name__}:{value!r}"
    raise NoFingerprint(f"a value of type {type(value).__name__} has no stable text")


def _size(size: Any) -> str:
    return str(size) if isinstance(size, int) else f"{_torch.expression_of(size)}~{_torch.size_hint(size)}"


def _constant(node: torch.fx.Node) -> str:
    tensor = attribute_of(node)
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided or _torch.is_fake(tensor):
        raise NoFingerprint(f"constant {node.target} has no stable text")
    return f"{_value(tensor)}={hashlib.sha256(raw_bytes(tensor)).hexdigest()}"


def key_of(
    kind: Literal["partition", "whole graph"], module: torch.fx.GraphModule, *settings: object, inputs: Sequence[Any] | None = None
) -> str | None:
    """Compute the key of a partition's model or of a whole graph; None for a graph without a fingerprint, which is not cached.

    It covers everything that the result depends on: the graph, the settings, the versions of all packages and the machine.
    """
    try:
        text = text_of(module, inputs)
    except NoFingerprint:
        return None
    return hashlib.sha256(f"{kind}\n{surroundings()}\n{settings!r}\n{text}".encode()).hexdigest()


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
