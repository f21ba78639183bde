"""The log of a session's calls: a few integers into a ring, whatever the number of calls.

The path that records a call takes no lock and allocates nothing that outlives it: each thread writes into a ring of
its own, so that no two writers ever meet. Counts, sums and maxima are exact; percentiles come from a logarithmic
histogram; the latest `CAPACITY` calls of a thread are kept one by one. A ring begins small, since there may be thousands of
sessions with a call or two, and doubles when it is full. From its full size on, calls are moved into the histogram half a ring
at a time, so that memory is the same after a million calls as after two thousand. One ring for all threads was tried and
rejected: a writer that is suspended between taking its slot and filling it is overtaken by a whole ring within a few milliseconds.
"""

from __future__ import annotations

import functools
import itertools
import operator
import threading
from array import array
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray

CAPACITY = 2048
_HALF = CAPACITY // 2
_FIRST = 32  # rows of a ring at the beginning
_FIELDS = 5  # start, bound, ran, done (clock readings), number of the call
_SUB_BITS = 5  # 32 buckets per octave: a bucket is at most 1/32 = 3.2 % wide
_SUB = 1 << _SUB_BITS
_BUCKETS = (64 - _SUB_BITS) * _SUB


class RunStats(NamedTuple):
    """Figures over every call of one session; times in ns, None before the first call."""

    calls: int
    total_ns: int
    mean_ns: int | None
    p50_ns: int | None
    p90_ns: int | None
    p99_ns: int | None
    max_ns: int | None


class _Shard:
    """The calls of one thread: a ring with a single writer. `written` grows only after its row is whole."""

    __slots__ = ("capacity", "drained", "histogram", "max_ns", "ring", "stop", "thread", "total_ns", "written")

    def __init__(self, thread: int) -> None:
        self.thread = thread
        self.capacity = self.stop = _FIRST  # rows of the ring, and those after which the writer stops to make room
        self.ring = array("q", bytes(8 * _FIELDS * _FIRST))
        self.written = 0
        self.drained = 0  # rows that are in the sums
        self.total_ns = 0
        self.max_ns = 0
        self.histogram: NDArray[np.int64] | None = None

    def make_room(self) -> None:
        """Double the ring, which was never full before; at its full size, move what half of it holds into the sums."""
        if self.capacity < CAPACITY:
            self.ring = self.ring + array("q", bytes(8 * len(self.ring)))
            self.capacity *= 2
            self.stop = self.capacity
        else:
            self.total_ns, self.max_ns, self.histogram = self.sums()
            self.drained = self.written
            self.stop += _HALF

    def sums(self) -> tuple[int, int, NDArray[np.int64] | None]:
        """Return sum, maximum and histogram of the times of all rows so far; the rows stay readable until overwritten."""
        import numpy as np

        upto, table = self.written, self._table()
        if upto == self.drained:
            return self.total_ns, self.max_ns, self.histogram
        rows = table[np.arange(self.drained, upto) % len(table)]
        totals = np.maximum(rows[:, 3] - rows[:, 0], 0)
        counts = np.bincount(_buckets(totals), minlength=_BUCKETS).astype(np.int64)
        both = counts if self.histogram is None else self.histogram + counts
        return self.total_ns + int(totals.sum()), max(self.max_ns, int(totals.max())), both

    def _table(self) -> NDArray[np.int64]:
        import numpy as np

        return np.frombuffer(self.ring, dtype=np.int64).reshape(-1, _FIELDS)

    def rows(self, latest: int) -> Iterator[tuple[int, int, int, int, int, int]]:
        """Yield the latest calls still in the ring, each as number, start, bound, ran, done, thread."""
        import numpy as np

        before = self.written
        table = self._table().copy()
        # The writer may have gone on meanwhile: what it overwrote, and the row that it is in the middle of, is left out.
        oldest = max(self.written + 1 - len(table), before - latest, 0)
        for start, bound, ran, done, call in table[np.arange(oldest, before) % len(table)].tolist():
            yield call, start, bound, ran, done, self.thread


