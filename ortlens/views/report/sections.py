"""The parts of a report's page that are plain HTML: all of it can be read without JavaScript, and printed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortlens.analysis.numbers import numbers_of
from ortlens.trace.facts import facts_of
from ortlens.views.flame_svg import flame_svg
from ortlens.views.html import answers_html, tiles_html
from ortlens.views.report.optimised import optimised_html
from ortlens.views.report.tables import report_tables
from ortlens.views.sentences import wrong_sentence
from ortlens.views.static_table import safe, table_html
from ortlens.views.tiles import tiles_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ortlens.analysis.overview import Overview
    from ortlens.trace.records import Capture
    from ortlens.views.report.figures import Figure

MAX_TITLE = 300
"""Characters of a title."""

FOLD = "document.currentScript.parentNode.open=false"
"""Folds the section around it before it is painted; without JavaScript, the section stays open."""

_MAX_TABLE_BYTES = 30_000

_WORDS = {
    "python": "Python",
    "platform": "system",
    "machine": "processor type",
    "cpu_count": "processors",
    "cpu_usable": "usable processors",
    "torch_threads": "torch threads",
    "ledger_calls": "calls averaged in the ledger",
    "explain_calls": "calls that explain made, compiled",
    "explain_uncompiled_calls": "calls that explain made, without torch.compile",
}
_MAX_ENTRIES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The contents of a page.

    Attributes:
        heading: Its title.
        verdict: The capture in one line.
        capture: The capture as it is shown.
        overview: Its overview.
        figures: Figures with their drawings.
        notes: What the page leaves out, in words.
    """

    heading: str
    verdict: str
    capture: Capture
    overview: Overview
    figures: tuple[tuple[Figure, str], ...]
    notes: tuple[str, ...]


def header(parts: Contents, more: tuple[str, ...]) -> str:
    """Write title, verdict, where it was captured, and what is left out; `more` has notes about ONNX models."""
    known = dict(surroundings_of(parts.capture))
    facts = [f"captured {known['captured']}"] if parts.capture.created else []
    facts += [f"backend {known['backend']}"]
    facts += [f"{name} {known[name]}" for name in ("torch", "onnxruntime") if name in known]
    facts += [known["execution providers"]] if "execution providers" in known else []
    lines = [f'<p class="or-about">{safe(" · ".join(facts))}</p>']
    notes = [f"<span>{safe(_sentence(note), 600)}</span>" for note in parts.notes]
    notes += [f"<span data-ortlens-onnx-note>{safe(_sentence(note), 600)}</span>" for note in more]  # shown in that panel too
    lines += [f'<p class="or-about or-note">{" ".join(notes)}</p>'] if notes else []
    wrong = " or-wrong" if wrong_sentence(numbers_of(parts.capture)) else ""
    said = f'<h1>{safe(parts.heading, MAX_TITLE)}</h1><p class="or-verdict{wrong}">{safe(_sentence(parts.verdict), 600)}</p>'
    without = '<noscript><p class="or-about">The interactive explorer needs JavaScript. Everything below works without it.</p></noscript>'
    return f'<header class="or-head">{said}{"".join(lines)}{without}</header>'


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def sections(parts: Contents) -> Iterator[str]:
    """Yield everything below the explorer; a section without content is left out."""
    for section in (_summary, _drawings, _optimised, _tables, _surroundings, _methods):
        yield section(parts)


def _part(name: str, title: str, body: str, *, folded: bool) -> str:
    """Write a section that can be folded; without JavaScript it is open."""
    fold = f"<script>{FOLD}</script>" if folded else ""
    return f'<details class="or-part" id="{name}" open>{fold}<summary><h2>{title}</h2></summary>\n{body}\n</details>\n'


def _summary(parts: Contents) -> str:
    tiles = tiles_html(tiles_of(parts.capture, parts.overview))
    body = f'<div class="ortlens-summary">{tiles}{answers_html(parts.overview, numbers_of(parts.capture))}</div>'
    return _part("summary", "Summary as text", body, folded=True)


def _flame_caption(overview: Overview) -> str:
    measured = overview.ledger is not None and overview.ledger.is_measured
    how = "a mean of the measured calls" if measured else "from the logs of all calls, without what lies around them"
    return (
        f"Width is time per call, {how}; rows go from graphs over modules and operators to kernels. What is narrower than a pixel is left "
        "out; the explorer has all of it, and FLOPs, bytes and compile time."
    )


