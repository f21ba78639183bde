"""Notices writes to frozen weights that torch does not count: through `param.data`, a numpy view, or the storage.

Small weights are compared whole on every call, by the generated call itself. Of the larger ones every call compares another window,
so that after `CALLS` calls all of their bytes have been compared. Up to 1 MiB per partition, that is with a copy, else with checksums.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping

_Noted: TypeAlias = "tuple[bytearray | int, Any]"

CALLS = 256
"""How many calls it takes at most until every byte has been compared."""
_COPIED = 1 << 20
"""Up to this many bytes are compared with a copy, which takes a tenth of the time of a checksum."""
_WINDOW = 2048
"""The least number of bytes per call; they compare with a copy in 0.1 us."""
_PIECE = 1 << 17
"""Bytes per checksum: its intermediate results stay in the cache."""
_WORD = 8
_HALF = np.uint64(32)


class WeightWatch:
    """Compares the bytes of the larger weights of a partition, a window per call."""

    def __init__(self, memories: Mapping[str, memoryview]) -> None:
        """Note the present bytes of weights, which must be kept alive as long as the watch."""
        total = sum(map(len, memories.values()))
        # A window may end in less than a word and leave the rest free.
        windows = list(_windows(memories, max(_WINDOW, _rounded_up(-(-total // CALLS) + _WORD))))
        self.calls = len(windows)  # after how many calls every byte has been compared; 0 without weights to watch
        self._windows = [tuple((name, _noted(live, copies=total <= _COPIED)) for name, live in window) for window in windows]
        rounds = itertools.cycle([tuple(pair for _, pair in window) for window in self._windows]).__next__
        # Compares the next window, and says whether it is unchanged. Threads that call it at once compare different windows.
        self.is_next_intact = _comparing_copies(rounds) if total <= _COPIED else _comparing_sums(rounds)

    def changed(self, *, except_for: Container[str] = ()) -> frozenset[str]:
        """Find the weights that changed, except those to leave out: the memory of one that has moved may be gone."""
        return frozenset(name for window in self._windows for name, pair in window if name not in except_for and not _is_same(*pair))


def _comparing_copies(next_window: Callable[[], tuple[_Noted, ...]]) -> Callable[[], bool]:
    def is_next_intact() -> bool:
        for kept, live in next_window():  # noqa: SIM110 - a generator would take twice as long, in every call
            if kept != live:
                return False
        return True

    return is_next_intact


def _comparing_sums(next_window: Callable[[], tuple[_Noted, ...]]) -> Callable[[], bool]:
    return lambda: all(_is_same(kept, live) for kept, live in next_window())


def _noted(live: memoryview, *, copies: bool) -> _Noted:
    """Note bytes beside the live ones: in a bytearray, which compares faster with a view than another view, or as a checksum."""
    if copies or len(live) % _WORD:
        return bytearray(live), live
    words = np.frombuffer(live, dtype=np.uint64)
    return _checksum(words), words


def _is_same(kept: bytearray | int, live: Any) -> bool:
    return bool(kept == live) if isinstance(kept, bytearray) else _checksum(live) == kept


def _windows(memories: Mapping[str, memoryview], size: int) -> Iterator[list[tuple[str, memoryview]]]:
    """Cut memories into windows of a number of bytes, each in pieces of one weight; a last piece may end in less than a word."""
    window: list[tuple[str, memoryview]] = []
    room = size
    for name, memory in memories.items():
        start = 0
        while start < len(memory):
            left = len(memory) - start
            length = min(room, _PIECE, left // _WORD * _WORD or left)
            window.append((name, memory[start : start + length]))
            start, room = start + length, room - length
            if room < _WORD:
                yield window
                window, room = [], size
    if window:
        yield window


def _rounded_up(size: int) -> int:
    return -(-size // _WORD) * _WORD


_MULTIPLIERS = np.random.default_rng(0).integers(1 << 63, size=_PIECE // _WORD, dtype=np.uint64) | np.uint64(1)
"""Odd, so that a change of one word always changes the sum."""


def _checksum(words: np.ndarray[Any, np.dtype[np.uint64]]) -> int:
    """Sum products, modulo 2**64, of mixed halves: multiplied by odd numbers alone, two changed signs would cancel out."""
    return int(np.dot(words ^ (words >> _HALF), _MULTIPLIERS[: len(words)]))
