"""Optimise an ONNX model before ONNX Runtime loads it.

The passes are those of onnxscript's optimiser, in its order, with three differences. They run once instead of twice; what that leaves
over, ONNX Runtime removes. Only rewrite rules that are proved sound are applied (see `rewrite_rules`). And a rule is only tried at
nodes of the operator that its pattern ends in. Together this takes a fifth of the time.

They work on a copy. A pass that fails leaves the original model as it was, and the error names the pass.

The last but two of them keeps the rounding to float16 in front of operators that jump: comparisons, casts to integers, rounding, ordering.
ONNX Runtime's CPU provider computes most float16 operators in float32. It takes away the casts in between, at every optimisation level
and also those that the model asks for, so that the next operator reads numbers that were never rounded. Where a result changes gradually
that is more exact than PyTorch; where it jumps it is wrong. The gradient of `amax` compares each element with the largest one, which was
rounded: it found none, and divided by 0. An Unsqueeze and a Gather in between keep the casts apart: they have kernels for float16, and no
rewrite removes the pair, as one removes an Unsqueeze and a Squeeze that follow a Reshape. `float16_unrounded` in
`tests/faults/faults.toml` has the versions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import onnx_ir.passes.common as common_passes
import onnxscript.optimizer
import onnxscript.rewriter

from ortlens import _torch
from ortlens.backend.basis import pass_runner
from ortlens.backend.basis.node_provenance import FX_NODE_KEY, merge_provenance
from ortlens.backend.basis.pass_runner import Pass, run_passes
from ortlens.backend.conversion.rewrite_rules import rewrite_rules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_JUMPING = frozenset(
    {
        *("ArgMax", "ArgMin", "Ceil", "Equal", "Floor", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual"),
        *("Mod", "NonZero", "Round", "Sign", "TopK", "Unique"),
    }
)
_ROUNDING = frozenset({"Ceil", "Floor", "Mod", "Round"})
_WIDE: tuple[Any, ...] = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
_HALF_OR_UNKNOWN = (None, ir.DataType.FLOAT16)  # a value inside a function may have no type; the pair of operators suits any


def keep_half_rounding(model: ir.Model) -> None:
    """Insert the pair of operators where a model computes in float16; it is changed in place."""
    nodes = list(ir.traversal.RecursiveGraphIterator(model.graph))
    if not any(value is not None and value.dtype == ir.DataType.FLOAT16 for node in nodes for value in (*node.inputs, *node.outputs)):
        return
    kept: dict[ir.Value, ir.Value] = {}
    for reader, place, value in [found for node in nodes for found in _readings(node)]:
        if value not in kept:
            kept[value] = _rounded(
                value, _constant(model.graph, "half rounding: axis", [0]), _constant(model.graph, "half rounding: place", 0)
            )
        reader.replace_input_with(place, kept[value])


def _readings(node: ir.Node) -> Iterator[tuple[ir.Node, int, ir.Value]]:
    """Yield the inputs that have to be rounded: those of a node, of a cast that it reads, and what is made of numbers by it."""
    if _rounds_number(node):
        for use in node.outputs[0].uses():
            yield use.node, use.idx, node.outputs[0]
    if node.op_type not in _JUMPING and not (node.op_type == "Cast" and not _made_type(node).is_floating_point()):
        return
    for reader, place in _reached(node):
        read = reader.inputs[place]
        if read is not None and (read.producer() is not None and read.dtype in _HALF_OR_UNKNOWN):
            yield reader, place, read


def _rounds_number(node: ir.Node) -> bool:
    """Tell whether a node rounds a number for operators of PyTorch that read it in float16."""
    made = node.outputs[0]
    return node.op_type == "Cast" and _made_type(node) == ir.DataType.FLOAT16 and made.shape is not None and not len(made.shape)


def _reached(node: ir.Node) -> Iterator[tuple[ir.Node, int]]:
    """Yield the places where a node reads values, behind casts to wider types, and for a rounding behind its own function."""
    waiting, passed = [node], {node}
    while waiting:
        reader = waiting.pop()
        for place, value in enumerate(reader.inputs):
            made = value.producer() if value is not None else None
            if made is not None and made.op_type == "Cast" and _made_type(made) in _WIDE:
                yield made, 0
            elif made is not None and node.op_type in _ROUNDING and made.outputs[0].dtype in _WIDE and _of_one_operator(made, node):
                waiting += {made} - passed
                passed.add(made)
            else:
                yield reader, place


def _of_one_operator(one: ir.Node, other: ir.Node) -> bool:
    return one.metadata_props.get(FX_NODE_KEY) == other.metadata_props.get(FX_NODE_KEY)


def _made_type(cast: ir.Node) -> ir.DataType:
    return ir.DataType(cast.attributes["to"].as_int())


def _rounded(value: ir.Value, axis: ir.Value, place: ir.Value) -> ir.Value:
    producer: Any = value.producer()  # a node in a graph
    made = ir.Value(type=value.type, shape=value.shape)
    longer = ir.node("Unsqueeze", [value, axis], metadata_props=dict(producer.metadata_props))
    same = ir.node("Gather", [longer.outputs[0], place], {"axis": 0}, outputs=[made], metadata_props=dict(producer.metadata_props))
    producer.graph.insert_after(producer, [longer, same])
    return made


def _constant(graph: ir.Graph, name: str, value: list[int] | int) -> ir.Value:
    if name not in graph.initializers:
        graph.register_initializer(ir.Value(name=name, const_value=ir.tensor(value, dtype=ir.DataType.INT64, name=name)))
    return graph.initializers[name]


def optimize_model(model: ir.Model) -> ir.Model:
    """Optimise a copy of a model that shares its tensors: inline functions, fold constants, apply rewrites, remove what is unused."""
    _merge_metadata_in_rewrites(FX_NODE_KEY, merge_provenance)
    with _torch.quiet():
        return run_passes(model.clone(), PASSES, wraps=True)[0]


def _merge_metadata_in_rewrites(key: str, merge: Callable[[str, str], str]) -> None:
    """Merge a metadata entry of all nodes that a rewrite replaces; by default onnxscript keeps the first node's entry only.

    There is no public setting for it. The first registration of a key wins. In a version of onnxscript without this merger nothing
    happens. Source: `rewriter/_rewrite_rule.py`, version 0.7.
    """
    rule = getattr(onnxscript.rewriter, "_rewrite_rule", None)
    mergers = getattr(getattr(rule, "_default_metadata_merger", None), "mergers", None)
    if isinstance(mergers, dict):
        mergers.setdefault(key, merge)


def _uses_every_node(model: ir.Model) -> bool:
    return all(any(value.uses() or value.is_graph_output() for value in node.outputs) for node in model.graph)


def _names_every_value(model: ir.Model) -> bool:
    names = [value.name for node in model.graph for value in node.outputs if value.uses() or value.is_graph_output()]
    names += [value.name for value in model.graph.inputs]
    return None not in names and len(names) == len(set(names))


class ModelCondition(pass_runner.Condition):
    """What can be true of a model's main graph between two passes."""

    INLINED = "no node calls a local function", lambda model: not any(node.op_identifier() in model.functions for node in model.graph)
    NO_UNUSED_NODES = "every node computes a value that is used", _uses_every_node
    CONSTANTS_LIFTED = "constants are initializers, not nodes", lambda model: not any(node.op_type == "Constant" for node in model.graph)
    UNIQUE_NAMES = "every value has a name of its own", _names_every_value


