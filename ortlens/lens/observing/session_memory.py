"""The memory of the process over the calls of a session: what they keep, what leaks, and what `malloc` cannot give back.

Reading it takes some 20 us, so that only some calls do: the first few of each combination of sizes, and then ever fewer.
"""

from __future__ import annotations

import itertools
import math
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ortlens._process import ProcessMemory, process_memory
from ortlens.analysis.problems.catalogue import remedy
from ortlens.trace import records as r
from ortlens.units import counted, size_from_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ortlens.trace.recorder import Recorder

_HAZARDS = {
    "memory_ratchet": "ONNX Runtime's arena keeps what the largest call needed, for as long as the session lives.",
    "memory_leak": "The process grows until it has no memory left.",
    "memory_fragmented": "`malloc` gives back what is free behind its last block alone; the rest counts for the limit of a container.",
}
_LEAKS = (
    ("between", "Look for what keeps inputs, results or other arrays, as a list does; `tracemalloc` finds the line, if it is Python's."),
    ("inside of", "Look for a custom operator that keeps memory, or try another version of ONNX Runtime."),
)
_TRIM = "Call `ctypes.CDLL(None).malloc_trim(0)` now and then, or set MALLOC_ARENA_MAX=2, or preload another allocator."
MUCH = 32 << 20
"""Bytes from which memory is worth a word: of less, the rest of the process is the larger part."""
FIRST, _STRIDE, _SAMPLES = 3, 4, 64
"""Calls of each sizes that raise memory: from the second on, ONNX Runtime holds activations in one block. Calls from look to look, at
first, and looks that are kept; when they are full, every other one goes."""
_MOST_SIZES, _SHOWN = 64, 8  # combinations told apart; all others are one, but for those far larger than any before
_FEWEST, _GROWN, _RARE = (6, 64), 16 << 20, 0.1
"""Looks, calls from the first to the last, and bytes in all, from which a leak is told. Share of calls up to which they are rare."""
WATCHED = weakref.WeakKeyDictionary[Any, "SessionMemory"]()  # sessions of this process, and who watched them last


@dataclass(slots=True)
class Sizes:
    """The calls with inputs of the same sizes."""

    shapes: Mapping[str, tuple[int, ...]]
    elements: int
    first: int  # number of the first call
    calls: int = 0
    raised: int = 0  # resident bytes that its runs took
    most: tuple[int, int, int, ProcessMemory] | None = None  # that one call raised, its number, and the arena and all memory after it
    stride: int = _STRIDE
    looks: list[tuple[int, int, int, int]] = field(default_factory=list)  # calls, heap and memory before them but for `raised`, and by them

    def __str__(self) -> str:
        """Write the sizes as `x[40000,512]`."""
        return " ".join(f"{name}[{','.join(map(str, shape))}]" for name, shape in self.shapes.items()) or "sizes that are not known"

    def line(self) -> str:
        """Write calls and memory as in `sessions.calls_by_sizes`."""
        _, _, arena, memory = self.most or (0, 0, 0, ProcessMemory(0, 0, 0))
        resident, heap, arena_text = map(size_from_bytes, (memory.resident, memory.heap, arena))
        return f"{self}: {counted(self.calls, 'call')}, {resident} resident, {heap} heap, {arena_text} arena"


_NONE = Sizes({}, 0, 0)


