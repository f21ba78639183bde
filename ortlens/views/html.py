"""The summary of a capture as one static HTML fragment for notebooks.

No script, no remote load, no ids: the fragment may occur on a page many times. Colours come from JupyterLab's `--jp-*`
variables and fall back to the system's `Canvas` and `CanvasText`, so it follows light and dark everywhere. A viewer that
drops style sheets, as GitHub does, still shows headings and tables in reading order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortlens.analysis.first_look import looks_of
from ortlens.analysis.numbers import numbers_of
from ortlens.analysis.overview import overview_of
from ortlens.units import percent, time_from_ns
from ortlens.views.answers import answer_tables
from ortlens.views.onnx_sentences import onnx_answers
from ortlens.views.sentences import (
    coverage_sentence,
    dry_run_sentence,
    empty_sentence,
    look_sentence,
    numbers_sentence,
    partitions_sentence,
    title,
    wrong_sentence,
)
from ortlens.views.static_table import safe, table_html
from ortlens.views.style import CSS
from ortlens.views.tiles import tiles_of
from ortlens.views.time_sentences import generation_sentences, per_call_sentences
from ortlens.views.wording import PHASE_WORDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ortlens.analysis.numbers import NumericsSummary
    from ortlens.analysis.overview import Overview
    from ortlens.trace.records import Capture
    from ortlens.views.tiles import Tile

_LOOK = 1000
"""Characters of what to look at first: a finding with its gain and its remedy."""


def summary_html(capture: Capture, *, overview: Overview | None = None) -> str:
    """Summarise any capture, even a huge or hostile one, as a self-contained HTML fragment of less than 60 kB."""
    overview = overview or overview_of(capture)
    heading = f'<p class="ol-title">{safe(title(overview))}</p>{tiles_html(tiles_of(capture, overview))}'
    tables = "".join(table_html(table) for table in answer_tables(overview))
    return f'<div class="ortlens-summary"><style>{CSS}</style>{heading}{answers_html(overview, numbers_of(capture))}{tables}</div>'


def tiles_html(tiles: Iterable[Tile]) -> str:
    """Write the tiles as a list, for an element of class `ortlens-summary`; a viewer without style sheets shows it as such."""
    return f'<ul class="ol-tiles">{"".join(map(_tile, tiles))}</ul>'


def _tile(tile: Tile) -> str:
    sign = f'<span aria-hidden="true">{tile.sign}</span> ' if tile.sign else ""
    bar = "" if tile.share is None else f'<span class="ol-bar"><span style="width:{int(tile.share * 1000) / 10:.1f}%"></span></span>'
    call = f" <code>{safe(tile.call)}</code>" if tile.call else ""
    return (
        f'<li class="ol-tile ol-tile-{tile.state}"><span>{safe(tile.title)}:</span> <strong>{sign}{safe(tile.word)}</strong>{bar} '
        f"<small>{safe(tile.detail, 400)}{call}</small></li>"
    )


def answers_html(overview: Overview, numbers: NumericsSummary | None) -> str:
    """Say how much runs in ONNX Runtime, in how many partitions, what a call takes, and what to look at first.

    The paragraphs are for an element of class `ortlens-summary`.
    """
    if overview.onnx is not None:
        said = [*onnx_answers(overview, overview.onnx), ("Numerics", numbers_sentence(numbers) if numbers else "")]
        return (
            _wrong(numbers)
            + "".join(f"<p><strong>{name}:</strong> {safe(text, 600)}</p>" for name, text in said if text)
            + _looks(overview)
        )
    return _wrong(numbers) + _dry(overview) + _coverage(overview) + _facts(overview, numbers) + _looks(overview)


def _wrong(numbers: NumericsSummary | None) -> str:
    said = wrong_sentence(numbers)
    return f'<p class="ol-wrong" role="alert"><strong>Wrong results:</strong> {safe(said, 600)}</p>' if said else ""


def _dry(overview: Overview) -> str:
    said = dry_run_sentence(overview)
    return f'<p class="ol-caution" role="note"><strong>{safe(said[:1].upper() + said[1:], 600)}</strong></p>' if said else ""


def _coverage(overview: Overview) -> str:
    share = overview.coverage.share
    sentence = f"<strong>In ONNX Runtime:</strong> {safe(coverage_sentence(overview))}"
    if share is None or overview.coverage.verdict == "compiled":  # a full bar would say that nothing is outside
        return f"<p>{sentence}</p>"
    filled = int(share * 1000) / 10  # rounds down: a full bar means all of it
    label = safe(f"{percent(share)} of the compute nodes run in ONNX Runtime")
    return f'<p>{sentence}</p><div class="ol-bar" role="img" aria-label="{label}"><span style="width:{filled:.1f}%"></span></div>'


def _facts(overview: Overview, numbers: NumericsSummary | None) -> str:
    if overview.coverage.verdict == "empty":
        return ""
    facts = [
        ("Generation", "; ".join(generation_sentences(overview))),
        ("Partitions", partitions_sentence(overview)),
        (
            "Per call",
            "; ".join(per_call_sentences(overview)),
        ),
        ("Compile time", _compile(overview)),
        ("Numerics", numbers_sentence(numbers) if numbers else ""),
    ]
    return "".join(f"<p><strong>{name}:</strong> {safe(text, 600)}</p>" for name, text in facts if text)


def _compile(overview: Overview) -> str:
    if not overview.compile_ns:
        return ""
    parts = ", ".join(f"{PHASE_WORDS[phase.phase]} {time_from_ns(phase.total_ns)}" for phase in overview.phases if phase.total_ns)
    return f"{time_from_ns(overview.compile_ns)}: {parts}"


def _looks(overview: Overview) -> str:
    looks = looks_of(overview)
    if not looks:
        empty = overview.coverage.verdict == "empty"
        text = empty_sentence(overview) if empty else "nothing stands out"
        return f"<p>{safe(text[:1].upper() + text[1:], _LOOK)}.</p>"
    items = "".join(f"<li>{safe(look_sentence(look), _LOOK)}</li>" for look in looks)
    return f'<p><strong>Look first at</strong></p><ol class="ol-looks">{items}</ol>'


def failure_html(texts: Iterable[str]) -> str:
    """Say in a notebook that drawing failed, with nothing but the escaped paragraphs."""
    return "<div>" + "".join(f"<p>{safe(text)}</p>" for text in texts) + "</div>"
