"""A cell that begins with `%%ortlens` runs as the plain cell that it is, with a capture open around it.

Its first line becomes a call that opens the capture; everything below stays, so that IPython itself runs it: numbers of lines,
`await`, the last expression's display, an error or interrupt with its traceback are what they are without the magic. The capture is
closed when the shell says that the cell is over. Rejected: running the body from within the magic, as most cell magics do. The magic is
called inside the event loop, where a body with `await` cannot be run, and errors come twice or with frames of the magic.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from IPython.core.inputtransformer2 import cell_magic

if TYPE_CHECKING:
    from collections.abc import Callable

    from IPython.core.interactiveshell import InteractiveShell

    from ortlens.lens.lens import Lens

_FIRST_LINE = re.compile(r"%%ortlens(?:[ \t]+(?P<options>.*?))?\s*", re.DOTALL)


_second_magic: Callable[[list[str]], list[str]] = cell_magic  # which IPython leaves without types


class CellTransform:
    """Rewrites the first line of a cell; an input transformer of IPython."""

    has_side_effects = True
    """Not one, but so a terminal goes on to ask for lines until an empty one, as for every cell magic."""

    def __call__(self, lines: list[str]) -> list[str]:
        """Rewrite a cell into as many lines; without `%%ortlens` first and code below it, it stays as it is."""
        match = _FIRST_LINE.fullmatch(lines[0]) if lines else None
        body = lines[1:]
        if match is None or not "".join(body).strip():
            return lines
        opening = f"get_ipython().find_cell_magic('ortlens').__self__.open_cell({(match['options'] or '')!r})\n"
        return [opening, *_second_magic(body)]  # a second magic, as %%time, may stand below


class OpenCell:
    """A capture from now until the cell is over."""

    def __init__(self, shell: InteractiveShell, name: str, when_over: Callable[[Lens], None]) -> None:
        """Begin to record the cell that the shell runs; `when_over` gets the lens, once, after it."""
        from ortlens.lens.lens import capture  # loads torch, which %load_ext should not wait for

        self._shell = shell
        self._when_over = when_over
        self._inner = 0  # cells that run inside this one, through `get_ipython().run_cell`
        self._recording = contextlib.ExitStack()
        self._lens = self._recording.enter_context(capture(name=name))
        shell.events.register("pre_execute", self._begins)
        shell.events.register("post_execute", self._ends)

    def _begins(self) -> None:
        self._inner += 1

    def _ends(self) -> None:
        if self._inner:
            self._inner -= 1
            return
        self.end()

    def end(self) -> None:
        """Stop recording, and hand the lens over."""
        self.close()
        self._when_over(self._lens)

    def close(self) -> None:
        """Stop recording, and hear of no further cell."""
        self._recording.close()
        self._shell.events.unregister("pre_execute", self._begins)
        self._shell.events.unregister("post_execute", self._ends)
