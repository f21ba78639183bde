"""`verify`: planted faults are named, with the user's line, and clean models raise no alarm."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from onnxscript import opset18

import ortlens
from tests.integration.marked_lines import line_of

Value: TypeAlias = Any  # of ONNX Script
op: Any = opset18
_aten = torch.ops.aten


def softmax_over_the_batch(x: Value, dim: int, half_to_float: int = 0) -> Value:
    del dim, half_to_float
    return op.Softmax(x, axis=0)


def attended(x: torch.Tensor) -> torch.Tensor:
    first = torch.softmax(x @ x.t(), -1)
    return torch.softmax(first @ x, -1) * 2


@torch.no_grad()
def test_a_wrong_converter_is_the_first_divergence_and_wrong_on_its_own() -> None:
    target = _aten._softmax.default
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    lens = ortlens.explain(attended, calls=1, options={"custom_translation_table": {target: softmax_over_the_batch}})(x)
    numerics = lens.verify(x)
    nodes = lens.nodes
    planted = list(nodes[nodes.target == str(target)].node)
    place = list(numerics.first_divergence).index(True)
    first, line = numerics.iloc[place], nodes[nodes.node == planted[0]].iloc[0]
    assert (first.node, first.file, first.line) == (planted[0], line.file, line.line)
    assert (first.ok, first.closer_to_fp64) == (False, "eager")
    assert "its ONNX function is wrong" in first.note
    assert all(numerics[:place].ok)
    assert f"see {planted[0]}" in numerics.iloc[place + 1].note
    (finding,) = lens.findings[lens.findings.rule == "numbers_differ"].to_dict("records")
    assert (finding["subject"], finding["file"], finding["line"]) == (planted[0], line.file, line.line)
    everything = lens.verify(x, per_op=True)  # with the call as a whole, and what makes it differ
    alone = everything[everything.scope == "op"]
    assert alone.ok.notna().all()
    assert set(alone[alone.ok == False].node) == set(planted)  # noqa: E712 - a column with gaps
    assert list(alone[alone.first_divergence].node) == planted[:1]


@torch.no_grad()
def test_a_clean_model_raises_no_alarm_and_every_value_is_compared() -> None:
    torch.manual_seed(0)
    features = (torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten())
    model, x = (
        torch.nn.Sequential(*features, torch.nn.Linear(72, 8), torch.nn.LayerNorm(8), torch.nn.GELU()).eval(),
        torch.randn(2, 3, 8, 8),
    )
    lens = ortlens.explain(model, calls=1)(x)
    numerics = lens.verify(x)
    assert list(numerics.ok.unique()) == [True]
    assert not numerics.first_divergence.any()
    assert lens.findings[lens.findings.severity != "info"].empty
    computed = lens.nodes[(lens.nodes.kind == "compute") & lens.nodes.partition_id.notna()]
    assert set(computed.node) == set(numerics[numerics.scope != "call"].node)
    assert set(numerics.scope) == {"value", "output", "call"}
    assert lens.verify(x, per_op=True).ok.all()


class Overflowing(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(64, 64), torch.nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.up(x)
        squared = wide * wide  # the planted overflow
        result: torch.Tensor = self.down(squared)
        return result


@torch.no_grad()
def test_an_overflow_of_float16_is_traced_to_its_line_and_numbers_within_its_range_are_not() -> None:
    torch.manual_seed(0)
    model, x = Overflowing().half().eval(), torch.randn(4, 64).half()
    lens = ortlens.explain(model, calls=1)(x)
    numerics = lens.verify(x)
    assert numerics.nonfinite.isna().all()
    assert numerics.ok.all()
    assert set(lens.findings.rule) <= {"float16_nodes"}
    numerics = lens.verify(x * 1000)
    (origin,) = numerics[numerics.nonfinite == "origin"].to_dict("records")
    line = line_of("the planted overflow", __file__)
    assert (origin["node"], origin["file"], origin["line"]) == ("mul", __file__, line)
    assert "the float64 run stays finite" in origin["note"]
    (finding,) = lens.findings[lens.findings.rule == "nonfinite_origin"].to_dict("records")
    assert (finding["subject"], finding["line"]) == ("mul", line)
    assert "float32" in finding["mitigation"]
    assert not (numerics.ok == False).any()  # noqa: E712 - what follows from PyTorch's own infinities is nobody's error


def of_a_logarithm(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    shifted = x - 1
    logs = torch.log(shifted)  # the planted NaN
    return (logs * 2 + y).sum(-1)


@torch.no_grad()
def test_nan_is_traced_to_its_line_and_what_is_nan_on_both_sides_is_not_called_right() -> None:
    x, y = torch.tensor([[0.5, 3.0], [3.0, 4.0]]), torch.ones(2, 2)
    lens = ortlens.explain(of_a_logarithm, calls=1)(x, y)
    numerics = lens.verify(x, y)
    assert list(numerics[numerics.nonfinite == "origin"].node.unique()) == ["log"]
    assert "1 of 4 elements are NaN on both sides and were not compared" in numerics[numerics.node == "log"].note.iloc[0]
    (finding,) = lens.findings[lens.findings.rule == "nonfinite_origin"].to_dict("records")
    assert finding["line"] == line_of("the planted NaN", __file__)
    whole = torch.zeros(2, 2)
    again = lens.verify(whole, y)
    assert again[again.node == "log"].ok.isna().all()
    assert "only NaN on both sides" in again[again.node == "log"].note.iloc[0]


@torch.no_grad()
def test_a_mask_of_infinities_is_no_origin() -> None:
    def masked(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x.masked_fill(x < 0, -torch.inf), -1)

    x = torch.tensor([[1.0, -1.0, 2.0], [3.0, 1.0, -2.0]])
    lens = ortlens.explain(masked, calls=1)(x)
    numerics = lens.verify(x)
    assert "origin" not in set(numerics.nonfinite.dropna())
    assert numerics.ok.all()
    assert lens.findings.empty


def columns(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x).sum(0)


def without_the_last(x: Value, dim: Value, keepdim: bool = False, dtype: int = -1) -> Value:  # noqa: FBT001, FBT002 - as PyTorch declares it
    del dim, keepdim, dtype
    return op.ReduceSum(op.Slice(x, op.Constant(value_ints=[0]), op.Constant(value_ints=[2047])), op.Constant(value_ints=[0]), keepdims=0)


def cancelling() -> torch.Tensor:
    """Columns whose sums are rounding errors: ONNX Runtime adds one row after the other, PyTorch in a tree."""
    x = torch.randn(2048, 64, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return torch.atanh((torch.tanh(x) - torch.tanh(x).mean(0)).clamp(-0.999, 0.999)).float()


@torch.no_grad()
def test_terms_that_cancel_are_no_loss_of_accuracy_and_a_lost_one_is_wrong() -> None:
    x = cancelling()
    lens = ortlens.explain(columns, calls=1)(x)
    numerics = lens.verify(x)
    assert not (numerics.ok == False).any()  # noqa: E712 - a column with gaps
    assert not {"loses_accuracy", "numbers_differ", "call_differs"}.intersection(lens.findings.rule)
    assert lens.verify(x, per_op=True).ok.fillna(value=True).all()
    planted = ortlens.explain(columns, calls=1, options={"custom_translation_table": {_aten.sum.dim_IntList: without_the_last}})(x)
    planted.verify(x)
    assert "numbers_differ" in set(planted.findings.rule)


@torch.no_grad()
def test_positions_of_equal_values_are_no_difference_of_numbers() -> None:
    x = (torch.rand(4000, generator=torch.Generator().manual_seed(0)) * 20).floor()
    numerics = ortlens.explain(lambda t: (t * 1.0).argsort(), calls=1)(x).verify(x)
    (ties,) = numerics[(numerics.scope == "value") & (numerics.node == "sort")].to_dict("records")
    assert ties["ok"]
    assert "equal values in another order" in ties["note"]
    assert ties["max_abs"] != ties["max_abs"]  # empty