_NAMES = """
Concat Expand Flatten Gather GatherElements GatherND Identity Pad Reshape ScatterElements ScatterND Shape Size Slice Split Squeeze Tile
Transpose Trilu Unsqueeze Where Abs Add Cast CastLike Ceil Div Equal Floor Greater GreaterOrEqual Less LessOrEqual Mul Neg Sqrt Sub
"""
_EXACT = frozenset(_NAMES.split())  # operators that move numbers, or that everybody rounds alike


_DIVISIONS = ("Div", "Mod")


def _may_fold(node: ir.Node) -> bool | None:
    """Tell whether NumPy gives what ONNX Runtime would.

    onnxscript folds by ONNX's reference operators. Their formulas are not those of kernels: the logarithm of a softmax, for one, is -inf
    where that underflows, and an integer divided by 0 is 0. What is left, ONNX Runtime folds by its own kernels.
    """
    values = [value.const_value for value in node.inputs if value is not None]
    if node.op_type in _DIVISIONS and (values[1] is None or not values[1].numpy().all()):
        return False
    if node.op_type in _EXACT:
        return None
    return False if any(value is not None and value.dtype.is_floating_point() for value in values) else None


def _fold_constants(model: ir.Model) -> None:
    onnxscript.optimizer.fold_constants_ir(model, onnx_shape_inference=False, should_fold=_may_fold)


