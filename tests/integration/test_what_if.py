"""What a capture says supporting an operator would do, against what supporting it does."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from onnxscript import opset18 as op
from torch import nn

import ortlens
from ortlens import Lens, UsageError, _torch
from ortlens.analysis.cut import partitions_of, recorded_graphs
from ortlens.trace.records import Capture


def x(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Operators named here have no ONNX function for now."""
    known, names = _torch.dispatch, set[str]()

    def dispatch(node: Any, registry: Any) -> Any:
        return None if str(node.target) in names else known(node, registry)

    monkeypatch.setattr(_torch, "dispatch", dispatch)
    return names


def moved_bytes(capture: Capture) -> int:
    return sum((p.input_bytes or 0) + (p.output_bytes or 0) for p in capture.partitions)


def rows_of(frame: pd.DataFrame) -> list[Any]:
    return list(frame.itertuples())


def as_recorded(capture: Capture) -> list[tuple[Any, ...]]:
    return [(p.graph_id, p.node_count, p.input_count, p.output_count, p.input_bytes, p.output_bytes) for p in capture.partitions]


def as_cut_anew(capture: Capture) -> list[tuple[Any, ...]]:
    """The partitions of a capture by its node records alone; which node is where is compared on the way."""
    rows: list[tuple[Any, ...]] = []
    for graph in recorded_graphs(capture):
        of_graph = [p.partition_id for p in capture.partitions if p.graph_id == graph.graph.graph_id]
        for partition_id, piece in zip(of_graph, partitions_of(graph, graph.cut()), strict=True):
            nodes = [graph.records[place] for place in piece.places if graph.dag.counted[place]]
            assert {node.partition_id for node in nodes} == {partition_id}
            sizes = sum(map(graph.dag.size_of, piece.sources)) + sum(graph.input_sizes.get(name, 0) for name in piece.inputs)
            leaving = sum(map(graph.dag.size_of, piece.outputs))
            counts = (len(piece.sources) + len(piece.inputs), len(piece.outputs))
            rows.append((graph.graph.graph_id, len(nodes), *counts, sizes, leaving))
    return rows


class Convolutions(nn.Module):
    """Batch normalisation in training makes tuples; the sizes are symbolic when asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, a: torch.Tensor) -> Any:
        y = torch.relu(self.norm(self.conv(a)))
        low, high = y.split([3, 5], dim=1)
        best, where = torch.topk(torch.cat([high, low], 1).mean((2, 3)), 8)
        return self.head(best), where, y.shape[0] * 2


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.drop = nn.GRUCell(8, 8), nn.Dropout(0.5)

    def forward(self, a: torch.Tensor) -> Any:
        h = torch.zeros(a.shape[0], 8)
        for step in a.unbind(1):
            h = self.drop(self.cell(step, h))
        return h.cumsum(1)


HAND_MADE: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "convolutions": (Convolutions, lambda: x(2, 3, 9, 9)),
    "recurrent": (Recurrent, lambda: x(2, 4, 8)),
}
TAKEN_AWAY = {
    "convolutions": ("aten.split_with_sizes.default", "aten.topk.default", "aten.mean.dim"),
    "recurrent": ("aten.sigmoid.default",),
}


def dry(name: str, *, training: bool = False, dynamic: bool | None = None, **options: Any) -> Lens:
    """A model's capture, without running it."""
    torch.manual_seed(0)
    build, inputs = HAND_MADE[name]
    with torch.set_grad_enabled(training):
        return ortlens.explain(build().train(training), dry_run=True, dynamic=dynamic, options=options or None)(inputs())


@pytest.mark.parametrize("how", [{"training": True}, {"dynamic": True}, {"min_partition_nodes": 5}], ids=str)
def test_graphs_of_other_ways_are_cut_as_recorded(how: dict[str, Any], gone: set[str]) -> None:
    gone.update(TAKEN_AWAY["convolutions"])
    capture = dry("convolutions", **how).captured()
    assert ("forward" in {graph.phase for graph in capture.graphs}) is ("training" in how)
    assert any(node.roaming for node in capture.nodes) is ("dynamic" in how)
    assert ("too_small" in {node.reason_code for node in capture.nodes}) is ("min_partition_nodes" in how)
    assert as_cut_anew(capture) == as_recorded(capture)


