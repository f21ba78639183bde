"""`show()`: the explorer where there is a notebook with widgets, and what comes nearest where there is not."""

from __future__ import annotations

import sys
from html import escape
from typing import TYPE_CHECKING

from ortlens._optional import require
from ortlens._shell import in_notebook
from ortlens.errors import OptionalDependencyError
from ortlens.views.mimebundle import mimebundle
from ortlens.views.selection import Selectable

if TYPE_CHECKING:
    from ortlens.trace.records import Capture
    from ortlens.views.widget import Explorer

_ELSEWHERE = (
    "The explorer needs a notebook (JupyterLab, Notebook 7 or VS Code). Here, lens.report('run.html') writes it as one HTML file, "
    "and print(lens.summary()) prints the essentials."
)
_HINT_STYLE = "margin:4px 0;opacity:.8"


class StaticSummary:
    """What `show()` returns in a notebook without widgets: the summary as HTML, and what is missing."""

    def __init__(self, capture: Capture, hint: str) -> None:
        """Keep what is shown; `hint` is one line that says what is missing."""
        self.hint = hint
        self._bundle = mimebundle(lambda: capture)

    def __repr__(self) -> str:
        """Return the hint."""
        return f"<StaticSummary: {self.hint}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Return the summary with the hint as text and HTML. The arguments are ignored, since IPython filters the result."""
        del include, exclude
        html = f'{self._bundle["text/html"]}<p style="{_HINT_STYLE}">{escape(self.hint)}</p>'
        return {"text/plain": f"{self._bundle['text/plain']}\n\n{self.hint}", "text/html": html}


def shown(capture: Capture, *, selected: str | None, tab: str | None, graph: str | None) -> Explorer | StaticSummary | None:
    """Open the explorer, or a static summary where widgets are missing; outside notebooks, print a line and return None."""
    if not _shows_widgets():
        Selectable(capture).checked(selected=selected, tab=tab, graph=graph)
        print(_ELSEWHERE)  # noqa: T201 - what the user asked to see
        return None
    try:
        for package in ("ipywidgets", "anywidget"):
            require(package, "The interactive explorer")
    except OptionalDependencyError as err:
        Selectable(capture).checked(selected=selected, tab=tab, graph=graph)
        return StaticSummary(capture, str(err))
    from ortlens.views.widget import Explorer

    return Explorer(capture, selected=selected, tab=tab, graph=graph)


def _shows_widgets() -> bool:
    """Tell whether Jupyter runs, or marimo, which has no shell."""
    marimo = sys.modules.get("marimo")
    return in_notebook() or (marimo is not None and bool(marimo.running_in_notebook()))
