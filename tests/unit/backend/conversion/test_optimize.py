"""The short optimiser makes what the long one makes, and a rewrite rule changes no value."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
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
from ortlens.backend.conversion.rewrite_rules import SOUND_RULES, rewrite_rules
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


def test_a_constant_that_a_rule_replaces_stays_for_those_who_read_it_too() -> None:
    nodes = "one = Reshape (x, there)  a = Reshape (one, shape)  b = Reshape (y, shape)  two = Reshape (x, there)  c = Reshape (two, shape)"
    ends = "(float[4, 6] x, float[2, 12] y) => (float[8, 3] a, float[8, 3] b, float[8, 3] c)"
    constants = "<int64[2] there = {2, 12}, int64[2] shape = {8, 3}>"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]> agraph {ends} {constants} {{ {nodes} }}')
    made = optimize.optimize_model(ir.from_proto(model))
    assert len(made.graph) < len(model.graph.node)
    read = [value for node in made.graph for value in node.inputs if value is not None]
    assert all(value.producer() or value.is_initializer() or value.is_graph_input() for value in read)


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


HEADER = '<ir_version: 10, opset_import: ["" : 18]>\n'

# Rule -> a model that it applies to.
APPLIES = {
    "mul_by_1_rule": "g (float[2,3] x) => (float[2,3] y) <float one = {1}> { y = Mul(one, x) }",
    "add_0_rule": "g (int64[2,3] x) => (int64[2,3] y) <int64 zero = {0}> { y = Add(x, zero) }",
    "sub_0_rule": "g (float[2,3] x) => (float[2,3] y) <float zero = {0}> { y = Sub(x, zero) }",
    "div_by_1_rule": "g (float[2,3] x) => (float[2,3] y) <float one = {1}> { y = Div(x, one) }",
    "two_reshapes_matmul_reshape_rule": """g (float[2,3,4,5] a, float[2,3,5,6] b) => (float[2,3,4,6] y)
        <int64[3] s = {6,4,5}, int64[3] t = {6,5,6}, int64[4] u = {2,3,4,6}, float[6,4,5] p, float[6,5,6] q>
        { p = Reshape(a, s) q = Reshape(b, t) m = MatMul(p, q) y = Reshape(m, u) }""",
    "one_reshape_matmul_reshape_rule": """g (float[2,3,5] a, float[5,4] b) => (float[2,3,4] y)
        <int64[2] s = {6,5}, int64[3] u = {2,3,4}, float[6,5] p> { p = Reshape(a, s) m = MatMul(p, b) y = Reshape(m, u) }""",
    "collapse_slice_rule": """g (float[4,N] x) => (float[4,N] y)
        <int64[1] b = {0}, int64[1] e = {9223372036854775807}, int64[1] axis = {1}, int64[1] step = {1}>
        { y = Slice(x, b, e, axis, step) }""",
    "collapse_slice2_rule": """g (float[4,3] x) => (float[4,3] y)
        <int64[2] b = {0,0}, int64[2] e = {4,3}, int64[2] axis = {0,1}, int64[2] step = {1,1}> { y = Slice(x, b, e, axis, step) }""",
    "materialize_reshape_shape_rule": "g (float[4,N] x, int64[2] s) => (float[2,M] y) { y = Reshape(x, s) }",
    "successive_relu_rule": "g (float[2,3] x) => (float[2,3] y) { z = Relu(x) y = Relu(z) }",
    "cast_cast_rule": "g (float16[2,3] x) => (float16[2,3] y) { z = Cast<to=1>(x) y = Cast<to=10>(z) }",
    "no_op_cast_rule": "g (float[2,3] x) => (float[2,3] y) { y = Cast<to=1>(x) }",
    "no_op_expand_rule": "g (float[2,3] x) => (float[2,3] y) <int64[2] s = {2,3}> { y = Expand(x, s) }",
    "reshape_reshape_rule": """g (float[2,6] x) => (float[3,4] y)
        <int64[1] s = {-1}, int64[2] t = {3,-1}> { z = Reshape(x, s) y = Reshape(z, t) }""",
    "no_op_transpose_rule": "g (float[2,3] x) => (float[2,3] y) { y = Transpose<perm=[0,1]>(x) }",
    "transpose_transpose_rule": """g (float[2,3,4] x) => (float[3,2,4] y)
        { z = Transpose<perm=[2,0,1]>(x) y = Transpose<perm=[2,1,0]>(z) }""",
    "unsqueeze_unsqueeze_rule": """g (float[2,3] x) => (float[1,2,3,1] y)
        <int64[1] s = {2}, int64[1] t = {0}> { z = Unsqueeze(x, s) y = Unsqueeze(z, t) }""",
    "squeeze_reshape_1d_rule": "g (float[1] x) => (float[1] y) <int64[1] s = {-1}> { z = Squeeze(x) y = Reshape(z, s) }",
    "no_op_dynamic_scatter_nd_rule": """g (float[4,3] x, float[4,3] u) => (float[4,3] y)
        <int64 axis = {0}, int64 zero = {0}, int64 one = {1}, int64[1] last = {-1}>
        { s = Shape<start=0>(x) d = Gather<axis=0>(s, axis) r = Range(zero, d, one) i = Unsqueeze(r, last)
          y = ScatterND<reduction="none">(x, i, u) }""",
    "no_op_static_scatter_nd_rule": """g (float[2,3] x, float[2,3] u) => (float[2,3] y)
        <int64[2,1] i = {0,1}> { y = ScatterND(x, i, u) }""",
    "fuse_pad_into_conv_rule": """g (float[1,2,5,5] x, float[3,2,3,3] w) => (float[1,3,6,7] y)
        <int64[8] pads = {0,0,1,2,0,0,2,2}, float zero = {0}> { z = Pad(x, pads, zero) y = Conv(z, w) }""",
    "remove_optional_bias_from_conv_rule": """g (float[1,2,5,5] x, float[3,2,3,3] w) => (float[1,3,3,3] y)
        <float[3] b = {0,0,0}> { y = Conv(x, w, b) }""",
    "remove_optional_bias_from_conv_transpose_rule": """g (float[1,2,5,5] x, float[2,3,3,3] w) => (float[1,3,7,7] y)
        <float[3] b = {0,0,0}> { y = ConvTranspose(x, w, b) }""",
}

# A rule of onnxscript that would apply here, and be wrong -> a model.
DOES_NOT_APPLY = {
    "1.000001 is not 1": "g (float[2,3] x) => (float[2,3] y) <float one = {1.000001}> { y = Mul(one, x) }",
    "-0.0 + 0.0 is 0.0": "g (float[2,3] x) => (float[2,3] y) <float zero = {0}> { y = Add(x, zero) }",
    "-0.0 - -0.0 is 0.0": "g (float[2,3] x) => (float[2,3] y) <float zero = {-0.0}> { y = Sub(x, zero) }",
    "rows of other products": """g (float[4,3,1] a, float[4,1,5] b) => (float[4,3,5] y)
        <int64[2] s = {6,2}, int64[2] t = {2,10}, int64[3] u = {4,3,5}, float[6,2] p, float[2,10] q>
        { p = Reshape(a, s) q = Reshape(b, t) m = MatMul(p, q) y = Reshape(m, u) }""",
    "batches in another order": """g (float[2,3,4,5] a, float[3,5,6] b) => (float[2,3,4,6] y)
        <int64[4] s = {3,2,4,5}, int64[4] t = {3,1,5,6}, int64[4] u = {2,3,4,6}, float[3,2,4,5] p, float[3,1,5,6] q>
        { p = Reshape(a, s) q = Reshape(b, t) m = MatMul(p, q) y = Reshape(m, u) }""",
    "a vector": """g (float[5] a, float[5,4] b) => (float[4] y)
        <int64[2] s = {1,5}, int64[1] u = {4}, float[1,5] p> { p = Reshape(a, s) m = MatMul(p, b) y = Reshape(m, u) }""",
    "two roundings": "g (double[2,3] x) => (float16[2,3] y) { z = Cast<to=1>(x) y = Cast<to=10>(z) }",
    "rows that are added": """g (float[2,3] x, float[2,3] u) => (float[2,3] y)
        <int64[2,1] i = {0,1}> { y = ScatterND<reduction="add">(x, i, u) }""",
    "an unknown number of rows": """g (float[N,3] x, float[N,3] u) => (float[N,3] y)
        <int64[2,1] i = {0,1}> { y = ScatterND(x, i, u) }""",
    "ranges that do not overlap": """g (float[2,3] x) => (float[2,3] y)
        <float a = {0}, float b = {1}, float c = {2}, float d = {3}> { z = Clip(x, a, b) y = Clip(z, c, d) }""",
}


def applied(text: str) -> tuple[ir.Model, ir.Model, int]:
    """A model, what the rules make of it, and how often they were applied."""
    before, after = ir.from_onnx_text(HEADER + text), ir.from_onnx_text(HEADER + text)
    count = onnxscript.rewriter.pattern.RewriteRuleSet(rewrite_rules()).apply_to_model(after)
    return before, after, count


def outputs(model: ir.Model) -> list[Any]:
    """Run a model without ONNX Runtime's own optimisations, on random inputs with zeros of both signs."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(0)
    feeds = {}
    for value in model.graph.inputs:
        shape = [size if isinstance(size, int) else 2 for size in value.shape or ()]
        made = random.normal(size=shape) * 3
        made.flat[:2] = (0.0, -0.0)[: made.size]
        assert value.dtype is not None
        feeds[value.name] = np.array([2, -1]) if value.name == "s" else made.astype(value.dtype.numpy())
    return list(session.run(None, feeds))


@pytest.mark.parametrize("rule", SOUND_RULES)
def test_a_rule_applies_and_keeps_every_value(rule: str) -> None:
    before, after, count = applied(APPLIES[rule])
    assert count >= 1
    for kept, made in zip(outputs(before), outputs(after), strict=True):
        np.testing.assert_allclose(made, kept, rtol=1e-5, atol=1e-5)
        assert made.dtype == kept.dtype


@pytest.mark.parametrize("reason", DOES_NOT_APPLY)
def test_a_rule_that_would_be_wrong_does_not_apply(reason: str) -> None:
    _, after, count = applied(DOES_NOT_APPLY[reason])
    assert count == 0, [node.op_type for node in after.graph]
