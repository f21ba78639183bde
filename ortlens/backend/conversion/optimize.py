"""Making an ONNX model smaller before ONNX Runtime sees it.

The passes are those of onnxscript's optimiser, in its order, with two differences that take a fifth of the time: they run once
instead of twice, which may leave a node that ONNX Runtime drops when it goes over the model again, and a rewrite rule is only
tried at nodes of the operator that its pattern ends in, which its own matcher would find out last.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import onnx_ir as ir
import onnx_ir.passes.common as common_passes
import onnxscript.optimizer
import onnxscript.rewriter
import onnxscript.rewriter.pattern

from ortlens import _torch
from ortlens.backend.conversion.node_provenance import FX_NODE_KEY, merge_provenance


def optimize_model(model: ir.Model) -> None:
    """Inline local functions, fold constants, rewrite what can be said shorter, drop what is not used; in place.

    Args:
        model: As made by `convert.onnx_from_partition`; an exception leaves it in an undefined state.
    """
    merge_metadata_in_rewrites()
    with _torch.quiet():
        rules = rooted_rules()
        if rules is None:
            onnxscript.optimizer.optimize_ir(model, onnx_shape_inference=False)
            return
        if model.functions:
            common_passes.InlinePass()(model)
        onnxscript.optimizer.fold_constants_ir(model, onnx_shape_inference=False)
        common_passes.RemoveUnusedNodesPass()(model)  # first: no rule needs to look at what is dropped
        onnxscript.rewriter.RewritePass(rules)(model)
        for tidy in (
            common_passes.RemoveUnusedNodesPass(),
            common_passes.RemoveUnusedFunctionsPass(),  # type: ignore[no-untyped-call]  # its constructor has no annotation
            common_passes.RemoveUnusedOpsetsPass(),
            common_passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
            common_passes.LiftSubgraphInitializersToMainGraphPass(),
            common_passes.DeduplicateInitializersPass(),
            common_passes.CommonSubexpressionEliminationPass(),
            common_passes.OutputFixPass(),
            common_passes.NameFixPass(),
        ):
            tidy(model)


@functools.cache
def merge_metadata_in_rewrites() -> None:
    """Have a rewrite label what it makes with every FX node that it takes away; onnxscript keeps the first label alone.

    How labels are merged is not public: `_default_metadata_merger` in `onnxscript/rewriter/_rewrite_rule.py`, version 0.7. Where
    it is absent, a rewritten node has one label, or takes its neighbour's.
    """
    rule = getattr(onnxscript.rewriter, "_rewrite_rule", None)
    mergers = getattr(getattr(rule, "_default_metadata_merger", None), "mergers", None)
    if isinstance(mergers, dict):
        mergers.setdefault(FX_NODE_KEY, merge_provenance)


def _divided(op: Any, x: Any, v: Any) -> Any:
    return op.Div(x, op.Sqrt(v))


def _turned_weight_gemm(op: Any, x: Any, w: Any, b: Any, gemm: Any) -> Any:
    attributes = {name: gemm.producer().attributes[name] for name in ("alpha", "beta") if name in gemm.producer().attributes}
    return op.Gemm(x, w, b, transB=1, **attributes)


def _is_weight_turned(_context: Any, x: ir.Value, w: ir.Value, gemm: Any, **_: Any) -> bool:
    """Whether a product reads an input of the model through a Transpose, and Gemm can have it as it is."""
    attributes = gemm.producer().attributes
    plain = all(name not in attributes or not attributes[name].value for name in ("transA", "transB"))
    return plain and w.is_graph_input() and all(value.shape is not None and len(value.shape) == _MATRIX for value in (x, w))


def _is_product_of_floats(context: Any, x: ir.Value, w: ir.Value, product: Any, **_: Any) -> bool:
    return x.dtype in _GEMM_TYPES and _is_weight_turned(context, x, w, product)


_MATRIX = 2
_GEMM_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""Element types for which every execution provider that has MatMul has Gemm, too."""


