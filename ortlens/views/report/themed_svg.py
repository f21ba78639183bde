"""matplotlib's SVG made part of a page: its colours follow light and dark, its ids are the page's own, nothing else remains."""

from __future__ import annotations

import re
from html import escape

INK, SOFT, LINE, ON_RUN, ON_FILL = "#010203", "#010204", "#010205", "#010206", "#010207"
"""Stand for the page's text, its softer text, its rules, and text on fills; no drawing uses these by chance."""

COLOURS = {
    "run": "#0072b2",
    "eager": "#d55e00",
    "bind": "#e69f00",
    "output": "#009e73",
    "guards": "#cc79a7",
    "residual": "#8a8a8a",
    "other": "#56b4e9",
    "time": "#0072b3",
    "memory": "#0072b4",
}
"""Fills by kind of part: the hues of the explorer."""

_VARIABLES = {INK: "currentColor", SOFT: "var(--of-soft)", LINE: "var(--of-line)", ON_RUN: "var(--of-on-run)", ON_FILL: "#000"} | {
    colour: f"var(--of-{'run' if kind in ('time', 'memory') else kind})" for kind, colour in COLOURS.items()
}
_TAG = re.compile(r"<[^<>]*>")  # matplotlib escapes angles in names, so that this is a tag and never text
_ID = re.compile(r' id="([^"]*)"')
_REFERENCE = re.compile(r"""(?:url\(#|href="#)([^)"]+)""")
_COLOUR = re.compile(r"#[0-9a-f]{6}")
_DROPPED = re.compile(
    r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>|<style .*?</style>", re.DOTALL
)  # `*{...}` would style the page
_DIGITS = re.compile(r"(\.\d\d)\d+")
_SIZE = re.compile(r' (?:width|height)="[^"]*pt"')


def themed(svg: str, name: str, label: str) -> str:
    """Turn what matplotlib wrote into an `svg` element of a page; ids begin with `name`, which is unique there.

    The drawing has the stand-ins of this module as colours; `label` is for those who cannot see it.
    """
    bare = _DROPPED.sub("", svg)
    wanted = set(_REFERENCE.findall("".join(_TAG.findall(bare))))
    drawn = _TAG.sub(lambda tag: _on_page(tag[0], name, wanted), bare).strip()
    opening, rest = drawn.split(">", 1)
    opening = _SIZE.sub("", opening).replace("<svg", f'<svg class="or-figure" role="img" aria-label="{escape(label, quote=True)}"', 1)
    return re.sub(r"\s*\n\s*", "\n", f"{opening}>{rest}")


def _on_page(tag: str, name: str, wanted: set[str]) -> str:
    plain = _ID.sub(lambda found: f' id="{name}-{found[1]}"' if found[1] in wanted else "", tag)
    linked = _REFERENCE.sub(lambda found: found[0][: -len(found[1])] + f"{name}-{found[1]}", plain)
    short = _DIGITS.sub(r"\1", linked)
    return _COLOUR.sub(lambda found: _VARIABLES.get(found[0], found[0]), short)
