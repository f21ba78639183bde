"""Rewrites of a model's boundary, so that inputs and outputs need no copy.

ONNX Runtime takes contiguous tensors only. A transposed or channels-last tensor is contiguous in another order of dimensions.
The model of a session takes it in that order and begins with a Transpose, which ONNX Runtime can move through the graph, fuse
into a matrix product, or cancel against the Transpose of an output. A copy before the call could not be avoided.

A model that ends in a Reshape copies its output: inside a run ONNX Runtime lets a Reshape share the memory of its input, but an
output of the model has memory of its own. So the session returns the input of the Reshape, written into the memory of the output.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from ortlens.backend.conversion.node_provenance import FX_NODE_KEY, INFERRED_KEY, subgraphs_of
from ortlens.backend.memory_order import inverse_order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx


def with_permuted_inputs(model: onnx.ModelProto, orders: Mapping[str, tuple[int, ...]]) -> onnx.ModelProto:
    """Copy a model so that it takes some inputs in memory order, by a Transpose each; without any, return the model itself.

    For the orders, see `backend.memory_order`.
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
    """Rename and permute an input in place; return the node that computes the value of the old name from it."""
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
    """Drop the last Reshape before an output; the output keeps its name and gets the shape of the Reshape's input.

    Return a copy; the model itself if no Reshape computes an output of fixed size.
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
    """List nodes that only reshape, for an output, a value that another node computes and that the model does not return itself."""
    makers = {name: node for node in model.graph.node for name in node.output}
    read = Counter(name for node in model.graph.node for name in node.input)
    fixed = {value.name for value in (*model.graph.value_info, *model.graph.output) if _sizes_of(value) is not None}
    given = {value.name for value in model.graph.output}
    inner_graphs = any(True for node in model.graph.node for _ in subgraphs_of(node))
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
    if not value.type.tensor_type.HasField("shape"):
        return None
    dims = value.type.tensor_type.shape.dim
    return tuple(dim.dim_value for dim in dims) if all(dim.HasField("dim_value") for dim in dims) else None


def given_shape(shape: Sequence[object], sizes: Sequence[object]) -> tuple[int, ...] | None:
    """Return a session's shape of an output, if it is fixed, differs from PyTorch's and has as many elements; else None."""
    own, wanted = ([size for size in given if isinstance(size, int)] for given in (shape, sizes))
    if len(own) != len(shape) or len(wanted) != len(sizes) or own == wanted or math.prod(own) != math.prod(wanted):
        return None
    return tuple(own)


def permuted_name(name: str) -> str:
    """Return a name, which no FX node has, for an input that the model takes in memory order."""
    return f"{name}.as_it_lies"
