"""The fingerprint of a graph: a text that is equal for graphs that the backend compiles alike, in this process and in later ones.

A fingerprint that leaves something out leads to wrong results, one that includes too much leads to cache misses. A graph that
contains anything not known to be safe has no fingerprint and is always compiled.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import pathlib
import platform
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.fx

import ortlens
from ortlens import _torch
from ortlens._versions import installed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


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
    given = iter(() if inputs is None else inputs)
    lines = []
    for node in module.graph.nodes:
        value = next(given) if inputs is not None and node.op == "placeholder" else node.meta.get("val")
        lines.append(_line(module, node, value))
    return "\n".join(lines)


def state_text() -> str:
    """Describe the process-wide settings of PyTorch that change what a graph computes."""
    autocast = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")]
    modes = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.are_deterministic_algorithms_enabled())
    return f"{autocast} {modes} {torch.get_default_dtype()} {[_torch.allows_tf32(kind) for kind in ('matmul', 'conv', 'rnn')]}"


def _line(module: torch.fx.GraphModule, node: torch.fx.Node, seen: Any) -> str:
    value = _constant(module, node) if node.op == "get_attr" else _value(seen)
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


def _constant(module: torch.fx.GraphModule, node: torch.fx.Node) -> str:
    tensor: Any = module
    for part in str(node.target).split("."):
        tensor = getattr(tensor, part)
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided or _torch.is_fake(tensor):
        raise NoFingerprint(f"constant {node.target} has no stable text")
    return f"{_value(tensor)}={hashlib.sha256(b''.join(_bytes_of(tensor))).hexdigest()}"


def _bytes_of(tensor: torch.Tensor) -> Iterator[bytes]:
    if tensor.numel():
        yield tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


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
