"""A screen as lines of text for a terminal, as one static fragment of HTML for notebooks, and as the bundle of both that IPython shows.

In HTML: no script, no remote load, no ids: the fragment may occur on a page many times. Colours come from JupyterLab's `--jp-*`
variables and fall back to the system's `Canvas` and `CanvasText`, so it follows light and dark everywhere. A viewer that
drops style sheets, as GitHub does, still shows headings and tables in reading order.
"""

from __future__ import annotations

import re
import textwrap
from itertools import chain, repeat
from typing import TYPE_CHECKING

from ortlens.views.markup import render, safe
from ortlens.views.screen import Screen, capture_screen
from ortlens.views.table import MAX_BYTES
from ortlens.views.tiles import tile_sentence
from ortlens.views.wording import SAVED, ascii_from_text, clipped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ortlens.trace.records import Capture
    from ortlens.views.screen import Answer
    from ortlens.views.wording import Hints


_LABEL = 18
_MIN_WIDTH = 60
_BAR = 20
_LINES = 4  # of a sentence
_NOTE_LINES = 8  # at 80 columns the longest advice takes five: what to do is never cut off
_UNIT = re.compile(r"(\d) ([nµm]?s|%)(?!\w)")
_BOLD, _RED, _PLAIN = "\x1b[1m", "\x1b[1;31m", "\x1b[0m"


def summary(capture: Capture, *, width: int = 100, ascii_only: bool = False, colour: bool = False, hints: Hints = SAVED) -> str:
    """Summarise in about ten to twenty lines how a model runs in ONNX Runtime; see `screen_text`."""
    return screen_text(capture_screen(capture, hints), width=width, ascii_only=ascii_only, colour=colour)


def screen_text(screen: Screen, *, width: int = 100, ascii_only: bool = False, colour: bool = False) -> str:
    """Lay a screen out as text; `width` is at least 60.

    `colour` prints labels bold; names from a capture never bring their own control codes.
    """
    room = max(width, _MIN_WIDTH) - _LABEL
    lines = [clipped(screen.title, room + _LABEL), ""]
    for label, body in _sections(screen, room):
        code, padded = _RED if label == "WRONG RESULTS" else _BOLD, label.ljust(_LABEL)
        heads = chain([f"{code}{padded}{_PLAIN}" if colour else padded], repeat(" " * _LABEL))
        lines += [head + line for head, line in zip(heads, body, strict=False)]
    text = "\n".join(line.rstrip() for line in lines)
    return ascii_from_text(text) if ascii_only else text


def _sections(screen: Screen, room: int) -> Iterator[tuple[str, list[str]]]:
    if screen.alert:
        yield "WRONG RESULTS", _prose(screen.alert, room)
    if screen.leads:
        yield "Verdict", _prose(screen.verdict, room)
    for tile in screen.tiles:
        yield tile.label or tile.title, _prose(tile_sentence(tile), room)
    if screen.dry_run:
        yield "Dry run", _prose(screen.dry_run, room)
    for note in screen.notes:
        yield "Note", _prose(note, room)
    for answer in screen.answers:
        yield answer.label, list(_answer(answer, room))


def _answer(answer: Answer, room: int) -> Iterator[str]:
    filled = 0 if answer.share is None else max(1, int(answer.share * _BAR))  # rounds down: a full bar means all of it
    bar = "█" * filled + "░" * (_BAR - filled) + " " if filled else ""
    for number, sentence in enumerate(answer.said):
        yield from _prose(sentence if number else bar + sentence, room, hang="  " if len(answer.said) > 1 else "")
    for number, item in enumerate(answer.items, start=1):
        numbered = f"{number}. " if answer.is_ranked else f"{item.sign} " if item.sign else ""
        yield from _prose(numbered + item.head, room, hang=" " * (len(numbered) or 2), lines=_NOTE_LINES if answer.is_ranked else _LINES)
        for note in item.notes:
            yield from _prose(note, room, indent=" " * (len(numbered) or 2), hang="  " if numbered else "", lines=_NOTE_LINES)
    if answer.left:
        yield f"and {answer.left:,} more: see table {answer.frame}"


def _prose(text: str, room: int, *, indent: str = "", hang: str = "", lines: int = _LINES) -> list[str]:
    """Wrap words over a few lines, the later ones set in by `hang`; what is beyond them is cut off."""
    if any(len(word) > room for word in text[: room * lines].split()):  # a name longer than a line has to do with two
        lines = min(lines, 2)
    bounded = _UNIT.sub("\\1\N{NO-BREAK SPACE}\\2", clipped(text, room * lines))
    wrapped = textwrap.wrap(bounded, room, initial_indent=indent, subsequent_indent=indent + hang, max_lines=lines, placeholder=" …")
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in wrapped] or [indent]


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