class RunLog:
    """Records the calls of one session (or of one graph, for a backend other than ours)."""

    __slots__ = ("_calls", "_lock", "_shards", "facts", "graph_id", "on_failure", "on_room", "session_id")

    def __init__(self, session_id: str | None, graph_id: str | None, on_failure: Callable[[Exception], None] | None = None) -> None:
        """Start without calls; a thread's ring is made when the thread first calls. For another backend than ours, there is no session.

        A caller calls `on_failure` where `record` raises, so that its own work goes on.
        """
        self.on_failure = on_failure or (lambda _error: None)  # a log that nobody reads has nobody to report to
        self.on_room: Callable[[int], None] | None = None  # gets the number of a call now and then, ever more rarely at first
        self.facts: Callable[[], dict[str, Any]] = dict  # further columns of the session, as they are when a capture is made
        self.session_id = session_id
        self.graph_id = graph_id
        self._calls = itertools.count()  # next() is one step under the GIL: each call gets a number of its own
        self._lock = threading.Lock()
        self._shards: dict[int, _Shard] = {}

    def record(self, start: int, bound: int, ran: int, done: int, thread: int) -> None:
        """Log one call by readings of `time.perf_counter_ns`: before and after binding, after the run, with the outputs returned.

        `thread` is `threading.get_ident()` of the calling thread, which keeps the writers apart.
        """
        shard = self._shards.get(thread)
        if shard is None:
            shard = self._shards.setdefault(thread, _Shard(thread))
        slot = shard.written
        base = (slot % shard.capacity) * _FIELDS
        ring = shard.ring
        ring[base] = start
        ring[base + 1] = bound
        ring[base + 2] = ran
        ring[base + 3] = done
        ring[base + 4] = next(self._calls)
        shard.written = slot + 1  # last: says that the row is whole
        if slot + 1 == shard.stop:
            with self._lock:  # against a reader that adds up; once in half a ring
                shard.make_room()
            if self.on_room is not None:
                self.on_room(ring[base + 4])

    def of_thread(self, thread: int) -> _Shard | None:
        """Return the calls of a thread so far, for `put_back`; None without any."""
        if (shard := self._shards.get(thread)) is None:
            return None
        kept = copy(shard)
        kept.ring = shard.ring[:]
        return kept

    def put_back(self, thread: int, kept: _Shard | None) -> None:
        """Drop the calls of a thread since `of_thread` returned `kept`; numbers begin again behind those that stay."""
        with self._lock:
            self._shards.pop(thread, None)
            if kept is not None:
                self._shards[thread] = kept
            self._calls = itertools.count(sum(shard.written for shard in self._shards.values()))

    def forget(self) -> None:
        """Drop every call so far. No thread may be recording a call at the same time."""
        with self._lock:
            self._calls = itertools.count()
            self._shards.clear()

    def stats(self) -> RunStats:
        """Return exact counts, sums and maximum over all calls so far, and percentiles to within a bucket (3.2 %)."""
        with self._lock:
            found = [shard.sums() for shard in list(self._shards.values())]
        histograms = [counts for _, _, counts in found if counts is not None]
        if not histograms:
            return RunStats(0, 0, None, None, None, None, None)
        total, slowest = sum(total for total, _, _ in found), max(slowest for _, slowest, _ in found)
        histogram = functools.reduce(operator.add, histograms)
        calls = int(histogram.sum())
        p50, p90, p99 = (min(_percentile(histogram, percent), slowest) for percent in (50, 90, 99))
        return RunStats(calls, total, round(total / calls), p50, p90, p99, slowest)

    def rows(self, latest: int = CAPACITY) -> Iterator[tuple[int, int, int, int, int, int]]:
        """Yield the `latest` calls of each thread by their numbers: the number, start, bound, ran and done in ns, and the thread."""
        yield from sorted(row for shard in list(self._shards.values()) for row in shard.rows(latest))


def _buckets(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the histogram bucket of each value: linear below 32, then 32 per octave."""
    import numpy as np

    exponent = np.frexp(values.astype(np.float64))[1].astype(np.int64)  # bit length
    shift = np.maximum(exponent - _SUB_BITS - 1, 0)
    buckets: NDArray[np.int64] = (shift * _SUB) + (values >> shift)
    return np.minimum(buckets, _BUCKETS - 1)


def _percentile(histogram: NDArray[np.int64], percent: int) -> int:
    """Return the middle of the bucket with the nearest rank, counted in integers: 0.9 * 10 is not 9 in floats everywhere."""
    cumulative = histogram.cumsum()
    rank = -(-percent * int(cumulative[-1]) // 100)
    bucket = int(cumulative.searchsorted(rank, side="left"))
    shift = max(bucket // _SUB - 1, 0)
    return ((bucket - shift * _SUB) << shift) + ((1 << shift) >> 1)


class EagerLog:
    """Counts and times the nodes of one graph that stay in PyTorch. One slot per node, no lock.

    The caller adds to a slot in place, so the figures of a node that two threads run at the same instant may come out low.
    """

    __slots__ = ("calls", "nodes", "total_ns")

    def __init__(self, nodes: tuple[str, ...]) -> None:
        """Make a log for FX nodes, in the order in which the program will refer to them."""
        self.nodes = nodes
        self.calls = array("q", bytes(8 * len(nodes)))
        self.total_ns = array("q", bytes(8 * len(nodes)))

    def of_thread(self, _thread: int | None = None) -> tuple[array[int], array[int]]:
        """Return the figures so far, of all threads, for `put_back`."""
        return self.calls[:], self.total_ns[:]

    def put_back(self, _thread: int | None, kept: tuple[array[int], array[int]] | None) -> None:
        """Set them to what `of_thread` returned, or, for None, to nothing."""
        self.calls[:], self.total_ns[:] = kept or EagerLog(self.nodes).of_thread()
