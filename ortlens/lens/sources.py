"""Keeps the user's functions as they were when they ran."""

from __future__ import annotations

import linecache
from typing import TYPE_CHECKING

from ortlens.trace.sources import MAX_CHARS, MAX_FILES, attachment_of, kept_lines, recorded_lines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ortlens.trace import records as r
    from ortlens.trace.recorder import Recorder


class KeptSources:
    """The lines that were noted, so that a file is attached anew for new ones only."""

    def __init__(self, recorder: Recorder) -> None:
        """Begin without files; they are attached to the recorder."""
        self._recorder = recorder
        self._lines: dict[str, dict[int, str]] = {}

    def note(self, records: Iterable[r.Node | r.Break | r.Fallback]) -> None:
        """Attach what is kept of the files that records name. One that changed since it ran, or is very long, has only these lines."""
        for file, lines in recorded_lines(records).items():
            known = self._lines.setdefault(file, {})
            if known.keys() >= lines.keys() or (not known and len(self._lines) > MAX_FILES):
                continue
            known.update(lines)
            try:
                text = "".join(linecache.getlines(file))
            except ValueError:  # a damaged name is not a file
                continue
            kept = kept_lines(text, known) if len(text) <= MAX_CHARS else []
            if kept:
                self._recorder.attach(*attachment_of(file, kept))
