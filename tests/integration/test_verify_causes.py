"""`verify` names the rewrite of ONNX Runtime that makes a wrong number, and has no verdict where PyTorch leaves the answer open."""

from __future__ import annotations

import re
import subprocess
import sys

import onnxruntime
import pytest
import torch

import ortlens
from ortlens.backend.runtime import rewrites
from ortlens.lens.verify import inner_values
from ortlens.lens.verify.bisect import OPTIMIZERS


class Normalised(torch.nn.Module):
    """Layer normalisation whose epsilon is an input, which ONNX Runtime's rewrite takes for 1e-5."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = torch.nn.Parameter(torch.rand(16)), torch.nn.Parameter(torch.rand(16))

    def forward(self, x: torch.Tensor, epsilon: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + epsilon) * self.weight + self.bias


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


@torch.no_grad()
def test_values_in_small_groups_are_compared_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inner_values, "GROUP_BYTES", 1)
    args = torch.rand(3, 4), torch.rand(3, 4)
    numerics = ortlens.explain(lambda x, y: (x * 2 + y).relu(), calls=1)(*args).verify(*args)
    assert list(numerics[numerics.scope == "value"].node) == ["mul", "add", "relu"]
    assert numerics.ok.all()
