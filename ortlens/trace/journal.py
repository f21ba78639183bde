"""A journal: everything that a recorder receives, written to a file as it comes, for processes that may be killed.

The file begins with `HEADER`. Each entry is a line `LENGTH CHECKSUM PAYLOAD`, both numbers as eight hexadecimal digits; the payload is
JSON, for an attachment followed by its bytes. Entries are written with one system call each: what was written survives the end of the
process, and an entry that was cut off by a kill or a full disk fails its checksum and ends the reading. The first entry that cannot be
written ends the journal, with a finding and a warning. Records are written when they are made, calls every `INTERVAL` seconds by a
thread: exact sums per session, and the latest calls one by one.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import warnings
import zlib
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ortlens._files import opened_above_streams, write_file
from ortlens.errors import CaptureError, UsageError
from ortlens.trace import records as r
from ortlens.trace.codec import MAX_ROWS, record_from_row, row_from_record
from ortlens.trace.facts import figures_from_facts
from ortlens.trace.guard import lens_guard
from ortlens.trace.recorder import MAX_RUNS, Recorder, run_from_row
from ortlens.trace.runlog import RunStats
from ortlens.trace.schema import FIGURES, TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ortlens.trace.runlog import EagerLog, RunLog

HEADER = b"ortlens-journal 2\n"
_FIRST_HEADER = b"ortlens-journal 1\n"  # its figures are texts among the facts of its head
INTERVAL = 0.25  # seconds between two looks at the calls
_SHARE = 0.01  # of the time that looking at the calls may take
_ROWS = 64  # calls of a session that are kept of one look
_MANY_BYTES = 64 << 20  # from which on only sums are written
_MAX_ENTRY = 1 << 30
_FRAME = 8 + 1 + 8 + 1  # length, space, checksum, space


class Journal:
    """Writes the entries of one recorder."""

    def __init__(self, path: str | os.PathLike[str], head: Callable[[], Mapping[str, Any]], recorder: Recorder) -> None:
        """Create the file, and begin to watch the calls.

        A file that is there is replaced, once there is room for a new one. `head` gives name, backend and environment as they are now.
        """
        self._head, self._recorder, self._pid = head, recorder, os.getpid()
        self._lock = threading.Lock()  # of the file: taken under that of the recorder, so nothing may ask the recorder under it
        self._flushing = threading.RLock()
        self._size, self._is_broken = 0, False
        self._last_head: Mapping[str, Any] | None = None
        self._last_figures = r.Figures()
        self._seen: dict[int, tuple[RunLog, int]] = {}  # by identity of a log: the number of its last call that was written
        self._eager: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        try:
            where = Path(path).expanduser()
            write_file(where, HEADER)
            self._file = opened_above_streams(where, os.O_WRONLY | os.O_APPEND)
        except (OSError, ValueError) as error:
            raise UsageError(f"the journal {path} cannot be written: {error}") from error
        self._stopped = threading.Event()
        self.flush()
        self._thread = threading.Thread(target=self._look_again, name="ortlens journal", daemon=True)
        self._thread.start()

    def flush(self) -> None:
        """Write the calls since the last time."""
        with self._flushing:
            head = dict(self._head())
            if head and head != self._last_head:  # none once the lens is gone
                self.write({"head": head, "at": time.time(), "pid": self._pid})
                self._last_head = head
            if (figures := self._recorder.figures) != self._last_figures:
                self.write({"figures": row_from_record(FIGURES, figures)})
                self._last_figures = figures
            logs, eager = self._recorder.logs()
            for log in logs:
                self._write_calls(log)
            for graph_id, slots in eager.items():
                self._write_eager(graph_id, slots)

    def close(self) -> None:
        """Write what is left, and that this is all; once, and only in the process that began."""
        if os.getpid() != self._pid or self._stopped.is_set():
            return
        self._stopped.set()
        with contextlib.suppress(Exception):  # the interpreter may be half gone
            self.flush()
        self.write({"end": True, "at": time.time()})
        with self._lock:
            self._is_broken = True
            os.close(self._file)

    def _look_again(self) -> None:
        pause = INTERVAL
        while not self._stopped.wait(pause):
            began = time.thread_time()
            with lens_guard(self._recorder, "writing the journal"):
                self.flush()
            pause = max(INTERVAL, (time.thread_time() - began) / _SHARE)

    def _write_calls(self, log: RunLog) -> None:
        _, last = self._seen.get(id(log), (log, -1))
        stats = log.stats()
        if stats.calls <= last + 1:
            return
        self._seen[id(log)] = log, stats.calls - 1
        rows = [] if self._size > _MANY_BYTES else [row for row in log.rows(latest=_ROWS) if row[0] > last][-_ROWS:]
        self.write({"log": log.session_id, "graph": log.graph_id, "stats": list(stats), "rows": rows, "at": time.time()})

    def _write_eager(self, graph_id: str, log: EagerLog) -> None:
        figures = tuple(log.calls), tuple(log.total_ns)
        if self._eager.get(graph_id) != figures and any(figures[0]):
            self._eager[graph_id] = figures
            self.write({"eager": graph_id, "nodes": list(log.nodes), "calls": list(figures[0]), "ns": list(figures[1])})

    def write(self, entry: Mapping[str, Any], data: bytes = b"") -> None:
        """Write an entry, with the bytes of an attachment."""
        if os.getpid() != self._pid:  # forked: the file is the parent's
            return
        payload = json.dumps(entry, separators=(",", ":"), allow_nan=False).encode("ascii")
        payload = payload + b"\n" + data if data else payload
        framed = b"%08x %08x %b\n" % (len(payload), zlib.crc32(payload), payload)
        failure = None
        with self._lock:
            if self._is_broken:
                return
            try:
                _write_all(self._file, framed)
            except OSError as error:
                self._is_broken, failure = True, error  # a full disk: what follows could not be read
            self._size += len(framed)
        if failure is not None:
            self._report(failure)

    def _report(self, failure: OSError) -> None:
        """Say once, in the capture and as a warning, that the journal ends here."""
        reason = f"{type(failure).__name__}: {failure}"
        self._recorder.add(
            r.Finding(
                rule="journal_failed",
                severity="warning",
                title="the journal cannot be written any more; what comes after is missing in it",
                evidence=f"{reason}, after {self._size:,} bytes",
                hazard="If the process is killed, what the journal lacks is lost. The model and the lens go on.",
                mitigation="Make room on the disk, or choose a file elsewhere; save the lens to keep what it holds.",
            )
        )
        with contextlib.suppress(RuntimeWarning):  # where warnings are errors, the user's call still goes on
            warnings.warn(f"the journal cannot be written any more: {reason}", RuntimeWarning, stacklevel=2)


def _write_all(file: int, data: bytes) -> None:
    """Write with one system call, unless the system takes only a part; a second call then says why."""
    written = os.write(file, data)
    while written < len(data):
        written += os.write(file, data[written:])


@dataclass(slots=True)
class Entries:
    """A journal as far as it was read."""

    recorder: Recorder  # holds the records
    head: dict[str, Any] = field(default_factory=dict)  # name, backend and environment
    stats: dict[tuple[str | None, str | None], RunStats] = field(default_factory=dict)  # by session id and graph id: figures over all calls
    runs: list[r.Run] = field(default_factory=list)  # the calls that were kept
    eager: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)  # by graph id: calls and time of its nodes in PyTorch
    pid: int = 0  # the process that writes or wrote it
    is_ended: bool = False  # whether the journal was closed
    at: float = 0.0  # time of the last entry that has one, in seconds since 1970
    left_bytes: int = 0  # bytes behind the last whole entry
    is_first_version: bool = False  # whether its figures are texts in the head

    def capture(self) -> r.Capture:
        """Make the capture of the entries; a finding says so if the journal was not closed."""
        for graph_id, slots in self.eager.items():
            for node, (calls, total_ns) in slots.items():
                self.recorder.amend(r.Fallback, (graph_id, node), calls=calls, total_ns=total_ns)
        for (session_id, _), stats in self.stats.items():
            if session_id is not None:
                self.recorder.amend(r.Session, session_id, **stats._asdict())
        given = {str(name): str(value) for name, value in dict(self.head.get("environment", {})).items()}
        if self.is_first_version:
            self.recorder.figures, given = figures_from_facts(given)
        made = self.recorder.capture(name=str(self.head.get("name", "")), backend=str(self.head.get("backend", "")), environment=given)
        runs = tuple(sorted(self.runs, key=lambda run: run.start_ns)[-MAX_RUNS:])
        findings = made.findings if self.is_ended else (*made.findings, self._unfinished())
        return replace(made, runs=runs, findings=findings, created=_time_text(self.at))

    def _unfinished(self) -> r.Finding:
        behind = f"behind the last whole entry are {self.left_bytes:,} bytes of another" if self.left_bytes else "the last entry is whole"
        return r.Finding(
            rule="journal_not_closed",
            severity="info",
            title=f"the journal was not closed: what came after {_time_text(self.at)} is missing",
            evidence=f"written by process {self.pid}; {behind}",
            hazard="Counts and times are those until then.",
            mitigation="Read it again if the process still runs; else it was killed, or ended without running exit functions.",
        )


def is_journal(path: Path) -> bool:
    """Tell whether a file is a journal. A pipe is not opened: it may never answer."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(HEADER)) in (HEADER, _FIRST_HEADER)
    except OSError:
        return False


