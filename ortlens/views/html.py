"""A screen for notebooks: one static HTML fragment, and the bundle of it and the text that IPython shows.

No script, no remote load, no ids: the fragment may occur on a page many times. Colours come from JupyterLab's `--jp-*`
variables and fall back to the system's `Canvas` and `CanvasText`, so it follows light and dark everywhere. A viewer that
drops style sheets, as GitHub does, still shows headings and tables in reading order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortlens.views.hints import SAVED
from ortlens.views.markup import render, safe
from ortlens.views.screen import Screen, capture_screen
from ortlens.views.table import MAX_BYTES
from ortlens.views.text import screen_text
from ortlens.views.wording import clipped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ortlens.trace.records import Capture
    from ortlens.views.hints import Hints


def screen_html(screen: Screen) -> str:
    """Lay a screen out as a self-contained fragment for notebooks, of less than 60 kB for a huge or hostile capture, too."""
    return render("summary.html", screen=screen, max_bytes=MAX_BYTES)


def failure_html(texts: Iterable[str]) -> str:
    """Say in a notebook that drawing failed, with nothing but the escaped paragraphs."""
    return "<div>" + "".join(f"<p>{safe(text)}</p>" for text in texts) + "</div>"


def mimebundle(captured: Callable[[], Capture], hints: Hints = SAVED) -> dict[str, str]:
    """Summarise a capture as text and HTML; never raises, but says so where the summary fails.

    Takes a function, because taking a snapshot may fail as well.
    """
    try:
        screen = capture_screen(captured(), hints)  # once for both
        return {"text/plain": screen_text(screen), "text/html": screen_html(screen)}
    except Exception as err:  # noqa: BLE001 - a guard of the lens: looking at an object must not raise
        texts = _failure(err)
        return {"text/plain": "\n".join(texts), "text/html": failure_html(texts)}


def _failure(err: Exception) -> tuple[str, str]:
    return (
        f"ortlens could not draw this capture: {type(err).__name__}: {clipped(str(err), 200)}",
        "This is a bug in ortlens. The frames, such as .graphs and .fallbacks, and .save(path) still work.",
    )