def _applied(make: Callable[[], ir.passes.PassBase]) -> Callable[[ir.Model], ir.Model]:
    return lambda model: make()(model).model


def _apply_rewrite_rules(model: ir.Model) -> ir.Model:
    made = onnxscript.rewriter.RewritePass(rewrite_rules())(model).model
    # A rule names its new constant as the one that it replaces, which other nodes may read as well: it is no longer the graph's then.
    for place, value in enumerate(value for node in ir.traversal.RecursiveGraphIterator(made.graph) for value in node.inputs):
        if value is not None and value.const_value is not None and not (value.producer() or value.is_initializer()):
            value.name = f"{value.name}:{place}"
            made.graph.register_initializer(value)
    return made


_INLINED, _LIFTED = (ModelCondition.INLINED,), (ModelCondition.CONSTANTS_LIFTED,)
_REMOVE_UNUSED_NODES = Pass(
    name="remove_unused_nodes", run=_applied(common_passes.RemoveUnusedNodesPass), ensures=(ModelCondition.NO_UNUSED_NODES,)
)

PASSES = (
    Pass(name="inline_functions", run=_applied(common_passes.InlinePass), ensures=_INLINED),
    Pass(name="fold_constants", run=_fold_constants, requires=_INLINED, invalidates=(ModelCondition.NO_UNUSED_NODES,)),
    _REMOVE_UNUSED_NODES,  # first: no rule needs to look at nodes that are removed later
    Pass(
        name="apply_rewrite_rules",
        run=_apply_rewrite_rules,
        requires=_INLINED,
        invalidates=(ModelCondition.NO_UNUSED_NODES, ModelCondition.UNIQUE_NAMES),
    ),
    _REMOVE_UNUSED_NODES,
    Pass(name="remove_unused_functions", run=_applied(common_passes.RemoveUnusedFunctionsPass), requires=_INLINED),
    Pass(name="remove_unused_opsets", run=_applied(common_passes.RemoveUnusedOpsetsPass), requires=(ModelCondition.NO_UNUSED_NODES,)),
    Pass(
        name="lift_constants",
        run=_applied(lambda: common_passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)),
        ensures=_LIFTED,
    ),
    Pass(name="lift_subgraph_initializers", run=_applied(common_passes.LiftSubgraphInitializersToMainGraphPass), requires=_LIFTED),
    Pass(name="deduplicate_initializers", run=_applied(common_passes.DeduplicateInitializersPass), requires=_LIFTED),
    Pass(name="eliminate_common_subexpressions", run=_applied(common_passes.CommonSubexpressionEliminationPass), requires=_LIFTED),
    Pass(name="keep_half_rounding", run=keep_half_rounding, requires=(*_INLINED, *_LIFTED)),
    Pass(name="fix_outputs", run=_applied(common_passes.OutputFixPass), invalidates=(ModelCondition.UNIQUE_NAMES,)),
    Pass(name="fix_names", run=_applied(common_passes.NameFixPass), ensures=(ModelCondition.UNIQUE_NAMES,)),
)
"""The passes of `optimize_model`, in order."""