class SessionMemory:
    """Looks at the memory of the process as a session is called."""

    def __init__(self, session_id: str, recorder: Recorder) -> None:
        """Begin without a call."""
        self.first: Mapping[str, tuple[int, ...]] = {}  # shapes of the inputs of the first call that has any
        self.tried: tuple[str, dict[str, Any]] | None = None  # what `memory_trials` found: evidence, and fields of a finding
        self._session_id, self.recorder = session_id, recorder
        self._sizes: dict[Any, Sizes] = {}
        self._numbers = itertools.count()
        self._latest: list[ProcessMemory] = []
        self._base: ProcessMemory | None = None
        self._freed = 0, 0, ""  # the most bytes that came to lie free between blocks from look to look, the call, and its sizes
        self._resident = self._arena = 0  # bytes that runs have raised
        self.model: object = None  # sessions of one are a pool

    def before(self, feed: Mapping[str, Any]) -> tuple[Sizes, int, ProcessMemory] | None:
        """Count a call, and look before it; None where that is not its turn."""
        key = tuple([tuple(shape() if callable(shape := getattr(value, "shape", ())) else shape) for value in feed.values()])
        number, sizes = next(self._numbers), self._sizes.get(key)
        if sizes is None:
            elements, shapes = sum(map(math.prod, key)), dict(zip(feed, key, strict=True))
            self.first = self.first or shapes
            if len(self._sizes) >= _MOST_SIZES and elements < 2 * max(each.elements for each in list(self._sizes.values())):
                key, shapes, elements = (), {}, 0
            sizes = self._sizes.setdefault(key, Sizes(shapes, elements, number))
        sizes.calls += 1
        is_due = sizes.calls <= FIRST or not sizes.calls % sizes.stride
        return (sizes, number, memory) if is_due and (memory := process_memory()) is not None else None

    def look(self, call: int) -> None:
        """Look after a call of a session whose sizes are not told."""
        if (memory := process_memory()) is not None:
            sizes = self._sizes.setdefault((), Sizes({}, 0, 0))
            sizes.calls = call + 1
            self._note(sizes, call, memory, 0)

    def after(self, sizes: Sizes, call: int, before: ProcessMemory, result: object) -> None:
        """Look after a call, whose results are the caller's."""
        after = process_memory() or before
        own = sum(getattr(each, "nbytes", 0) for each in result) if isinstance(result, (list, tuple)) else 0
        resident, heap, _ = (max(now - then - own, 0) for now, then in zip(after, before, strict=True))
        self._note(sizes, call, before, heap or resident)
        if sizes.calls <= FIRST:
            sizes.raised += resident
            self._resident, self._arena = self._resident + resident, self._arena + heap
            if sizes.most is None or resident > sizes.most[0]:
                sizes.most = resident, call, self._arena, after

    def _note(self, sizes: Sizes, call: int, memory: ProcessMemory, inside: int) -> None:
        self._base = self._base or memory
        self._freed = max(self._freed, (memory.free - (self._latest or [self._base])[-1].free, call, str(sizes)))
        self._latest = [*self._latest[-3:], memory]
        if sizes.calls % sizes.stride == 0:
            sizes.looks.append((call, memory.heap - self._arena, memory.resident - self._resident, inside))
            if len(sizes.looks) >= _SAMPLES:
                sizes.looks, sizes.stride = sizes.looks[1::2], 2 * sizes.stride
            if len(sizes.looks) % 8 == 0:
                self.report()

    def kept_bytes(self) -> int:
        """Count the resident bytes that runs raised and that are still there."""
        return 0 if self._base is None else min(self._resident, max(self._latest[-1].resident - self._base.resident, 0))

    def rare(self) -> tuple[Sizes, Sizes] | None:
        """Find the sizes because of which memory is kept in vain, and those that most other calls have; None where there are none."""
        large = max(list(self._sizes.values()), key=lambda sizes: sizes.raised, default=_NONE)
        small = [sizes for sizes in list(self._sizes.values()) if 2 * sizes.elements < large.elements]
        calls, rest = (sum(sizes.calls for sizes in each) for each in (list(self._sizes.values()), small))
        if calls - rest > _RARE * calls or min(large.raised, self.kept_bytes()) < MUCH:
            return None
        return large, max(small, key=lambda sizes: sizes.calls)

    def pool(self) -> list[SessionMemory]:
        """List what watches the sessions of this model that keep memory in vain."""
        return [each for each in WATCHED.values() if each.model == self.model and each.rare() is not None]

    def report(self) -> None:
        """Record what was found so far, in place of what was before."""
        found = [*self._findings()]
        if found != [row for row in self.recorder.records(r.Finding) if row.rule in _HAZARDS and row.subject == self._session_id]:
            self.recorder.replace_findings(_HAZARDS, found, subject=self._session_id)
        if shown := sorted((each for each in list(self._sizes.values()) if each.most), key=lambda each: -each.elements)[:_SHOWN]:
            kept, lines = self.kept_bytes(), tuple(each.line() for each in shown)
            self.recorder.amend(r.Session, self._session_id, kept_bytes=kept, arena_bytes=self._arena, calls_by_sizes=lines)

    def _finding(self, rule: str, title: str, why: str, todo: dict[str, Any]) -> r.Finding:
        return r.Finding(rule=rule, severity="warning", subject=self._session_id, title=title, evidence=why, hazard=_HAZARDS[rule], **todo)

    def _findings(self) -> Iterator[r.Finding]:
        if (rare := self.rare()) is not None:
            (large, usual), pool, own = rare, self.pool() or [self], self._session_id
            who = f"{own} keeps" if len(pool) == 1 else f"{own} and {counted(len(pool) - 1, 'other session')} of its model keep"
            kept, call = size_from_bytes(sum(each.kept_bytes() for each in pool)), large.most[1] if large.most else 0
            tried, todo = self.tried or ("", remedy("Call `profile()` while it is watched: it tries what frees this, and what that costs."))
            title = f"{who} {kept} that a call of {large} needed, call {call}"
            yield self._finding("memory_ratchet", title, f"{large.line()}; {usual.calls:,} of {usual}{tried}", todo)
        sizes = max(list(self._sizes.values()), key=lambda sizes: sizes.calls, default=_NONE)
        calls, heap, resident, inside = zip(*sizes.looks, strict=True) if sizes.looks else ((), (), (), ())
        if grown := _growth(calls, heap) or _growth(calls, resident):
            place, advice = _LEAKS[sorted(inside)[len(inside) // 2] >= grown[0] / 2]
            per_call, all_of_it, first, last = *map(size_from_bytes, grown[:2]), grown[2], calls[-1]
            title = f"memory grows by {per_call} with each call of {self._session_id}, from call {first} on"
            where = f"{all_of_it} more at call {last} than at call {first}, of the same sizes, {sizes}; it grows {place} its runs"
            yield self._finding("memory_leak", title, where, remedy(advice))
        if (base := self._base) is not None:
            ours, used = base.resident + self._resident, base.heap + self._arena  # what was trimmed is free, and not resident
            free = min(min(now.free - base.free, now.resident - ours - max(now.heap - used, 0)) for now in self._latest)
            if free >= max(MUCH, (whole := self._latest[-1].resident) // 8):
                title = f"{size_from_bytes(free)} of {size_from_bytes(whole)} resident memory lie free between blocks in use"
                since = f"most of it since call {self._freed[1]} of {self._session_id}, of {self._freed[2]}"
                yield self._finding("memory_fragmented", title, since, remedy(_TRIM))


def _growth(calls: Sequence[int], values: Sequence[int], top: int = 0) -> tuple[float, int, int] | None:
    """Tell how many bytes come with each call, in all, and since which: in each quarter of the calls, or of the later ones, alike.

    The lowest look of a quarter counts, since a heap that is collected now and then has low looks that do not grow; and what began later
    has to grow above the `top` of all before. None elsewhere.
    """
    count, half = len(calls), len(calls) // 2
    if count < _FEWEST[0] or calls[-1] - calls[0] < _FEWEST[1]:
        return None
    lows = [min(range(part * count // 4, (part + 1) * count // 4), key=lambda at: values[at]) for part in range(4)]
    slopes = [(values[last] - values[at]) / max(calls[last] - calls[at], 1) for at, last in itertools.pairwise(lows)]
    grown, passed = values[lows[-1]] - values[lows[0]], calls[lows[-1]] - calls[lows[0]]
    leaks = grown >= _GROWN and max(slopes) <= 3 * min(slopes) and values[lows[-1]] > top
    return (grown / passed, values[-1] - values[0], calls[0]) if leaks else _growth(calls[half:], values[half:], max(top, *values[:half]))
