"""The origin and the cost of an FX node: user line, module path, shape, bytes, FLOPs."""

from __future__ import annotations

import functools
import linecache
import math
import operator
import os
import pathlib
import re
import sysconfig
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ortlens import _torch
from ortlens._shell import display_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_ROOMS = ("_torch", "backend", "cli", "job", "lens", "magic")
"""Folders in which ortlens itself calls or compiles the user's code; `demo` counts as user code."""

_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_WRAPPERS = frozenset({"inner", "new_forward", "decorated", "decorate_context", "func", "_fn"})
"""Functions that libraries put around a model's own: decorators of transformers, hooks of accelerate."""


class StackFrame(NamedTuple):
    """One frame of a stack."""

    file: str  # file name of the code
    line: int  # line number
    function: str  # name of the function


def innermost(frames: Sequence[StackFrame]) -> StackFrame | None:
    """Choose the frame that a reader would change, from frames with the outermost first; None without frames.

    It is the innermost one of the user's code, or of an installed package that the model is of, since the stack has a `forward` of it; if
    there is none, the innermost of model code (see `is_model_code`), or outside torch; else the innermost.
    """
    models = {_package(frame.file) for frame in frames if "forward" in frame.function and is_model_code(frame)}
    for serves in (lambda frame: is_model_code(frame) and _package(frame.file) in (None, *models), is_model_code, _is_outside_torch, bool):
        for frame in reversed(frames):
            if serves(frame):
                return frame
    return None


def is_wrapper(frame: StackFrame) -> bool:
    """Tell whether a frame is of a function that an installed library, not the user, puts around another."""
    return _is_installed(frame.file) and (frame.function in _WRAPPERS or "wrap" in frame.function)


def is_of_torch_or_ortlens(file: str) -> bool:
    """Tell whether a file, or a text that begins with its name, is torch's or of the part of ortlens that runs the user's code."""
    return file.startswith(_MACHINERY)


def is_of_a_library(file: str) -> bool:
    """Tell whether a file belongs to torch or to another installed library, such as one that holds models."""
    return is_of_torch_or_ortlens(file) or _is_installed(file)


def is_model_code(frame: StackFrame) -> bool:
    """Tell whether a frame is of the user's code or a model's, not of torch, Python's library, ortlens or a library's wrapper."""
    if is_of_torch_or_ortlens(frame.file) or frame.file.startswith("<frozen "):
        return False
    return not is_wrapper(frame) and (_is_installed(frame.file) or not frame.file.startswith(_PYTHON_LIBRARY))


def _is_installed(file: str) -> bool:
    return _package(file) is not None


def _package(file: str) -> str | None:
    """Name the installed package that a file is of; None for the user's and Python's."""
    return next((file.rpartition(folder)[2].partition(os.sep)[0] for folder in _INSTALLED if folder in file), None)


def _is_outside_torch(frame: StackFrame) -> bool:
    return not frame.file.startswith(_torch.torch_folder())


_PACKAGE = pathlib.Path(__file__).parents[2]
_MACHINERY = (_torch.torch_folder(), str(_PACKAGE / "_os_errors.py"), *(f"{_PACKAGE / room}{os.sep}" for room in _ROOMS))
_PYTHON_LIBRARY = tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib")})


_FRAME = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)$')
_TABLES = ("_modules", "_parameters", "_buffers")
_INDEX = re.compile(r"\[(?:'([^']*)'|\"([^\"]*)\"|(\d+))\]")
_MANY = 1 << 14


class UserLine(NamedTuple):
    """The line of the user's code that a node comes from; all None if it is unknown."""

    file: str | None
    line: int | None
    source: str | None


class ModulePath(NamedTuple):
    """The nn.Module that a node comes from; both None for plain functions."""

    path: str | None
    type: str | None


def user_line(node: torch.fx.Node) -> UserLine:
    """Find the innermost line of the user's code or of a model's, see `innermost`; for a backward node that of its forward node."""
    trace = node.meta.get("stack_trace")
    if not trace:
        return UserLine(None, None, None)
    line = _user_line_of(trace)
    shown = line.file and display_name(line.file)
    return line if shown == line.file else line._replace(file=shown)


@functools.lru_cache(maxsize=4096)
def _user_line_of(trace: str) -> UserLine:
    found = filter(None, map(_FRAME.match, trace.splitlines()))
    frame = innermost([StackFrame(match["file"], int(match["line"]), match["function"]) for match in found])
    return UserLine(None, None, None) if frame is None else UserLine(frame.file, frame.line, linecache.getline(*frame[:2]).strip() or None)


def call_like(like: torch.fx.Node, target: Any, args: tuple[Any, ...], value: Any, **kwargs: Any) -> torch.fx.Node:
    """Make a call in the graph of a node, with its line and module, and the call's own example value."""
    made = like.graph.call_function(target, args, kwargs)
    made.meta = {**like.meta, "val": value}
    return made


