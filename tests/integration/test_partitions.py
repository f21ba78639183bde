"""Graphs that ONNX Runtime takes in part: how they are cut, what stays behind, and where in the user's code that is."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ortlens import Lens
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
    assert (lens.fallbacks.total_ns > 7 * 500).all()
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
