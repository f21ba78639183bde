"""A journal: everything that a recorder receives, written to a file as it comes, for processes that may be killed; and saved captures.

The file begins with `HEADER`, that of a saved capture with `SAVED`. Each entry is a line `LENGTH CHECKSUM PAYLOAD`, both numbers as eight
hexadecimal digits; the payload is JSON and, for a table or an attachment, its bytes behind a line break, packed by zlib where the entry
names their `size`. Entries are written with one system call each: what was written survives the end of the process, and an entry that was
cut off by a kill or a full disk fails its checksum and ends the reading. The first entry that cannot be written ends the journal, with a
finding and a warning. Records are written when they are made, calls every `INTERVAL` seconds by a thread: exact sums per session, and the
latest calls one by one.

A saved capture is a finished journal: its head says when it was created, whole tables stand for single records, and its end counts the
entries. Whatever is read may come from anybody: sizes are checked before a byte is unpacked, and names before they are kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
import warnings
import zlib
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from ortlens._files import opened_above_streams, write_file
from ortlens._versions import version_of
from ortlens.errors import CaptureError, UsageError
from ortlens.trace import records as r
from ortlens.trace.codec import MAX_ROWS, record_from_row, records_from_columns, row_from_record
from ortlens.trace.guard import lens_guard
from ortlens.trace.recorder import MAX_RUNS, Recorder, run_from_row
from ortlens.trace.runlog import RunStats
from ortlens.trace.schema import FIGURES, TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ortlens.trace.runlog import RunLog

HEADER, SAVED = (b"ortlens-%b %d\n" % (kind, r.SCHEMA_VERSION) for kind in (b"journal", b"capture"))
_HEADER = re.compile(rb"ortlens-(?:journal|capture) (\d{1,9})\n")
INTERVAL = 0.25  # seconds between two looks at the calls
_SHARE = 0.01  # of the time that looking at the calls may take
_ROWS = 64  # calls of a session that are kept of one look
_MANY_BYTES = 64 << 20  # from which on only sums are written
_FRAME = 8 + 1 + 8 + 1  # length, space, checksum, space

MAX_ATTACHMENTS = 10_000  # the models of more partitions than anybody could look at
MAX_TOTAL_BYTES = 2**30  # bytes of all that is unpacked, since a loaded capture is held in memory; models are kept without their weights
MAX_TEXT_BYTES = 64 * 2**20
"""Bytes of one entry's JSON, or of a table, some 150,000 nodes. Parsed JSON takes up to twenty times its text, so this bounds memory."""