def _drawings(parts: Contents) -> str:
    flame = flame_svg(parts.capture)
    if not parts.figures and not flame:
        return ""
    caption = f"<figcaption>{_flame_caption(parts.overview)}</figcaption>"
    call = f'<figure class="or-wide"><h3>One call as a flame graph</h3>{flame}{caption}</figure>\n' if flame else ""
    drawn = call + "\n".join(
        f"<figure><h3>{safe(figure.title)}</h3>{svg}<figcaption>{safe(figure.caption, 400)}</figcaption></figure>"
        for figure, svg in parts.figures
    )
    return _part("figures", "Figures", f'<div class="or-figures">{drawn}</div>', folded=False)


def _optimised(parts: Contents) -> str:
    panes = optimised_html(parts.capture)
    if not panes:
        return ""
    help_line = (
        '<p class="or-help">The nodes of each profiled model, as ONNX Runtime got it, beside the kernels that ran: what was fused, '
        "replaced, inserted or removed, with the time per run and the share of the session.</p>"
    )
    return _part("optimised", "Before and after ONNX Runtime's optimisation", help_line + panes, folded=True)


def _tables(parts: Contents) -> str:
    tables = [table_html(table, max_bytes=_MAX_TABLE_BYTES) for table in report_tables(parts.capture, parts.overview)]
    if not tables:
        return ""
    help_line = (
        '<p class="or-help">Key columns of each table; the explorer and the frames, such as <code>.nodes</code>, have all of them.</p>'
    )
    return _part("tables", "Tables as text", f'{help_line}<div class="ortlens-summary">{"".join(tables)}</div>', folded=True)


def _surroundings(parts: Contents) -> str:
    rows = "".join(
        f'<tr><th scope="row">{safe(name, 80)}</th><td>{safe(value, 600)}</td></tr>' for name, value in surroundings_of(parts.capture)
    )
    return _part("environment", "Environment", f'<table class="or-facts"><tbody>{rows}</tbody></table>', folded=True)


_FLAME_METHOD = (
    "The first row is the ledger of the call; kernels are those of the profile, operators in PyTorch have clocks of their own. Where "
    "these add up to more than the ledger has for a graph, they are drawn narrower; the figures stay as recorded."
)

_UNITS = (
    (
        "Times",
        "Integer nanoseconds from time.perf_counter_ns, shown to three digits. Estimates are marked `about` or `estimated`.",
    ),
    ("Coverage", "The share of compute nodes that ONNX Runtime runs. Placeholders, outputs and tuple items are not counted."),
    (
        "Gains",
        (
            "`measured`: the change was made and timed against the current setup. `about`: estimated from what was recorded. Where half of "
            "the measured calls took 1.5 times as long as the shortest, or longer, or other processes left no core idle, it says that the "
            "machine was busy."
        ),
    ),
)


def _methods(parts: Contents) -> str:
    methods = [("One call as a flame graph", _FLAME_METHOD)] if flame_svg(parts.capture) else []
    methods += [(figure.title, figure.method) for figure, _ in parts.figures]
    items = "".join(f"<dt>{safe(title)}</dt><dd>{safe(text, 2_000)}</dd>" for title, text in (*methods, *_UNITS))
    return _part("measured", "How each figure was measured", f'<dl class="or-method">{items}</dl>', folded=True)


def footer() -> str:
    """Say what wrote the page."""
    import ortlens

    return f'<p class="or-foot">Written by ortlens {safe(ortlens.__version__)}. One self-contained file that loads nothing.</p>'


def surroundings_of(capture: Capture) -> tuple[tuple[str, str], ...]:
    """List the environment as names and values: versions, machine, choices. Bounded, since a saved file may hold anything."""
    return tuple(_pairs(capture))[:_MAX_ENTRIES]


def _pairs(capture: Capture) -> Iterator[tuple[str, str]]:
    left = dict(sorted(facts_of(capture).items()))
    yield "captured", capture.created.replace("T", " ").replace("+00:00", " UTC") or "not recorded"
    yield "backend", capture.backend
    for name in [name for name in left if name.startswith("version_")]:
        yield name.removeprefix("version_"), left.pop(name)
    for name in [name for name in _WORDS if name in left]:
        yield _WORDS[name], left.pop(name)
    providers = dict.fromkeys(", ".join(session.providers) for session in capture.sessions)
    if providers:
        yield "execution providers", "; ".join(providers)
    threads = dict.fromkeys(
        _threads(session.threads, session.threads_reason) for session in capture.sessions if session.threads is not None
    )
    if threads:
        yield "threads per session", "; ".join(threads)
    options = [name for name in left if name.startswith("option_")]
    for name in options:
        yield f"option {name.removeprefix('option_')}", left.pop(name)
    yield from left.items()


def _threads(count: int, reason: str) -> str:
    many = "chosen by ONNX Runtime" if count == 0 else str(count)
    return f"{many} ({reason})" if reason else many
