"""Freezes what can be traced as one graph; else says where it breaks."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend.freeze.arguments import Untraceable, named_arguments, parameters_source, program_of, refuse_arguments, refuse_weights
from ortlens.backend.freeze.frozen import frozen_from
from ortlens.errors import UsageError
from ortlens.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.export import ExportedProgram

    from ortlens.backend.api import OrtBackend
    from ortlens.backend.freeze.frozen import Frozen
    from ortlens.trace import records as r

_MOST_LISTED = 8


def freeze_with(  # noqa: PLR0913 - those of `ortlens.freeze`, and where the breaks come from
    target: Callable[..., Any] | ExportedProgram,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    backend: OrtBackend,
    breaks: Callable[[], Sequence[r.Break]],
    dynamic: bool | None = None,
    dynamic_shapes: Any = None,
    fallback: Callable[..., Any] | None = None,
) -> Frozen:
    """Trace a target, compile it and freeze it; `breaks` returns the graph breaks for the message if it is no single graph."""
    if dynamic and dynamic_shapes is not None:
        raise UsageError("dynamic=True opens all sizes, and dynamic_shapes= some: pass one of them")
    if fallback is not None and not callable(fallback):
        raise UsageError(f"fallback must be callable, not {type(fallback).__name__}")
    refuse_weights(target)
    examples = target.example_inputs if isinstance(target, torch.export.ExportedProgram) else (args, kwargs)
    refuse_arguments(target, named_arguments(parameters_source(target), *(examples or ((), {}))))
    try:
        program, asked = program_of(target, args, kwargs, True if dynamic else dynamic_shapes)
    except Untraceable as error:
        raise UsageError(_refusal(target, error, breaks())) from error
    return frozen_from(program, backend, source=target, traced=parameters_source(target), fallback=fallback, asked=asked)


def refuse_reserved(target: object, options: Mapping[str, object]) -> None:
    """Raise `UsageError` if an option given to `freeze`, and not None, is also an argument of the target."""
    source = parameters_source(target) if callable(target) else None
    try:
        taken = () if source is None else inspect.signature(source).parameters
    except (TypeError, ValueError):  # builtins have no signature
        return
    if clash := [name for name, value in options.items() if value is not None and name in taken]:
        raise UsageError(f"the target takes an argument {clash[0]!r} too; pass it by its place, or freeze functools.partial of the target")


def _refusal(target: object, error: Untraceable, breaks: Sequence[r.Break]) -> str:
    name = getattr(target, "__name__", type(target).__name__)
    said = f"{name} cannot be frozen, which takes one graph: tracing raised {error}"
    if not breaks:
        return f"{said}. Change what stops the trace, or freeze a part of the model"
    placed = [(f"{item.file}:{item.line}" if item.file else "unknown place", item) for item in breaks[:_MOST_LISTED]]
    lines = [f"  {place}: {item.reason}." + (f" {item.advice}" if item.advice else "") for place, item in placed]
    more = [f"  and {len(breaks) - _MOST_LISTED} more"] if len(breaks) > _MOST_LISTED else []
    listed = "\n".join([*lines, *more])
    return f"{said}. torch.compile breaks the graph at {counted(len(breaks), 'place')}:\n{listed}\nMend them, or freeze a part of the model"
