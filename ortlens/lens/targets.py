"""What was compiled through a lens: the callables, to call them again, and the graphs behind them."""

from __future__ import annotations

import contextlib
import inspect
from typing import TYPE_CHECKING, Any

import torch

from ortlens import _torch
from ortlens.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ortlens.backend.graph import CompiledGraph
    from ortlens.trace.recorder import Recorder


class CompiledTargets:
    """The targets of one lens.

    Attributes:
        callables: Pairs of a target as the user wrote it and its compiled form, in the order of compilation.
        grad_modes: Whether gradients were enabled, in the compilations so far.
    """

    def __init__(self, recorder: Recorder, *, dry_run: bool) -> None:
        """Begin without targets.

        Args:
            recorder: Holds the live graphs of the lens.
            dry_run: Whether nothing was run, so that nothing can be called.
        """
        self.callables: list[tuple[object, Callable[..., Any]]] = []
        self._names: list[str] = []  # of the callables, each different
        self.grad_modes: set[bool] = set()
        self._recorder = recorder
        self._dry_run = dry_run

    def note_compilation(self) -> str | None:
        """Note the function that Dynamo is compiling now.

        Returns:
            Its name, with a number if another one has the same; None if it is not known.
        """
        self.grad_modes.add(torch.is_grad_enabled())
        found = _torch.compiled_callable()
        if found is None:
            return None
        for place, (known, _) in enumerate(self.callables):
            if known is found[0] or known == found[0]:
                return self._names[place]
        self.callables.append(found)
        name = _name_of(found[0])
        count = sum(1 for known, _ in self.callables if _name_of(known) == name)
        self._names.append(name if count == 1 else f"{name} ({count})")
        return self._names[-1]

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the first target.

        Args:
            args: Positional arguments.
            kwargs: Keyword arguments.

        Returns:
            Its result.

        Raises:
            UsageError: Nothing was compiled through this lens yet, or only a dry run was made.
        """
        if self._dry_run:
            raise UsageError("this lens holds a dry run, which ran nothing; call explain() without dry_run=True first")
        if not self.callables:
            raise UsageError("nothing was compiled through this lens yet; call the compiled function once, then ask again")
        return self.callables[0][1](*args, **kwargs)

    def graphs(self) -> tuple[CompiledGraph, ...]:
        """The graphs of our backend, oldest first, including those that a recompile replaced."""
        from ortlens.backend.graph import CompiledGraph

        return tuple(graph for graph in self._recorder.live if isinstance(graph, CompiledGraph))

    def refuse_ambiguous(self, options: Iterable[str]) -> None:
        """Reject options whose names are also arguments of the target.

        Args:
            options: Names of the options given.

        Raises:
            UsageError: The target has an argument of such a name.
        """
        names: Iterable[str] = ()
        with contextlib.suppress(TypeError, ValueError, IndexError):  # builtins have no signature, and nothing may be compiled yet
            names = inspect.signature(self.callables[0][0]).parameters  # type: ignore[arg-type]  # what was called is callable
        clash = next((name for name in names if name in set(options)), None)
        if clash is not None:
            raise UsageError(
                f"the target takes an argument {clash!r} too; pass it by its place, and leave out the option {clash!r} of verify()"
            )


def _name_of(target: object) -> str:
    wrapped = inspect.unwrap(target) if callable(target) else target
    owner = getattr(wrapped, "__self__", wrapped)
    if isinstance(owner, torch.nn.Module):
        return type(owner).__name__
    return getattr(wrapped, "__name__", type(wrapped).__name__)
