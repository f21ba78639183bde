"""Inputs that lie permuted in memory: handed over as they lie, and turned by the model, which often need not turn them at all.

ONNX Runtime takes dense tensors in the order of their dimensions only. A transposed or channels-last tensor is dense in
another order. So the model of a session takes it in that order and begins with a Transpose, which ONNX Runtime moves
through the graph, takes into a matrix product, or cancels against the Transpose of an output; a copy would always be one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortlens.backend.convert import inverse_order
from ortlens.backend.labels import FX_NODE_KEY, INFERRED_KEY

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx


def with_permuted_inputs(model: onnx.ModelProto, orders: Mapping[str, tuple[int, ...]]) -> onnx.ModelProto:
    """A model that takes some inputs in the order in which their dimensions lie in memory.

    Args:
        model: Left as it is.
        orders: Input -> order of its dimensions in memory, see `convert.memory_order`.

    Returns:
        A copy with a Transpose per such input; the model itself when there are none.
    """
    import onnx

    if not orders:
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    turns = [_turned(value, orders[value.name]) for value in made.graph.input if value.name in orders]
    nodes = [*turns, *made.graph.node]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def _turned(value: onnx.ValueInfoProto, order: tuple[int, ...]) -> onnx.NodeProto:
    """Rename and permute an input in place; the node that makes the value of the old name from it."""
    import onnx

    plain = value.name
    value.name = permuted_name(plain)
    sizes = list(value.type.tensor_type.shape.dim)
    del value.type.tensor_type.shape.dim[:]
    value.type.tensor_type.shape.dim.extend(sizes[dim] for dim in order)
    node = onnx.helper.make_node("Transpose", [value.name], [plain], name=f"{plain}/Transpose_in", perm=inverse_order(order))
    for key, text in ((FX_NODE_KEY, plain), (INFERRED_KEY, "input")):
        entry = node.metadata_props.add()
        entry.key, entry.value = key, text
    return node


def permuted_name(name: str) -> str:
    """Name of an input that is taken as it lies in memory.

    Args:
        name: The input's name in the model that takes it in PyTorch's order.

    Returns:
        A name that no FX node has.
    """
    return f"{name}.as_it_lies"
