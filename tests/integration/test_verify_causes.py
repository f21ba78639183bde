"""`verify` names what makes a wrong number: ONNX Runtime's rewrite, ours, the user's transform; and says where there is no verdict."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import torch

import ortlens
from ortlens.backend import models
from ortlens.backend.conversion.optimize import optimize_model
from ortlens.backend.runtime import rewrites
from ortlens.lens.verify import inner_values
from ortlens.lens.verify.bisect import OPTIMIZERS

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx
    import onnx_ir as ir


class Normalised(torch.nn.Module):
    """Layer normalisation whose epsilon is an input, which ONNX Runtime's rewrite takes for 1e-5."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = torch.nn.Parameter(torch.rand(16)), torch.nn.Parameter(torch.rand(16))

    def forward(self, x: torch.Tensor, epsilon: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + epsilon) * self.weight + self.bias


def normalisation() -> tuple[torch.nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    return Normalised(), (torch.rand(3, 16) * 1e-3, torch.tensor(1e-2))


@torch.no_grad()
def test_the_rewrite_of_onnx_runtime_that_changes_the_numbers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model, args = normalisation()
    monkeypatch.setattr(rewrites, "_NORM_OPTIMIZERS", ("SimplifiedLayerNormFusion",))
    lens = ortlens.explain(model, calls=1)(*args)
    numerics = lens.verify(*args)
    wrong = numerics[numerics.ok == False]  # noqa: E712 - a column with gaps
    assert list(wrong.scope) == ["output", "call"], "the values inside are right: asking for them keeps the rewrite away"
    assert list(wrong.first_divergence) == [True, False]
    (finding,) = lens.findings[lens.findings.rule == "fusion_changes_numbers"].to_dict("records")
    assert re.search(
        r"LayerNormFusionL[12] causes it, from optimisation level \w+ on: right without, wrong without all others", wrong.note.iloc[0]
    )
    assert "LayerNormFusion" in finding["title"]
    assert 'optimization.disable_specified_optimizers", "LayerNormFusionL' in finding["mitigation"]
    assert finding["file"] == __file__


@torch.no_grad()
def test_a_rewrite_is_found_as_well_where_every_operator_is_right_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    model, args = normalisation()
    monkeypatch.setattr(rewrites, "_NORM_OPTIMIZERS", ("SimplifiedLayerNormFusion",))
    lens = ortlens.explain(model, calls=1)(*args)
    numerics = lens.verify(*args, per_op=True)
    assert numerics[numerics.scope == "op"].ok.all()
    assert list(numerics[numerics.ok == False].scope) == ["output", "call"]  # noqa: E712 - a column with gaps
    assert "LayerNormFusion" in lens.findings[lens.findings.rule == "fusion_changes_numbers"].title.iloc[0]


@torch.no_grad()
def test_what_the_finding_advises_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    model, args = normalisation()
    monkeypatch.setattr(rewrites, "_NORM_OPTIMIZERS", ("SimplifiedLayerNormFusion",))
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("optimization.disable_specified_optimizers", "LayerNormFusionL1;LayerNormFusionL2")
    lens = ortlens.explain(model, calls=1, options={"ort_session_options": options})(*args)
    assert lens.verify(*args).ok.all()


@torch.no_grad()
def test_normalisation_with_an_epsilon_that_is_an_input_is_right() -> None:
    model, args = normalisation()
    lens = ortlens.explain(model, calls=1)(*args)
    torch.testing.assert_close(lens.result, model(*args))
    assert lens.verify(*args).ok.all()


def shifted(model: onnx.ModelProto) -> onnx.ModelProto:
    """Takes every addition for a subtraction."""
    for node in model.graph.node:
        node.op_type = "Sub" if node.op_type == "Add" else node.op_type
    return model


def doubled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x * 2 + y).relu()


@torch.no_grad()
def test_a_transform_of_the_user_is_named() -> None:
    args = torch.rand(3, 4), torch.rand(3, 4)
    lens = ortlens.explain(doubled, calls=1, options={"pre_ort_model_transforms": [shifted]})(*args)
    numerics = lens.verify(*args)
    (first,) = numerics[numerics.first_divergence].to_dict("records")
    assert first["node"] == "add"
    assert "pre_ort_model_transforms causes it" in first["note"]


