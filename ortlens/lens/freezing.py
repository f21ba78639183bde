"""Freezes what can be traced as one graph; else says where it breaks."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch

from ortlens import _torch
from ortlens.backend.freeze.arguments import (
    named_arguments,
    needed_arguments,
    parameters_of,
    parameters_source,
    refuse_arguments,
    refuse_weights,
)
from ortlens.backend.freeze.frozen import frozen_from, lowered_for
from ortlens.backend.freeze.tracing import DroppedWrite, Untraceable, program_of
from ortlens.errors import UsageError
from ortlens.lens.verify.call_state import CallState
from ortlens.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.export import ExportedProgram

    from ortlens.backend.api import OrtBackend
    from ortlens.backend.freeze.frozen import Frozen
    from ortlens.trace import records as r

_MOST_LISTED = 8
_OPTIONS = {"dynamic", "dynamic_shapes", "fallback", "options"}


def freeze_with(  # noqa: PLR0913 - what `ortlens.freeze` is given, and where the breaks come from
    target: Callable[..., Any] | ExportedProgram,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    given: Mapping[str, Any],
    *,
    backend: OrtBackend,
    breaks: Callable[[], Sequence[r.Break]],
) -> Frozen:
    """Trace a target, compile it and freeze it; `breaks` returns the graph breaks for the message if it is no single graph.

    `given` are the arguments of `ortlens.freeze` that are not the target's, but for the options.
    """
    if not args and not kwargs and (needed := needed_arguments(target)):
        raise UsageError(f"pass the arguments of the call: `ortlens.freeze(model, {', '.join(needed)})`")
    dynamic, dynamic_shapes, fallback = (given[name] for name in ("dynamic", "dynamic_shapes", "fallback"))
    if dynamic and dynamic_shapes is not None:
        raise UsageError("dynamic=True opens all sizes, and dynamic_shapes= some: pass one of them")
    if fallback is not None and not callable(fallback):
        raise UsageError(f"fallback must be callable, not {type(fallback).__name__}")
    try:
        program, asked = _traced(target, args, kwargs, True if dynamic else dynamic_shapes)
    except Untraceable as error:
        raise UsageError(_refusal(target, error, breaks())) from error
    return frozen_from(program, backend, source=target, traced=parameters_source(target), fallback=fallback, asked=asked)


def _traced(
    target: Callable[..., Any] | ExportedProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any], dynamic_shapes: Any
) -> tuple[ExportedProgram, frozenset[str]]:
    if _torch.compiled_ahead(target) is not None:
        raise UsageError("a function that was compiled ahead of time cannot be traced: freeze the model itself")
    refuse_weights(target)
    examples = target.example_inputs if isinstance(target, torch.export.ExportedProgram) else (args, kwargs)
    try:
        named = named_arguments(parameters_source(target), *(examples or ((), {})))
    except ValueError as error:  # a class is registered without names or places of its parts, which torch.export needs as well
        raise Untraceable(str(error)) from error
    refuse_arguments(target, named)
    return program_of(target, args, kwargs, dynamic_shapes)


def tried(
    target: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], backend: OrtBackend, *, converts: bool
) -> Frozen | str | None:
    """Do what `freeze` does, and return its result, or what it would raise or warn of; None where it works and `converts` nothing."""
    if clash := sorted(_OPTIONS & set(kwargs)):
        return f"freeze takes {clash[0]}= as an option"
    state = CallState(target, args, kwargs, parameters=False)  # these are fake in a trace; a tensor that is no buffer is not
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", DroppedWrite)
            program, asked = _traced(target, args, kwargs, None)
        if converts:
            return frozen_from(program, backend, source=target, traced=parameters_source(target), asked=asked)
        lowered_for(_torch.plain_program(program), backend, source=target, traced=parameters_source(target))
    except (UsageError, Untraceable, DroppedWrite) as error:
        return str(error)
    finally:
        state.restore()
    return None


def call_text(target: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Write the call of `freeze` for a target and its arguments, as `ortlens.freeze(model, x, mask=mask)`."""
    name = getattr(target, "__name__", "")
    is_of_model = isinstance(getattr(target, "__self__", None), torch.nn.Module)
    called = "model" if isinstance(target, torch.nn.Module) else f"model.{name}" if is_of_model else name if name.isidentifier() else "f"
    named = named_arguments(parameters_source(target), tuple(range(len(args))), {})
    given = [_argument_text(name, value) for (name, _), value in zip(named, args, strict=True)]
    return f"ortlens.freeze({', '.join([called, *given, *(f'{key}={_argument_text(key, value)}' for key, value in kwargs.items())])})"


def _argument_text(name: str, value: object) -> str:
    return repr(value) if value is None or isinstance(value, (bool, int, float)) else name


def refuse_reserved(target: Any, options: Mapping[str, object]) -> None:
    """Raise `UsageError` if an option given to `freeze`, and not None, is also an argument of the target."""
    taken = parameters_of(parameters_source(target))
    if clash := [name for name, value in options.items() if value is not None and name in taken]:
        raise UsageError(f"the target takes an argument {clash[0]!r} too; pass it by its place, or freeze functools.partial of the target")


def _refusal(target: object, error: Untraceable, breaks: Sequence[r.Break]) -> str:
    name = getattr(target, "__name__", type(target).__name__)
    said = f"{name} cannot be frozen, which takes one graph: tracing raised {error}"
    if not breaks:
        return f"{said}. Change what stops the trace, or freeze a part of the model"
    placed = [(f"{item.file}:{item.line}" if item.file else "unknown place", item) for item in breaks[:_MOST_LISTED]]
    lines = [f"  {place}: {item.reason}." + (f" {item.advice.rstrip('.')}." if item.advice else "") for place, item in placed]
    more = [f"  and {len(breaks) - _MOST_LISTED} more"] if len(breaks) > _MOST_LISTED else []
    listed = "\n".join([*lines, *more])
    return f"{said}. torch.compile breaks the graph at {counted(len(breaks), 'place')}:\n{listed}\nMend them, or freeze a part of the model"
