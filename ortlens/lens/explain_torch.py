"""What `explain` does with a target of PyTorch: compile it, call it, measure."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ortlens import _torch
from ortlens.backend.freeze.frozen import Frozen
from ortlens.lens.generating import Generating, is_generate
from ortlens.lens.measuring.ledger_pass import MAX_CALLS
from ortlens.progress import progress

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from torch.export import ExportedProgram

    from ortlens.lens.lens import Lens

_STABLE_NS = 1_000_000_000  # explain() calls for about a second
_MANY_MODULES = 100  # a BERT of four layers has 80, and takes about two seconds to compile


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
    """Explain as `explain` does, with a lens that has recorded nothing yet; it keeps what it recorded if the target raises.

    `dry_run` must be as the lens was made.
    """
    lens.know_module(target)
    lens.set_example(args, kwargs)
    lens.trace_again(target)
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
    if isinstance(target, Frozen):
        return lens.compile_frozen(target)
    return torch.compile(target, backend=lens, dynamic=dynamic, **apart)


def _uncompiled(target: Callable[..., Any] | ExportedProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[[], Any] | None:
    """Return a call of the target as it is; None for an exported program, which cannot be called."""
    source = target.source if isinstance(target, Frozen) else target
    return None if isinstance(source, torch.export.ExportedProgram) else lambda: source(*args, **kwargs)


def _called(lens: Lens, target: Any, call: Callable[[], Any], uncompiled: Callable[[], Any] | None, calls: int | None) -> Any:
    """Call once to compile, then for stable figures with a clock around every graph; return the result of the last call."""
    fast, plain = _Counted(call), None if uncompiled is None else _Counted(uncompiled)
    try:
        with _compiling(target):
            result = fast()
        if calls == 1:
            return result
        if calls:  # whoever counts the calls may have reasons to
            return lens.measured(fast, made=1, max_calls=calls - 1, budget_ns=None)
        return lens.measured(fast, made=1, max_calls=MAX_CALLS - 1, budget_ns=_STABLE_NS, uncompiled=plain)
    finally:
        lens.know_calls(fast.made, plain.made if plain is not None else 0)


class _Counted:
    """Calls the target, and counts: what it changes besides its result, it changes as often."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self.made = 0

    def __call__(self) -> Any:
        self.made += 1
        return self._call()


def _compiling(target: Any) -> AbstractContextManager[object]:
    """Show the progress of a first call. PyTorch does not report that of tracing, which takes seconds for many modules."""
    model = getattr(target, "__self__", target)
    modules = sum(1 for _ in model.modules()) if isinstance(model, torch.nn.Module) else 0
    return progress(f"tracing {name_of(target)}", 0, "", at_once=modules > _MANY_MODULES)


def name_of(target: Any) -> str:
    """Return the name of a target, or of its class."""
    return getattr(target, "__name__", None) or type(target).__name__