@pytest.mark.parametrize("name", TAKEN_AWAY)
def test_what_is_predicted_comes_true(name: str, gone: set[str]) -> None:
    given_back, *others = TAKEN_AWAY[name]
    gone.update(TAKEN_AWAY[name])
    before = dry(name)
    assert len(before.partitions) > 2
    assert as_cut_anew(before.captured()) == as_recorded(before.captured())
    predicted = before.what_if(given_back)
    ranked = before.what_if()
    gone.clear()
    gone.update(others)
    torch.compiler.reset()
    after = dry(name).captured()
    columns = ["graph_id", "node_count", "input_count", "output_count", "input_bytes", "output_bytes"]
    assert list(predicted[columns].itertuples(index=False, name=None)) == as_recorded(after)
    (row,) = rows_of(ranked[ranked.target == given_back])
    assert row.partitions == len(after.partitions) == len(before.partitions) - row.partitions_saved
    assert row.node_count == before.fallbacks.target.tolist().count(given_back)
    assert row.bytes_saved == moved_bytes(before.captured()) - moved_bytes(after)


@torch.library.custom_op("ortlens_what_if::twist", mutates_args=())
def twist(a: torch.Tensor) -> torch.Tensor:
    return a + a.sin()


twist.register_fake(torch.empty_like)


def twist_in_onnx(a: Any) -> Any:
    return op.Add(a, op.Sin(a))


TABLE = {torch.ops.ortlens_what_if.twist.default: twist_in_onnx}


def twisted(a: torch.Tensor) -> Any:
    return twist(twist((a * 2).cos()).exp()).tanh() + 1


TWIST = "ortlens_what_if.twist.default"


def test_an_operator_between_partitions_joins_them_once_it_is_translated_also_in_a_saved_capture_without_torch(tmp_path: Path) -> None:
    with torch.no_grad():
        before = ortlens.explain(twisted, calls=9)(x(3, 4))
        assert len(before.partitions) == 3
        (predicted,) = rows_of(before.what_if(TWIST))
        assert predicted.partition_ids == ("p0", "p1", "p2")
        assert predicted.gained_nodes == ("twist", "twist_1")
        assert (predicted.partitions_now, predicted.partitions_then) == (3, 1)
        (ranked,) = rows_of(before.what_if())
        assert (ranked.target, ranked.partitions_saved, ranked.node_count) == (TWIST, 2, 2)
        assert ranked.bytes_saved == 4 * 3 * 4 * 4
        assert 0 < ranked.saved_ns < ranked.saved_at_most_ns >= ranked.saved_ns + ranked.eager_ns
        assert "median bind_ns + output_ns of 3 sessions" in ranked.note
        after = ortlens.explain(twisted, options={"custom_translation_table": TABLE}, calls=1)(x(3, 4))
        torch.testing.assert_close(after.result, twisted(x(3, 4)))
    assert len(after.partitions) == predicted.partitions_then
    assert after.partitions.node_count.tolist() == [predicted.node_count]
    assert after.what_if().empty
    assert list(after.what_if().columns) == list(before.what_if().columns)
    file = before.save(tmp_path / "twisted.ortlens")
    script = f"""
import sys
sys.modules.update(dict.fromkeys(["torch", "onnx", "onnxruntime"]))
import ortlens
lens = ortlens.load({str(file)!r})
print(lens.what_if({TWIST!r}).node_count.tolist(), lens.what_if().partitions.tolist())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[7] [1]\n", "")


def test_an_unknown_operator_gets_the_list_with_the_closest_first() -> None:
    def mixed(a: torch.Tensor) -> Any:
        return torch.special.bessel_j0(a.sin()).cos() + twist(a)

    with torch.no_grad():
        lens = ortlens.explain(mixed, calls=1)(x(3))
    with pytest.raises(UsageError, match=r"twits stays in PyTorch .* operators that do: ortlens_what_if\.twist\.default, prims"):
        lens.what_if("ortlens_what_if.twits")
    with pytest.raises(UsageError, match=r"aten\.cos stays .*\(it runs in ONNX Runtime\)"):
        lens.what_if("aten.cos")
    assert lens.what_if("ortlens_what_if.twist").equals(lens.what_if(torch.ops.ortlens_what_if.twist.default))


def test_a_random_draw_needs_more_than_a_function() -> None:
    with torch.no_grad():
        lens = ortlens.explain(lambda a: (torch.rand_like(a.sin()) + a).cos(), calls=1)(x(3))
    (row,) = rows_of(lens.what_if())
    assert "is not enough (side_effect)" in row.note
    assert "is not enough (side_effect)" in lens.what_if(row.target).note.iloc[0]
