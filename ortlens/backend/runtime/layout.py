"""What a session takes and gives, as it lies in memory.

ONNX Runtime takes dense tensors in the order of their dimensions only. A transposed or channels-last tensor is dense in
another order. So the model of a session takes it in that order and begins with a Transpose, which ONNX Runtime moves
through the graph, takes into a matrix product, or cancels against the Transpose of an output; a copy would always be one.

And a model that ends in a Reshape copies what it gives: within a run ONNX Runtime lets a Reshape's output share the memory of
its input, but an output has memory of its own. So the session gives what goes into the Reshape, in the memory of the output.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from ortlens.backend.conversion.node_provenance import FX_NODE_KEY, INFERRED_KEY
from ortlens.backend.memory_order import inverse_order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx


def with_permuted_inputs(model: onnx.ModelProto, orders: Mapping[str, tuple[int, ...]]) -> onnx.ModelProto:
    """A model that takes some inputs in the order in which their dimensions lie in memory.

    Args:
        model: Left as it is.
        orders: Input -> order of its dimensions in memory, see `backend.memory_order`.

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


def without_last_reshapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model that gives what it would reshape last, under the same names.

    Args:
        model: Left as it is.

    Returns:
        A copy in which outputs of fixed size that only a Reshape makes have the shape of what it reshapes; the model itself when
        there are none.
    """
    import onnx

    dropped = _last_reshapes(model)
    if not dropped:
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    inner = {node.input[0]: node.output[0] for node in dropped}
    outputs = set(inner.values())
    nodes = [node for node in made.graph.node if not outputs.intersection(node.output) or node.op_type not in _RESHAPES]
    for node in nodes:
        node.input[:] = [inner.get(name, name) for name in node.input]
        node.output[:] = [inner.get(name, name) for name in node.output]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    types = {value.name: value.type for value in model.graph.value_info}
    sources = {name: source for source, name in inner.items()}
    for value in made.graph.output:
        if value.name in sources:
            value.type.CopyFrom(types[sources[value.name]])
    return made


_RESHAPES = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")


def _last_reshapes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Nodes that only give another shape to a value that another node makes, of which the model gives nothing else."""
    makers = {name: node for node in model.graph.node for name in node.output}
    read = Counter(name for node in model.graph.node for name in node.input)
    fixed = {value.name for value in (*model.graph.value_info, *model.graph.output) if _sizes_of(value) is not None}
    given = {value.name for value in model.graph.output}
    inner_graphs = any(attribute.HasField("g") for node in model.graph.node for attribute in node.attribute)
    found: dict[str, onnx.NodeProto] = {}
    for value in model.graph.output:
        node = makers.get(value.name)
        if node is None or inner_graphs or node.op_type not in _RESHAPES or node.domain or read[value.name]:
            continue
        source = node.input[0]
        if source in makers and source not in given and {source, value.name} <= fixed:
            found.setdefault(source, node)
    return list(found.values())


def _sizes_of(value: onnx.ValueInfoProto) -> tuple[int, ...] | None:
    dims = value.type.tensor_type.shape.dim
    return tuple(dim.dim_value for dim in dims) if all(dim.HasField("dim_value") for dim in dims) else None


def given_shape(shape: Sequence[object], sizes: Sequence[object]) -> tuple[int, ...] | None:
    """In which shape to have a session write an output.

    Args:
        shape: As the session says.
        sizes: As the output is wanted.

    Returns:
        The session's, where it has as many elements in another arrangement; None where nothing is to be done, or known.
    """
    own, wanted = ([size for size in given if isinstance(size, int)] for given in (shape, sizes))
    if len(own) != len(shape) or len(wanted) != len(sizes) or own == wanted or math.prod(own) != math.prod(wanted):
        return None
    return tuple(own)


def permuted_name(name: str) -> str:
    """Name of an input that is taken as it lies in memory.

    Args:
        name: The input's name in the model that takes it in PyTorch's order.

    Returns:
        A name that no FX node has.
    """
    return f"{name}.as_it_lies"
