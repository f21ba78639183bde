"""The short optimiser makes what the long one makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import onnxscript.optimizer
import onnxscript.rewriter
import pytest
import torch

from ortlens import _torch
from ortlens.backend.conversion import converter, optimize
from ortlens.backend.lowering import type_promotion
from tests.unit.backend.graphs import traced

if TYPE_CHECKING:
    from collections.abc import Callable


def attention(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor]:
    query, key, value = (x @ w).view(2, 4, 3, 8).unbind(2)
    scores = torch.softmax(query @ key.transpose(-1, -2) / 8**0.5, dim=-1)
    return ((scores @ value).reshape(2, 4, 8),)


def shapes(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor]:
    both = torch.cat([x[:, 1:3].unsqueeze(0).expand(3, -1, -1, -1), x[None, :, :2].repeat(3, 1, 1, 1)], dim=-1)
    return (both.relu().clamp(0, 2) + w.sum(),)


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
    short, long = converted(CASES[name]), converted(CASES[name])
    optimize.optimize_model(short)
    with _torch.quiet():
        onnxscript.optimizer.optimize_ir(long, onnx_shape_inference=False)
    assert sum(1 for _ in short.graph) <= sum(1 for _ in long.graph)
    assert not any(node.op_type == "Constant" for node in short.graph)
    np.testing.assert_allclose(answers(short), answers(long), rtol=1e-6)
    np.testing.assert_allclose(answers(short), CASES[name](*INPUTS)[0].numpy(), rtol=1e-5)


def test_rules_are_tried_where_they_can_match_only(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    rules = optimize.rooted_rules()
    assert rules is not None

    for rooted in rules:
        if rooted.name == "ReshapeReshape":
            monkeypatch.setattr(rooted._rule, "try_rewrite", lambda _model, _graph, node, **_: tried.append(node.op_type))
    model = converted(attention)
    onnxscript.rewriter.RewritePass(rules)(model)
    assert set(tried) == {"Reshape"}


@pytest.mark.parametrize("missing", ["onnxscript.optimizer.fold_constants_ir", "_target_pattern"])
def test_an_onnxscript_of_another_make_takes_the_long_way(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    if missing.endswith("_target_pattern"):
        monkeypatch.setattr(optimize, "_roots_of", lambda rule: rule.no_such_attribute)
    else:
        monkeypatch.delattr(missing)
    optimize.rooted_rules.cache_clear()
    try:
        assert optimize.rooted_rules() is None
        model = converted(attention)
        optimize.optimize_model(model)
        np.testing.assert_allclose(answers(model), attention(*INPUTS)[0].numpy(), rtol=1e-5)
    finally:
        optimize.rooted_rules.cache_clear()


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
    optimize.optimize_model(model)
    ops = [node.op_type for node in model.graph]
    assert ("Transpose" in ops) == (function is linear and dtype is torch.float16)  # not every provider has that Gemm
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {value.name: tensor.numpy() for value, tensor in zip(session.get_inputs(), inputs, strict=True)})
    np.testing.assert_allclose(result, function(*inputs)[0].numpy(), rtol=1e-2 if dtype is torch.float16 else 1e-5)
