"""A comparison of two captures in words."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import TYPE_CHECKING

from ortlens.analysis.compare.noise import MIN_CALLS
from ortlens.units import counted, time_from_ns
from ortlens.views.wording import clipped, place, visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ortlens.analysis.compare.changes import Change
    from ortlens.analysis.compare.comparison import Compared
    from ortlens.analysis.compare.durations import Timing
    from ortlens.trace.records import Capture

_LABEL = 14
_MIN_WIDTH = 60
_MAX_ROWS = 5
_TITLES = {
    "operator": "Operators",
    "partition": "Partitions",
    "coverage": "Coverage",
    "break": "Graph breaks",
    "recompile": "Recompiles",
    "result": "Results",
    "finding": "Findings",
    "version": "Versions",
    "option": "Options",
    "provider": "Providers",
    "setting": "Settings",
    "machine": "Machine",
}


_UNDECIDED = {"same": "no difference outside the noise", "unmeasured": "the machine was too busy to compare calls this long"}


def comparison_text(compared: Compared, *, width: int = 100) -> str:
    """Say what differs between two captures.

    Args:
        compared: The comparison.
        width: Characters per line, at least 60.

    Returns:
        A verdict, then times and differences by kind, without a trailing line break.
    """
    room = max(width, _MIN_WIDTH) - _LABEL
    lines = [clipped(f"{_called(compared.before)}  ->  {_called(compared.after)}", room + _LABEL), ""]
    for label, body in _sections(compared):
        wrapped = [part for text in body for part in textwrap.wrap(text, room, subsequent_indent="  ") or [""]]
        lines += [(label if number == 0 else "").ljust(_LABEL) + line for number, line in enumerate(wrapped)]
    return "\n".join(line.rstrip() for line in lines)


def verdict_sentence(compared: Compared) -> str:
    """The comparison in one sentence.

    Args:
        compared: The comparison.

    Returns:
        What got slower, worse, faster or better; that nothing did; or that times were not measured.
    """
    parts = [f"{row_name(row)} takes {_ratio(row)} as long" for row in compared.slower[:_MAX_ROWS]]
    parts += [f"{counted(number, noun)} worse" for noun, number in _kinds(compared.worse)]
    faster = [row for row in compared.timings if row.verdict == "faster"]
    parts += [f"{row_name(row)} takes {_ratio(row)} as long" for row in faster[:_MAX_ROWS]]
    better = tuple(row for row in compared.changes if row.effect == "better")
    parts += [f"{counted(number, noun)} better" for noun, number in _kinds(better)]
    if parts:
        return "; ".join(parts)
    measured = any(row.verdict == "same" for row in compared.timings)
    return (
        "no difference outside the noise" if measured else "nothing got worse; times were not compared, because too few calls were recorded"
    )


def row_name(row: Timing) -> str:
    """What a row of times is about.

    Args:
        row: The row.

    Returns:
        `partition p1 (encoder.layers)`, `graph g0`, `a call of forward`.
    """
    if row.scope == "call":
        return f"a call of {visible(row.subject)}" if row.subject != "the call" else "a call"
    return f"{row.scope} {visible(row.subject)}" + (f" ({visible(row.module)})" if row.module else "")


def timing_sentence(row: Timing) -> str:
    """One row of times.

    Args:
        row: The row.

    Returns:
        Both times with their bands, the ratio and the verdict.
    """
    if row.before_ns is None or row.after_ns is None:
        return f"{row_name(row)}: too few calls to compare ({row.before_calls} and {row.after_calls}; {MIN_CALLS} are needed)"
    said = _UNDECIDED.get(row.verdict) or f"{_ratio(row)} as long"
    before = _band(row.before_ns, row.before_low_ns, row.before_high_ns)
    return f"{row_name(row)}: {before} -> {_band(row.after_ns, row.after_low_ns, row.after_high_ns)}: {said}"


def change_sentence(row: Change) -> str:
    """One difference.

    Args:
        row: The row.

    Returns:
        What it was and what it is, with the user line where one is known.
    """
    where = f" ({place(row.file, row.line, row.module)})" if row.file or row.module else ""
    subject = clipped(row.subject, 160) + where
    before, after = clipped(row.before or "", 200), clipped(row.after or "", 200)
    if row.change == "added":
        return f"new: {subject}" + (f": {after}" if after else "")
    if row.change == "removed":
        return f"gone: {subject}" + (f": {before}" if before else "")
    return f"{subject}: {before or 'none'} -> {after or 'none'}"


def _called(capture: Capture) -> str:
    return f"{clipped(capture.name, 60) or 'unnamed capture'} ({clipped(capture.backend, 30)}, {clipped(capture.created, 30) or 'no date'})"


def _kinds(rows: Sequence[Change]) -> list[tuple[str, int]]:
    return list(Counter("verified result" if row.kind == "result" else row.kind for row in rows).items())


def _sections(compared: Compared) -> Iterator[tuple[str, list[str]]]:
    sentence = verdict_sentence(compared)
    yield "Verdict", [sentence[:1].upper() + sentence[1:]]
    if compared.machine_differs:
        yield "", ["Recorded on different machines or with different numbers of threads, which may be all that the times show."]
    if compared.timings:
        shown = sorted(
            compared.timings, key=lambda row: (row.verdict in ("same", "unmeasured"), row.scope != "call", -(row.before_ns or 0))
        )
        rows = [timing_sentence(row) for row in shown[: 2 * _MAX_ROWS]]
        yield "Times", [*rows, *_more(len(shown) - len(rows), "times")]
    for kind, title in _TITLES.items():
        found = [row for row in compared.changes if row.kind == kind]
        if found:
            found.sort(key=lambda row: (row.effect != "worse", row.effect != "better", row.change))
            sentences = [_counted(text, number) for text, number in Counter(change_sentence(row) for row in found).items()]
            yield title, [*sentences[:_MAX_ROWS], *_more(len(sentences) - _MAX_ROWS, "changes")]
    if not compared.changes:
        yield "Else", ["the same operators, breaks, recompiles, findings, versions and options"]


def _counted(text: str, number: int) -> str:
    return text if number == 1 else f"{text} ({number}x)"


def _more(left: int, frame: str) -> list[str]:
    return [f"and {left:,} more: see {frame}"] if left > 0 else []


def _ratio(row: Timing) -> str:
    return f"{row.ratio or 1:.2f}x"


def _band(middle: int, low: int | None, high: int | None) -> str:
    return f"{time_from_ns(middle)} ({time_from_ns(low or middle)} to {time_from_ns(high or middle)})"