def module_path(node: torch.fx.Node) -> ModulePath:
    """Find the innermost module on a node's stack, or that of its forward node; the path is as in `named_modules()`."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ModulePath(None, None)
    path, kind = list(stack.values())[-1]
    name = kind if isinstance(kind, str) else getattr(kind, "__qualname__", str(kind))
    return ModulePath(_plain_path(str(path)), str(name).rsplit(".", 1)[-1])


@functools.lru_cache(maxsize=4096)
def _plain_path(path: str) -> str:
    """Convert `L['self'].layers[0].attn` to `layers.0.attn`."""
    parts = _parts(path)
    while parts and parts[0] in ("L", "G", "self", "fn", "mod"):
        parts.pop(0)
    return ".".join(parts)


def _parts(path: str) -> list[str]:
    text = _INDEX.sub(lambda m: "." + next(group for group in m.groups() if group is not None), path)
    return [part for part in text.split(".") if part and part not in _TABLES]


def input_name(source: str | None, position: int) -> str:
    """Name an input of a graph: a parameter as in `named_parameters()`, or an argument.

    `layers.0.weight` for `L['self']._modules['layers']._modules['0']._parameters['weight']`, `x` for `L['x']`; else its position.
    """
    if source is None:
        return f"input_{position}"
    parts = _parts(source)
    if any(table in source for table in _TABLES):
        parts = parts[2:] if parts[0] in ("L", "G") else parts[1:]  # without the module itself, whatever the function calls it
    elif parts and parts[0] in ("L", "G"):
        parts = parts[1:]
    if len(parts) > 1 and parts[0] == "kwargs":
        parts = parts[1:]  # a decorator passes the caller's keyword arguments on
    return ".".join(parts) or f"input_{position}"


def target_name(node: torch.fx.Node) -> str:
    """Return the name of an operator, such as `aten.add.Tensor`."""
    target = node.target
    module = getattr(target, "__module__", "") or ""
    if hasattr(target, "_schema"):
        return str(target)
    name = getattr(target, "__name__", str(target))
    return f"{module.removeprefix('_')}.{name}" if module in ("_operator", "math") else str(name)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a value that is a tensor, None, a number or a nest of sequences."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def tensor_bytes(value: Any) -> int:
    """Count the bytes of all tensors in a value, with hints for symbolic sizes."""
    return sum(functools.reduce(lambda n, d: n * _torch.size_hint(d), t.shape, 1) * t.element_size() for t in tensors_in(value))


def is_large(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor has so many numbers that a faster kernel of PyTorch is worth two partitions instead of one."""
    return math.prod(map(_torch.size_hint, tensor.shape)) >= _MANY


def node_bytes(node: torch.fx.Node) -> int:
    """Count the bytes of all tensors that a node reads and writes."""
    return tensor_bytes(node.meta.get("val")) + sum(tensor_bytes(source.meta.get("val")) for source in node.all_input_nodes)


def node_flops(node: torch.fx.Node) -> int:
    """Count FLOPs by the formulas of `torch.utils.flop_counter`; 0 for all but matrix products, convolutions and attention."""
    from torch.utils.flop_counter import flop_registry

    formula = flop_registry.get(getattr(node.target, "overloadpacket", None))
    if formula is None:
        return 0
    args = _concrete([getattr(a, "meta", {}).get("val", a) if hasattr(a, "meta") else a for a in node.args])
    kwargs = {k: _concrete(getattr(v, "meta", {}).get("val", v) if hasattr(v, "meta") else v) for k, v in node.kwargs.items()}
    try:
        return int(formula(*args, **kwargs, out_val=_concrete(node.meta.get("val"))))
    except Exception:  # noqa: BLE001 - a formula of torch may not accept all arguments of its operator; then the figure is missing
        return 0


def _concrete(value: Any) -> Any:
    """Make meta tensors with hints instead of symbols: the formulas multiply sizes and must not add guards."""
    if isinstance(value, torch.Tensor):
        return torch.empty([_torch.size_hint(d) for d in value.shape], dtype=value.dtype, device="meta")
    if isinstance(value, (list, tuple)):
        return [_concrete(item) for item in value]
    return _torch.size_hint(value) if _torch.is_symbolic(value) else value


def shape_text(value: Any) -> tuple[int | str, ...] | None:
    """Return the shape of the first tensor in a value, with symbolic sizes as text; None when there is no tensor."""
    first = next(tensors_in(value), None)
    return None if first is None else tuple(d if isinstance(d, int) else str(d) for d in first.shape)


def dtype_text(value: Any) -> str | None:
    """Return the dtype of the first tensor, such as `float32`; `int`, `float` or `bool` for symbolic numbers; None without a value."""
    first = next(tensors_in(value), None)
    if first is not None:
        return str(first.dtype).removeprefix("torch.")
    kind = type(value).__name__
    return {"SymInt": "int", "SymFloat": "float", "SymBool": "bool"}.get(kind, kind if value is not None else None)


def layout_text(tensor: torch.Tensor) -> str:
    """Write the dtype, sizes and strides of a tensor: to compare symbols themselves would add guards."""
    return f"{tensor.dtype} {list(map(str, tensor.shape))} {list(map(str, tensor.stride()))}"


def attribute_of(node: torch.fx.Node) -> object:
    """Return the attribute that a `get_attr` node reads; None for every other node."""
    owner = node.graph.owning_module
    if node.op != "get_attr" or owner is None:
        return None
    found: object = operator.attrgetter(str(node.target))(owner)
    return found


def needs_gradient(inputs: Sequence[Any]) -> bool:
    """Tell whether calls are part of a training step: gradients are enabled and some input requires one."""
    return torch.is_grad_enabled() and any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs)


def operations(module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    """List the calls of functions, methods and modules in a Dynamo graph."""
    return [node for node in module.graph.nodes if node.op in ("call_function", "call_method", "call_module")]


def count_ops(module: torch.fx.GraphModule) -> int:
    """Count the operations of a Dynamo graph."""
    return len(operations(module))
