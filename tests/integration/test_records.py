"""What the backend records adds up: calls, times, sessions, models and the backend's own figures."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

from __future__ import annotations

import gc
import hashlib
import threading
import time
from typing import Any

import onnx
import pytest
import torch
from torch import nn

from ortlens import Lens, OrtBackend
from ortlens.trace.runlog import CAPACITY


def two_pieces(x: torch.Tensor) -> Any:
    return torch.special.bessel_j0(x.sin() * 2).cos()


def called(times: int, lens: Lens) -> Lens:
    compiled = torch.compile(two_pieces, backend=lens)
    with torch.no_grad():
        for _ in range(times):
            compiled(torch.ones(8))
    return lens


@pytest.fixture(scope="module")
def recorded() -> tuple[Lens, int]:
    """Forty calls, and how long compiling and calling took, in ns."""
    started = time.perf_counter_ns()
    lens = called(40, Lens(name="mine"))
    return lens, time.perf_counter_ns() - started


def test_runs_and_sessions_agree_to_the_nanosecond(recorded: tuple[Lens, int]) -> None:
    capture = recorded[0].captured()
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
    starts = [run.start_ns for run in capture.runs]
    assert starts == sorted(starts)
    assert {run.thread for run in capture.runs} == {threading.get_ident()}
    assert {run.graph_id for run in capture.runs} == {graph.graph_id for graph in capture.graphs}


def test_two_pieces_take_turns(recorded: tuple[Lens, int]) -> None:
    runs = recorded[0].runs
    ends = runs.start_ns + runs.total_ns
    assert (runs.start_ns.to_numpy()[1:] >= ends.to_numpy()[:-1]).all()
    assert runs.session_id.tolist() == ["s0", "s1"] * 40


def test_counts_stay_exact_when_the_ring_is_full() -> None:
    lens, times = Lens(), CAPACITY + 300
    compiled = torch.compile(lambda x: x + 1, backend=lens)
    with torch.no_grad():
        for _ in range(times):
            compiled(torch.ones(1))
    (session,) = lens.captured().sessions
    assert session.calls == times
    assert CAPACITY - 2 <= len(lens.runs) <= CAPACITY
    assert lens.runs.call.max() == times - 1
    assert lens.runs.total_ns.sum() < session.total_ns


def test_the_backend_counts_what_its_sessions_did() -> None:
    backend = OrtBackend()
    lens = called(6, Lens(backend))
    assert backend.execution_count == 12
    assert lens.sessions.calls.sum() == 12
    infos = backend.sessions_by_graph
    assert len(infos) == 2
    for module, (info,) in infos.items():
        assert isinstance(module, torch.fx.GraphModule)
        assert info.session.run(list(info.output_names), {info.input_names[0]: torch.ones(8).numpy()})
        assert [value.name for value in info.input_value_infos] == list(info.input_names)
        assert [value.name for value in info.output_value_infos] == list(info.output_names)
        assert info.input_value_infos[0].type.tensor_type.shape.dim[0].dim_value == 8
        assert info.input_value_infos[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
        assert info.input_devices == info.output_devices == (torch.device("cpu"),)
        assert info.providers == ("CPUExecutionProvider",)


def test_the_sessions_of_a_backend_go_with_its_graphs_and_the_count_stays() -> None:
    backend = OrtBackend()
    compiled = torch.compile(two_pieces, backend=backend)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(torch.ones(8)), two_pieces(torch.ones(8)))
    del compiled
    torch.compiler.reset()
    gc.collect()
    assert (backend.execution_count, backend.sessions_by_graph) == (4, {})
    called(1, Lens(backend))
    assert backend.execution_count == 6


def test_models_are_kept_as_they_run(recorded: tuple[Lens, int]) -> None:
    capture = recorded[0].captured()
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


def test_phases_of_the_compilation_are_measured_and_fit_into_it(recorded: tuple[Lens, int]) -> None:
    lens, whole = recorded
    (graph,) = lens.captured().graphs
    assert (graph.name, graph.file, graph.line) == ("two_pieces", __file__, two_pieces.__code__.co_firstlineno)
    assert graph.op_count == 4
    parts = [graph.dynamo_ns, graph.aot_ns, graph.partition_ns, graph.convert_ns, graph.optimize_ns, graph.session_ns]
    assert all(part is not None and part > 0 for part in parts)
    assert graph.compile_ns == sum(part or 0 for part in parts)
    assert (graph.compile_ns or 0) <= whole
    assert sum(session.create_ns for session in lens.captured().sessions) <= (graph.session_ns or 0)


def test_flops_and_bytes_of_a_matrix_product() -> None:
    lens = Lens()
    with torch.no_grad():
        torch.compile(nn.Linear(16, 8), backend=lens)(torch.ones(4, 16))
    (node,) = (node for node in lens.captured().nodes if node.target == "aten.addmm.default")
    assert node.flops == 2 * 4 * 16 * 8
    assert node.bytes == 4 * (8 + 4 * 16 + 16 * 8 + 4 * 8)
    assert node.shape == (4, 8)
    assert lens.partitions.flops.tolist() == [node.flops]


@pytest.mark.parametrize(("target", "name"), [(torch.nn.Sequential(torch.nn.ReLU()), "Sequential"), (torch.sin, "sin")])
def test_a_target_in_a_library_has_its_own_name(target: Any, name: str) -> None:
    # Dynamo compiles it inside a function of torch's, whose name and line would tell a user nothing.
    torch._dynamo.reset()
    lens = Lens("eager")
    torch.compile(target, backend=lens)(torch.ones(2))
    (graph,) = lens.captured().graphs
    assert (graph.name, graph.file, graph.line) == (name, None, None)
