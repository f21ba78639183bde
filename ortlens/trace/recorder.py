"""The sink that the backend and the lens write into.

Records are rare (they are made while compiling) and go through a lock. Calls are frequent and go through
`runlog.RunLog`, which has none. The recorder turns both into one frozen `Capture` whenever it is asked, also in the
middle of a run.
"""

from __future__ import annotations

import contextvars
import threading
from collections import defaultdict
from dataclasses import fields, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from ortlens.trace import records as r
from ortlens.trace.runlog import EagerLog, RunLog

if TYPE_CHECKING:
    from collections.abc import Mapping

CURRENT: contextvars.ContextVar[Recorder | None] = contextvars.ContextVar("ortlens_recorder", default=None)
"""The recorder that a graph compiled right now writes into; None when nobody watches."""

_MAX_ROWS = 200_000  # rows of `runs` in one capture; sums in `sessions` stay exact


class Recorder:
    """Thread-safe, append-only collector of records."""

    def __init__(self) -> None:
        """Start empty."""
        self._lock = threading.RLock()
        self._tables: dict[type, dict[object, r.Record]] = defaultdict(dict)
        self._counters: dict[str, int] = defaultdict(int)
        self._run_logs: list[RunLog] = []
        self._eager_logs: dict[str, EagerLog] = {}
        self._attachments: dict[str, bytes] = {}

    def next_id(self, prefix: str) -> str:
        """A fresh id such as `g0`, `g1`.

        Args:
            prefix: What the id names: `g` graph, `p` partition, `m` model, `s` session, `b` break.

        Returns:
            The prefix and a number that counts up from 0.
        """
        with self._lock:
            number = self._counters[prefix]
            self._counters[prefix] += 1
        return f"{prefix}{number}"

    def add(self, *records: r.Record) -> None:
        """Append records.

        Args:
            *records: Records of any kind; one with the key of an earlier one replaces it.
        """
        with self._lock:
            for record in records:
                table = self._tables[type(record)]
                table[self._key(record, len(table))] = record

    @staticmethod
    def _key(record: r.Record, position: int) -> object:
        """The id of a record that can be amended, else its position."""
        if isinstance(record, (r.Graph, r.Break, r.Partition, r.Model, r.Session)):
            return getattr(record, fields(record)[0].name)
        if isinstance(record, (r.Node, r.Fallback)):
            return (record.graph_id, record.node)
        return position

    def amend(self, kind: type[r.Record], key: object, **changes: object) -> None:
        """Fill in what became known after the record was made.

        Args:
            kind: The record class.
            key: Its id, or `(graph_id, node)`; an unknown key is ignored, since what is told may be gone.
            **changes: Fields and their new values.
        """
        with self._lock:
            table = self._tables[kind]
            if key in table:
                table[key] = replace(table[key], **changes)  # type: ignore[arg-type]  # fields differ per kind

    def forget(self, kind: type[r.Record], graph_id: str) -> None:
        """Drop the records of one graph, because it was partitioned anew.

        Args:
            kind: `Node`, `Partition`, `Fallback`, `Model` or `Session`.
            graph_id: The graph; models and sessions are found through their partitions.
        """
        with self._lock:
            partitions = {p.partition_id for p in self._of(r.Partition) if p.graph_id == graph_id}
            table = self._tables[kind]
            stale = [
                key
                for key, record in table.items()
                if getattr(record, "graph_id", None) == graph_id or getattr(record, "partition_id", None) in partitions
            ]
            for key in stale:
                del table[key]

    def attach(self, name: str, data: bytes) -> None:
        """Keep bytes that belong to a record.

        Args:
            name: Name inside the saved file, as `models/m0.onnx`.
            data: The bytes.
        """
        with self._lock:
            self._attachments[name] = data

    def run_log(self, session_id: str | None, graph_id: str | None) -> RunLog:
        """A log for the calls of one session.

        Args:
            session_id: The session; None for a backend other than ours.
            graph_id: The graph that it belongs to.

        Returns:
            The log; the caller writes into it without any lock.
        """
        log = RunLog(session_id, graph_id)
        with self._lock:
            self._run_logs.append(log)
        return log

    def eager_log(self, graph_id: str, nodes: tuple[str, ...]) -> EagerLog:
        """A log for the nodes of one graph that stay in PyTorch.

        Args:
            graph_id: The graph.
            nodes: FX node names, in the order of their slots.

        Returns:
            The log; it replaces an earlier one of the same graph.
        """
        log = EagerLog(nodes)
        with self._lock:
            self._eager_logs[graph_id] = log
        return log

    def _of(self, kind: type[r.Record]) -> list[r.Record]:
        return list(self._tables[kind].values())

    def records(self, kind: type[r.Record]) -> tuple[r.Record, ...]:
        """The records of one kind so far, in order of arrival.

        Args:
            kind: The record class.

        Returns:
            A snapshot.
        """
        with self._lock:
            return tuple(self._of(kind))

    def capture(self, *, name: str = "", backend: str = "ortlens", environment: Mapping[str, str] | None = None) -> r.Capture:
        """Freeze what was recorded so far; recording goes on.

        Args:
            name: Name of the capture.
            backend: Name of the observed backend.
            environment: Versions and machine facts.

        Returns:
            The capture.
        """
        with self._lock:
            by_session = {log.session_id: log for log in self._run_logs if log.session_id is not None}
            tables = {kind: tuple(table.values()) for kind, table in self._tables.items()}
            attachments = dict(self._attachments)
            logs = tuple(self._run_logs)
            eager_logs = dict(self._eager_logs)
        sessions = tuple(_with_stats(s, by_session.get(s.session_id)) for s in tables.get(r.Session, ()) if isinstance(s, r.Session))
        fallbacks = tuple(_with_times(f, eager_logs.get(f.graph_id)) for f in tables.get(r.Fallback, ()) if isinstance(f, r.Fallback))
        return r.Capture(
            name=name,
            backend=backend,
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            environment=dict(environment or {}),
            graphs=tables.get(r.Graph, ()),  # type: ignore[arg-type]  # the table of a kind holds that kind
            breaks=tables.get(r.Break, ()),  # type: ignore[arg-type]
            recompiles=tables.get(r.Recompile, ()),  # type: ignore[arg-type]
            nodes=tables.get(r.Node, ()),  # type: ignore[arg-type]
            partitions=tables.get(r.Partition, ()),  # type: ignore[arg-type]
            fallbacks=fallbacks,
            models=tables.get(r.Model, ()),  # type: ignore[arg-type]
            sessions=sessions,
            runs=_runs(logs),
            kernels=tables.get(r.Kernel, ()),  # type: ignore[arg-type]
            numerics=tables.get(r.Numeric, ()),  # type: ignore[arg-type]
            findings=tables.get(r.Finding, ()),  # type: ignore[arg-type]
            ledger=tables.get(r.LedgerPart, ()),  # type: ignore[arg-type]
            attachments=attachments,
        )


def _with_stats(session: r.Session, log: RunLog | None) -> r.Session:
    return session if log is None else replace(session, **log.stats()._asdict())


def _with_times(fallback: r.Fallback, log: EagerLog | None) -> r.Fallback:
    if log is None or fallback.node not in log.nodes:
        return fallback
    slot = log.nodes.index(fallback.node)
    return replace(fallback, calls=log.calls[slot], total_ns=log.total_ns[slot])


def _runs(logs: tuple[RunLog, ...]) -> tuple[r.Run, ...]:
    rows = [
        r.Run(
            session_id=log.session_id,
            graph_id=log.graph_id,
            call=call,
            start_ns=start,
            bind_ns=bound - start,
            run_ns=ran - bound,
            output_ns=done - ran,
            total_ns=done - start,
            thread=thread,
        )
        for log in logs
        for call, start, bound, ran, done, thread in log.rows()
    ]
    rows.sort(key=lambda run: run.start_ns)
    return tuple(rows[-_MAX_ROWS:])
