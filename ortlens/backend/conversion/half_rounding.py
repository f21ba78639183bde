"""Keeps the rounding to float16 in front of operators that jump: comparisons, casts to integers, rounding, ordering.

ONNX Runtime's CPU provider computes most float16 operators in float32. It takes away the casts in between, at every optimisation level
and also those that the model asks for, so that the next operator reads numbers that were never rounded. Where a result changes gradually
that is more exact than PyTorch; where it jumps it is wrong. The gradient of `amax` compares each element with the largest one, which was
rounded: it found none, and divided by 0.

An Unsqueeze and a Gather in between keep the casts apart: they have kernels for float16, and no rewrite removes the pair, as one removes
an Unsqueeze and a Squeeze that follow a Reshape. Seen in versions 1.23.0 to 1.32.0; `float16_unrounded` in the register of faults.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from ortlens.backend.conversion.node_provenance import FX_NODE_KEY

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        if read is not None and _is_computed_half(read):
            yield reader, place, read


def _rounds_number(node: ir.Node) -> bool:
    """Tell whether a node rounds a number for operators of PyTorch that read it in float16."""
    made = node.outputs[0]
    return node.op_type == "Cast" and _made_type(node) == ir.DataType.FLOAT16 and made.shape is not None and not len(made.shape)


def _reached(node: ir.Node) -> Iterator[tuple[ir.Node, int]]:
    """Yield the places where a node reads values, behind casts to wider types.

    For a rounding this goes on through its own function, which may have begun in a wider type.
    """
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


def _is_computed_half(value: ir.Value) -> bool:
    return value.producer() is not None and value.dtype in _HALF_OR_UNKNOWN


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
    """Make a constant of the model when it is first needed."""
    if name not in graph.initializers:
        graph.register_initializer(ir.Value(name=name, const_value=ir.tensor(value, dtype=ir.DataType.INT64, name=name)))
    return graph.initializers[name]