def _own_rules() -> tuple[Any, ...]:
    """Rewrites that onnxscript lacks.

    `x * rsqrt(v)` as `x / sqrt(v)`, which ONNX Runtime knows as a part of root mean square normalisation. And a product with a
    transposed weight, as every Linear layer makes, as a Gemm that reads the weight as it lies: otherwise ONNX Runtime makes a
    transposed copy of each weight before it packs it, which doubles the time and the memory that a session takes to be made.
    """
    rule = functools.partial(onnxscript.rewriter.pattern.RewriteRule, replacement_pattern=_divided, name="DivideBySqrt")
    orders = (lambda op, x, v: op.Mul(x, op.Reciprocal(op.Sqrt(v))), lambda op, x, v: op.Mul(op.Reciprocal(op.Sqrt(v)), x))
    product = onnxscript.rewriter.pattern.RewriteRule(
        lambda op, x, w: op.MatMul(x, op.Transpose(w, perm=[1, 0]), _outputs=["product"]),
        lambda op, x, w, **_: op.Gemm(x, w, transB=1),
        _is_product_of_floats,
        name="ProductWithTurnedWeight",
    )
    gemm = onnxscript.rewriter.pattern.RewriteRule(
        lambda op, x, w, b: op.Gemm(x, op.Transpose(w, perm=[1, 0]), b, _allow_other_attributes=True, _outputs=["gemm"]),
        _turned_weight_gemm,
        _is_weight_turned,
        name="GemmWithTurnedWeight",
    )
    return (*(rule(order) for order in orders), product, gemm)


class _RootedRule:
    """A rewrite rule that looks at the operator before anything else, and takes no constant for another; otherwise the rule itself."""

    def __init__(self, rule: Any, roots: frozenset[str] | None) -> None:
        self._rule = rule
        self._roots = roots
        self._numbers = _numbers_in(rule)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rule, name)

    def try_rewrite(self, model: ir.Model, graph: ir.Graph | ir.Function, node: ir.Node, **settings: Any) -> Any:
        """What the rule makes of a node, or None."""
        if self._roots is not None and node.op_type not in self._roots:
            return None
        if self._numbers and any(_nearly(value, self._numbers) for value in node.inputs):
            return None
        return self._rule.try_rewrite(model, graph, node, **settings)


@functools.cache
def rooted_rules() -> tuple[Any, ...] | None:
    """The default rules of onnxscript and our own, each with the operators that its pattern can end in.

    Neither the list nor the patterns are public: `_DEFAULT_REWRITE_RULES` in `onnxscript/rewriter/__init__.py` and
    `_target_pattern` in `_rewrite_rule.py`, version 0.7.

    Returns:
        The rules; None when this onnxscript keeps them in another way, or folds constants under another name.
    """
    known = getattr(onnxscript.rewriter, "_DEFAULT_REWRITE_RULES", None)
    if known is None or not hasattr(onnxscript.optimizer, "fold_constants_ir"):
        return None
    try:
        return tuple(_RootedRule(rule, _roots_of(rule)) for rule in (*known, *_own_rules()))
    except (AttributeError, TypeError):
        return None


def _numbers_in(rule: Any) -> tuple[float, ...]:
    """The numbers that a rule's pattern asks for."""
    asked = [getattr(value, "value", None) for node in rule._target_pattern for value in node.inputs]  # noqa: SLF001 - see `rooted_rules`
    return tuple(value for value in asked if isinstance(value, (int, float)))


def _nearly(value: ir.Value | None, numbers: tuple[float, ...]) -> bool:
    """Whether a value is a constant close to one of these numbers, and none of them.

    onnxscript's matcher takes what is within 1e-8 of 0 for 0 and what is within 1e-5 of 1 for 1: without this, the epsilon of a
    normalisation would be dropped, and the square root of nothing divided by. Source: `_matcher.py`, `_match_constant`, version 0.7.
    """
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.size != 1:
        return False
    held = tensor.numpy().item()
    return held not in numbers and any(math.isclose(held, number, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE) for number in numbers)


_RELATIVE, _ABSOLUTE = 1e-5, 1e-8  # of onnxscript's patterns, where a rule says nothing else


def _roots_of(rule: Any) -> frozenset[str] | None:
    """The operators that a rule's pattern can end in; None for patterns that leave it open."""
    operators = [node.op_identifier() for node in rule._target_pattern.output_nodes]  # noqa: SLF001 - see `rooted_rules`
    return None if None in operators else frozenset(operator[1] for operator in operators)
