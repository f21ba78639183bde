"""From a function or module and its arguments to an exported program, in one graph."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import torch

from ortlens import _torch
from ortlens.backend.lowering.user_frames import Frame, innermost, is_model_code
from ortlens.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch.export import ExportedProgram


class Untraceable(Exception):  # noqa: N818 - a verdict on the target; its cause says why
    """A target is no single graph, or PyTorch cannot trace it."""


def program_of(
    target: Callable[..., Any] | ExportedProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any], dynamic_shapes: Any
) -> ExportedProgram:
    """Trace a target once, without gradients.

    Args:
        target: A function, a module, or an exported program, which is returned as it is.
        args: Its arguments.
        kwargs: Likewise.
        dynamic_shapes: As for `torch.export.export`; True for all sizes that PyTorch finds it can leave open; None for fixed sizes.

    Returns:
        The program; parameters and buffers are shared with the target.

    Raises:
        Untraceable: PyTorch cannot trace it.
        UsageError: The target cannot be called, or sizes are given for a program that has them.
    """
    if isinstance(target, torch.export.ExportedProgram):
        if args or kwargs or dynamic_shapes is not None:
            raise UsageError("an exported program is frozen as it was traced: leave out arguments and dynamic_shapes")
        return target
    if not callable(target):
        raise UsageError(f"freeze() takes a function, a module or an exported program, not {type(target).__name__}")
    module = target if isinstance(target, torch.nn.Module) else _module_of(target)
    shapes: Any = _open_sizes((args, dict(kwargs))) if dynamic_shapes is True else dynamic_shapes
    try:
        with _torch.quiet(), torch.no_grad(), _torch.unchecked_distributions():
            program: ExportedProgram = torch.export.export(module, args, dict(kwargs), dynamic_shapes=shapes, strict=False)
    except Exception as error:
        raise Untraceable(f"{type(error).__name__}{_place_of(error)}: {str(error).strip().split(chr(10))[0]}") from error
    return program


def _place_of(error: Exception) -> str:
    """The line of the model at which a trace stopped; empty where PyTorch did not run its code."""
    frames = [Frame(frame.filename, frame.lineno or 0, frame.name) for frame in traceback.extract_tb(error.__traceback__)]
    found = innermost([frame for frame in frames if is_model_code(frame) and not frame.file.startswith("<")])
    return "" if found is None else f" at {found.file}:{found.line}"


def _module_of(function: Callable[..., Any]) -> torch.nn.Module:
    """A function as a module with its signature; the module of a method is registered, so that its weights have names."""
    made = torch.nn.Module()
    owner = getattr(function, "__self__", None)
    if isinstance(owner, torch.nn.Module):
        made.owner = owner
    made.forward = function
    return made


def parameters_source(target: Callable[..., Any] | ExportedProgram) -> Callable[..., Any] | None:
    """The function whose signature a target has.

    Args:
        target: As for `program_of`.

    Returns:
        The function; None for an exported program.
    """
    if isinstance(target, torch.export.ExportedProgram):
        return None
    return target.forward if isinstance(target, torch.nn.Module) else target


def _open_sizes(tree: Any) -> Any:
    """All sizes of all tensors, as far as PyTorch finds that they may vary."""
    shapes: Any = torch.export.ShapesCollection()  # type: ignore[no-untyped-call]  # torch has no annotations here
    for tensor in _torch.tensors_of(tree):
        shapes[tensor] = dict.fromkeys(range(tensor.dim()), torch.export.Dim.AUTO)
    return shapes
