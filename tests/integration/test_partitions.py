"""Graphs that ONNX Runtime takes in part, and what is recorded of their calls: cuts, what stays behind, times, sessions and models."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

import hashlib
import inspect
import itertools
import threading
import time
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn

import ortlens
from ortlens import Lens
from ortlens.analysis.timing import PHASES
from ortlens.backend.compiler import GraphCompiler
from ortlens.trace.records import Capture
from tests.integration.against_eager import same_as_eager
from tests.integration.marked_lines import line_of

HERE = Path(__file__)


def unsupported(x: torch.Tensor) -> Any:
    return torch.special.bessel_j0(x)  # the line that fallbacks must point to


def x(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


CUTS: dict[str, tuple[Any, int, int]] = {
    "operators side by side": (lambda a: unsupported(a.sin()) + unsupported(a.cos()) + unsupported(a.tan()).exp(), 2, 3),
    "operators in a row": (lambda a: unsupported(unsupported(unsupported(a.sin()).sin()).sin()).sin(), 4, 3),
    "an operator at the edge": (lambda a: (unsupported(a) * 2).sin(), 1, 1),
    "nothing else": (unsupported, 0, 1),
}


@pytest.mark.parametrize("name", CUTS)
def test_partitions_share_what_lies_between_operators_of_pytorch(name: str) -> None:
    function, partitions, left = CUTS[name]
    capture = same_as_eager(function, (x(3),))
    (graph,) = capture.graphs
    assert (graph.partition_count, graph.fallback_count, len(capture.sessions)) == (partitions, left, partitions)
    assert [partition.graph_id for partition in capture.partitions] == [graph.graph_id] * partitions
    assert sum(partition.node_count for partition in capture.partitions) + left == graph.node_count


def test_every_node_knows_its_module_and_line() -> None:
    class Inner(nn.Module):
        def forward(self, a: torch.Tensor) -> Any:
            return unsupported(a.tan())  # the inner line

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Inner(), Inner()])
            self.head = nn.Linear(4, 2)

        def forward(self, a: torch.Tensor) -> Any:
            for block in self.blocks:
                a = block(a)
            return self.head(a)  # the line of the head

    capture = same_as_eager(Outer().eval(), (x(3, 4),))
    by_target = {target: [n for n in capture.nodes if n.target == target] for target in {n.target for n in capture.nodes}}
    assert [n.module for n in by_target["prims.bessel_j0.default"]] == ["blocks.0", "blocks.1"]
    assert {n.module_type for n in by_target["aten.tan.default"]} == {"Inner"}
    assert [(n.module, n.module_type) for n in by_target["aten.addmm.default"]] == [("head", "Linear")]
    assert {n.line for n in by_target["aten.tan.default"]} == {line_of("the inner line", __file__)}
    first_line = inspect.getsourcelines(Outer.forward)[1]
    assert first_line < line_of("the line of the head", __file__) == by_target["aten.addmm.default"][0].line
    assert all(n.file == str(HERE) for n in capture.nodes)
    fallback = capture.fallbacks[0]
    assert (fallback.target, fallback.reason_code) == ("prims.bessel_j0.default", "no_converter")
    assert "prims.bessel_j0.default" in fallback.reason
    assert (fallback.file, fallback.line) == (str(HERE), line_of("the line that fallbacks must point to", __file__))
    assert fallback.source == HERE.read_text(encoding="utf-8").splitlines()[(fallback.line or 0) - 1].strip()


def test_nodes_partitions_models_and_onnx_names_agree() -> None:
    capture = same_as_eager(lambda a: unsupported(a.sin() * 2).cos() + 1, (x(3, 4),))
    partitions = {p.partition_id: p for p in capture.partitions}
    for node in capture.nodes:
        assert (node.partition_id is None) == (not node.supported) == (node.reason_code is not None)
        assert node.dtype == "float32"
    for model in capture.models:
        partition = partitions[model.partition_id]
        assert partition.model_id == model.model_id
        made = [name for node in capture.nodes if node.partition_id == partition.partition_id for name in node.onnx_nodes]
        assert len(made) == len(set(made)) == model.node_count
        assert sum(int(entry.rpartition(":")[2]) for entry in model.ops) == model.node_count
        assert model.size_bytes == len(capture.attachments[f"models/{model.model_id}.onnx"])
        assert partition.input_bytes == partition.output_bytes == 3 * 4 * 4


def test_partitions_under_the_limit_stay_in_pytorch() -> None:
    least, left = 2, 2

    def uneven(a: torch.Tensor) -> Any:
        return unsupported(unsupported(a.sin().cos().tan()).sin().cos()).sin()

    capture = same_as_eager(uneven, (x(5),), options={"min_partition_nodes": least})
    (graph,) = capture.graphs
    assert graph.partition_count == left
    assert len(capture.sessions) == left
    small = [fallback for fallback in capture.fallbacks if fallback.reason_code == "too_small"]
    assert graph.fallback_count == len(capture.fallbacks) == len(small) + 2
    assert all(f"min_partition_nodes={least}" in fallback.reason for fallback in small)
    assert all(partition.node_count >= least for partition in capture.partitions)


def test_what_stays_in_pytorch_is_counted_and_timed() -> None:
    lens = Lens()
    compiled = torch.compile(lambda a: unsupported(a.sin()) + unsupported(a.cos() * 2).sum(), backend=lens)
    with torch.no_grad():
        for _ in range(7):
            compiled(x(50))
    assert lens.fallbacks.calls.tolist() == [7, 7]
    assert (lens.fallbacks.total_ns > 7 * 100).all()
    assert lens.sessions.calls.tolist() == [7, 7]


def test_checks_run_where_they_stand() -> None:
    def checked(a: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        n = counts.max().item()
        torch._check(n < 5)
        return (a * n).sqrt() + 1

    lens = Lens()
    with torch._dynamo.config.patch(capture_scalar_outputs=True), torch.no_grad():
        compiled = torch.compile(checked, backend=lens)
        torch.testing.assert_close(compiled(torch.ones(3), torch.tensor([1, 4])), torch.full((3,), 3.0))
        assert "side_effect" in lens.fallbacks.reason_code.tolist()
        with pytest.raises(RuntimeError, match=r"u0 < 5|Runtime assertion"):
            compiled(torch.ones(3), torch.tensor([1, 5]))
    assert len(lens.graphs) == 1
    assert not lens.captured().findings


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
    lens = Lens("eager")
    torch.compile(target, backend=lens)(torch.ones(2))
    (graph,) = lens.captured().graphs
    assert (graph.name, graph.file, graph.line) == (name, None, None)