@torch.no_grad()
def test_a_rewrite_of_the_model_before_onnx_runtime_is_named(monkeypatch: pytest.MonkeyPatch) -> None:

    def wrongly(model: ir.Model) -> ir.Model:
        optimized = optimize_model(model)
        for node in optimized.graph:
            if node.op_type == "Add":
                node.op_type = "Sub"
        return optimized

    monkeypatch.setattr(models, "optimize_model", wrongly)
    args = torch.rand(3, 4), torch.rand(3, 4)
    lens = ortlens.explain(doubled, calls=1)(*args)
    numerics = lens.verify(*args)
    (first,) = numerics[numerics.first_divergence].to_dict("records")
    assert first["node"] == "add"
    assert "a rewrite of the model before ONNX Runtime" in first["note"]
    assert list(lens.findings[lens.findings.rule == "fusion_changes_numbers"].subject) == ["add"]


LISTED = """
import sys, torch, onnxruntime, onnx
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
    import subprocess
    import sys

    def applied(*without: str) -> set[str]:
        done = subprocess.run([sys.executable, "-c", LISTED, *without], capture_output=True, text=True, check=True, timeout=300)
        return set(re.findall(r"Applying graph transformer (\w+) on step 1", done.stderr))

    always = {"FreeDimensionOverrideTransformer", "Level1_RuleBasedTransformer", "Level2_RuleBasedTransformer"}
    made_for_all = {"FuseFp16InitializerToFp32NodeTransformer", "MemcpyTransformer"}
    named = applied()
    assert len(named) > 30
    assert named - always - made_for_all <= set(OPTIMIZERS)
    assert applied(*OPTIMIZERS) <= {"FreeDimensionOverrideTransformer", "EnsureUniqueDQForNodeUnit"} | made_for_all


@torch.no_grad()
def test_a_decision_on_a_rounding_difference_is_no_verdict_and_no_alarm() -> None:
    torch.manual_seed(0)
    weight = torch.randn(256, 256)

    def decided(x: torch.Tensor) -> torch.Tensor:
        return torch.floor((x @ weight) * 1e6) * 1e-6 * 3e4

    x = torch.randn(64, 256)
    lens = ortlens.explain(decided, calls=1)(x)
    numerics = lens.verify(x)
    assert not (numerics.ok == False).any()  # noqa: E712 - a column with gaps
    assert lens.findings.empty


@torch.no_grad()
def test_ties_are_no_error_where_pytorch_leaves_the_order_open() -> None:
    def ordered(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, places = torch.sort(x, -1)
        return values, places * 2

    torch.manual_seed(0)
    x = torch.randint(0, 3, (4, 64)).float()
    lens = ortlens.explain(ordered, calls=1)(x)
    numerics, alone = lens.verify(x), lens.verify(x, per_op=True)
    assert not (numerics.ok == False).any()  # noqa: E712 - a column with gaps
    assert alone[alone.node == "sort"].ok.all()
    assert not lens.fallbacks.shape[0]


@torch.no_grad()
def test_memory_that_nobody_wrote_to_is_not_compared() -> None:
    def partly(x: torch.Tensor) -> torch.Tensor:
        room = torch.empty_like(x)
        room[:] = x * 2
        return room + 1

    x = torch.rand(4, 8)
    lens = ortlens.explain(partly, calls=1)(x)
    numerics = lens.verify(x)
    assert not (numerics.ok == False).any()  # noqa: E712 - a column with gaps
    empty = numerics[numerics.node.str.startswith("empty")]
    assert empty.ok.isna().all()


@pytest.mark.parametrize("limit", [1, 1 << 30])
@torch.no_grad()
def test_values_in_small_groups_are_compared_alike(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inner_values, "GROUP_BYTES", limit)
    made: list[int] = []
    plain: Callable[..., Any] = inner_values.session_with

    def counted(*args: object, **settings: object) -> object:
        made.append(1)
        return plain(*args, **settings)

    monkeypatch.setattr(inner_values, "session_with", counted)
    args = torch.rand(3, 4), torch.rand(3, 4)
    lens = ortlens.explain(doubled, calls=1)(*args)
    numerics = lens.verify(*args)
    assert list(numerics[numerics.scope == "value"].node) == ["mul", "add", "relu"]
    assert numerics.ok.all()
    assert len(made) == (3 if limit == 1 else 1)
