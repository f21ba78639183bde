"""The summary of a capture for notebooks: one static HTML fragment, and the bundle of it and the text that IPython shows.

No script, no remote load, no ids: the fragment may occur on a page many times. Colours come from JupyterLab's `--jp-*`
variables and fall back to the system's `Canvas` and `CanvasText`, so it follows light and dark everywhere. A viewer that
drops style sheets, as GitHub does, still shows headings and tables in reading order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ortlens.analysis.answers.overview import overview_of
from ortlens.analysis.numbers import numbers_of
from ortlens.units import percent, time_from_ns
from ortlens.views.hints import SAVED
from ortlens.views.markup import render, safe
from ortlens.views.sentences import (
    MAX_PROBLEMS,
    consequence_sentences,
    coverage_sentence,
    dry_run_sentence,
    empty_sentence,
    numbers_sentence,
    onnx_answers,
    partitions_sentence,
    problem_sentence,
    title,
    wrong_sentence,
)
from ortlens.views.tables import MAX_BYTES, answer_tables
from ortlens.views.text import summary
from ortlens.views.tiles import tiles_of
from ortlens.views.time_sentences import generation_sentences, per_call_sentences
from ortlens.views.wording import PHASE_WORDS, clipped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ortlens.analysis.answers.overview import Overview
    from ortlens.analysis.numbers import NumericsSummary
    from ortlens.trace.records import Capture
    from ortlens.views.hints import Hints
    from ortlens.views.tables import TextTable


def summary_html(capture: Capture, *, overview: Overview | None = None, hints: Hints = SAVED) -> str:
    """Summarise any capture, even a huge or hostile one, as a self-contained HTML fragment of less than 60 kB."""
    overview = overview or overview_of(capture)
    answers = answers_of(overview, numbers_of(capture))
    return fragment_html(title(overview), answer_tables(overview), tiles=tiles_of(capture, overview, hints), answers=answers)


def fragment_html(title: str, tables: Iterable[TextTable], **about: object) -> str:
    """Put a title and tables into a fragment for notebooks, with tiles and answers where they are given."""
    return render("summary.html", **{"title": title, "tables": tables, "max_bytes": MAX_BYTES, "tiles": (), "answers": None} | about)


def answers_of(overview: Overview, numbers: NumericsSummary | None) -> dict[str, Any]:
    """Say for a template how much runs in ONNX Runtime, in how many partitions, what a call takes, and what to look at first."""
    is_empty = overview.coverage.verdict == "empty"
    share, dry = overview.coverage.share, dry_run_sentence(overview)
    bar = None
    # Of compiled code alone, a full bar would say that nothing is outside.
    if share is not None and overview.onnx is None and overview.coverage.verdict != "compiled":
        bar = {"share": share, "label": f"{percent(share)} of the compute nodes run in ONNX Runtime"}
    empty = empty_sentence(overview) if is_empty else "nothing stands out"
    return {
        "wrong": wrong_sentence(numbers),
        "dry": _capitalised(dry) if overview.onnx is None else "",
        "facts": list(_facts(overview, numbers)),
        "bar": bar,
        "looks": [(problem_sentence(item), consequence_sentences(item)) for item in overview.problems[:MAX_PROBLEMS]],
        "empty": _capitalised(empty),
    }


def _facts(overview: Overview, numbers: NumericsSummary | None) -> Iterator[tuple[str, str]]:
    if overview.onnx is not None:
        yield from onnx_answers(overview, overview.onnx)
    else:
        yield "In ONNX Runtime", coverage_sentence(overview)
    if overview.onnx is None and overview.coverage.verdict != "empty":
        yield "Generation", "; ".join(generation_sentences(overview))
        yield "Partitions", partitions_sentence(overview)
        yield "Per call", "; ".join(per_call_sentences(overview))
        phases = ", ".join(f"{PHASE_WORDS[phase.phase]} {time_from_ns(phase.total_ns)}" for phase in overview.phases if phase.total_ns)
        yield "Compile time", f"{time_from_ns(overview.compile_ns)}: {phases}" if overview.compile_ns else ""
    if overview.onnx is not None or overview.coverage.verdict != "empty":
        yield "Numerics", numbers_sentence(numbers) if numbers else ""


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def failure_html(texts: Iterable[str]) -> str:
    """Say in a notebook that drawing failed, with nothing but the escaped paragraphs."""
    return "<div>" + "".join(f"<p>{safe(text)}</p>" for text in texts) + "</div>"


def mimebundle(captured: Callable[[], Capture], hints: Hints) -> dict[str, str]:
    """Summarise a capture as text and HTML; never raises, but says so where the summary fails.

    Takes a function, because taking a snapshot may fail as well.
    """
    try:
        capture = captured()
        overview = overview_of(capture)  # once for both
        about: dict[str, Any] = {"overview": overview, "hints": hints}
        return {"text/plain": summary(capture, **about), "text/html": summary_html(capture, **about)}
    except Exception as err:  # noqa: BLE001 - a guard of the lens: looking at an object must not raise
        texts = _failure(err)
        return {"text/plain": "\n".join(texts), "text/html": failure_html(texts)}


def _failure(err: Exception) -> tuple[str, str]:
    return (
        f"ortlens could not draw this capture: {type(err).__name__}: {clipped(str(err), 200)}",
        "This is a bug in ortlens. The frames, such as .graphs and .fallbacks, and .save(path) still work.",
    )
