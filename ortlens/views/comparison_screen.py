"""What differs between two captures, as a screen: tiles, and answers about times, kernels, breaks, operators and everything else."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ortlens.analysis.compare.changes import result_words
from ortlens.analysis.speed import MIN_CALLS
from ortlens.units import counted, time_from_ns
from ortlens.views.screen import Answer, Item, Screen
from ortlens.views.tiles import Tile
from ortlens.views.wording import clipped, place, short, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ortlens.analysis.compare.changes import Change, Effect, Happened, Kind
    from ortlens.analysis.compare.comparison import Compared
    from ortlens.analysis.compare.durations import Timing
    from ortlens.analysis.compare.kernels import KernelTime
    from ortlens.analysis.speed import SpeedVerdict
    from ortlens.trace.records import Capture
    from ortlens.views.tiles import State

_MOST, _MOST_TIMES, _MOST_ELSE = 5, 10, 40
_UNDECIDED = {"same": "no difference outside the noise", "unmeasured": "the machine was too busy to compare calls this long"}
_MOVED = "Calls are not compared: operators moved into or out of what is timed, and no whole calls were measured on both sides."
_OTHER_MACHINE = "Recorded on different machines or with different numbers of threads, which may be all that the times show."

_NOUNS: Mapping[Kind, str] = {"break": "graph break", "result": "verified result", "finding": "error"}
_HAPPENED: Mapping[tuple[Kind, Happened, Effect], str] = {
    ("break", "added", "worse"): "new",
    ("break", "removed", "better"): "fixed",
    ("recompile", "added", "worse"): "new",
    ("recompile", "removed", "better"): "gone",
    ("operator", "moved", "worse"): "moved to PyTorch",
    ("operator", "moved", "better"): "moved to ONNX Runtime",
    ("finding", "added", "worse"): "new",
    ("value", "changed", "worse"): "beyond rounding",
    ("finding", "removed", "better"): "gone",
}
EFFECTS: Mapping[SpeedVerdict, Effect] = {"slower": "worse", "faster": "better"}
_NOTHING_ELSE = "findings, results, versions, options and settings are the same"
_ELSE: tuple[Kind, ...] = ("value", "coverage", "partition", "result", "finding", "version", "option", "provider", "setting", "machine")


def comparison_screen(compared: Compared, *, anchors: Mapping[tuple[str, str], int] | None = None) -> Screen:
    """Say what differs between two captures; `anchors` are the rows of a page that hold an operator, by side and name."""
    sentence = verdict_sentence(compared)
    answers = (
        _timing_answer(compared.timings),
        _changes("splits", "Splits", _of(compared, "break", "recompile"), none="none differs"),
        _changes("operators", "Operators", _of(compared, "operator"), none="every operator runs where it ran"),
        _kernel_answer(compared, anchors or {}),
        _changes("else", "Everything else", _of(compared, *_ELSE), none=_NOTHING_ELSE, most=_MOST_ELSE),
    )
    return Screen(
        title=f"{_called(compared.before)}  →  {_called(compared.after)}",
        verdict=sentence[:1].upper() + sentence[1:],
        leads=True,
        notes=tuple(note for note, holds in ((_OTHER_MACHINE, compared.machine_differs), (_MOVED, compared.ends_moved)) if holds),
        tiles=(_speed(compared), _splits(compared.changes), _placement(compared.changes), _results(compared)),
        answers=tuple(answer for answer in answers if answer.said or answer.items),
    )


def by_verdict(timings: Iterable[Timing]) -> list[Timing]:
    """Sort times: what differs first, then calls, then the longest."""
    return sorted(timings, key=lambda row: (row.verdict in ("same", "unmeasured"), not row.is_whole, -(row.before_ns or 0)))


def _timing_answer(timings: Sequence[Timing]) -> Answer:
    rows = by_verdict(timings)
    items = tuple(
        Item(head=": ".join(filter(None, (row_name(row), times_words(row), timing_words(row)))), effect=EFFECTS.get(row.verdict, "neutral"))
        for row in rows[:_MOST_TIMES]
    )
    return Answer(name="times", label="Times", items=items, left=max(len(rows) - _MOST_TIMES, 0), frame="times", in_table=True)


def _kernel_answer(compared: Compared, anchors: Mapping[tuple[str, str], int]) -> Answer:
    known = [row for row in compared.kernels if row.difference_ns]
    known.sort(key=lambda row: (row.verdict not in EFFECTS, -abs(row.difference_ns or 0)))
    items = []
    for row in known[:_MOST]:
        wanted = [*(("before", name) for name in row.before_nodes), *(("after", name) for name in row.after_nodes)]
        head = f"{signed(row.difference_ns or 0)}  {operators_words(row)}{f'  {clipped(row.module, 60)}' if row.module else ''}"
        anchor = next((anchors[key] for key in wanted if key in anchors), None)
        items.append(Item(head=head, notes=(kernel_words(row),), effect=EFFECTS.get(row.verdict, "neutral"), anchor=anchor))
    missing = [word for word, capture in (("first", compared.before), ("second", compared.after)) if not capture.kernels]
    which = "neither capture was" if len(missing) > 1 else f"the {missing[0]} capture was not" if missing else ""
    said = f"{which} profiled; lens.profile(*args) before saving, or --profile, brings times of kernels" if missing else ""
    said = said or ("" if items else "none takes another time")
    left = max(len(known) - _MOST, 0)
    return Answer(name="kernels", label="Kernels", said=(said,) if said else (), items=tuple(items), left=left, frame="kernels")


def _of(compared: Compared, *kinds: Kind) -> list[Change]:
    order = {kind: at for at, kind in enumerate(_ELSE)}
    rows = [row for row in compared.changes if row.kind in kinds]
    return sorted(rows, key=lambda row: (row.effect != "worse", row.effect != "better", order.get(row.kind, 0), row.change))


def _changes(name: str, label: str, rows: Iterable[Change], *, none: str, most: int = _MOST) -> Answer:
    said = list(Counter((row.effect, _of_kind(row)) for row in rows).items())
    items = tuple(Item(head=text if number == 1 else f"{text} ({number}x)", effect=effect) for (effect, text), number in said[:most])
    left = max(len(said) - most, 0)
    return Answer(name=name, label=label, said=() if items else (none,), items=items, left=left, frame="changes")


def _of_kind(row: Change) -> str:
    """Describe a difference, after its kind where the label of its answer does not say it."""
    is_said = row.kind not in _ELSE or row.subject == row.kind
    return change_sentence(row) if is_said else f"{row.kind} {change_sentence(row)}"


def verdict_sentence(compared: Compared) -> str:
    """Say in one sentence what got slower, worse, faster or better; that nothing did; or that times were not measured."""
    parts = []
    for verdict, effect in EFFECTS.items():
        timed = [row for row in compared.timings if row.verdict == verdict]
        parts += [f"{row_name(row)} takes {_ratio(row)} as long" for row in timed[:_MOST]]
        parts += _kinds([row for row in compared.changes if row.effect == effect])
    if parts:
        return "; ".join(parts)
    measured = any(row.verdict == "same" for row in compared.timings)
    return (
        "no difference outside the noise" if measured else "nothing got worse; times were not compared, because too few calls were recorded"
    )


def row_name(row: Timing) -> str:
    """Name what a row of times is about: `partition p1 (encoder.layers)`, `graph g0`, `a call of forward`."""
    if row.is_whole:
        of = f" of {visible(row.subject)}" if row.subject != "the call" else ""
        return f"a call{of}" if row.scope == "call" else f"a run of the compiled code{of}"
    return f"{row.scope} {visible(row.subject)}" + (f" ({visible(row.module)})" if row.module else "")


def times_words(row: Timing) -> str:
    """Write both times with bands: `717 µs (696 µs to 769 µs) → …`; empty where a capture has too few calls."""
    if row.before_ns is None or row.after_ns is None:
        return ""
    before = _band(row.before_ns, row.before_low_ns, row.before_high_ns)
    both = f"{before} → {_band(row.after_ns, row.after_low_ns, row.after_high_ns)}"
    if row.before_cpu_ns is None or row.after_cpu_ns is None:
        return both
    return f"{both}, CPU time {time_from_ns(row.before_cpu_ns)} → {time_from_ns(row.after_cpu_ns)}"


def timing_words(row: Timing) -> str:
    """Say whether a time differs: `1.18x as long`, or why that cannot be said."""
    if row.before_ns is None or row.after_ns is None:
        return f"too few calls to compare ({row.before_calls} and {row.after_calls}; {MIN_CALLS} are needed)"
    return _UNDECIDED.get(row.verdict) or f"{_ratio(row)} as long"


def change_sentence(row: Change) -> str:
    """Describe a difference: what it was and what it is, with the user line where one is known."""
    if row.kind == "operator" and row.change == "moved":
        at = f"{row.subject} ({place(row.file, row.line, row.module)})"
        return f"into ONNX Runtime: {at}; was in {row.before}" if row.effect == "better" else f"out of ONNX Runtime: {at}; in {row.after}"
    where = f" ({place(row.file, row.line, row.module)})" if row.file or row.module else ""
    subject = clipped(row.subject, 160) + where
    before, after = clipped(row.before or "", 200), clipped(row.after or "", 200)
    if row.change == "added":
        return f"new: {subject}" + (f": {after}" if after else "")
    if row.change == "removed":
        return f"{'fixed' if row.kind == 'break' else 'gone'}: {subject}" + (f": {before}" if before else "")
    return f"{subject}: {before or 'none'} → {after or 'none'}"


def signed(nanoseconds: int) -> str:
    """Format a difference of times with its sign: `+12.3 µs`."""
    return f"{'+' if nanoseconds >= 0 else ''}{time_from_ns(nanoseconds)}"


def kernel_words(row: KernelTime) -> str:
    """Say what computes some operators, and how long, in both captures: `Gemm + Relu → FusedGemm: 88.5 µs -> 359 µs`."""
    before, after = clipped(" + ".join(row.before_kernels), 80) or "none", clipped(" + ".join(row.after_kernels), 80) or "none"
    kernels = before if before == after else f"{before} → {after}"
    noise = {True: ", outside the noise of both profiles", False: ", within the noise of the profiles", None: ""}[row.outside_noise]
    return f"{kernels}: {time_from_ns(row.before_ns or 0)} → {time_from_ns(row.after_ns or 0)}{noise}"


def operators_words(row: KernelTime) -> str:
    """List the operators that a row of times is about: `t, addmm, relu`."""
    return clipped(", ".join(map(short, row.operators)), 80) or "kernels of no operator"


def _kinds(rows: Sequence[Change]) -> list[str]:
    counts = Counter((row.kind, _HAPPENED.get((row.kind, row.change, row.effect), row.effect)) for row in rows if row.kind != "coverage")
    said = [f"{counted(number, _NOUNS.get(kind, kind))} {happened}" for (kind, happened), number in counts.items()]
    return said + [f"coverage {row.before} → {row.after}" for row in rows if row.kind == "coverage"]


def _called(capture: Capture) -> str:
    return f"{clipped(capture.name, 60) or 'unnamed capture'} ({clipped(capture.backend, 30)}, {clipped(capture.created, 30) or 'no date'})"


def _ratio(row: Timing) -> str:
    return f"{row.ratio or 1:.2f}x"


def _band(middle: int, low: int | None, high: int | None) -> str:
    return f"{time_from_ns(middle)} ({time_from_ns(low or middle)} to {time_from_ns(high or middle)})"


_SPLITS: Mapping[tuple[Kind, Happened], str] = {
    ("break", "removed"): "fixed",
    ("break", "added"): "new",
    ("break", "changed"): "met more or less often",
    ("recompile", "removed"): "gone",
    ("recompile", "added"): "new",
    ("recompile", "changed"): "more or less frequent",
}
_STATES: Mapping[SpeedVerdict, State] = {"slower": "bad", "faster": "good", "same": "plain", "unmeasured": "unknown"}


def _speed(compared: Compared) -> Tile:
    calls = [row for row in compared.timings if row.is_whole] or list(compared.timings)
    if compared.ends_moved or not calls:
        detail = _MOVED if compared.ends_moved else "no call of both captures was recorded"
        return Tile(name="speed", title="Speed", state="unknown", word="not compared", detail=detail)
    call = min(calls, key=lambda row: list(_STATES).index(row.verdict))
    undecided = {"same": _UNDECIDED["same"], "unmeasured": "not compared"}
    word = undecided.get(call.verdict) or f"{call.verdict}: {timing_words(call)}"
    detail = times_words(call) or timing_words(call)
    return Tile(name="speed", title="Speed", state=_STATES[call.verdict], word=word, detail=detail)


def _splits(changes: Iterable[Change]) -> Tile:
    rows = [row for row in changes if row.kind in ("break", "recompile")]
    counts = Counter((row.kind, row.change) for row in rows)
    parts = [f"{counted(counts[kind, change], kind)} {word}" for (kind, change), word in _SPLITS.items() if counts[kind, change]]
    word, detail = ", ".join(parts) or "none fixed, none new", rows[0].subject if rows else "neither breaks nor recompiles differ"
    return Tile(name="splits", title="Breaks and recompiles", label="Breaks", state=_state(rows), word=word, detail=detail)


def _placement(changes: Iterable[Change]) -> Tile:
    coverage = next((row for row in changes if row.kind == "coverage"), None)
    moved = [row for row in changes if row.kind == "operator" and row.change == "moved"]
    parts = [
        f"{count} moved {where}"
        for effect, where in (("worse", "to PyTorch"), ("better", "into it"))
        if (count := sum(row.effect == effect for row in moved))
    ]
    word = "the same share" if coverage is None else f"{coverage.before} → {coverage.after}"
    same = "every operator runs where it ran" if coverage is None else "operators were added or removed"
    state = _state(moved if coverage is None else [coverage])
    return Tile(name="time", title="In ONNX Runtime", state=state, word=word, detail=", ".join(parts) or same)


def _state(rows: Sequence[Change]) -> State:
    effects = {row.effect for row in rows}
    if "worse" in effects:
        return "caution" if "better" in effects else "bad"
    return "good" if "better" in effects else "plain"


def _results(compared: Compared) -> Tile:
    before, after = result_words(compared.before), result_words(compared.after)
    change = next((row for row in compared.changes if row.kind == "result"), None)
    detail = before if before == after else f"{before} → {after}"
    state: State = "unknown" if "not verified" in (before, after) else "plain"
    word = "not compared" if state == "unknown" else "no change"
    if change is not None and change.effect != "neutral":
        state, word = _state([change]), change.effect
    return Tile(name="correct", title="Verified values", state=state, word=word, detail=detail)
