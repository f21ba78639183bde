"""The recorder of a lens: what begins each of its captures, and its journal."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Protocol

from ortlens.lens.environment import machine_facts
from ortlens.trace.guard import lens_guard
from ortlens.trace.journal import Journal
from ortlens.trace.recorder import Recorder

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from ortlens.trace import records as r


class _Named(Protocol):
    name: str


class LensRecorder(Recorder):
    """A recorder that knows the head of its captures."""

    def __init__(
        self, lens: _Named, backend: str, figures: Callable[[], dict[str, Any]], journal: str | os.PathLike[str] | None = None
    ) -> None:
        """Start empty. `figures` are those of the machine; all that comes is written to the file `journal`, which survives the process."""
        super().__init__()
        self.backend = backend
        self.facts: dict[str, str] = {}  # what the lens adds to the environment, such as chosen options
        self._lens = weakref.ref(lens)
        self._figures_of_machine = figures
        if journal is not None:
            self.journal = Journal(journal, self._head, self)
            weakref.finalize(lens, self.journal.close)  # also when the interpreter exits

    def _head(self) -> dict[str, Any]:
        """Return name, backend and environment as they are now; nothing once the lens is gone."""
        lens = self._lens()
        if lens is None:
            return {}
        facts: dict[str, str] = {}
        with lens_guard(self, "reading the environment"):
            facts = machine_facts()
            self.note(**self._figures_of_machine())
        return {"name": lens.name, "backend": self.backend, "environment": {**facts, **self.facts}}

    def captured(self) -> r.Capture:
        """Freeze what was recorded so far, with its head; recording goes on."""
        return self.capture(**self._head())