MAX_RATIO = 200  # how many times smaller bytes may be packed. Text packs 5 to 50 times; deflate's own end, reached by bombs, is 1032
RATIO_FREE_BYTES = 2**20  # what is smaller is exempt from `MAX_RATIO`: short tables of equal values pack extremely well and do no harm
_MAX_NAME = 240  # characters; leaves room for a folder's own path within the 260 of Windows
_COMPONENT = re.compile(r"[A-Za-z0-9_+=@-](?:[A-Za-z0-9._+=@-]{0,118}[A-Za-z0-9_+=@-])?")
_DEVICES = frozenset({"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))})
_MAX_DIGITS = 20  # a 64-bit integer and its sign


class Journal:
    """Writes the entries of one recorder."""

    def __init__(self, path: str | os.PathLike[str], head: Callable[[], Mapping[str, Any]], recorder: Recorder) -> None:
        """Create the file, and begin to watch the calls.

        A file that is there is replaced, once there is room for a new one. `head` gives name, backend and environment as they are now.
        """
        self._head, self._recorder, self._pid = head, recorder, os.getpid()
        self._lock = threading.Lock()  # of the file: taken under that of the recorder, so nothing may ask the recorder under it
        self.paused = threading.RLock()  # while it is held, no calls are written
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
        with self.paused:
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
                calls, times = counts = tuple(slots.calls), tuple(slots.total_ns)
                if self._eager.get(graph_id) != counts and any(calls):
                    self._eager[graph_id] = counts
                    self.write({"eager": graph_id, "nodes": list(slots.nodes), "calls": list(calls), "ns": list(times)})

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

    def write(self, entry: Mapping[str, Any], data: bytes = b"") -> None:
        """Write an entry, with the bytes of an attachment."""
        if os.getpid() != self._pid:  # forked: the file is the parent's
            return
        framed, failure = framed_entry(entry, data), None
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


def framed_entry(entry: Mapping[str, Any], data: bytes = b"") -> bytes:
    """Write an entry, with the bytes that belong to it, as it stands in the file."""
    payload = json.dumps(entry, separators=(",", ":"), allow_nan=False).encode("ascii")
    payload = payload + b"\n" + data if data else payload
    return b"%08x %08x %b\n" % (len(payload), zlib.crc32(payload), payload)


def packed_entry(entry: Mapping[str, Any], data: bytes) -> bytes:
    """Write an entry with packed bytes; those stay as they are that would pack so well that the reader took them for a bomb."""
    packed = zlib.compress(data, 6)
    if len(packed) >= len(data) or len(data) > max(RATIO_FREE_BYTES, len(packed) * MAX_RATIO):
        return framed_entry(entry, data)
    return framed_entry({**entry, "size": len(data)}, packed)


@dataclass(slots=True)
class Entries:
    """A journal as far as it was read."""

    recorder: Recorder  # holds the records of a journal that grew
    head: dict[str, Any] = field(default_factory=dict)  # name, backend and environment
    tables: dict[str, tuple[Any, ...]] = field(default_factory=dict)  # of a saved capture
    attachments: dict[str, bytes] = field(default_factory=dict)  # likewise
    stats: dict[tuple[str | None, str | None], RunStats] = field(default_factory=dict)  # by session id and graph id: figures over all calls
    runs: list[r.Run] = field(default_factory=list)  # the calls that were kept
    eager: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)  # by graph id: calls and time of its nodes in PyTorch
    pid: int = 0  # the process that writes or wrote it
    is_saved: bool = False  # whether it is a saved capture
    created: str = ""  # when it was made, if it is one
    count: int = 0  # entries
    counted: int | None = None  # how many there are, by the end of a saved capture
    is_ended: bool = False  # whether the journal was closed
    at: float = 0.0  # time of the last entry that has one, in seconds since 1970
    left_bytes: int = 0  # bytes behind the last whole entry
    held_bytes: int = 0  # unpacked, of tables and attachments

    def capture(self) -> r.Capture:
        """Make the capture of the entries; a finding says so if the journal was not closed. A saved capture must be whole."""
        name, backend, given = (self.head.get(key, default) for key, default in (("name", ""), ("backend", ""), ("environment", {})))
        if not isinstance(name, str) or not isinstance(backend, str):
            raise CaptureError("its name or backend is not text")
        if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
            raise CaptureError("its environment is not a JSON object of texts")
        if self.is_saved:
            if self.left_bytes or self.counted != self.count:
                raise CaptureError(f"it is damaged, or cut off, after {self.count} whole entries")
            figures, tables, attachments = self.recorder.figures, self.tables, self.attachments
            return r.Capture(
                name=name, backend=backend, created=self.created, environment=given, figures=figures, attachments=attachments, **tables
            )
        for graph_id, slots in self.eager.items():
            for node, (calls, total_ns) in slots.items():
                self.recorder.amend(r.Fallback, (graph_id, node), calls=calls, total_ns=total_ns)
        called = {graph_id for graph_id, slots in self.eager.items() if any(calls for calls, _ in slots.values())}
        self.recorder.unhide(called.union(graph_id for (_, graph_id), stats in self.stats.items() if stats.calls))
        for (session_id, _), stats in self.stats.items():
            if session_id is not None:
                self.recorder.amend(r.Session, session_id, **stats._asdict())
        made = self.recorder.capture(name=name, backend=backend, environment=given)
        runs = tuple(sorted(self.runs, key=lambda run: run.start_ns)[-MAX_RUNS:])
        findings = made.findings if self.is_ended else (*made.findings, self._unfinished())
        return replace(made, runs=runs, findings=findings, created=_time_text(self.at))

    def hold(self, entry: Mapping[str, Any], data: bytes, limit: int) -> bytes:
        """Return the bytes of an entry, of a saved capture unpacked, within what is left of all limits.

        A journal that grows is never packed. It may replace its attachments as often as it likes: what is held is no more than the file.
        """
        if not self.is_saved and "size" not in entry:
            return data
        size = entry.get("size", len(data))
        if type(size) is not int or size < 0:
            raise CaptureError("the size of an entry is no number")
        self.held_bytes += size
        if size > limit or self.held_bytes > MAX_TOTAL_BYTES:
            raise CaptureError(f"{max(size, self.held_bytes):,} bytes unpacked are more than a capture may hold")
        if "size" not in entry:
            return data
        if size > max(RATIO_FREE_BYTES, len(data) * MAX_RATIO):
            raise CaptureError(f"an entry unpacks from {len(data)} to {size} bytes, more than {MAX_RATIO} times")
        unpacker = zlib.decompressobj()
        unpacked = unpacker.decompress(data, size + 1)
        if len(unpacked) != size or not unpacker.eof or unpacker.unused_data:
            raise CaptureError("an entry unpacks to another size than it says")
        return unpacked

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


def check_names(names: Iterable[str]) -> None:
    """Refuse names that are not safe and unambiguous on every file system.

    Names are relative, as `models/m0.onnx`, of letters, digits and `._+=@-`; none may occur twice (letter case aside), or as both file and
    folder.
    """
    seen: set[str] = set()
    for name in names:
        parts = name.split("/")
        if len(name) > _MAX_NAME or not all(_COMPONENT.fullmatch(part) and part.split(".")[0].lower() not in _DEVICES for part in parts):
            raise CaptureError(f"attachment {name[:80]!r}: the name is not allowed in a capture")
        if name.lower() in seen:
            raise CaptureError(f"attachment {name!r}: the name occurs twice")
        seen.add(name.lower())
    for name in seen:
        parts = name.split("/")
        if any("/".join(parts[:depth]) in seen for depth in range(1, len(parts))):
            raise CaptureError(f"attachment {name!r}: one of its folders is also a file")


def read(path: Path) -> Entries:
    """Read a journal, whether it was ended or not, up to its last whole entry; a pipe is not opened: it may never answer."""
    if not path.is_file():
        raise CaptureError("this is a folder or no plain file; a capture is a file") if path.exists() else FileNotFoundError(path)
    entries = Entries(Recorder())
    with path.open("rb") as file:
        entries.is_saved = _checked_header(file.read(len(HEADER))) == SAVED
        try:
            for entry, data in _payloads(file, entries):
                entries.count += 1
                _apply(entries, entry, data)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError, zlib.error) as error:
            raise CaptureError(f"an entry of the journal cannot be: {type(error).__name__}: {str(error)[:200]}") from error
    check_names(entries.attachments)
    return entries


