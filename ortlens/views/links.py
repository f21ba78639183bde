"""What a selected id is linked to, as rows: the same links that the explorer shows beside its panels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortlens.analysis.findings.registry import findings_of
from ortlens.analysis.identity import links
from ortlens.views.payload import MAX_RUNS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ortlens.analysis.identity import Link
    from ortlens.trace.records import Capture

    Test = Callable[[Link], bool]


def linked(capture: Capture, selected: str | None) -> tuple[Link, ...]:
    """Find every way from a user line to a kernel through the selection; none where nothing is selected or linked to it."""
    if selected is None:
        return ()
    test = _test(capture, selected)
    return tuple(link for link in links(capture) if test(link))


def _test(capture: Capture, selected: str) -> Test:
    kind, _, name = selected.partition(":")
    model_of = {model.partition_id: model.model_id for model in capture.models}
    tests: dict[str, Test] = {
        "graph": lambda link: link.graph_id == name,
        "partition": lambda link: link.partition_id == name,
        "node": lambda link: f"{link.graph_id}/{link.node}" == name,
        "module": lambda link: link.module is not None and f"{link.graph_id}/{link.module}.".startswith(f"{name}."),
        "line": lambda link: f"{link.file}:{link.line}" == name,
        "model": lambda link: model_of.get(link.partition_id or "") == name,
        "onnx": lambda link: f"{model_of.get(link.partition_id or '')}/{link.onnx_node}" == name,
        "kernel": lambda link: f"{link.session_id}/{link.kernel}" == name,
        "session": _of_session(capture, name),
    }
    return tests[kind] if kind in tests else _of_event(capture, kind, name)


def _of_session(capture: Capture, name: str) -> Test:
    """Match links of its partition, without the kernels of other sessions of it."""
    partitions = {session.partition_id for session in capture.sessions if session.session_id == name}
    return lambda link: link.partition_id in partitions and link.session_id in (None, name)


def _of_event(capture: Capture, kind: str, name: str) -> Test:
    """Match the line of a break or finding, the graphs of a recompile, the session of a call, or its graph where it has none."""
    if kind == "run":
        run = sorted(capture.runs, key=lambda one: one.start_ns)[-MAX_RUNS:][int(name)]
        session, graph = run.session_id, run.graph_id
        return _of_session(capture, session) if session else lambda link: link.graph_id == graph
    if kind == "recompile":
        graphs = {graph.graph_id for graph in capture.graphs if graph.compile_id == name}
        return lambda link: link.graph_id in graphs
    row = findings_of(capture)[int(name)] if kind == "finding" else next(one for one in capture.breaks if one.break_id == name)
    return lambda link: link.file is not None and (link.file, link.line) == (row.file, row.line)
