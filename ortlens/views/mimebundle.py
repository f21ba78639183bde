"""The summary of a capture as a MIME bundle: what IPython shows for a lens, a loaded capture or a widget."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortlens.analysis.overview import overview_of
from ortlens.views.html import failure_html, summary_html
from ortlens.views.text import summary
from ortlens.views.wording import clipped

if TYPE_CHECKING:
    from collections.abc import Callable

    from ortlens.trace.records import Capture


def mimebundle(captured: Callable[[], Capture]) -> dict[str, str]:
    """Summarise a capture as text and HTML; never raises, but says so where the summary fails.

    Takes a function, because taking a snapshot may fail as well.
    """
    try:
        capture = captured()
        overview = overview_of(capture)  # once for both
        return {"text/plain": summary(capture, overview=overview), "text/html": summary_html(capture, overview=overview)}
    except Exception as err:  # noqa: BLE001 - a guard of the lens: looking at an object must not raise
        texts = _failure(err)
        return {"text/plain": "\n".join(texts), "text/html": failure_html(texts)}


def _failure(err: Exception) -> tuple[str, str]:
    return (
        f"ortlens could not draw this capture: {type(err).__name__}: {clipped(str(err), 200)}",
        "This is a bug in ortlens. The frames, such as .graphs and .fallbacks, and .save(path) still work.",
    )
