"""The rewrite rules that run over a user's model: rules of onnxscript that are proved sound, and our own.

onnxscript's default rules are not all sound, so they are listed here by name, each with the condition under which it keeps every
value. tests/unit/backend/conversion/test_optimize.py runs each of them. Left out, and why:

| rules | reason |
| --- | --- |
| `successive_clip`, `successive_clip_relu`, `successive_relu_clip` | wrong bounds when the ranges do not overlap |
| `min_min`, `max_max`, `min_max`, `max_min` | drop dimensions of the constants; names of new initializers collide |
| `cast_constant_of_shape` | raises for values outside the range of the new type |
| `slice_split` | wrong halves when the size is odd |
| `flatten_to_reshape` | wrong shape for empty tensors; PyTorch's `flatten` becomes Reshape anyway |
| `fuse_batchnorm_into_*` | ignore `training_mode`; weights are inputs of the model, so they never apply |
| `remove_optional_bias_from_gemm`, `remove_optional_bias_from_qlinear_conv` | never apply to a converted model |
| `normalize_pad_format_*`, `fuse_pad_into_conv_integer`, `dropout_*` | never apply to a converted model |
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import onnxscript.rewriter.pattern
import onnxscript.rewriter.rules.common

if TYPE_CHECKING:
    from collections.abc import Callable

_RELATIVE, _ABSOLUTE = 1e-5, 1e-8  # tolerances of onnxscript's patterns, where a rule sets no others
_MATRIX = 2
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)
_EXACT_IN_FLOAT = frozenset(
    getattr(ir.DataType, name) for name in ("FLOAT", "FLOAT16", "BFLOAT16", "BOOL", "INT8", "UINT8", "INT16", "UINT16")
)
"""Element types whose values float32 holds exactly."""


class GuardedRule:
    """A rewrite rule that is tried only at nodes of one operator and under one condition; everything else is the rule's own."""

    def __init__(self, rule: Any, operator: str, condition: Callable[[ir.Node], bool] | None) -> None:
        """Guard a rule by a condition on the last node of its pattern, an `operator`; None if it is always sound."""
        self.operator = operator
        self._rule = rule
        self._condition = condition

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the rule."""
        return getattr(self._rule, name)

    def try_rewrite(self, model: ir.Model, graph: ir.Graph | ir.Function, node: ir.Node, **settings: Any) -> Any:
        """Try the rule at a node; None if it does not apply."""
        if node.op_type != self.operator or (self._condition is not None and not self._condition(node)):
            return None
        return self._rule.try_rewrite(model, graph, node, **settings)


@functools.cache
def rewrite_rules() -> tuple[Any, ...]:
    """List the guarded rules in the order in which they are applied, without those that the installed onnxscript lacks."""
    known = onnxscript.rewriter.rules.common
    made = []
    for name, (operator, condition) in SOUND_RULES.items():
        rule = getattr(known, name, None)
        variants = () if rule is None else rule.commute() if name in _COMMUTATIVE else (rule,)
        made += [GuardedRule(variant, operator, condition) for variant in variants]
    return (*made, *_own_rules())


def _constant(value: ir.Value | None) -> Any:
    """Return the array of a constant; None for a value that is not known before the model runs."""
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def _static_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    if value is None or value.shape is None:
        return None
    sizes = tuple(size for size in value.shape if isinstance(size, int))
    return sizes if len(sizes) == len(value.shape) else None


def _exactly(number: float) -> Callable[[ir.Node], bool]:
    """Make a condition: no input is a constant that is close to the number but different.

    onnxscript's matcher accepts a constant within 1e-8 of 0 as 0 and one within 1e-5 of 1 as 1. It would drop the epsilon of a
    normalisation and then divide by the square root of zero. Source: `_match_constant` in `rewriter/_matcher.py`, version 0.7.
    """

    def condition(node: ir.Node) -> bool:
        return not any(_is_nearly(_constant(value), number) for value in node.inputs)

    return condition


def _is_nearly(array: Any, number: float) -> bool:
    if array is None or array.size != 1:
        return False
    held = array.item()
    same = held == number and math.copysign(1, held) == math.copysign(1, number)
    return not same and math.isclose(held, number, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)


def _adds_integer_zero(node: ir.Node) -> bool:
    """Tell whether all inputs are integers: for floats, `x + 0` is not `x`, since -0.0 + 0.0 is 0.0."""
    return all(value is not None and value.dtype is not None and value.dtype not in _FLOATS for value in node.inputs)


def _casts_exactly(node: ir.Node) -> bool:
    """Tell whether the first of two casts loses nothing: float64 -> float32 -> float16 rounds twice."""
    inner = node.inputs[0].producer() if node.inputs[0] is not None else None
    return inner is not None and inner.op_type == "Cast" and inner.inputs[0] is not None and inner.inputs[0].dtype in _EXACT_IN_FLOAT


def _has_no_zero_size(node: ir.Node) -> bool:
    """Tell whether a constant target shape has no 0, which means "as before" without `allowzero`, but 0 with it."""
    shape = _constant(node.inputs[1])
    return shape is not None and all(size > 0 or size == -1 for size in shape.tolist())


def _can_infer_size(node: ir.Node) -> bool:
    """Tell whether -1 can stand for the unknown size: beside a 0, ONNX cannot infer it."""
    shape = node.outputs[0].shape
    return shape is not None and (_static_shape(node.outputs[0]) is not None or 0 not in list(shape))


def _assigns_all_rows(node: ir.Node) -> bool:
    """Tell whether a ScatterND overwrites, and the number of rows is known, which the rule itself asks for without checking."""
    reduction = node.attributes.get("reduction")
    data = node.inputs[0]
    overwrites = reduction is None or reduction.as_string() == "none"
    return overwrites and data is not None and data.shape is not None and isinstance(data.shape[0], int)


def _flattens_batches(node: ir.Node) -> bool:
    """Tell whether the Reshapes around a MatMul only flatten and restore batch dimensions, which MatMul has itself.

    The rule compares the outer shapes alone: it takes `(a.view(6, 2) @ b.view(2, 10)).view(4, 3, 5)` of a (4, 3, 1) and a (4, 1, 5) for
    their batched product. One-dimensional operands are excluded, too: ONNX Runtime's `MatmulTransposeFusion` is wrong for them.
    """
    product = node.inputs[0].producer() if node.inputs[0] is not None else None
    target = _constant(node.inputs[1])
    if product is None or product.op_type != "MatMul" or target is None:
        return False
    flat_a, flat_b = (_static_shape(value) for value in product.inputs)
    a, b = (_static_shape(_before_reshape(value)) for value in product.inputs)
    if a is None or b is None or len(a) < _MATRIX or len(b) < _MATRIX or tuple(target.tolist()) != (*a[:-1], b[-1]):
        return False
    if len(b) == _MATRIX:  # one matrix for all batches
        return flat_b == b and flat_a == (math.prod(a[:-1]), a[-1])
    return a[:-2] == b[:-2] and flat_a == _with_one_batch(a) and flat_b == _with_one_batch(b)


def _with_one_batch(shape: tuple[int, ...]) -> tuple[int, int, int]:
    return (math.prod(shape[:-2]), shape[-2], shape[-1])


def _before_reshape(value: ir.Value | None) -> ir.Value | None:
    source = None if value is None else value.producer()
    return source.inputs[0] if source is not None and source.op_type == "Reshape" else value


SOUND_RULES: dict[str, tuple[str, Callable[[ir.Node], bool] | None]] = {
    "mul_by_1_rule": ("Mul", _exactly(1)),
    "add_0_rule": ("Add", _adds_integer_zero),
    "sub_0_rule": ("Sub", _exactly(0)),
    "div_by_1_rule": ("Div", _exactly(1)),
    "two_reshapes_matmul_reshape_rule": ("Reshape", _flattens_batches),
    "one_reshape_matmul_reshape_rule": ("Reshape", _flattens_batches),
    "collapse_slice_rule": ("Slice", None),
    "collapse_slice2_rule": ("Slice", None),
    "materialize_reshape_shape_rule": ("Reshape", _can_infer_size),
    "successive_relu_rule": ("Relu", None),
    "cast_cast_rule": ("Cast", _casts_exactly),
    "no_op_cast_rule": ("Cast", None),
    "no_op_expand_rule": ("Expand", None),
    "reshape_reshape_rule": ("Reshape", _has_no_zero_size),
    "no_op_transpose_rule": ("Transpose", None),
    "transpose_transpose_rule": ("Transpose", None),
    "unsqueeze_unsqueeze_rule": ("Unsqueeze", None),
    "squeeze_reshape_1d_rule": ("Reshape", None),
    "no_op_dynamic_scatter_nd_rule": ("ScatterND", _assigns_all_rows),
    "no_op_static_scatter_nd_rule": ("ScatterND", _assigns_all_rows),
    "fuse_pad_into_conv_rule": ("Conv", None),
    "remove_optional_bias_from_conv_rule": ("Conv", None),
    "remove_optional_bias_from_conv_transpose_rule": ("ConvTranspose", None),
}
"""Name in `onnxscript.rewriter.rules.common` -> the operator that its pattern ends in, and the condition under which it is sound."""

_COMMUTATIVE = frozenset({"mul_by_1_rule", "add_0_rule"})


def _divide_by_sqrt(op: Any, x: Any, v: Any) -> Any:
    return op.Div(x, op.Sqrt(v))


def _gemm_with_transposed_weight(op: Any, x: Any, w: Any, b: Any, gemm: Any) -> Any:
    attributes = {name: gemm.producer().attributes[name] for name in ("alpha", "beta") if name in gemm.producer().attributes}
    return op.Gemm(x, w, b, transB=1, **attributes)


def _is_transposed_weight(_context: Any, x: ir.Value, w: ir.Value, gemm: Any, **_: Any) -> bool:
    """Tell whether a product of matrices reads an input of the model through a Transpose that Gemm can do itself."""
    attributes = gemm.producer().attributes
    plain = all(name not in attributes or not attributes[name].value for name in ("transA", "transB"))
    return plain and w.is_graph_input() and all(value.shape is not None and len(value.shape) == _MATRIX for value in (x, w))


def _is_product_with_transposed_weight(context: Any, x: ir.Value, w: ir.Value, product: Any, **_: Any) -> bool:
    return x.dtype in _GEMM_TYPES and _is_transposed_weight(context, x, w, product)


def _is_half_gelu(node: ir.Node) -> bool:
    """Tell whether only a product with half of a value reads a sum, as in GELU, which may be below 0 by a rounding."""
    use, *others = node.outputs[0].uses() or (None,)
    if use is None or others or use.node.op_type != "Mul" or node.outputs[0].is_graph_output():
        return False
    other = use.node.inputs[1 - use.idx]
    half = None if other is None else other.producer()
    return half is not None and half.op_type == "Mul" and any(_constant(value) == _HALF for value in half.inputs)


_HALF = 0.5
_GEMM_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)  # element types for which every execution provider that has MatMul also has Gemm


def _own_rules() -> tuple[GuardedRule, ...]:
    """Make rewrites that onnxscript lacks.

    `x * rsqrt(v)` becomes `x / sqrt(v)`, the form that ONNX Runtime recognises in root mean square normalisation. A product with a
    transposed weight, as in every Linear layer, becomes a Gemm that reads the weight untransposed. Otherwise ONNX Runtime makes a
    transposed copy of each weight before it packs it, which doubles the time and the memory for making a session. `1 + tanh(x)` in GELU
    loses the limits of the tanh, which would keep ONNX Runtime from fusing it.
    """
    rule = functools.partial(onnxscript.rewriter.pattern.RewriteRule, replacement_pattern=_divide_by_sqrt, name="DivideBySqrt")
    orders = (lambda op, x, v: op.Mul(x, op.Reciprocal(op.Sqrt(v))), lambda op, x, v: op.Mul(op.Reciprocal(op.Sqrt(v)), x))
    product = onnxscript.rewriter.pattern.RewriteRule(
        lambda op, x, w: op.MatMul(x, op.Transpose(w, perm=[1, 0]), _outputs=["product"]),
        lambda op, x, w, **_: op.Gemm(x, w, transB=1),
        _is_product_with_transposed_weight,
        name="ProductWithTransposedWeight",
    )
    gemm = onnxscript.rewriter.pattern.RewriteRule(
        lambda op, x, w, b: op.Gemm(x, op.Transpose(w, perm=[1, 0]), b, _allow_other_attributes=True, _outputs=["gemm"]),
        _gemm_with_transposed_weight,
        _is_transposed_weight,
        name="GemmWithTransposedWeight",
    )
    gelu = onnxscript.rewriter.pattern.RewriteRule(
        lambda op, x, low, high: op.Add(op.Clip(op.Tanh(x), low, high), 1.0),
        lambda op, x, **_: op.Add(op.Tanh(x), op.Constant(value_float=1.0)),
        name="TanhInGelu",
    )
    divisions = (GuardedRule(rule(order), "Mul", None) for order in orders)
    unlimited = (GuardedRule(variant, "Add", _is_half_gelu) for variant in gelu.commute())
    return (*divisions, *unlimited, GuardedRule(product, "MatMul", None), GuardedRule(gemm, "Gemm", None))
