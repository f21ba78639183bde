"""A lens over a whole process: every `torch.compile` in it, each on its own backend or all on one."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from ortlens import _torch
from ortlens.lens.capture import CaptureLens
from ortlens.lens.lens import Lens
from ortlens.lens.other_backends import is_ours
from ortlens.trace.recorder import CURRENT

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    import torch.fx

_FORWARDED = ("__name__", "compiler_name", "get_compiler_config", "reset")
"""What Dynamo asks a backend for besides calling it."""


class ProcessLens(CaptureLens):
    """Records what every `torch.compile` of a process compiles."""

    def __init__(
        self,
        backend: str | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        name: str | None = None,
        journal: str | os.PathLike[str] | None = None,
    ) -> None:
        """Begin without a compilation; all of them use `backend`, or each its own if it is None."""
        super().__init__(backend or "ortlens", options=options if backend else None, name=name, journal=journal)
        self._forced = None if backend is None else self._ort or self._foreign
        self._own_names: dict[str, None] = {}
        if backend is None:
            self._backend_name = "none"

    def watched(self, backend: object) -> object:
        """Return a recorded backend that stands in for another one.

        A backend that has a lens already, or that torch does not know, is returned as it is.
        """
        inner = _torch.innermost_backend(backend)
        if isinstance(inner, (Lens, WatchedBackend)):
            return backend
        if self._forced is not None:
            return WatchedBackend(self, self._forced)
        try:
            found = _torch.lookup_backend(backend) if isinstance(backend, str) else backend
        except Exception:  # noqa: BLE001 - torch says what is wrong with it
            return backend
        self._own_names[backend if isinstance(backend, str) else _name_of(backend)] = None
        self._backend_name = ", ".join(self._own_names)
        return WatchedBackend(self, found)

    def _claims(self, backend: object) -> bool:
        return isinstance(backend, WatchedBackend) and backend.lens is self


class WatchedBackend:
    """A backend that is recorded. Equal to another one of an equal backend, so that `torch.compile` shares compiled code as before."""

    def __init__(self, lens: ProcessLens, backend: Any) -> None:
        """Put a lens before a backend."""
        self.lens, self._backend = lens, backend
        # No __getattr__: Dynamo's evaluator asks for attributes of a backend where it must not meet Python code, and the process crashes.
        for name in _FORWARDED:
            if hasattr(backend, name):
                setattr(self, name, getattr(backend, name))

    def __call__(self, graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
        """Compile a graph; called by Dynamo."""
        if not is_ours(_torch.innermost_backend(self._backend)):
            return self.lens.compile_elsewhere(self._backend, graph_module, example_inputs, kwargs)
        # Where the program has a lens of its own, that one records.
        with self.lens.watching() if CURRENT.get() is None else contextlib.nullcontext():
            compiled: Callable[..., Any] = self._backend(graph_module, example_inputs, **kwargs)
        return compiled

    def __reduce__(self) -> tuple[Any, tuple[Any]]:
        """Pickle as the backend itself: the lens belongs to this process."""
        return _same, (self._backend,)

    def __eq__(self, other: object) -> bool:
        """Compare the backends."""
        return isinstance(other, WatchedBackend) and bool(self._backend == other._backend)

    def __hash__(self) -> int:
        """Hash the kind of backend: torch's own wrappers compare, and have no hash."""
        return hash(type(self._backend))


def _same(backend: Any) -> Any:
    return backend


def _name_of(backend: object) -> str:
    for attribute in ("compiler_name", "__name__"):
        name = getattr(backend, attribute, None)
        if isinstance(name, str):
            return name
    return type(backend).__name__