def read(path: Path) -> Entries:
    """Read a journal, whether it was ended or not, up to its last whole entry."""
    entries = Entries(Recorder())
    with path.open("rb") as file:
        header = file.read(len(HEADER))
        if header not in (HEADER, _FIRST_HEADER):
            raise CaptureError("not a journal of this version")
        entries.is_first_version = header == _FIRST_HEADER
        try:
            for entry, data in _payloads(file, entries):
                _apply(entries, entry, data)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CaptureError(f"an entry of the journal cannot be: {type(error).__name__}: {error}") from error
    return entries


def _payloads(file: BinaryIO, entries: Entries) -> Iterator[tuple[dict[str, Any], bytes]]:
    size = os.fstat(file.fileno()).st_size
    while True:
        start = file.tell()
        entries.left_bytes = size - start
        frame = file.read(_FRAME)
        try:
            length, checksum = int(frame[:8], 16), int(frame[9:17], 16)
        except ValueError:
            return
        if len(frame) < _FRAME or length > min(size - file.tell(), _MAX_ENTRY):
            return
        payload = file.read(length)
        if file.read(1) != b"\n" or zlib.crc32(payload) != checksum:
            return
        text, _, data = payload.partition(b"\n")
        entry = json.loads(text)
        if not isinstance(entry, dict):
            raise CaptureError("an entry of the journal is no object")
        yield entry, data


