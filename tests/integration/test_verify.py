"""`verify`: planted faults are named, with the user's line and the rewrite at fault, and what is no fault raises no alarm."""

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

import onnxruntime
import pytest
import torch
from onnxscript import opset18

import ortlens
from ortlens.backend.runtime import rewrites
from ortlens.lens.observing.optimizers import OPTIMIZERS
from ortlens.lens.verify import partition_check
from tests.faults.register import faults_of
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


def columns(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x).sum(0)


def without_the_last(x: Value, dim: Value, keepdim: bool = False, dtype: int = -1) -> Value:  # noqa: FBT001, FBT002 - as PyTorch declares it
    del dim, keepdim, dtype
    return op.ReduceSum(op.Slice(x, op.Constant(value_ints=[0]), op.Constant(value_ints=[2047])), op.Constant(value_ints=[0]), keepdims=0)


def cancelling() -> torch.Tensor:
    """Columns whose sums are rounding errors: ONNX Runtime adds one row after the other, PyTorch in a tree."""
    x = torch.randn(2048, 64, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return torch.atanh((torch.tanh(x) - torch.tanh(x).mean(0)).clamp(-0.999, 0.999)).float()


_WEIGHT = torch.randn(256, 256, generator=torch.Generator().manual_seed(0))


def decided(x: torch.Tensor) -> torch.Tensor:
    return torch.floor((x @ _WEIGHT) * 1e6) * 1e-6 * 3e4


def partly(x: torch.Tensor) -> torch.Tensor:
    room = torch.empty_like(x)
    room[:] = x * 2
    return room + 1


QUIET: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...], dict[str, str]]] = {
    "a mask of infinities is no origin": (
        lambda x: torch.softmax(x.masked_fill(x < 0, -torch.inf), -1),
        (torch.tensor([[1.0, -1.0, 2.0], [3.0, 1.0, -2.0]]),),
        {},
    ),
    "terms that cancel are no loss of accuracy": (columns, (cancelling(),), {}),
    "a decision on a rounding difference": (decided, (torch.randn(64, 256, generator=torch.Generator().manual_seed(1)),), {}),
    "memory that nobody wrote to is not compared": (partly, (torch.rand(4, 8),), {"empty_like": ""}),
    "a small number beside halves": (lambda x: torch.layer_norm(x, (768,)), (torch.arange(393216).sin().half().view(512, 768),), {}),
    "values in small groups are compared alike": (
        lambda x, y: (x * 2 + y).relu(),
        (torch.rand(3, 4), torch.rand(3, 4)),
        {"mul": "", "relu": ""},
    ),
    "positions of equal values": (
        lambda x: (x * 1.0).argsort(),
        ((torch.rand(500, generator=torch.Generator().manual_seed(0)) * 5).floor(),),
        {"sort": "equal values in another order", "result": "the order of equal values is undefined"},
    ),
}


