"""A capture as one self-contained page: the explorer on top, and below it everything that matters as text, figures and tables.

Nothing is loaded, and the page's own rules forbid it to load anything; its scripts are named by their hashes, so that no other
runs. Without JavaScript, and in print, the explorer is absent and the rest is unfolded.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ortlens.analysis.overview import overview_of
from ortlens.errors import OptionalDependencyError
from ortlens.views.payload import packed_payload, payload_from_shown
from ortlens.views.policy import policy
from ortlens.views.redaction import redacted_capture
from ortlens.views.report.all_figures import figures_of
from ortlens.views.report.drawing import svg_from_figure
from ortlens.views.report.sections import FOLD, MAX_TITLE, Contents, footer, header, sections
from ortlens.views.report.style import CSS
from ortlens.views.report.write import MARK
from ortlens.views.static_table import safe
from ortlens.views.style import CSS as SUMMARY_CSS

if TYPE_CHECKING:
    from ortlens.analysis.overview import Overview
    from ortlens.trace.records import Capture
    from ortlens.views.report.figures import Figure

BUDGET_BYTES = 1_500_000
"""What a page may weigh: more does not go through every mail gate. ONNX models that do not fit are left out, with a sentence."""

_STATIC = Path(__file__).parents[1] / "static"
_ENDS = re.compile(r"<(/script|!--)", re.IGNORECASE)
_STARTED = "document.documentElement.classList.add('js')"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Models:
    """The panel of ONNX models: scripts with its data, what the page's rules must allow, and what is not in it."""

    data: str = ""
    notice: str = ""
    sources: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


def report_page(capture: Capture, *, title: str | None = None, redact: bool = False, models: bool = True) -> str:
    """Make the page of any capture, even a huge or hostile one; equal captures give equal text.

    `models` puts ONNX models without their weights in, as far as they fit; `redact` leaves them, source text and values out, and shortens
    paths.
    """
    shown = redacted_capture(capture) if redact else capture
    overview = overview_of(shown)
    data = payload_from_shown(shown, overview, redacted=redact)
    figures, notes = _figures(shown, overview)
    notes = [*data["meta"]["left_out"], *notes]
    if redact:
        notes.append("paths are shortened; source text, values in guards and messages, and ONNX models are left out")
    parts = Contents(
        heading=title or data["overview"]["title"],
        verdict=data["overview"]["verdict"],
        capture=shown,
        overview=overview,
        figures=figures,
        notes=tuple(notes),
    )
    packed = _data("ortlens-data", packed_payload(data))
    weight = len(_assembled(parts, packed, _Models()).encode())
    return _assembled(parts, packed, _embedded(shown, BUDGET_BYTES - weight) if models and not redact else _Models())


def _figures(capture: Capture, overview: Overview) -> tuple[tuple[tuple[Figure, str], ...], list[str]]:
    """Draw the figures, which needs matplotlib, or say that it is missing."""
    found = figures_of(capture, overview)
    try:
        return tuple((figure, svg_from_figure(figure)) for figure in found), []
    except OptionalDependencyError:
        return (), ["figures need matplotlib, which was not installed: pip install matplotlib"]


def _embedded(capture: Capture, room: int) -> _Models:
    from ortlens.views.netron.embedding import embedding
    from ortlens.views.netron.frame import page_policy

    if not capture.models:
        return _Models()
    packed = embedding(capture, budget_bytes=max(0, room - 4_000 - 150 * len(capture.models)) * 3 // 4)
    if not packed.models:
        return _Models(notes=packed.notes)
    data = [
        _data(f"ortlens-model-{n}", model, f' data-ortlens-model="{safe(name)}"') for n, (name, model) in enumerate(packed.models.items())
    ]
    frame = _data("ortlens-frame", packed.frame, " data-ortlens-frame") if packed.frame else ""
    return _Models(data="".join([frame, *data]), notice=packed.licence, sources=tuple(page_policy().items()), notes=packed.notes)


def _data(name: str, data: bytes, about: str = "") -> str:
    return f'<script type="text/plain" id="{name}"{about}>{base64.b64encode(data).decode()}</script>\n'


def _assembled(parts: Contents, packed: str, models: _Models) -> str:
    head = [
        '<meta charset="utf-8">',
        MARK,
        f'<meta http-equiv="Content-Security-Policy" content="{policy((_STARTED, FOLD, _bundle()), dict(models.sources))}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="referrer" content="no-referrer">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{safe(parts.heading, MAX_TITLE)}</title>",
        f"<style>{SUMMARY_CSS}</style><style>{_static('explorer.css')}</style><style>{CSS}</style>",
        f"<script>{_STARTED}</script>",
    ]
    explorer = '<section class="or-explorer" aria-label="Explorer"><div data-ortlens-payload="ortlens-data"></div></section>'
    licences = f'<script type="text/plain" id="ortlens-licences">{_quoted(_static("THIRD_PARTY_LICENSES.txt") + models.notice)}</script>'
    code = f"{packed}{models.data}{licences}\n<script>{_bundle()}</script>"
    body = f"{header(parts, models.notes)}\n{explorer}\n<main>\n{''.join(sections(parts))}</main>\n{footer()}\n{code}"
    return '<!doctype html>\n<html lang="en">\n<head>\n' + "\n".join(head) + f"\n</head>\n<body>\n{body}\n</body>\n</html>\n"


@cache
def _static(name: str) -> str:
    return (_STATIC / name).read_text(encoding="utf-8")


@cache
def _bundle() -> str:
    return _quoted(_static("explorer.report.js"))


def _quoted(text: str) -> str:
    """Keep text from ending the script around it; inside JavaScript strings it means the same."""
    return _ENDS.sub(r"<\\\1", text)