def _checked_header(header: bytes) -> bytes:
    if header in (HEADER, SAVED):
        return header
    ours = f"ortlens {version_of('ortlens') or 'unknown'} reads journals of version {r.SCHEMA_VERSION}"
    match = _HEADER.match(header)
    if match is None:
        raise CaptureError("this is no capture, and no journal")
    newer = int(match[1]) > r.SCHEMA_VERSION
    raise CaptureError(f"its version is {int(match[1])}; {ours}: {'upgrade ortlens to open it' if newer else 'record it again'}")


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
        if len(frame) < _FRAME or length > min(size - file.tell(), MAX_TOTAL_BYTES):
            return
        payload = file.read(length)
        if file.read(1) != b"\n" or zlib.crc32(payload) != checksum:
            return
        text, _, data = payload.partition(b"\n")
        entry = parsed(text)
        if not isinstance(entry, dict):
            raise CaptureError("an entry of the journal is no object")
        yield entry, data


def parsed(text: bytes) -> Any:  # noqa: ANN401 - JSON of any kind
    """Read JSON from anybody; raise ValueError where it is none, too long, or has numbers that no capture has."""
    if len(text) > MAX_TEXT_BYTES:
        raise ValueError(f"{len(text)} bytes of JSON are more than {MAX_TEXT_BYTES}")
    return json.loads(text.decode("utf-8"), parse_constant=_refuse_constant, parse_int=_short_int)


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _short_int(text: str) -> int:
    # Reading a number of a million digits takes minutes, and not every Python refuses to by itself.
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"an integer has {len(text)} digits")
    return int(text)


def _apply(entries: Entries, entry: dict[str, Any], data: bytes) -> None:
    entries.at = float(entry.get("at", entries.at))
    if "head" in entry:
        entries.head, entries.pid, entries.created = dict(entry["head"]), int(entry.get("pid", 0)), str(entry.get("created", ""))
    elif "table" in entry:
        _keep_table(entries, entry, data)
    elif "attach" in entry:
        _keep_attachment(entries, str(entry["attach"]), entries.hold(entry, data, MAX_TOTAL_BYTES))
    elif "log" in entry:
        key = entry["log"], entry["graph"]
        figures = (None if figure is None else int(figure) for figure in entry["stats"])
        entries.stats[key] = RunStats(*figures)  # type: ignore[arg-type]  # None only where it may be
        entries.runs += [run_from_row(*key, tuple(map(int, row))) for row in entry["rows"]]
    elif "eager" in entry:
        pairs = zip(entry["calls"], entry["ns"], strict=True)
        entries.eager[entry["eager"]] = dict(zip(entry["nodes"], pairs, strict=True))
    elif "end" in entry:
        entries.is_ended, entries.counted = True, entry.get("entries")
    else:
        _replay(entries.recorder, entry)


def _keep_table(entries: Entries, entry: dict[str, Any], data: bytes) -> None:
    table = TABLES.get(entry["table"])
    if table is None:  # one of a later version
        return
    columns, rows = parsed(entries.hold(entry, data, MAX_TEXT_BYTES)), entry["rows"]
    if type(rows) is not int or rows < 0 or not isinstance(columns, dict):
        raise CaptureError(f"table {table.name} has no number of rows, or no columns")
    entries.tables[table.name] = records_from_columns(table, rows, columns)


def _keep_attachment(entries: Entries, name: str, data: bytes) -> None:
    check_names((name,))
    if not entries.is_saved:
        entries.recorder.attach(name, data)
        return
    if name in entries.attachments:
        raise CaptureError(f"attachment {name!r}: the name occurs twice")
    if len(entries.attachments) >= MAX_ATTACHMENTS:
        raise CaptureError(f"there are more than {MAX_ATTACHMENTS} attachments")
    entries.attachments[name] = data


def _replay(recorder: Recorder, entry: dict[str, Any]) -> None:
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
    elif "hide" in entry:
        recorder.hide((str(table), tuple(key) if isinstance(key, list) else key) for table, key in entry["hide"])
    elif "forget" in entry:
        recorder.forget_graph(entry["forget"])
    elif "figures" in entry:
        recorder.figures = record_from_row(FIGURES, entry["figures"])


def _time_text(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
