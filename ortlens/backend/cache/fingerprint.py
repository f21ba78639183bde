"""What a graph is, as text: equal for graphs that mean the same to the backend, in this process and in the next.

A key that leaves something out gives wrong answers, one that holds too much gives none from the cache. So whatever is not known
to be safe makes a graph nameless, and a nameless graph is compiled anew.
"""

from __future__ import annotations

import functools
import hashlib
import pathlib
import platform
from typing import TYPE_CHECKING, Any

import onnx_ir
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


class Nameless(Exception):  # noqa: N818 - said of a graph, caught where it is asked for
    """A graph holds something that has no lasting name."""


@functools.cache
def surroundings() -> str:
    """What an entry depends on beside the graph: the versions of everything that takes part, this code included, and the machine.

    Returns:
        One line.
    """
    versions = " ".join(f"{name}={version}" for name, version in sorted(installed().items()))
    return f"{versions} onnx-ir={onnx_ir.__version__} python={platform.python_version()} machine={platform.machine()} code={_own_code()}"


def _own_code() -> str:
    """A digest of the sources that make a model: a working copy changes without changing its version."""
    package = pathlib.Path(ortlens.__file__).parent
    digest = hashlib.sha256()
    for room in _MAKES_MODELS:
        for path in sorted((package / room).rglob("*.py")):
            digest.update(str(path.relative_to(package)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def text_of(module: torch.fx.GraphModule, inputs: Sequence[Any] | None = None) -> str:
    """A graph as text: its operators, arguments, constants, and the dtype, shape and layout of every value.

    Args:
        module: An ATen graph, its nodes with `meta["val"]`; or a graph of Dynamo's, whose values follow from its inputs.
        inputs: The inputs of a graph of Dynamo's.

    Returns:
        Lines, one per node.

    Raises:
        Nameless: An operator, an argument or a constant has no lasting name.
    """
    given = iter(() if inputs is None else inputs)
    lines = []
    for node in module.graph.nodes:
        value = next(given) if inputs is not None and node.op == "placeholder" else node.meta.get("val")
        lines.append(_line(module, node, value))
    return "\n".join(lines)


def state_text() -> str:
    """What PyTorch does with a graph beside what the graph says: its process-wide switches."""
    autocast = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")]
    modes = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.are_deterministic_algorithms_enabled())
    return f"{autocast} {modes} {torch.get_default_dtype()} {torch.get_float32_matmul_precision()}"


def _line(module: torch.fx.GraphModule, node: torch.fx.Node, seen: Any) -> str:
    value = _constant(module, node) if node.op == "get_attr" else _value(seen)
    kwargs = ", ".join(f"{key}={_argument(item)}" for key, item in sorted(node.kwargs.items()))
    return f"{node.op} {node.name} {_target(node)} ({', '.join(_argument(item) for item in node.args)}) {{{kwargs}}} -> {value}"


def _target(node: torch.fx.Node) -> str:
    if node.op == "call_module":
        raise Nameless(f"module {node.target} is more than its name says")
    if isinstance(node.target, str):
        return node.target
    name = _torch.qualified_name(node.target)
    known = name is not None and name.startswith(("_operator.", "math.", "builtins.", "torch."))
    if name is None or not known or (name.startswith("torch.ops.") and name.split(".")[2] not in _KNOWN_NAMESPACES):
        raise Nameless(f"{node.target} is not PyTorch's own")  # what it does may change behind its name
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
    raise Nameless(f"argument {type(item).__name__} has no lasting name")


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
    raise Nameless(f"a value of type {type(value).__name__} has no lasting name")


def _size(size: Any) -> str:
    """A size; of a symbolic one also what it was while tracing, which decides on layouts."""
    return str(size) if isinstance(size, int) else f"{_torch.expression_of(size)}~{_torch.size_hint(size)}"


def _constant(module: torch.fx.GraphModule, node: torch.fx.Node) -> str:
    tensor: Any = module
    for part in str(node.target).split("."):
        tensor = getattr(tensor, part)
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided or _torch.is_fake(tensor):
        raise Nameless(f"constant {node.target} has no lasting name")
    return f"{_value(tensor)}={hashlib.sha256(b''.join(_bytes_of(tensor))).hexdigest()}"


def _bytes_of(tensor: torch.Tensor) -> Iterator[bytes]:
    if tensor.numel():
        yield tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