@torch.no_grad()
@pytest.mark.parametrize("name", QUIET)
def test_what_is_no_fault_raises_no_alarm(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "small groups" in name:
        monkeypatch.setattr(partition_check, "GROUP_BYTES", 1)
    function, args, notes = QUIET[name]
    lens = ortlens.explain(function, calls=1)(*args)
    assert lens.verify(*args, per_op=True).ok.fillna(value=True).all()
    numerics = lens.verify(*args)
    assert not (numerics.ok == False).any()  # noqa: E712 - a column with gaps
    assert numerics[numerics.node.str.startswith("empty")].ok.isna().all()
    assert "origin" not in set(numerics.nonfinite.dropna())
    assert set(lens.findings[lens.findings.severity != "info"].rule) <= {"float16_nodes"}
    assert all(note in numerics[numerics.node.str.startswith(node)].note.iloc[0] for node, note in notes.items())


@torch.no_grad()
def test_a_lost_term_is_wrong() -> None:
    lens = ortlens.explain(columns, calls=1, options={"custom_translation_table": {_aten.sum.dim_IntList: without_the_last}})(cancelling())
    lens.verify(cancelling())
    assert "numbers_differ" in set(lens.findings.rule)


class Normalised(torch.nn.Module):
    """Layer normalisation whose epsilon is an input, which ONNX Runtime's rewrite takes for 1e-5."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = torch.nn.Parameter(torch.rand(16)), torch.nn.Parameter(torch.rand(16))

    def forward(self, x: torch.Tensor, epsilon: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + epsilon) * self.weight + self.bias


@pytest.mark.skipif(
    all(fault.name != "layer_norm_epsilon" for fault in faults_of(onnxruntime.__version__)), reason="this version rewrites it rightly"
)
@torch.no_grad()
def test_the_rewrite_of_onnx_runtime_that_changes_the_numbers_is_named_and_the_advice_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrites, "_NORM_OPTIMIZERS", ("SimplifiedLayerNormFusion",))  # leaves on what the backend disables for this model
    torch.manual_seed(0)
    model, args = Normalised(), (torch.rand(3, 16) * 1e-3, torch.tensor(1e-2))
    lens = ortlens.explain(model, calls=1)(*args)
    numerics = lens.verify(*args)
    wrong = numerics[numerics.ok == False]  # noqa: E712 - a column with gaps
    assert list(wrong.scope) == ["output", "call"], "the values inside are right: asking for them keeps the rewrite away"
    assert list(wrong.first_divergence) == [True, False]
    (finding,) = lens.findings[lens.findings.rule == "fusion_changes_numbers"].to_dict("records")
    assert re.search(r"LayerNormFusionL[12] causes it, from optimisation level \w+ on", wrong.note.iloc[0])
    assert "LayerNormFusion" in finding["title"]
    assert 'optimization.disable_specified_optimizers", "LayerNormFusionL' in finding["mitigation"]
    assert finding["file"] == __file__
    numerics = lens.verify(*args, per_op=True)
    assert numerics[numerics.scope == "op"].ok.all()
    assert list(numerics[numerics.ok == False].scope) == ["output", "call"]  # noqa: E712 - a column with gaps
    assert "LayerNormFusion" in lens.findings[lens.findings.rule == "fusion_changes_numbers"].title.iloc[0]

    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("optimization.disable_specified_optimizers", "LayerNormFusionL1;LayerNormFusionL2")
    lens = ortlens.explain(model, calls=1, options={"ort_session_options": options})(*args)
    assert lens.verify(*args).ok.all()


LISTED = """
import sys, onnxruntime, onnx
from onnx import helper as h, TensorProto as T
x, y = (h.make_tensor_value_info(name, T.FLOAT, [2]) for name in "xy")
one = h.make_tensor("one", T.FLOAT, [1], [1.0])
graph = h.make_graph([h.make_node("Add", ["x", "one"], ["y"])], "g", [x], [y], [one])
model = h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9).SerializeToString()
options = onnxruntime.SessionOptions()
options.log_severity_level = 0
onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"], disabled_optimizers=sys.argv[1:])
"""


@pytest.mark.slow
def test_the_names_of_rewrites_are_those_of_the_installed_version() -> None:
    def applied(*without: str) -> set[str]:
        done = subprocess.run([sys.executable, "-c", LISTED, *without], capture_output=True, text=True, check=True, timeout=300)
        return set(re.findall(r"Applying graph transformer (\w+) on step 1", done.stderr))

    always = {"FreeDimensionOverrideTransformer", "Level1_RuleBasedTransformer", "Level2_RuleBasedTransformer"}
    made_for_all = {"FuseFp16InitializerToFp32NodeTransformer", "MemcpyTransformer"}
    named = applied()
    assert len(named) > 30
    assert named - always - made_for_all <= set(OPTIMIZERS)
    assert applied(*OPTIMIZERS) <= {"FreeDimensionOverrideTransformer", "EnsureUniqueDQForNodeUnit"} | made_for_all
