"""`explain()`: compile a target, call it, and return the lens over it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ortlens import _torch
from ortlens.errors import UsageError
from ortlens.lens.generating import Generating, is_generate
from ortlens.lens.lens import Lens
from ortlens.lens.measuring.ledger_pass import MAX_CALLS
from ortlens.progress import progress

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from torch.export import ExportedProgram

    from ortlens.backend.options import OrtBackendOptions

_STABLE_NS = 1_000_000_000  # explain() calls for about a second
_MANY_MODULES = 100  # a BERT of four layers has 80, and takes about two seconds to compile


def explain(  # noqa: PLR0913 - the contract's own signature
    target: Callable[..., Any] | ExportedProgram,
    *,
    backend: str | Callable[..., Any] = "ortlens",
    options: OrtBackendOptions | Mapping[str, Any] | None = None,
    dry_run: bool = False,
    dynamic: bool | None = None,
    calls: int | None = None,
    name: str | None = None,
) -> Callable[..., Lens]:
    """Compile a function or module, call it, and return the lens over it. Curried like `torch._dynamo.explain`.

    Other compilations of the same function are not affected. The caller's gradient mode applies: under `torch.no_grad()` the
    inference graph is compiled, otherwise the forward graph of a training step.

    Args:
        target: A function, an `nn.Module`, or a `torch.export.ExportedProgram`, which is compiled without Dynamo. Of `model.generate`,
            the model is compiled, in place while the call lasts; prefill and decode are timed apart.
        backend: As for `Lens`.
        options: As for `Lens`.
        dry_run: Analyse under fake tensors: graphs, partitions, reasons, FLOPs and bytes, without memory for weights and
            without running anything. The model may be real, on the meta device, or built under a fake tensor mode. If the
            model's own Python asks a tensor for its values, the analysis ends with a finding.
        dynamic: As for `torch.compile`.
        calls: Number of calls, including the first; by default until the figures are stable, at most about a second, in turns
            with calls of the target as it is, to compare with. Set 1 for targets with side effects.
        name: Name of the capture; by default the target's.

    Returns:
        A callable of the target's arguments that returns the `Lens`.

    Raises:
        UsageError: `calls` is not a positive number, or the target cannot be called.

    Example:
        >>> import torch, ortlens
        >>> lens = ortlens.explain(torch.nn.Linear(4, 2), calls=1)(torch.ones(3, 4))
        >>> float(lens.graphs.coverage.iloc[0])
        1.0
    """
    if not callable(target):  # an ExportedProgram is callable too: it raises when called
        raise UsageError(f"explain() takes a function, a module or an exported program, not {type(target).__name__}")
    if calls is not None and (not isinstance(calls, int) or calls < 1):
        raise UsageError(f"calls must be a whole number from 1, not {calls!r}")

    def run(*args: Any, **kwargs: Any) -> Lens:
        lens = Lens(backend, options=options, name=name or _name_of(target), dry_run=dry_run)
        explain_under(lens, target, args, kwargs, dry_run=dry_run, dynamic=dynamic, calls=calls)
        return lens

    return run


def explain_under(  # noqa: PLR0913 - those of `explain`
    lens: Lens,
    target: Callable[..., Any] | ExportedProgram,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    dry_run: bool = False,
    dynamic: bool | None = None,
    calls: int | None = None,
) -> None:
    """Like `explain`, with an existing lens, which keeps what it recorded if the target raises.

    Args:
        lens: A lens that has recorded nothing yet.
        target: As for `explain`.
        args: Arguments of the target.
        kwargs: Likewise.
        dry_run: As for `explain`, and as the lens was made.
        dynamic: As for `explain`.
        calls: Likewise.
    """
    lens.know_module(target)
    with _torch.isolated_compilations() as apart:
        generating = Generating(target, partial(torch.compile, backend=lens, dynamic=dynamic, **apart)) if is_generate(target) else None
        if generating is not None:
            lens.know_generating(target, generating)
        plain, fast = (
            (target, _compiled(target, lens, dynamic=dynamic, apart=apart))
            if generating is None
            else (generating.uncompiled, generating.compiled)
        )
        if dry_run:
            with _compiling(target):
                lens.try_with_fakes(target, fast, args, dict(kwargs))
        else:
            lens.result = _called(lens, target, lambda: fast(*args, **kwargs), _uncompiled(plain, args, kwargs), calls)


def _compiled(
    target: Callable[..., Any] | ExportedProgram, lens: Lens, *, dynamic: bool | None, apart: dict[str, Any]
) -> Callable[..., Any]:
    if isinstance(target, torch.export.ExportedProgram):
        return lens.compile_exported(target)
    return torch.compile(target, backend=lens, dynamic=dynamic, **apart)


def _uncompiled(target: Callable[..., Any] | ExportedProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[[], Any] | None:
    """Calls the target as it is; an exported program cannot be called."""
    return None if isinstance(target, torch.export.ExportedProgram) else lambda: target(*args, **kwargs)


def _called(lens: Lens, target: Any, call: Callable[[], Any], uncompiled: Callable[[], Any] | None, calls: int | None) -> Any:
    """Call once to compile, then for stable figures with a clock around every graph; returns the result of the last call."""
    with _compiling(target):
        result = call()
    if calls == 1:
        return result
    if calls:  # whoever counts the calls may have reasons to
        return lens.measured(call, max_calls=calls - 1, budget_ns=None)
    return lens.measured(call, max_calls=MAX_CALLS - 1, budget_ns=_STABLE_NS, uncompiled=uncompiled)


def _compiling(target: Any) -> AbstractContextManager[object]:
    """Progress of a first call. PyTorch does not report the progress of tracing, which takes seconds for many modules."""
    model = getattr(target, "__self__", target)
    modules = sum(1 for _ in model.modules()) if isinstance(model, torch.nn.Module) else 0
    return progress(f"tracing {_name_of(target)}", 0, "", at_once=modules > _MANY_MODULES)


def _name_of(target: Any) -> str:
    return getattr(target, "__name__", None) or type(target).__name__
