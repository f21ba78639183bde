"""Keeps the user's source files as they were when they ran."""

from __future__ import annotations

import linecache
from typing import TYPE_CHECKING

from ortlens.trace.sources import MAX_CHARS, MAX_FILES, attachment_of, is_same_program, recorded_lines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ortlens.trace import records as r
    from ortlens.trace.recorder import Recorder


class KeptSources:
    """The files that were attached, so that each is read once."""

    def __init__(self, recorder: Recorder) -> None:
        """Begin without files.

        Args:
            recorder: The files are attached there.
        """
        self._recorder = recorder
        self._seen: set[str] = set()
        self._kept = 0

    def note(self, records: Iterable[r.Node | r.Break | r.Fallback]) -> None:
        """Attach the files that records name. One that changed since it ran, or is very long, is left out: its lines are in the records.

        Args:
            records: New ones.
        """
        for file, lines in recorded_lines(records).items():
            if file in self._seen or self._kept == MAX_FILES:
                continue
            self._seen.add(file)
            try:
                text = "".join(linecache.getlines(file))
            except ValueError:  # a damaged name is not a file
                continue
            if len(text) <= MAX_CHARS and is_same_program(text, lines):
                self._kept += 1
                self._recorder.attach(*attachment_of(file, text))
