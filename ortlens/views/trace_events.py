"""A capture's calls in the Trace Event Format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Source: "Trace Event Format" of the Chromium project: complete events (`X`) and metadata events (`M`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ortlens.trace.records import Capture, Run

_PROCESS = 1
_NS_PER_US = 1000


def trace_from_capture(capture: Capture) -> dict[str, Any]:
    """Put every recorded call on the line of its thread.

    Args:
        capture: Any capture.

    Returns:
        The trace, to be written as JSON: a slice per call, named by partition and graph; inside it binding, the run in ONNX Runtime,
        and returning the outputs. Gaps between slices are PyTorch and Python. Times are microseconds from the first call on.
        `otherData` says how many calls there were and how many of them are here. No slices when nothing was called.
    """
    runs = sorted(capture.runs, key=lambda run: run.start_ns)
    names = _Names(capture, runs)
    start = runs[0].start_ns if runs else 0
    slices = [event for run in runs for event in _slices(run, names, start)]
    return {"traceEvents": [*_lines(capture, names), *slices], "displayTimeUnit": "ms", "otherData": _about(capture)}


class _Names:
    """What is said about a call, by its session or graph."""

    def __init__(self, capture: Capture, runs: Sequence[Run]) -> None:
        self.threads = {thread: number for number, thread in enumerate(dict.fromkeys(run.thread for run in runs))}
        self._sessions = {session.session_id: session for session in capture.sessions}
        self._graphs = {graph.graph_id: graph for graph in capture.graphs}

    def of(self, run: Run) -> tuple[str, dict[str, Any]]:
        """Title and details of a call."""
        session = self._sessions.get(run.session_id or "")
        graph = self._graphs.get(run.graph_id or "")
        details: dict[str, Any] = {"call": run.call, "graph": run.graph_id}
        if graph is not None:
            details |= {"compile_id": graph.compile_id, "phase": graph.phase}
        if session is None:
            return f"graph {run.graph_id}", details
        details |= {"session": session.session_id, "partition": session.partition_id, "providers": list(session.providers)}
        return f"{session.partition_id} of {run.graph_id}", details | {"inputs": session.input_signature}


def _slices(run: Run, names: _Names, start: int) -> Iterator[dict[str, Any]]:
    title, details = names.of(run)
    thread, at = names.threads[run.thread], run.start_ns - start
    yield {**_slice(title, thread, at, run.total_ns), "cat": "call", "args": details}
    for part, length in (("bind", run.bind_ns), ("run", run.run_ns), ("output", run.output_ns)):
        if length and run.session_id is not None:
            yield {**_slice(part, thread, at, length), "cat": "part"}
        at += length


def _slice(name: str, thread: int, at_ns: int, length_ns: int) -> dict[str, Any]:
    return {"name": name, "ph": "X", "pid": _PROCESS, "tid": thread, "ts": at_ns / _NS_PER_US, "dur": length_ns / _NS_PER_US}


def _lines(capture: Capture, names: _Names) -> Iterator[dict[str, Any]]:
    """Names of the process and of its threads."""
    named = {"ph": "M", "pid": _PROCESS}
    yield {"name": "process_name", **named, "args": {"name": f"{capture.name or 'capture'} ({capture.backend})"}}
    for thread, number in names.threads.items():
        yield {"name": "thread_name", **named, "tid": number, "args": {"name": f"thread {thread}"}}


def _about(capture: Capture) -> dict[str, str]:
    calls = sum(session.calls for session in capture.sessions) or len(capture.runs)
    return {
        "calls": str(calls),
        "calls in this trace": str(len(capture.runs)),
        "note": "The latest calls are kept one by one, sums over all are in the table sessions. Gaps are PyTorch and Python.",
        **{str(key): str(value) for key, value in capture.environment.items()},
    }