def _apply(entries: Entries, entry: dict[str, Any], data: bytes) -> None:
    entries.at = float(entry.get("at", entries.at))
    if "head" in entry:
        entries.head, entries.pid = entry["head"], int(entry["pid"])
    elif "log" in entry:
        key = entry["log"], entry["graph"]
        figures = RunStats(*(None if figure is None else int(figure) for figure in entry["stats"]))  # type: ignore[arg-type]  # None only where it may be
        entries.stats[key] = figures
        for row in entry["rows"]:
            call, start, bound, ran, done, thread = map(int, row)
            entries.runs.append(run_from_row(*key, (call, start, bound, ran, done, thread)))
    elif "eager" in entry:
        pairs = zip(entry["calls"], entry["ns"], strict=True)
        entries.eager[entry["eager"]] = dict(zip(entry["nodes"], pairs, strict=True))
    elif "end" in entry:
        entries.is_ended = True
    else:
        _replay(entries.recorder, entry, data)


def _replay(recorder: Recorder, entry: dict[str, Any], data: bytes) -> None:
    if "add" in entry:
        table = TABLES[entry["add"]]
        recorder.add(record_from_row(table, entry["row"]))
        if recorder.count(table.record) > MAX_ROWS:
            raise CaptureError(f"more than {MAX_ROWS:,} rows in table {table.name}")
    elif "drop" in entry:
        key = entry["key"]
        recorder.drop(TABLES[entry["drop"]].record, tuple(key) if isinstance(key, list) else key)
    elif "replace" in entry:
        table = TABLES[entry["replace"]]
        recorder.replace_all(table.record, [record_from_row(table, row) for row in entry["rows"]])
    elif "forget" in entry:
        recorder.forget_graph(entry["forget"])
    elif "figures" in entry:
        recorder.figures = record_from_row(FIGURES, entry["figures"])
    elif "attach" in entry:
        recorder.attach(str(entry["attach"]), data)


def _time_text(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
