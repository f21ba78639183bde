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
from ortlens.views.report.drawing import svg_from_figure
from ortlens.views.report.sections import FOLD, MAX_TITLE, Contents, footer, header, sections
from ortlens.views.report.state import memory_figure, numerics_figure
from ortlens.views.report.times import compile_figure, course_figure, ledger_figure, sessions_figure
from ortlens.views.report.work import fallbacks_figure, lines_figure, operators_figure, roofline_figure
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

_RULES = """
:root{color-scheme:light dark;
--or-soft:color-mix(in srgb,CanvasText 68%,Canvas);--or-line:color-mix(in srgb,CanvasText 20%,Canvas);--or-link:light-dark(#0060a0,#6cb8f0);
--of-run:light-dark(#0072b2,#3d9bd6);--of-on-run:light-dark(#fff,#000);--of-eager:light-dark(#d55e00,#e8792b);
--of-bind:light-dark(#e69f00,#e6a817);--of-output:light-dark(#009e73,#1fb58a);--of-guards:light-dark(#cc79a7,#d18bb3);
--of-residual:light-dark(#8a8a8a,#9a9a9a);--of-other:#56b4e9;--of-soft:var(--or-soft);--of-line:var(--or-line)}
:root[data-theme=light]{color-scheme:light}
:root[data-theme=dark]{color-scheme:dark}
*{box-sizing:border-box}
body{margin:0;background:Canvas;color:CanvasText;font:14px/1.5 system-ui,"DejaVu Sans",sans-serif}
.or-head{padding:.7rem 1.2rem .5rem;border-bottom:1px solid var(--or-line)}
.or-head h1{font-size:1.25rem;margin:0;overflow-wrap:anywhere}
.or-verdict{font-size:1.05rem;margin:.1rem 0;overflow-wrap:anywhere}
.or-wrong{color:light-dark(#b3261e,#ff8a80);font-weight:600}
.or-about{color:var(--or-soft);font-size:.86rem;margin:0;overflow-wrap:anywhere}
@media screen and (max-width:600px){.or-head{padding:.4rem .7rem .3rem}.or-head h1{font-size:1.05rem}
.or-verdict{font-size:.95rem;line-height:1.35}.js .or-head .or-about{display:none}}
.or-explorer{display:none;position:relative;border-bottom:1px solid var(--or-line)}
.js .or-explorer{display:block;min-height:max(30rem,calc(100vh - 9.5rem));--ortlens-height:max(30rem,calc(100vh - 9.5rem))}
.or-explorer>p{padding:1rem 1.2rem}
.or-explorer .ortlens .ol-name,.or-explorer .ortlens .ol-verdict,.or-explorer .ortlens .ol-note{display:none}
.or-explorer .ortlens .ol-shell{display:grid;
grid-template:"tiles tiles" auto "tabs head" auto "body body" minmax(0,1fr) / minmax(0,1fr) auto}
.or-explorer .ortlens .ol-tiles{grid-area:tiles}
.or-explorer .ortlens .ol-tabs{grid-area:tabs}
.or-explorer .ortlens .ol-body{grid-area:body}
.or-explorer .ortlens .ol-header{grid-area:head;align-items:center;gap:.3rem;padding:0 .3rem;border-bottom:1px solid var(--ol-line)}
main{padding:.4rem 1.2rem 2rem;max-width:96rem}
.or-part{border-top:1px solid var(--or-line);padding:.2rem 0}
.or-part:first-child{border-top:0}
.or-part>summary{cursor:pointer;padding:.35rem 0}
.or-part>summary h2{display:inline;font-size:1.08rem;margin:0}
.or-part>summary:focus-visible{outline:2px solid var(--or-link)}
.or-help{color:var(--or-soft);margin:.1rem 0 .6rem}
.or-figures{columns:28rem;column-gap:2rem;padding-bottom:.4rem}
.or-figures figure{margin:0 0 1.3rem;break-inside:avoid}
.or-figures h3{font-size:1rem;margin:.2rem 0}
.or-figures figcaption{color:var(--or-soft);font-size:.86rem}
.or-figures .or-wide{column-span:all}
.or-figure{display:block;width:100%;height:auto;max-height:26rem;color:CanvasText}
.or-figure *{stroke-linejoin:round;stroke-linecap:butt}
.ortlens-summary{max-width:none;padding:0;font-size:13px}
.or-method dt{font-weight:600;margin-top:.6rem}
.or-method dd{margin:0;max-width:60rem}
.or-facts{border-collapse:collapse;font-size:13px}
.or-facts th,.or-facts td{text-align:left;vertical-align:top;font-weight:400;padding:.15rem 1rem .15rem 0;
border-bottom:1px solid var(--or-line);overflow-wrap:anywhere}
.or-facts th{color:var(--or-soft);white-space:nowrap}
.or-foot{color:var(--or-soft);font-size:.86rem;padding:.6rem 1.2rem 1.5rem;border-top:1px solid var(--or-line);margin:0}
@media print{
:root,:root[data-theme]{color-scheme:light}
@page{margin:14mm}
body{font-size:9pt}
.or-figures h3{font-size:9.5pt}
.or-figures figcaption,.or-facts,.or-about{font-size:8pt}
.js .or-explorer,.or-explorer{display:none}
.or-head,main,.or-foot{padding-left:0;padding-right:0}
.or-part>summary{list-style:none;break-after:avoid}
.or-part::details-content{content-visibility:visible;display:block;height:auto}
.or-figures{columns:2;column-gap:1.2rem}
.or-figures h3,.ortlens-summary caption,dt{break-after:avoid}
.ortlens-summary{font-size:8pt;overflow:visible}
.ortlens-summary thead{display:table-header-group}
.ortlens-summary tr,figure,dd{break-inside:avoid}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
}
"""
CSS = _RULES.strip()
"""The rules."""


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


def figures_of(capture: Capture, overview: Overview) -> tuple[Figure, ...]:
    """Make every figure for which something was recorded."""
    found = (
        ledger_figure(capture, overview),
        lines_figure(capture),
        operators_figure(capture),
        roofline_figure(capture),
        fallbacks_figure(capture, overview),
        sessions_figure(capture, overview),
        course_figure(capture),
        compile_figure(capture, overview),
        memory_figure(capture),
        numerics_figure(capture),
    )
    return tuple(figure for figure in found if figure is not None)
