"""What the backend records adds up: calls, times, sessions, models and the backend's own figures."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

import hashlib
import itertools
import threading
import time
from typing import Any

import onnx
import pytest
import torch

import ortlens
from ortlens import Lens
from ortlens.analysis.timing import PHASES
from ortlens.backend.compiler import GraphCompiler
from ortlens.trace.records import Capture


def two_pieces(x: torch.Tensor) -> Any:
    return torch.special.bessel_j0(x.sin() * 2).cos()


@pytest.fixture(scope="module")
def capture() -> Capture:
    """Forty calls."""
    lens = Lens(name="mine")
    compiled = torch.compile(two_pieces, backend=lens)
    with torch.no_grad():
        for _ in range(40):
            compiled(torch.ones(8))
    return lens.captured()


@pytest.mark.parametrize("road", ["lens", "capture", "exported", "frozen"])
def test_what_ortlens_loads_once_per_process_is_a_part_of_its_own(road: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real, slept_ns = GraphCompiler.tables, 50_000_000

    def slow(compiler: GraphCompiler) -> Any:
        time.sleep(slept_ns / 1e9)
        return real(compiler)

    frozen = ortlens.freeze(torch.nn.Sigmoid(), torch.ones(8)) if road == "frozen" else None
    monkeypatch.setattr(GraphCompiler, "tables", slow)
    lens = Lens()
    if road == "lens":
        torch.compile(torch.sin, backend=lens)(torch.ones(8))
    elif road == "exported":
        lens.compile_exported(torch.export.export(torch.nn.Sigmoid(), (torch.ones(8),)))
    elif frozen is not None:
        lens.compile_frozen(frozen)
    else:
        with ortlens.capture() as lens:
            torch.compile(torch.sin, backend="ortlens")(torch.ones(8))
    (graph,) = lens.captured().graphs
    phases = [getattr(graph, f"{phase}_ns") or 0 for phase in PHASES]
    assert graph.compile_ns == sum(phases)
    assert (graph.loading_ns or 0) >= slept_ns


def test_runs_and_sessions_agree_to_the_nanosecond(capture: Capture) -> None:
    assert len(capture.runs) == 80
    assert all(run.total_ns == run.bind_ns + run.run_ns + run.output_ns for run in capture.runs)
    assert all(min(run.bind_ns, run.run_ns, run.output_ns) >= 0 for run in capture.runs)
    for session in capture.sessions:
        runs = [run for run in capture.runs if run.session_id == session.session_id]
        totals = sorted(run.total_ns for run in runs)
        assert (session.calls, session.total_ns, session.max_ns) == (40, sum(totals), totals[-1])
        assert session.mean_ns == pytest.approx(sum(totals) / 40, abs=1)
        percentiles = [figure or 0 for figure in (session.p50_ns, session.p90_ns, session.p99_ns, session.max_ns)]
        assert percentiles == sorted(percentiles)
        assert session.p50_ns == pytest.approx(totals[19], rel=0.04)
        assert [run.call for run in runs] == list(range(40))
    assert all(run.start_ns + run.total_ns <= after.start_ns for run, after in itertools.pairwise(capture.runs)), "two pieces take turns"
    assert [run.session_id for run in capture.runs] == ["s0", "s1"] * 40
    assert {run.thread for run in capture.runs} == {threading.get_ident()}
    assert {run.graph_id for run in capture.runs} == {graph.graph_id for graph in capture.graphs}


def test_models_are_kept_as_they_run(capture: Capture) -> None:
    for model in capture.models:
        data = capture.attachments[model.path or ""]
        assert hashlib.sha256(data).hexdigest() == model.sha256
        proto = onnx.load_from_string(data)
        onnx.checker.check_model(proto, full_check=True)
        assert len(proto.graph.node) == model.node_count
        assert {entry.version for entry in proto.opset_import if not entry.domain} == {model.opset}
        nodes = {node.node for node in capture.nodes}
        for node in proto.graph.node:
            (origin,) = (prop.value for prop in node.metadata_props if prop.key == "ortlens.node")
            assert origin in nodes


def test_a_graph_has_the_name_and_place_of_its_function(capture: Capture) -> None:
    (graph,) = capture.graphs
    assert (graph.name, graph.file, graph.line) == ("two_pieces", __file__, two_pieces.__code__.co_firstlineno)
    assert graph.op_count == 4
    assert sum(session.create_ns for session in capture.sessions) <= (graph.session_ns or 0)


@pytest.mark.parametrize(("target", "name"), [(torch.nn.Sequential(torch.nn.ReLU()), "Sequential"), (torch.sin, "sin")])
def test_a_target_in_a_library_has_its_own_name(target: Any, name: str) -> None:
    # Dynamo compiles it inside a function of torch's, whose name and line would tell a user nothing.
    torch._dynamo.reset()
    lens = Lens("eager")
    torch.compile(target, backend=lens)(torch.ones(2))
    (graph,) = lens.captured().graphs
    assert (graph.name, graph.file, graph.line) == (name, None, None)
