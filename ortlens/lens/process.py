"""One lens for a whole process: every `torch.compile` in it, each on its own backend or all on one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ortlens import _torch
from ortlens.lens.lens import Lens
from ortlens.lens.other_backends import WatchedBackend, resolve_backend

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping


class ProcessBackends:
    """Puts one lens before the backend of every `torch.compile` of a process."""

    def __init__(
        self,
        backend: str | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        name: str | None = None,
        journal: str | os.PathLike[str] | None = None,
    ) -> None:
        """Begin without a compilation; all of them use `backend`, or each its own if it is None."""
        self._forced = None if backend is None else resolve_backend(backend, options)[2]
        self._own_names: dict[str, None] = {}
        self.lens = Lens(backend or "ortlens", options=options if backend else None, name=name, journal=journal)
        if backend is None:
            self.lens.compilations.recorder.backend = "none"

    def watched(self, backend: object) -> object:
        """Return a recorded stand-in for a backend; the backend itself if it has a lens already, or torch does not know it."""
        inner = _torch.innermost_backend(backend)
        if isinstance(inner, (Lens, WatchedBackend)):
            return backend
        if self._forced is not None:
            return WatchedBackend(self.lens, self._forced)
        try:
            found = _torch.lookup_backend(backend) if isinstance(backend, str) else backend
        except Exception:  # noqa: BLE001 - torch says what is wrong with it
            return backend
        names = (backend, getattr(backend, "compiler_name", None), getattr(backend, "__name__", None), type(backend).__name__)
        self._own_names[next(name for name in names if isinstance(name, str))] = None
        self.lens.compilations.recorder.backend = ", ".join(self._own_names)
        return WatchedBackend(self.lens, found)
