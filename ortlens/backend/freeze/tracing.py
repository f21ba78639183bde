"""From a function or module and its arguments to an exported program, in one graph."""

from __future__ import annotations

import inspect
import traceback
from typing import TYPE_CHECKING, Any

import torch
import torch.overrides

from ortlens import _torch
from ortlens.backend.lowering.provenance import Frame, innermost, is_model_code
from ortlens.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch.export import ExportedProgram


class Untraceable(Exception):  # noqa: N818 - a verdict on the target; its cause says why
    """A target is no single graph, or PyTorch cannot trace it."""


def program_of(
    target: Callable[..., Any] | ExportedProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any], dynamic_shapes: Any
) -> tuple[ExportedProgram, frozenset[str]]:
    """Trace a target once, without gradients; an exported program is returned as it is.

    The program shares parameters and buffers with the target. With it comes what the target's code asked about the layout of tensors.
    `dynamic_shapes` is as for `torch.export.export`, or True for all sizes that PyTorch can leave open, None for fixed sizes.
    """
    if isinstance(target, torch.export.ExportedProgram):
        if args or kwargs or dynamic_shapes is not None:
            raise UsageError("an exported program is frozen as it was traced: leave out arguments and dynamic_shapes")
        return target, frozenset()
    if not callable(target):
        raise UsageError(f"freeze() takes a function, a module or an exported program, not {type(target).__name__}")
    module = target if isinstance(target, torch.nn.Module) else _module_of(target)
    args, named = _apart((args, dict(kwargs)))
    shapes: Any = _open_sizes((args, named)) if dynamic_shapes is True else dynamic_shapes
    questions = _LayoutQuestions()
    try:
        # What torch imports when a trace with `cond` fails for the first time draws random numbers.
        with torch.random.fork_rng(devices=()), _torch.quiet(), torch.no_grad(), _torch.unchecked_distributions(), questions:
            program: ExportedProgram = torch.export.export(module, args, named, dynamic_shapes=shapes, strict=False)
    except Exception as error:
        raise Untraceable(f"{type(error).__name__}{_place_of(error)}: {str(error).strip().split(chr(10))[0]}") from error
    return program, frozenset(questions.asked)


class _LayoutQuestions(torch.overrides.TorchFunctionMode):
    """Notes what the model's own code asks about the layout of tensors while it is traced: a trace has only one of the answers."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _QUESTIONS and _is_asked_by_model():
            self.asked.add(name)
        if func is torch.Tensor.contiguous:  # which leaves no trace where it returns the tensor itself
            return _contiguous(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _contiguous(tensor: torch.Tensor, *, memory_format: torch.memory_format = torch.contiguous_format) -> torch.Tensor:
    made: torch.Tensor = torch.ops.aten.contiguous.default(tensor, memory_format=memory_format)
    return made


_QUESTIONS = frozenset({"is_contiguous", "stride", "storage_offset"})


def _is_asked_by_model() -> bool:
    """Tell whether model code, not torch's, called what is being traced; other modes may lie in between."""
    frame = inspect.currentframe()
    while frame is not None and (frame.f_code.co_name == "__torch_function__" or frame.f_globals.get("__name__") in _BETWEEN):
        frame = frame.f_back
    return frame is not None and is_model_code(Frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))


_BETWEEN = frozenset({__name__, "torch._export.non_strict_utils", "torch.overrides"})


def _apart(tree: Any) -> Any:
    """Give tensors among examples that share memory memory of their own: tracing takes them for separate ones, and so do calls."""
    storages: set[int] = set()

    def own(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided or _torch.is_fake(leaf):
            return leaf
        known, address = len(storages), leaf.untyped_storage().data_ptr()
        storages.add(address)
        return leaf.detach().clone() if address and len(storages) == known else leaf

    leaves, spec = _torch.flatten(tree)
    return _torch.unflatten([own(leaf) for leaf in leaves], spec)


def _place_of(error: Exception) -> str:
    """Find the line of the model at which a trace stopped; empty where PyTorch did not run its code."""
    frames = [Frame(frame.filename, frame.lineno or 0, frame.name) for frame in traceback.extract_tb(error.__traceback__)]
    found = innermost([frame for frame in frames if is_model_code(frame) and not frame.file.startswith("<")])
    return "" if found is None else f" at {found.file}:{found.line}"


def _module_of(function: Callable[..., Any]) -> torch.nn.Module:
    """Wrap a function in a module with its signature; the module of a method is registered, so that its weights have names."""
    made = torch.nn.Module()
    owner = getattr(function, "__self__", None)
    if isinstance(owner, torch.nn.Module):
        made.owner = owner
    made.forward = function
    return made


def parameters_source(target: Callable[..., Any] | ExportedProgram) -> Callable[..., Any] | None:
    """Return the function whose signature a target has; None for an exported program."""
    if isinstance(target, torch.export.ExportedProgram):
        return None
    return target.forward if isinstance(target, torch.nn.Module) else target


def _open_sizes(tree: Any) -> Any:
    shapes: Any = torch.export.ShapesCollection()  # type: ignore[no-untyped-call]  # torch has no annotations here
    for tensor in _torch.tensors_of(tree):
        shapes[tensor] = dict.fromkeys(range(tensor.dim()), torch.export.Dim.AUTO)
    return shapes
