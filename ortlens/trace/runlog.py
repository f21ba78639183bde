"""The log of a session's calls: a few integers into a preallocated ring, whatever the number of calls.

The path that records a call takes no lock and allocates nothing that outlives it. Counts, sums and maxima are exact;
percentiles come from a logarithmic histogram; the latest `CAPACITY` calls are kept one by one. Calls are moved into
the histogram half a ring at a time, so that memory is the same after a million calls as after one.
"""

from __future__ import annotations

import itertools
import threading
from array import array
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

CAPACITY = 4096
_HALF = CAPACITY // 2
_FIELDS = 6  # start, bound, ran, done (clock readings), thread, sequence number
_SUB_BITS = 5  # 32 buckets per octave: a bucket is at most 1/32 = 3.2 % wide
_SUB = 1 << _SUB_BITS
_BUCKETS = (64 - _SUB_BITS) * _SUB
_DRAIN_SPINS = 1000


class RunStats(NamedTuple):
    """Figures over every call of one session; times in ns, None before the first call."""

    calls: int
    total_ns: int
    mean_ns: int | None
    p50_ns: int | None
    p90_ns: int | None
    p99_ns: int | None
    max_ns: int | None


class RunLog:
    """Records the calls of one session (or of one graph, for a backend other than ours)."""

    __slots__ = ("_drain_lock", "_drained", "_histogram", "_max_ns", "_ring", "_slots", "_total_ns", "graph_id", "session_id")

    def __init__(self, session_id: str | None, graph_id: str | None) -> None:
        """Preallocate the ring.

        Args:
            session_id: Session whose calls are logged; None for a backend other than ours.
            graph_id: Graph that the session belongs to.
        """
        self.session_id = session_id
        self.graph_id = graph_id
        self._ring = array("q", bytes(8 * _FIELDS * CAPACITY))
        for base in range(_FIELDS - 1, len(self._ring), _FIELDS):
            self._ring[base] = -1
        self._slots = itertools.count()  # next() is atomic under the GIL: each call gets a slot of its own
        self._drain_lock = threading.Lock()
        self._drained = 0
        self._total_ns = 0
        self._max_ns = 0
        self._histogram: NDArray[np.int64] | None = None

    def record(self, start: int, bound: int, ran: int, done: int, thread: int) -> None:
        """Log one call by its four clock readings.

        Args:
            start: Before binding, `time.perf_counter_ns`.
            bound: After binding.
            ran: After the run.
            done: After the outputs were handed over.
            thread: `threading.get_ident()`.
        """
        slot = next(self._slots)
        base = (slot % CAPACITY) * _FIELDS
        ring = self._ring
        ring[base] = start
        ring[base + 1] = bound
        ring[base + 2] = ran
        ring[base + 3] = done
        ring[base + 4] = thread
        ring[base + 5] = slot  # last: says that the row is whole
        if (slot + 1) % _HALF == 0:
            self._drain(slot + 1)

    def _drain(self, upto: int) -> None:
        """Move every row before `upto` into the sums and the histogram; rows stay readable until overwritten."""
        with self._drain_lock:
            if upto <= self._drained:
                return
            self._wait_until_whole(self._drained, upto)
            totals = self._totals(self._drained, upto)
            self._total_ns += int(totals.sum())
            self._max_ns = max(self._max_ns, int(totals.max()))
            self._histogram = self._counted(totals)
            self._drained = upto

    def _wait_until_whole(self, first: int, upto: int) -> None:
        # Another thread may have taken a slot and not yet written it. It needs a handful of bytecodes; give it the
        # GIL a few times, then go on: a torn row can only belong to a thread that died in the middle.
        ring = self._ring
        wait = threading.Event().wait
        for slot in range(first, upto):
            at = (slot % CAPACITY) * _FIELDS + _FIELDS - 1
            for _ in range(_DRAIN_SPINS):
                if ring[at] >= slot:
                    break
                wait(0.0001)

    def _table(self) -> NDArray[np.int64]:
        import numpy as np

        return np.frombuffer(self._ring, dtype=np.int64).reshape(CAPACITY, _FIELDS)

    def _totals(self, first: int, upto: int) -> NDArray[np.int64]:
        import numpy as np

        table = self._table()[np.arange(first, upto) % CAPACITY]
        return np.maximum(table[:, 3] - table[:, 0], 0)

    def _counted(self, totals: NDArray[np.int64]) -> NDArray[np.int64]:
        import numpy as np

        counts = np.bincount(_buckets(totals), minlength=_BUCKETS).astype(np.int64)
        return counts if self._histogram is None else self._histogram + counts

    def _written(self) -> int:
        """How many slots have been taken, without taking one."""
        return int(self._slots.__reduce__()[1][0])

    def stats(self) -> RunStats:
        """Figures over every call so far.

        Returns:
            Exact counts, sums and maximum; percentiles to within a bucket (3.2 %).
        """
        written = self._written()
        if written:
            self._drain(written)
        with self._drain_lock:
            if self._histogram is None:
                return RunStats(0, 0, None, None, None, None, None)
            calls, total = self._drained, self._total_ns
            p50, p90, p99 = (min(_percentile(self._histogram, q), self._max_ns) for q in (0.50, 0.90, 0.99))
            return RunStats(calls, total, round(total / calls), p50, p90, p99, self._max_ns)

    def rows(self) -> Iterator[tuple[int, int, int, int, int, int]]:
        """The latest calls, oldest first.

        Yields:
            Number of the call, then start, bound, ran and done (clock readings in ns), then the thread.
        """
        table = self._table().copy()
        order = table[:, 5].argsort(kind="stable")
        for start, bound, ran, done, thread, slot in table[order].tolist():
            if slot >= 0:
                yield slot, start, bound, ran, done, thread


def _buckets(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Index of the histogram bucket of each value: linear below 32, then 32 per octave."""
    import numpy as np

    exponent = np.frexp(values.astype(np.float64))[1].astype(np.int64)  # bit length
    shift = np.maximum(exponent - _SUB_BITS - 1, 0)
    buckets: NDArray[np.int64] = (shift * _SUB) + (values >> shift)
    return np.minimum(buckets, _BUCKETS - 1)


def _bucket_middle(index: int) -> int:
    shift = max(index // _SUB - 1, 0)
    low = (index - shift * _SUB) << shift
    return low + ((1 << shift) >> 1)


def _percentile(histogram: NDArray[np.int64], q: float) -> int:
    cumulative = histogram.cumsum()
    rank = q * float(cumulative[-1])
    return _bucket_middle(int(cumulative.searchsorted(rank, side="left")))


class EagerLog:
    """Counts and times the nodes of one graph that stay in PyTorch. One slot per node, no lock."""

    __slots__ = ("calls", "nodes", "total_ns")

    def __init__(self, nodes: tuple[str, ...]) -> None:
        """Make a log for these nodes, in the order the program will refer to them.

        Args:
            nodes: FX node names.
        """
        self.nodes = nodes
        self.calls = array("q", bytes(8 * len(nodes)))
        self.total_ns = array("q", bytes(8 * len(nodes)))
