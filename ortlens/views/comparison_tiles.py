"""The verdict of a comparison as tiles: speed, splits, where operators run, results."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ortlens.analysis.compare.changes import result_words
from ortlens.units import counted
from ortlens.views.comparison_text import ENDS_MOVED, times_words, timing_words
from ortlens.views.tiles import Tile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ortlens.analysis.compare.changes import Change, Happened, Kind
    from ortlens.analysis.compare.comparison import Compared
    from ortlens.views.tiles import State

_SPLITS: Mapping[tuple[Kind, Happened], str] = {
    ("break", "removed"): "fixed",
    ("break", "added"): "new",
    ("break", "changed"): "met more or less often",
    ("recompile", "removed"): "gone",
    ("recompile", "added"): "new",
    ("recompile", "changed"): "more or less frequent",
}
_ORDER = ("slower", "faster", "same", "unmeasured")


def comparison_tiles(compared: Compared) -> tuple[Tile, ...]:
    """Answer whether it is slower, what splits it, where its operators run, and whether its results are right."""
    return _speed(compared), _splits(compared.changes), _placement(compared.changes), _results(compared)


def _speed(compared: Compared) -> Tile:
    calls = [row for row in compared.timings if row.scope == "call"] or list(compared.timings)
    if compared.ends_moved or not calls:
        detail = ENDS_MOVED if compared.ends_moved else "no call of both captures was recorded"
        return Tile(name="speed", title="Speed", state="unknown", word="not compared", detail=detail)
    call = min(calls, key=lambda row: _ORDER.index(row.verdict))
    states: dict[str, State] = {"slower": "bad", "faster": "good", "same": "plain", "unmeasured": "unknown"}
    words = {"slower": "slower", "faster": "faster", "same": "no difference outside the noise", "unmeasured": "not compared"}
    word = words[call.verdict]
    if call.verdict in ("slower", "faster"):
        word = f"{word}: {timing_words(call)}"
    return Tile(
        name="speed",
        title="Speed",
        state=states[call.verdict],
        word=word,
        detail=times_words(call, "→") or timing_words(call),
    )


def _splits(changes: Iterable[Change]) -> Tile:
    rows = [row for row in changes if row.kind in ("break", "recompile")]
    if not rows:
        return Tile(
            name="splits",
            title="Breaks and recompiles",
            state="plain",
            word="none fixed, none new",
            detail="neither breaks nor recompiles differ",
        )
    counts = Counter((row.kind, row.change) for row in rows)
    parts = [f"{counted(counts[kind, change], kind)} {word}" for (kind, change), word in _SPLITS.items() if counts[kind, change]]
    return Tile(name="splits", title="Breaks and recompiles", state=_state(rows), word=", ".join(parts), detail=rows[0].subject)


def _placement(changes: Iterable[Change]) -> Tile:
    coverage = next((row for row in changes if row.kind == "coverage"), None)
    moved = [row for row in changes if row.kind == "operator" and row.change == "moved"]
    parts = [
        f"{count} moved {where}"
        for effect, where in (("worse", "to PyTorch"), ("better", "into it"))
        if (count := sum(row.effect == effect for row in moved))
    ]
    if coverage is None:
        detail = ", ".join(parts) or "every operator runs where it ran"
        return Tile(name="time", title="In ONNX Runtime", state=_state(moved), word="the same share", detail=detail)
    return Tile(
        name="time",
        title="In ONNX Runtime",
        state=_state([coverage]),
        word=f"{coverage.before} → {coverage.after}",
        detail=", ".join(parts) or "operators were added or removed",
    )


def _state(rows: Sequence[Change]) -> State:
    effects = {row.effect for row in rows}
    if "worse" in effects:
        return "caution" if "better" in effects else "bad"
    return "good" if "better" in effects else "plain"


def _results(compared: Compared) -> Tile:
    before, after = result_words(compared.before), result_words(compared.after)
    change = next((row for row in compared.changes if row.kind == "result"), None)
    detail = before if before == after else f"{before} → {after}"
    if change is None or change.effect == "neutral":
        known = "not verified" not in (before, after)
        word = "no change" if known else "not compared"
        return Tile(name="correct", title="Verified values", state="plain" if known else "unknown", word=word, detail=detail)
    return Tile(name="correct", title="Verified values", state=_state([change]), word=change.effect, detail=detail)
