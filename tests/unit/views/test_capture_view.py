from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ortlens.views.capture_view import CaptureView, SavedCapture
from ortlens.views.rendering import summary
from tests.unit.views.sample_captures import SAMPLES

if TYPE_CHECKING:
    from ortlens.trace.records import Capture


class _Broken(CaptureView):
    """A view whose capture cannot be made."""

    def captured(self) -> Capture:
        raise RuntimeError("<script>the recorder\x1b broke")


@pytest.mark.parametrize("sample", SAMPLES)
def test_repr_is_short_and_printable(sample: str) -> None:
    shown = repr(SavedCapture(SAMPLES[sample]))
    assert len(shown) < 200
    assert shown.isprintable()
    assert sample != "demo_like" or shown.startswith("<SavedCapture 'demo': 3 graphs, 1 graph break, 1 recompile")


def test_the_bundle_holds_text_and_html() -> None:
    view = SavedCapture(SAMPLES["demo_like"])
    bundle = view._repr_mimebundle_(include=None, exclude={"text/html"})
    assert bundle == {"text/plain": view.summary(), "text/html": view._repr_html_()}
    assert view.summary() == summary(SAMPLES["demo_like"])


def test_a_failure_while_drawing_is_told_and_never_raised() -> None:
    view = _Broken()
    assert "RuntimeError" in repr(view)
    bundle = view._repr_mimebundle_()
    assert bundle["text/plain"].startswith("ortlens could not draw this capture: RuntimeError: <script>the recorder\\u001b broke")
    assert "&lt;script&gt;the recorder" in bundle["text/html"]
    assert bundle["text/html"] == view._repr_html_()
    for read in (view.summary, lambda: view.graphs):
        with pytest.raises(RuntimeError, match="broke"):
            read()
