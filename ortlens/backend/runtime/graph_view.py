"""One index of an ONNX model for all that judges or changes it before a session: what makes and reads its values, with types and sizes."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import onnx

from ortlens.analysis.index import grouped
from ortlens.backend.basis.node_provenance import captured, used_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

CONTRIB = "com.microsoft"  # the domain of ONNX Runtime's own operators


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """Return the attributes that a node has, by name."""
    return {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}


class GraphView:
    """The main graph of a model, which must stay as it is; what the graphs inside its nodes read counts as read by these nodes."""

    def __init__(self, model: onnx.ModelProto) -> None:
        """View a model; each index is built when it is first asked for."""
        self.model = model
        self.nodes: Sequence[onnx.NodeProto] = list(model.graph.node)  # the same objects whenever they are asked for

    @cached_property
    def makers(self) -> Mapping[str, onnx.NodeProto]:
        """The node that computes each value."""
        return {name: node for node in self.nodes for name in node.output}

    @cached_property
    def readers(self) -> Mapping[str, Sequence[onnx.NodeProto]]:
        """The nodes that read each value that is read, in order; one that reads it twice comes twice."""
        return grouped((name, node) for node in self.nodes for name in (*node.input, *captured(node)))

    @cached_property
    def captured(self) -> frozenset[str]:
        """What the graphs inside nodes read."""
        return frozenset(name for node in self.nodes for name in captured(node))

    @cached_property
    def constants(self) -> Mapping[str, onnx.TensorProto]:
        """The initializers."""
        return {tensor.name: tensor for tensor in self.model.graph.initializer}

    @cached_property
    def returned(self) -> frozenset[str]:
        """The outputs."""
        return frozenset(value.name for value in self.model.graph.output)

    @cached_property
    def types(self) -> Mapping[str, int]:
        """The element types of constants, of inputs, and of the inner values of which they are noted."""
        values = (*self.model.graph.value_info, *self.model.graph.input)
        return {name: tensor.data_type for name, tensor in self.constants.items()} | {
            value.name: value.type.tensor_type.elem_type for value in values
        }

    @cached_property
    def sizes(self) -> Mapping[str, list[int | str]]:
        """The shapes of the values whose rank is known; a symbolic size is its name, or empty."""
        sizes: dict[str, list[int | str]] = {name: list(tensor.dims) for name, tensor in self.constants.items()}
        known = (*self.model.graph.value_info, *self.model.graph.input, *self.model.graph.output)
        for value in (value for value in known if value.type.tensor_type.HasField("shape")):
            dims = value.type.tensor_type.shape.dim
            sizes[value.name] = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in dims]
        return sizes

    def of(self, *op_types: str) -> list[onnx.NodeProto]:
        """List the nodes of some operators of ONNX itself."""
        return [node for node in self.nodes if node.op_type in op_types and not node.domain]

    def edited(
        self,
        change: Callable[[onnx.NodeProto, onnx.NodeProto], Iterable[onnx.NodeProto]],
        constants: Sequence[onnx.TensorProto] = (),
        *,
        domain: str = "",
        first: Iterable[onnx.NodeProto] = (),
    ) -> onnx.ModelProto:
        """Copy the model with what `change` makes of each node: it gets the node and its copy, and may add to `constants`.

        `first` are nodes before all others. Nodes and constants that nothing needs any more go; `domain` is that of new operators.
        """
        made = onnx.ModelProto()
        made.CopyFrom(self.model)
        pairs = zip(self.nodes, made.graph.node, strict=True)
        read = set(self.returned)
        nodes = used_nodes([*first, *(new for node, copy in pairs for new in change(node, copy))], read)
        del made.graph.node[:]
        made.graph.node.extend(nodes)
        for place in reversed([place for place, tensor in enumerate(made.graph.initializer) if tensor.name not in read]):
            del made.graph.initializer[place]  # the others are not copied again
        made.graph.initializer.extend(tensor for tensor in constants if tensor.name in read)
        if domain and all(entry.domain != domain for entry in made.opset_import):
            made.opset_import.append(onnx.helper.make_opsetid(domain, 1))
        return made
