from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ortlens.views.capture_view import CaptureView, SavedCapture
from ortlens.views.text import summary
from tests.unit.views.sample_captures import SAMPLES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ortlens.trace.records import Capture

_BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "onnxruntime", "onnx", "onnxscript"}:
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Blocker())
import ortlens

capture = ortlens.load(sys.argv[1])
print(len(capture.graphs), len(capture.breaks), len(capture.fallbacks), capture.breaks.line.iloc[0])
print(repr(capture))
print(capture.summary().split("\\n")[0])
print("<table>" in capture._repr_html_())
from ortlens.cli import main
print(main(["show", sys.argv[1], "--table", "sessions"]))
print(sorted(name for name in sys.modules if name in {"torch", "onnxruntime", "onnx", "onnxscript"}))
"""


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


def test_a_saved_capture_opens_where_torch_and_onnxruntime_cannot(tmp_path: Path, run_python: Callable[..., str]) -> None:
    path = SavedCapture(SAMPLES["demo_like"]).save(tmp_path / "run.ortlens")
    lines = run_python(_BLOCKED, str(path)).split("\n")
    assert lines[:4] == ["3 1 1 71", repr(SavedCapture(SAMPLES["demo_like"])), "demo: torch.compile with backend ortlens", "True"]
    assert lines[4].startswith("session_id")
    assert lines[-3:-1] == ["0", "[]"]
