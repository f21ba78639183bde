"""A capture as files that other tools read, such as the Trace Event Format, which ui.perfetto.dev and speedscope.app open.

In a trace, calls are where they were, on a track per thread, inside the graphs that they belong to. Of compilations and kernels only
durations are recorded: they have tracks of their own, on which they lie end to end; kernels also lie inside the latest calls, marked as
profiled.

Source: "Trace Event Format" of the Chromium project: complete events (`X`), instant events (`i`), counters (`C`) and metadata events (`M`).
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from ortlens._files import temp_sibling, write_file
from ortlens.analysis.index import fallbacks_by_graph, graphs_by_id, grouped, kernels_by_session, sessions_by_id
from ortlens.analysis.timing import PHASES
from ortlens.errors import UsageError
from ortlens.trace.records import same
from ortlens.trace.schema import FORMATS, SHOWN_TABLES, facts_of, table_by_name
from ortlens.views.actions import records_of
from ortlens.views.table import csv_from_rows, rows_of
from ortlens.views.wording import PHASE_WORDS, place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from ortlens.trace.records import Break, Capture, Fallback, Kernel, Run

    Event: TypeAlias = dict[str, Any]


_OF_TABLES = FORMATS[:2]
_MODEL = re.compile(r"models/[\w.-]*\w\.onnx", re.ASCII)


def exported(capture: Capture, folder: Path, form: str, *, tables: Sequence[str] = (), replace: bool = False) -> list[Path]:
    """Write a capture as files; all of them, or none where one would replace another or cannot be written.

    Without `tables`, all of them and the ONNX models. Nothing to write is a `UsageError`.
    """
    if form not in FORMATS:
        raise UsageError(f"there is no format {form!r}; the formats are: {', '.join(FORMATS)}")
    if tables and form not in _OF_TABLES:
        raise UsageError(f"the format {form} contains no tables; leave out which, or choose one of {', '.join(_OF_TABLES)}")
    files = _files(capture, form, tables)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; name a folder")
    if of_folders := [name for name in files if (folder / name).is_dir()]:
        raise UsageError(f"{folder / of_folders[0]} is a folder; choose another folder to export to")
    there = [name for name in files if (folder / name).exists() or (folder / name).is_symlink()]
    if there and not replace:  # half an export beside old files would mix two captures
        more = f" and {len(there) - 1} more" if len(there) > 1 else ""
        raise UsageError(f"{folder / there[0]}{more} would be replaced; use --force (in Python replace=True), or choose another folder")
    _write(folder, files)
    return [folder / name for name in files]


def _files(capture: Capture, form: str, tables: Sequence[str]) -> dict[str, Callable[[], bytes]]:
    """Map the names of the files to what makes each; models have names that stay inside a folder, and the store refuses worse ones too."""
    if form == "trace":
        return {"trace.json": lambda: json.dumps(trace_from_capture(capture), allow_nan=False).encode()}
    models = {name: partial(bytes, data) for name, data in capture.attachments.items() if _MODEL.fullmatch(name)}
    chosen = {f"{(table := table_by_name(name).name)}.{form}": partial(_table, capture, table, form) for name in tables or SHOWN_TABLES}
    return {**chosen, **({} if tables else models)}


def _table(capture: Capture, name: str, form: str) -> bytes:
    rows = rows_of(name, records_of(capture, name))
    text = csv_from_rows(name, rows) if form == "csv" else json.dumps(rows, indent=1)
    return text.encode("utf-8", "backslashreplace")


def _write(folder: Path, files: Mapping[str, Callable[[], bytes]]) -> None:
    """Write all files, first to a folder of their own in there, so that a full disk leaves what was there before."""
    is_new = not folder.exists()
    made = temp_sibling(folder / "_")
    try:
        for name, make in files.items():
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            write_file(made / name, make())
        ready = {path: folder / path.relative_to(made) for path in made.rglob("*") if path.is_file()}
        for target in ready.values():
            target.parent.mkdir(exist_ok=True)
        for path, target in ready.items():
            path.replace(target)
    except OSError as err:
        raise UsageError(f"cannot write to {folder}: {err.strerror or err}; choose another folder") from err
    finally:
        shutil.rmtree(made, ignore_errors=True)
        if is_new:
            with contextlib.suppress(OSError):
                folder.rmdir()  # nothing came of it


_CALLS, _COMPILING, _KERNELS = 1, 2, 3  # numbers of the processes that group the tracks
_NS_PER_US = 1000
_OPERATORS = 3
_PROFILED_SLICES = 20_000  # kernels inside calls: those of the latest calls that do not exceed it, since a viewer has to load them all


def trace_from_capture(capture: Capture) -> dict[str, Any]:
    """Put every recorded call on the track of its thread, and what was compiled and profiled on tracks of their own.

    Times are microseconds from the first call on. Kernels inside the latest runs are means of the profile, shortened where they exceed the
    run; `otherData` says how many calls there were and how many of them are here.
    """
    runs = sorted(capture.runs, key=lambda run: run.start_ns)
    start = runs[0].start_ns if runs else 0
    threads = {thread: number for number, thread in enumerate(dict.fromkeys(run.thread for run in runs))}
    names = _Names(capture)
    kernels = kernels_by_session(capture)
    profiled = _latest_profiled(runs, kernels)
    events = [_named("process_name", _CALLS, f"{capture.name or 'capture'} ({capture.backend})")]
    for thread, number in threads.items():
        events.append(_named("thread_name", _CALLS, f"thread {thread}", number))
        own = [run for run in runs if run.thread == thread]
        events += _graphs(own, names, number, start)
        for run in own:
            events += _call(run, names, number, run.start_ns - start)
            events += _memory(run, names, number, run.start_ns - start)
            if id(run) in profiled:
                events += _inside(run, kernels[run.session_id or ""], number, run.start_ns - start)
        for before, after in pairwise(own):
            events += _gap(before, after, names, number, start)
    return {
        "traceEvents": [*events, *_compilations(capture), *_kernels(kernels)],
        "displayTimeUnit": "ms",
        "otherData": {
            "calls": str(sum(session.calls for session in capture.sessions) or len(capture.runs)),
            "calls in this trace": str(len(capture.runs)),
            "calls with kernels of the profile": str(len(profiled)),
            "note": "The latest calls are kept one by one, sums over all are in the table sessions. "
            "Unnamed gaps are Python and the program.",
            **{str(key): str(value) for key, value in facts_of(capture).items()},
        },
    }


class _Names:
    """What is said about a call, by its session or graph, and about the gap behind it."""

    def __init__(self, capture: Capture) -> None:
        self.sessions = sessions_by_id(capture)
        self.graphs = graphs_by_id(capture)
        self.breaks = {compile_id: item for item in capture.breaks for compile_id in item.compile_ids}
        self._fallbacks = fallbacks_by_graph(capture)
        self._at = {(node.graph_id, node.node): at for at, node in enumerate(capture.nodes)}
        self._places = grouped((node.partition_id, at) for at, node in enumerate(capture.nodes))  # of a partition's nodes, among all

    def of(self, run: Run) -> tuple[str, dict[str, Any]]:
        """Return title and details of a call."""
        session = self.sessions.get(run.session_id or "")
        graph = self.graphs.get(run.graph_id or "")
        details: dict[str, Any] = {"call": run.call, "graph": run.graph_id}
        if graph is not None:
            details |= {"compile_id": graph.compile_id, "phase": graph.phase}
        if session is None:
            return f"graph {run.graph_id}", details
        details |= {"session": session.session_id, "partition": session.partition_id, "providers": list(session.providers)}
        return f"{session.partition_id} of {run.graph_id}", details | {"inputs": session.input_signature}

    def between(self, before: Run, after: Run) -> list[Fallback]:
        """List the operators that PyTorch runs between two partitions of one graph; none if they are no neighbours in this order."""
        one, other = (self.sessions.get(run.session_id or "") for run in (before, after))
        if one is None or other is None or before.graph_id != after.graph_id:
            return []
        own, next_places = self._places.get(one.partition_id), self._places.get(other.partition_id)
        fallen = self._fallbacks.get(before.graph_id or "", [])
        if own is None or next_places is None or next_places[0] < own[0]:
            return []
        return [each for each in fallen if own[-1] < self._at.get((each.graph_id, each.node), -1) < next_places[0]] or fallen


def _call(run: Run, names: _Names, thread: int, at: int) -> Iterator[Event]:
    title, details = names.of(run)
    yield {**_slice(title, _CALLS, thread, at, run.total_ns), "cat": "call", "args": details}
    for part, length in (("bind", run.bind_ns), ("run", run.run_ns), ("output", run.output_ns)):
        if length and run.session_id is not None:
            yield {**_slice(part, _CALLS, thread, at, length), "cat": "part"}
        at += length


def _graphs(runs: Sequence[Run], names: _Names, thread: int, start: int) -> Iterator[Event]:
    """Yield a slice per entry of a graph; it is entered anew when another one was, or when a partition of it runs again."""
    entry: list[Run] = []
    seen: set[str | None] = set()
    for run in [*runs, None]:
        session = None if run is None else names.sessions.get(run.session_id or "")
        partition = session.partition_id if session else None
        if entry and (run is None or run.graph_id != entry[0].graph_id or partition in seen or partition is None):
            first, last = entry[0], entry[-1]
            length = last.start_ns + last.total_ns - first.start_ns
            if len(entry) > 1:  # a single call says the same
                yield {**_slice(f"graph {first.graph_id}", _CALLS, thread, first.start_ns - start, length), "cat": "graph"}
            entry, seen = [], set()
        if run is not None:
            entry.append(run)
            seen.add(partition)


def _inside(run: Run, kernels: Sequence[Kernel], thread: int, at: int) -> Iterator[Event]:
    """Yield the kernels of a profile of other calls, end to end, in a run."""
    ends = list(accumulate(kernel.mean_ns or 0 for kernel in kernels))
    factor, begun = min(1.0, run.run_ns / (ends[-1] or 1)), at + run.bind_ns
    for kernel, left, done in zip(kernels, [0, *ends], ends, strict=False):
        start, end = int(left * factor), int(done * factor)  # whole nanoseconds, so that neighbours do not overlap
        about = {"kernel": kernel.kernel, "mean_ns": done - left, "measured": "in profiled calls, not in this one"}
        yield {**_slice(f"{kernel.op_type} (profiled)", _CALLS, thread, begun + start, end - start), "cat": "profiled", "args": about}


def _memory(run: Run, names: _Names, thread: int, at: int) -> Iterator[Event]:
    """Yield the peak of activations that was profiled for the session, while a call of it lasts."""
    session = names.sessions.get(run.session_id or "")
    if session is None or not session.arena_bytes:
        return
    counter = {"name": "activations (profiled peak)", "ph": "C", "pid": _CALLS, "id": thread}
    yield {**counter, "ts": at / _NS_PER_US, "args": {"bytes": session.arena_bytes}}
    yield {**counter, "ts": (at + run.total_ns) / _NS_PER_US, "args": {"bytes": 0}}


def _gap(before: Run, after: Run, names: _Names, thread: int, start: int) -> Iterator[Event]:
    """Yield what is known of the time between two calls of a thread: a graph break, or operators that stay in PyTorch."""
    end = before.start_ns + before.total_ns
    if after.start_ns <= end:
        return
    where = _slice("", _CALLS, thread, end - start, after.start_ns - end)
    graph = names.graphs.get(before.graph_id or "")
    item = None if graph is None else names.breaks.get(graph.compile_id or "")
    if item is not None and before.graph_id != after.graph_id and graph is not None and graph.phase != "backward":
        yield {**where, "name": f"graph break {item.break_id}", "cat": "break", "args": _about_break(item)}
    elif fallen := names.between(before, after):
        targets = list(dict.fromkeys(each.target for each in fallen))
        more = f" and {len(targets) - _OPERATORS} more" if len(targets) > _OPERATORS else ""
        reasons = {each.target: f"{each.reason} ({place(each.file, each.line)})" for each in fallen}
        yield {**where, "name": f"PyTorch: {', '.join(targets[:_OPERATORS])}{more}", "cat": "eager", "args": reasons}


def _compilations(capture: Capture) -> Iterator[Event]:
    """Yield a slice per compiled graph with its phases inside, and the breaks that it ran into."""
    if not capture.graphs:
        return
    yield _named("process_name", _COMPILING, "compilation (durations, end to end)")
    yield _named("thread_name", _COMPILING, "graphs", 0)
    breaks = grouped((compile_id, item) for item in capture.breaks for compile_id in item.compile_ids)
    at = 0
    for graph in capture.graphs:
        phases = {phase: getattr(graph, f"{phase}_ns") or 0 for phase in PHASES}
        length = max(graph.compile_ns or 0, sum(phases.values()))
        title = f"{graph.graph_id} {graph.name or ''}".strip()
        about = {"compile_id": graph.compile_id, "phase": graph.phase, "recompile of": graph.recompile_of, "coverage": graph.coverage}
        yield {**_slice(title, _COMPILING, 0, at, length), "cat": "compile", "args": about}
        inside = at
        for phase, ns in phases.items():
            if ns:
                yield {**_slice(PHASE_WORDS[phase], _COMPILING, 0, inside, ns), "cat": "phase"}
            inside += ns
        at += length
        for item in breaks.pop(graph.compile_id or "", ()):
            where = {"ph": "i", "s": "t", "pid": _COMPILING, "tid": 0, "ts": at / _NS_PER_US}
            yield {"name": f"graph break {item.break_id}", **where, "cat": "break", "args": _about_break(item)}


def _latest_profiled(runs: Sequence[Run], kernels: Mapping[str, Sequence[Kernel]]) -> set[int]:
    """Collect the ids of the latest runs whose kernels fit into the bound."""
    latest = [(run, len(kernels[run.session_id or ""])) for run in reversed(runs) if run.session_id in kernels]
    return {id(run) for (run, _), held in zip(latest, accumulate(count for _, count in latest), strict=True) if held <= _PROFILED_SLICES}


def _kernels(by_session: Mapping[str, Sequence[Kernel]]) -> Iterator[Event]:
    """Yield a track per profiled session: its kernels in one run, as means."""
    if by_session:
        yield _named("process_name", _KERNELS, "kernels (means per run, end to end)")
    for number, (session_id, kernels) in enumerate(by_session.items()):
        yield _named("thread_name", _KERNELS, f"session {session_id}", number)
        yield {**_slice(f"one run of {session_id}", _KERNELS, number, 0, sum(kernel.mean_ns or 0 for kernel in kernels)), "cat": "kernels"}
        at = 0
        for kernel in kernels:
            line = place(kernel.file, kernel.line) if kernel.file else None
            about = same(kernel, "kernel", "provider", "share", "node", "module") | {"line": line}
            yield {**_slice(kernel.op_type, _KERNELS, number, at, kernel.mean_ns or 0), "cat": "kernel", "args": about}
            at += kernel.mean_ns or 0


def _slice(name: str, process: int, thread: int, at_ns: int, length_ns: int) -> Event:
    return {"name": name, "ph": "X", "pid": process, "tid": thread, "ts": at_ns / _NS_PER_US, "dur": length_ns / _NS_PER_US}


def _named(kind: str, process: int, name: str, thread: int | None = None) -> Event:
    return {"name": kind, "ph": "M", "pid": process, **({} if thread is None else {"tid": thread}), "args": {"name": name}}


def _about_break(item: Break) -> Mapping[str, Any]:
    return {"reason": item.reason, "line": place(item.file, item.line), "advice": item.advice}
