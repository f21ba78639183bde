"""The sink that the backend and the lens write into.

Records are rare (they are made while compiling) and go through a lock. Calls are frequent and go through
`runlog.RunLog`, which has none. The recorder turns both into one frozen `Capture` whenever it is asked, also in the
middle of a run.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
import threading
from collections import defaultdict
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from ortlens.trace import records as r
from ortlens.trace.codec import row_from_record
from ortlens.trace.guard import lens_failed, lens_guard
from ortlens.trace.runlog import EagerLog, RunLog
from ortlens.trace.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from ortlens.trace.journal import Journal


class _Scope:
    """One block during which a recorder is the current one; without it once the block has ended, wherever it is still held."""

    __slots__ = ("recorder",)

    def __init__(self, recorder: Recorder) -> None:
        self.recorder: Recorder | None = recorder


class Current:
    """The recorder that a graph compiled right now writes into.

    Blocks may overlap, and end in another context than they began in, as those of a generator or of a cell with `await` do: the
    innermost block of this context that has not ended counts. Tokens of a `ContextVar` were rejected: reset out of order, they bring
    back a recorder whose block has ended.
    """

    def __init__(self) -> None:
        """Begin without a block."""
        self._scopes: contextvars.ContextVar[tuple[_Scope, ...]] = contextvars.ContextVar("ortlens_recorders", default=())

    def get(self) -> Recorder | None:
        """Return the recorder of the innermost block; None when nothing is recorded."""
        return next((scope.recorder for scope in reversed(self._scopes.get()) if scope.recorder is not None), None)

    @contextlib.contextmanager
    def recording_into(self, recorder: Recorder) -> Iterator[None]:
        """Make a recorder the current one for as long as the block lasts."""
        scope = _Scope(recorder)
        self._scopes.set((*self._scopes.get(), scope))
        try:
            yield
        finally:
            scope.recorder = None
            self._scopes.set(tuple([held for held in self._scopes.get() if held.recorder is not None]))


_TABLE_OF = {table.record: table for table in TABLES.values()}
CURRENT = Current()  # the one of this process
_R = TypeVar("_R", bound=r.Record)
MAX_RUNS = 200_000  # rows of `runs` in one capture; sums in `sessions` stay exact


class Recorder:
    """Thread-safe, append-only collector of records."""

    def __init__(self) -> None:
        """Start empty."""
        self._lock = threading.RLock()
        self._tables: dict[type, dict[object, r.Record]] = defaultdict(dict)
        self._counters: dict[str, int] = defaultdict(int)
        self._positions = itertools.count()
        self._run_logs: dict[object, RunLog] = {}  # by session, or by anything for graphs of other backends
        self._eager_logs: dict[str, EagerLog] = {}
        self._attachments: dict[str, bytes] = {}
        self._changes: dict[int, dict[tuple[type, object], r.Record | None]] = {}  # by thread: what was there before `undone_if_raised`
        self._hidden: list[set[tuple[str, object]]] = []  # tables and keys of what failed calls recorded, one set per call
        self.figures = r.Figures()  # of everything that was recorded; see `note`
        self.journal: Journal | None = None  # where everything is written as it comes, if anywhere
        self.failures: set[tuple[str, str]] = set()  # what failed inside the lens so far, as activity and text; see `guard.lens_failed`
        self.unrecorded: list[r.Finding] = []  # findings about these that could not be added
        self.live: list[object] = []  # the compiled graphs behind the records, for what only a live lens can do
        self.on_graph: Callable[[object, Any], AbstractContextManager[object]] | None = None
        """Entered by our backend around the compilation of a graph, with the graph and options; for a lens that is no backend itself."""

    def next_id(self, prefix: str) -> str:
        """Return a fresh id such as `g0`: `g` is for graphs, `p` partitions, `m` models, `s` sessions, `b` breaks."""
        with self._lock:
            number = self._counters[prefix]
            self._counters[prefix] += 1
        return f"{prefix}{number}"

    def ids_given(self, prefix: str) -> int:
        """Count the ids given so far with a prefix; a record that is dropped gives none back."""
        with self._lock:
            return self._counters.get(prefix, 0)

    def add(self, *records: r.Record) -> None:
        """Append records; one with the key of an earlier one replaces it."""
        with self._lock:
            for record in records:
                self._put(type(record), _id_of(record) or next(self._positions), record)

    def _put(self, kind: type, key: object, record: r.Record) -> None:
        self._note_change(kind, key)
        for hidden in self._hidden:
            hidden.discard((_TABLE_OF[kind].name, key))
        self._tables[kind][key] = record
        self._journalled(lambda: {"add": _TABLE_OF[kind].name, "row": row_from_record(_TABLE_OF[kind], record)})

    def _note_change(self, kind: type, *keys: object) -> None:
        if (changes := self._changes.get(threading.get_ident())) is not None:
            for key in keys:
                changes.setdefault((kind, key), self._tables[kind].get(key))

    @contextlib.contextmanager
    def undone_if_raised(self, undo: Callable[[], None]) -> Iterator[None]:
        """Leave the capture as it was before a block that raises: what this thread recorded in it, and its calls, do not count.

        New records are hidden and not dropped: a graph that was compiled in the block may serve a later call. `undo` does the rest.
        """
        thread, figures = threading.get_ident(), self.figures
        before: dict[Any, Any] = {log: log.of_thread(thread) for log in self._logs()}
        changes = self._changes[thread] = {}
        with contextlib.nullcontext() if self.journal is None else self.journal.paused:
            try:
                yield
            except BaseException:
                undo()
                with self._lock:
                    for log in self._logs():
                        log.put_back(thread, before.get(log))
                    self.figures = figures
                    for (kind, key), record in tuple(changes.items()):
                        if record is not None:
                            self._put(kind, key, record)
                    self.hide((_TABLE_OF[kind].name, key) for (kind, key), record in changes.items() if record is None)
                raise
            finally:
                del self._changes[thread]

    def _logs(self) -> tuple[RunLog | EagerLog, ...]:
        with self._lock:
            return (*self._run_logs.values(), *self._eager_logs.values())

    def hide(self, keys: Iterable[tuple[str, object]]) -> None:
        """Leave records, by table and key, out of captures until one of the graphs among them runs."""
        with self._lock:
            self._hidden.append(set(keys))
            self._journalled(lambda: {"hide": list(self._hidden[-1])})

    def unhide(self, graph_ids: Collection[str | None]) -> None:
        """Show what was hidden with graphs that ran after all."""
        with self._lock:
            self._hidden = [keys for keys in self._hidden if not any(table == "graphs" and key in graph_ids for table, key in keys)]

    def _journalled(self, entry: Callable[[], Mapping[str, object]], data: bytes = b"") -> None:
        """Write to the journal, if there is one; recording goes on without an entry that cannot be written."""
        if self.journal is not None:
            with lens_guard(self, "writing the journal"):
                self.journal.write(entry(), data)

    def amend(self, kind: type[r.Record], key: object, **changes: object) -> None:
        """Fill in what became known later; an unknown key, an id or `(graph_id, node)`, is ignored, since the record may be gone."""
        with self._lock:
            known = self._tables[kind].get(key)
            if known is not None:
                self._put(kind, key, replace(known, **changes))  # type: ignore[arg-type]  # fields differ per kind

    def drop(self, kind: type[r.Record], key: object) -> None:
        """Remove a record of something that did not happen after all; an unknown key is ignored."""
        with self._lock:
            self._note_change(kind, key)
            self._tables[kind].pop(key, None)
            self._journalled(lambda: {"drop": _TABLE_OF[kind].name, "key": key})

    def forget_graph(self, graph_id: str) -> None:
        """Drop what was derived from one graph, because it is partitioned again; the graph itself stays.

        Its inputs, nodes, partitions, fallbacks, models, sessions, kernels, compared values and ledger go in one step, with the logs and
        the attached models, so that no row is left that points to one that is gone.
        """
        with self._lock:
            partitions = {p.partition_id for p in self.records(r.Partition) if p.graph_id == graph_id}
            models = [m for m in self.records(r.Model) if m.partition_id in partitions]
            sessions = {s.session_id for s in self.records(r.Session) if s.partition_id in partitions}
            self._drop("graph_id", {graph_id}, r.GraphInput, r.Node, r.Partition, r.Fallback, r.LedgerPart)
            self._drop("partition_id", partitions, r.Model, r.Session, r.Numeric)
            self._drop("session_id", sessions, r.Kernel, r.Placement)
            self._run_logs = {
                key: log for key, log in self._run_logs.items() if log.graph_id != graph_id and log.session_id not in sessions
            }
            self._eager_logs.pop(graph_id, None)
            for model in models:  # attachments that it names, and those called after its id
                own = f"models/{model.model_id}."
                for name in [name for name in self._attachments if name == model.path or name.startswith(own)]:
                    del self._attachments[name]
            self._journalled(lambda: {"forget": graph_id})

    def _drop(self, field: str, values: set[str], *kinds: type[r.Record]) -> None:
        for kind in kinds:
            self._note_change(kind, *self._tables[kind])
            self._tables[kind] = {key: record for key, record in self._tables[kind].items() if getattr(record, field) not in values}

    def attach(self, name: str, data: bytes) -> None:
        """Keep bytes that belong to a record, under a name inside the saved file, as `models/m0.onnx`."""
        with self._lock:
            self._attachments[name] = data
            self._journalled(lambda: {"attach": name}, data)

    def note(self, **figures: object) -> None:
        """Set figures of the whole capture, by the names in `Figures`."""
        with self._lock:
            self.figures = replace(self.figures, **figures)  # type: ignore[arg-type]  # types differ per figure

    def run_log(self, session_id: str | None, graph_id: str | None) -> RunLog:
        """Return the only log of a session (None: a backend other than ours); the caller writes into it without any lock."""
        with self._lock:
            if session_id in self._run_logs:
                return self._run_logs[session_id]
            log = RunLog(session_id, graph_id, functools.partial(lens_failed, self, "recording a call"))
            self._run_logs[object() if session_id is None else session_id] = log
        return log

    def eager_log(self, graph_id: str, nodes: tuple[str, ...]) -> EagerLog:
        """Return a log for the nodes of a graph that stay in PyTorch, in the order of their slots; it replaces an earlier one."""
        log = EagerLog(nodes)
        with self._lock:
            self._eager_logs[graph_id] = log
        return log

    def logs(self) -> tuple[tuple[RunLog, ...], dict[str, EagerLog]]:
        """Return the logs of sessions, or of whole graphs under another backend, and those of PyTorch's nodes, by graph id."""
        with self._lock:
            return tuple(self._run_logs.values()), dict(self._eager_logs)

    def replace_all(self, kind: type[_R], records: Iterable[_R]) -> None:
        """Replace all records of a kind."""
        with self._lock:
            replacing: dict[object, r.Record] = {_id_of(record) or next(self._positions): record for record in records}
            self._note_change(kind, *self._tables[kind], *replacing)
            self._tables[kind] = replacing
            rows, table = self._tables[kind].values(), _TABLE_OF[kind]
            self._journalled(lambda: {"replace": table.name, "rows": [row_from_record(table, record) for record in rows]})

    def replace_findings(self, rules: Collection[str], findings: Iterable[r.Finding], *, subject: str | None = None) -> None:
        """Replace the findings of some rules, about one subject or all; the others stay, also what another thread adds meanwhile."""
        with self._lock:
            others = [row for row in self.records(r.Finding) if row.rule not in rules or subject not in (None, row.subject)]
            self.replace_all(r.Finding, [*others, *findings])

    def keep_worst(self, comparisons: Sequence[Callable[[], object]]) -> None:
        """Compare once per input, and keep the worst row of each value, and of each finding the one of the first input that has it."""
        worst: dict[object, tuple[tuple[bool, bool, float], r.Numeric]] = {}
        findings: list[r.Finding] = []
        for place, compare in enumerate(comparisons, 1):
            compare()
            for row in self.records(r.Numeric):
                key = row.partition_id, row.node, row.onnx_value, row.scope
                rank = row.ok is False, row.ok is not None, row.max_abs or 0.0
                note = f"{f'{row.note}; ' if row.note else ''}the worst of {len(comparisons)} inputs, number {place}"
                own = rank, replace(row, note=row.note if row.ok is None else note)
                worst[key] = own if key not in worst or rank > worst[key][0] else worst[key]
            known = {(each.rule, each.subject) for each in findings}
            findings += [each for each in self.records(r.Finding) if (each.rule, each.subject) not in known]
        if len(comparisons) > 1:
            first = next((row for _, row in worst.values() if row.ok is False), None)
            self.replace_all(r.Numeric, [replace(row, first_divergence=row is first) for _, row in worst.values()])
            self.replace_all(r.Finding, findings)

    def records(self, kind: type[_R]) -> tuple[_R, ...]:
        """Return a snapshot of the records of one kind, in order of arrival."""
        with self._lock:
            return tuple(record for record in self._tables[kind].values() if isinstance(record, kind))

    def count(self, kind: type[r.Record]) -> int:
        """Count the records of one kind, without looking at them."""
        with self._lock:
            return len(self._tables[kind])

    def capture(self, *, name: str = "", backend: str = "ortlens", environment: Mapping[str, str] | None = None) -> r.Capture:
        """Freeze what was recorded so far; recording goes on."""
        with self._lock:
            logs = tuple(self._run_logs.values())
            slots = {
                (graph_id, node): {"calls": calls, "total_ns": total_ns}
                for graph_id, log in self._eager_logs.items()
                for node, calls, total_ns in zip(log.nodes, log.calls, log.total_ns, strict=True)
            }
            called = {graph_id for graph_id, log in self._eager_logs.items() if any(log.calls)}
            self.unhide(called.union(log.graph_id for log in logs if self._hidden and log.stats().calls))
            hidden = set().union(*self._hidden)
            tables: dict[str, Any] = {
                name: tuple(row for key, row in self._tables[table.record].items() if (name, key) not in hidden)
                for name, table in TABLES.items()
            }
            unseen = tuple(f"models/{key}." for table, key in hidden if table == "models")
            attachments = {name: data for name, data in self._attachments.items() if not name.startswith(unseen)}
            figures = self.figures
        by_session = {log.session_id: log for log in logs if log.session_id is not None}
        tables["sessions"] = tuple(
            replace(s, **log.stats()._asdict(), **log.facts()) if (log := by_session.get(s.session_id)) is not None else s
            for s in tables["sessions"]
        )
        tables["fallbacks"] = tuple(replace(f, **slots.get((f.graph_id, f.node), {})) for f in tables["fallbacks"])
        tables["graphs"] = _with_use(tables["graphs"], tables["sessions"], tables["fallbacks"], tables["partitions"])
        runs = (run_from_row(log.session_id, log.graph_id, row) for log in logs for row in log.rows())
        tables["runs"] = tuple(sorted(runs, key=lambda run: run.start_ns)[-MAX_RUNS:])
        tables["findings"] = (*tables["findings"], *self.unrecorded)
        return r.Capture(
            name=name,
            backend=backend,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            environment=dict(environment or {}),
            figures=figures,
            attachments=attachments,
            **tables,
        )


