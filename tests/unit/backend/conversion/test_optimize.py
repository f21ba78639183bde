"""The short optimiser makes what the long one makes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import onnxscript.optimizer
import onnxscript.rewriter
import pytest
import torch

from ortlens import _torch
from ortlens.backend.basis.pass_runner import Pass, PassError, run_passes
from ortlens.backend.conversion import converter, optimize
from ortlens.backend.conversion.optimize import ModelCondition
from ortlens.backend.conversion.rewrite_rules import rewrite_rules
from ortlens.backend.lowering import type_promotion
from tests.unit.backend.graphs import traced


def attention(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor]:
    query, key, value = (x @ w).view(2, 4, 3, 8).unbind(2)
    scores = torch.softmax(query @ key.transpose(-1, -2) / 8**0.5, dim=-1)
    return ((scores @ value).reshape(2, 4, 8),)


def shapes(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor]:
    both = torch.cat([x[:, 1:3].unsqueeze(0).expand(3, -1, -1, -1), x[None, :, :2].repeat(3, 1, 1, 1)], dim=-1)
    return (both.clamp(0, 2) + w.sum(),)


CASES = {"attention": attention, "shapes": shapes}
INPUTS = (torch.rand(2, 4, 16), torch.rand(16, 24))


def converted(function: Callable[..., Any]) -> ir.Model:
    module = traced(function, *INPUTS)
    type_promotion.promote(module)
    return converter.onnx_from_partition(module, _torch.shared_registry(), "model").model


def answers(model: ir.Model) -> np.ndarray[Any, Any]:
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    (result,) = session.run(None, dict(zip(names, (tensor.numpy() for tensor in INPUTS), strict=False)))
    return np.asarray(result)


@pytest.mark.parametrize("name", CASES)
def test_as_small_as_the_long_way_and_the_same_numbers(name: str) -> None:
    given, long = converted(CASES[name]), converted(CASES[name])
    before = ir.to_proto(given).SerializeToString()
    short = optimize.optimize_model(given)
    assert ir.to_proto(given).SerializeToString() == before
    with _torch.quiet():
        onnxscript.optimizer.optimize_ir(long, onnx_shape_inference=False)
    assert sum(1 for _ in short.graph) <= sum(1 for _ in long.graph)
    assert not any(node.op_type == "Constant" for node in short.graph)
    np.testing.assert_allclose(answers(short), answers(long), rtol=1e-6)
    np.testing.assert_allclose(answers(short), CASES[name](*INPUTS)[0].numpy(), rtol=1e-5)


def test_numpy_folds_only_what_it_rounds_as_onnx_runtime() -> None:
    """ONNX's reference takes the logarithm of a softmax, which underflows."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        steps = torch.arange(300, dtype=torch.float32)
        return torch.log_softmax(steps, 0) + x, torch.logsumexp(steps * 3, 0) + x

    with torch.no_grad():
        for ours, theirs in zip(torch.compile(function, backend="ortlens")(torch.ones(1)), function(torch.ones(1)), strict=True):
            torch.testing.assert_close(ours, theirs)


def test_an_onnxscript_that_lacks_a_rule_applies_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    known = rewrite_rules()
    monkeypatch.delattr(onnxscript.rewriter.rules.common, "reshape_reshape_rule")
    rewrite_rules.cache_clear()
    try:
        assert len(rewrite_rules()) == len(known) - 1
        np.testing.assert_allclose(answers(optimize.optimize_model(converted(attention))), attention(*INPUTS)[0].numpy(), rtol=1e-5)
    finally:
        rewrite_rules.cache_clear()


@pytest.mark.parametrize("name", CASES)
def test_each_pass_ensures_what_it_declares(name: str) -> None:
    model = converted(CASES[name])
    true: frozenset[Any] = frozenset()
    for entry in optimize.PASSES:
        model, true = run_passes(model, [entry], true)
        assert {condition for condition in true if condition.holds(model)} == true, entry.name


def test_a_pass_that_fails_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(model: ir.Model) -> None:
        model.graph.remove(list(model.graph)[-1], safe=False)
        del model.graph.outputs[:]
        raise ValueError("half way")

    model = converted(attention)
    before = ir.to_proto(model).SerializeToString()
    monkeypatch.setattr(optimize, "PASSES", (*optimize.PASSES[:4], Pass(name="breaks", run=breaks)))
    with pytest.raises(PassError, match="pass 'breaks' failed: ValueError: half way") as raised:
        optimize.optimize_model(model)
    assert isinstance(raised.value.__cause__, ValueError)
    assert ir.to_proto(model).SerializeToString() == before


def test_a_pass_does_not_run_when_no_earlier_pass_ensures_what_it_requires() -> None:
    lonely = Pass(name="lonely", run=lambda _: None, requires=(ModelCondition.INLINED,))
    with pytest.raises(PassError, match="no earlier pass ensures what the pass 'lonely' requires: no node calls a local function"):
        run_passes(converted(attention), (lonely,))


def linear(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor]:
    return (x.reshape(8, 16) @ w.t(),)


def linear_with_bias(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.addmm(w[:, 0], x.reshape(8, 16), w.t(), beta=0.5, alpha=2),)


@pytest.mark.parametrize("function", [linear, linear_with_bias])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_weights_are_read_as_they_lie(function: Callable[..., Any], dtype: torch.dtype) -> None:
    inputs = (torch.rand(2, 4, 16, dtype=dtype), torch.rand(24, 16, dtype=dtype))
    module = traced(function, *inputs)
    model = converter.onnx_from_partition(module, _torch.shared_registry(), "model").model
    model = optimize.optimize_model(model)
    ops = [node.op_type for node in model.graph]
    assert ("Transpose" in ops) == (function is linear and dtype is torch.float16)  # not every provider has that Gemm
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {value.name: tensor.numpy() for value, tensor in zip(session.get_inputs(), inputs, strict=True)})
    np.testing.assert_allclose(result, function(*inputs)[0].numpy(), rtol=1e-2 if dtype is torch.float16 else 1e-5)
