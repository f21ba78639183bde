"""A comparison of two captures in words."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import TYPE_CHECKING

from ortlens.analysis.compare.kernels import kernel_times
from ortlens.analysis.speed import MIN_CALLS
from ortlens.units import counted, time_from_ns
from ortlens.views.wording import clipped, place, visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ortlens.analysis.compare.changes import Change, Effect, Happened, Kind
    from ortlens.analysis.compare.comparison import Compared
    from ortlens.analysis.compare.durations import Timing
    from ortlens.analysis.compare.kernels import KernelTime
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


ENDS_MOVED = (
    "Calls are not compared: they are timed from their first session to their last, and operators moved into or out of what lies between."
)
"""Why a comparison has no times of calls."""

_NOUNS: Mapping[Kind, str] = {"break": "graph break", "result": "verified result", "finding": "error"}
_HAPPENED: Mapping[tuple[Kind, Happened, Effect], str] = {
    ("break", "added", "worse"): "new",
    ("break", "removed", "better"): "fixed",
    ("recompile", "added", "worse"): "new",
    ("recompile", "removed", "better"): "gone",
    ("operator", "moved", "worse"): "moved to PyTorch",
    ("operator", "moved", "better"): "moved to ONNX Runtime",
    ("finding", "added", "worse"): "new",
    ("finding", "removed", "better"): "gone",
}


def comparison_text(compared: Compared, *, width: int = 100) -> str:
    """Say what differs between two captures: a verdict, then times and differences by kind. `width` is at least 60."""
    room = max(width, _MIN_WIDTH) - _LABEL
    lines = [clipped(f"{_called(compared.before)}  ->  {_called(compared.after)}", room + _LABEL), ""]
    for label, body in _sections(compared):
        wrapped = [part for text in body for part in textwrap.wrap(text, room, subsequent_indent="  ") or [""]]
        lines += [(label if number == 0 else "").ljust(_LABEL) + line for number, line in enumerate(wrapped)]
    return "\n".join(line.rstrip() for line in lines)


def verdict_sentence(compared: Compared) -> str:
    """Say in one sentence what got slower, worse, faster or better; that nothing did; or that times were not measured."""
    parts = [f"{row_name(row)} takes {_ratio(row)} as long" for row in compared.slower[:_MAX_ROWS]]
    parts += _kinds(compared.worse)
    faster = [row for row in compared.timings if row.verdict == "faster"]
    parts += [f"{row_name(row)} takes {_ratio(row)} as long" for row in faster[:_MAX_ROWS]]
    parts += _kinds([row for row in compared.changes if row.effect == "better"])
    if parts:
        return "; ".join(parts)
    measured = any(row.verdict == "same" for row in compared.timings)
    return (
        "no difference outside the noise" if measured else "nothing got worse; times were not compared, because too few calls were recorded"
    )


def row_name(row: Timing) -> str:
    """Name what a row of times is about: `partition p1 (encoder.layers)`, `graph g0`, `a call of forward`."""
    if row.scope == "call":
        return f"a call of {visible(row.subject)}" if row.subject != "the call" else "a call"
    return f"{row.scope} {visible(row.subject)}" + (f" ({visible(row.module)})" if row.module else "")


def timing_sentence(row: Timing) -> str:
    """Describe a row of times: both with their bands, the ratio and the verdict."""
    if row.before_ns is None or row.after_ns is None:
        return f"{row_name(row)}: {timing_words(row)}"
    return f"{row_name(row)}: {times_words(row)}: {timing_words(row)}"


def times_words(row: Timing, arrow: str = "->") -> str:
    """Write both times with bands: `717 µs (696 µs to 769 µs) -> …`; empty where a capture has too few calls."""
    if row.before_ns is None or row.after_ns is None:
        return ""
    before = _band(row.before_ns, row.before_low_ns, row.before_high_ns)
    return f"{before} {arrow} {_band(row.after_ns, row.after_low_ns, row.after_high_ns)}"


def timing_words(row: Timing) -> str:
    """Say whether a time differs: `1.18x as long`, or why that cannot be said."""
    if row.before_ns is None or row.after_ns is None:
        return f"too few calls to compare ({row.before_calls} and {row.after_calls}; {MIN_CALLS} are needed)"
    return _UNDECIDED.get(row.verdict) or f"{_ratio(row)} as long"


def change_sentence(row: Change) -> str:
    """Describe a difference: what it was and what it is, with the user line where one is known."""
    where = f" ({place(row.file, row.line, row.module)})" if row.file or row.module else ""
    subject = clipped(row.subject, 160) + where
    before, after = clipped(row.before or "", 200), clipped(row.after or "", 200)
    if row.change == "added":
        return f"new: {subject}" + (f": {after}" if after else "")
    if row.change == "removed":
        return f"{'fixed' if row.kind == 'break' else 'gone'}: {subject}" + (f": {before}" if before else "")
    return f"{subject}: {before or 'none'} -> {after or 'none'}"


def signed(nanoseconds: int) -> str:
    """Format a difference of times with its sign: `+12.3 µs`."""
    return f"{'+' if nanoseconds >= 0 else ''}{time_from_ns(nanoseconds)}"


def short(target: str) -> str:
    """Strip namespace and overload from an operator: `add` for `aten.add.Tensor`; names of another form stay as they are."""
    parts = target.split(".")
    return parts[1] if len(parts) == 3 and parts[0] == "aten" else target  # noqa: PLR2004 - namespace, name, overload


def kernel_words(row: KernelTime) -> str:
    """Say what computes some operators, and how long, in both captures: `Gemm + Relu -> FusedGemm: 88.5 µs -> 359 µs`."""
    before, after = clipped(" + ".join(row.before_kernels), 80) or "none", clipped(" + ".join(row.after_kernels), 80) or "none"
    kernels = before if before == after else f"{before} -> {after}"
    noise = {True: ", outside the noise of both profiles", False: ", within the noise of the profiles", None: ""}[row.outside_noise]
    return f"{kernels}: {time_from_ns(row.before_ns or 0)} -> {time_from_ns(row.after_ns or 0)}{noise}"


def operators_words(row: KernelTime) -> str:
    """List the operators that a row of times is about: `t, addmm, relu`."""
    return clipped(", ".join(map(short, row.operators)), 80) or "kernels of no operator"


def _called(capture: Capture) -> str:
    return f"{clipped(capture.name, 60) or 'unnamed capture'} ({clipped(capture.backend, 30)}, {clipped(capture.created, 30) or 'no date'})"


def _kinds(rows: Sequence[Change]) -> list[str]:
    counts = Counter((row.kind, _HAPPENED.get((row.kind, row.change, row.effect), row.effect)) for row in rows if row.kind != "coverage")
    said = [f"{counted(number, _NOUNS.get(kind, kind))} {happened}" for (kind, happened), number in counts.items()]
    return said + [f"coverage {row.before} -> {row.after}" for row in rows if row.kind == "coverage"]


def _sections(compared: Compared) -> Iterator[tuple[str, list[str]]]:
    sentence = verdict_sentence(compared)
    yield "Verdict", [sentence[:1].upper() + sentence[1:]]
    if compared.machine_differs:
        yield "", ["Recorded on different machines or with different numbers of threads, which may be all that the times show."]
    if compared.ends_moved:
        yield "", [ENDS_MOVED]
    if compared.timings:
        shown = sorted(
            compared.timings, key=lambda row: (row.verdict in ("same", "unmeasured"), row.scope != "call", -(row.before_ns or 0))
        )
        rows = [timing_sentence(row) for row in shown[: 2 * _MAX_ROWS]]
        yield "Times", [*rows, *_more(len(shown) - len(rows), "times")]
    kernels = [row for row in kernel_times(compared) if row.verdict in ("slower", "faster")]
    if kernels:
        kernels.sort(key=lambda row: -abs(row.difference_ns or 0))
        rows = [f"{_operators(row)}: {kernel_words(row)}: {signed(row.difference_ns or 0)}" for row in kernels[:_MAX_ROWS]]
        yield "Kernels", [*rows, *_more(len(kernels) - len(rows), "kernels")]
    for kind, title in _TITLES.items():
        found = [row for row in compared.changes if row.kind == kind]
        if found:
            found.sort(key=lambda row: (row.effect != "worse", row.effect != "better", row.change))
            sentences = [repeated(text, number) for text, number in Counter(change_sentence(row) for row in found).items()]
            yield title, [*sentences[:_MAX_ROWS], *_more(len(sentences) - _MAX_ROWS, "changes")]
    if not compared.changes:
        yield "Else", ["the same operators, breaks, recompiles, findings, versions and options"]


def _operators(row: KernelTime) -> str:
    return operators_words(row) + (f" ({clipped(row.module, 60)})" if row.module else "")


def repeated(text: str, number: int) -> str:
    """Say a sentence once for several rows, with their number where it is more than one."""
    return text if number == 1 else f"{text} ({number}x)"


def _more(left: int, frame: str) -> list[str]:
    return [f"and {left:,} more: see {frame}"] if left > 0 else []


def _ratio(row: Timing) -> str:
    return f"{row.ratio or 1:.2f}x"


def _band(middle: int, low: int | None, high: int | None) -> str:
    return f"{time_from_ns(middle)} ({time_from_ns(low or middle)} to {time_from_ns(high or middle)})"