def _with_use(
    graphs: tuple[r.Graph, ...], sessions: tuple[r.Session, ...], fallbacks: tuple[r.Fallback, ...], partitions: tuple[r.Partition, ...]
) -> tuple[r.Graph, ...]:
    """Treat graphs that `verify` compiled as the program's own once it has called them."""
    if not any(graph.only_verified for graph in graphs):
        return graphs
    called = {session.partition_id for session in sessions if session.calls}
    used = {part.graph_id for part in partitions if part.partition_id in called} | {row.graph_id for row in fallbacks if row.calls}
    return tuple(replace(graph, only_verified=False) if graph.graph_id in used else graph for graph in graphs)


def run_from_row(session_id: str | None, graph_id: str | None, row: tuple[int, ...]) -> r.Run:
    """Make the record of a call from a row of `RunLog.rows`; the session is None for a backend other than ours."""
    call, start, bound, ran, done, thread = row
    return r.Run(
        session_id=session_id,
        graph_id=graph_id,
        call=call,
        start_ns=start,
        bind_ns=bound - start,
        run_ns=ran - bound,
        output_ns=done - ran,
        total_ns=done - start,
        thread=thread,
    )


def _id_of(record: r.Record) -> object:
    """Return what a record is known by, so that it can be amended; None where nothing amends it."""
    if isinstance(record, (r.Graph, r.Break, r.Recompile, r.Partition, r.Model, r.Session)):
        return getattr(record, fields(record)[0].name)
    if isinstance(record, r.PythonFrame):
        return record.frame, record.file, record.line
    if isinstance(record, r.Placement):
        return record.session_id, record.provider
    if isinstance(record, r.GraphInput):
        return record.graph_id, record.input
    return (record.graph_id, record.node) if isinstance(record, (r.Node, r.Fallback)) else None
