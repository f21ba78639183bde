"""Node provenance: the FX nodes that an ONNX node was made from, kept in the node's metadata.

The converter writes the FX node's name into each ONNX node that it makes. Inlining copies the entry, and rewrites merge the entries
of the nodes that they replace (see `optimize`). A node that is left without an entry takes its
neighbour's and is marked as inferred.
"""

from __future__ import annotations

import copy
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import onnx
    import onnx_ir as ir

    from ortlens.trace.records import Confidence

FX_NODE_KEY = "ortlens.node"
"""Metadata key of an ONNX node: the FX node it was made from; if there are several, the one that computes its output."""

FX_NODES_KEY = "ortlens.nodes"
"""Metadata key of an ONNX node: all FX nodes that it computes, when a rewrite merged several."""

INFERRED_KEY = "ortlens.inferred"
"""Metadata key of an ONNX node: present when a rewrite left the node without provenance and it was inferred from a neighbour."""

_SEPARATOR = ","


class NodeProvenance(NamedTuple):
    """Where an ONNX node comes from, according to its metadata."""

    node: str  # FX node that computes its output; empty when unknown
    nodes: tuple[str, ...]  # every FX node that it computes, including `node`
    inferred: bool  # whether `node` was inferred from a neighbour

    @property
    def confidence(self) -> Confidence:
        """How certain it is that the ONNX node was made from these FX nodes."""
        if not self.node:
            return "none"
        return "inferred" if self.inferred else "fused" if len(self.nodes) > 1 else "exact"


def provenance_of(node: onnx.NodeProto) -> NodeProvenance:
    """Read the provenance that `assign_provenance` gave a node; the FX node's name is empty for one inserted later."""
    found = {entry.key: entry.value for entry in node.metadata_props}
    name = found.get(FX_NODE_KEY, "")
    several = found.get(FX_NODES_KEY)
    nodes = tuple(several.split(_SEPARATOR)) if several else (name,) if name else ()
    return NodeProvenance(node=name, nodes=nodes, inferred=INFERRED_KEY in found)


def node_names(model: onnx.ModelProto) -> dict[str, str]:
    """Map the name of each node, in the order of the model, to that of the FX node that it comes from."""
    return {node.name: provenance_of(node).node for node in model.graph.node}


def iter_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield all nodes of a graph in order, each control flow node followed by the nodes of its subgraphs."""
    for node in graph.node:
        yield node
        for _, subgraph in subgraphs_of(node):
            yield from iter_nodes(subgraph)


def with_input_names(model: onnx.ModelProto, names: Mapping[str, str]) -> onnx.ModelProto:
    """Copy a model with other names of its inputs and initializers, for those who read it; a name that is taken is left out."""
    made = copy.deepcopy(model)
    nodes = list(iter_nodes(made.graph))
    taken = {name for node in nodes for name in (*node.input, *node.output)}
    known = {old: new for new, old in {new: old for old, new in names.items() if new not in taken}.items()}
    for value in (*made.graph.input, *made.graph.initializer):
        value.name = known.get(value.name, value.name)
    for node in nodes:
        node.input[:] = [known.get(name, name) for name in node.input]
    return made


def opsets_of(model: onnx.ModelProto) -> dict[str, int]:
    """Map the domains of a model's operators to versions; that of ONNX is empty."""
    return {"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in model.opset_import}


def operator_name(node: onnx.NodeProto) -> str:
    """Name an operator with its domain, unless that is ONNX's own: `Conv`, or `com.microsoft::FusedConv`."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"


def structure_of(model: onnx.ModelProto) -> dict[str, Any]:
    """Return the fields of the record of a model that follow from its nodes."""
    ops = Counter(map(operator_name, model.graph.node)).most_common()
    return {"opset": opsets_of(model).get(""), "node_count": len(model.graph.node), "ops": tuple(f"{op}:{count}" for op, count in ops)}


def subgraphs_of(node: onnx.NodeProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    """Yield the subgraphs of a control flow node with their attribute's name, numbered if it holds several."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.name, attribute.g
        for number, subgraph in enumerate(attribute.graphs):
            yield f"{attribute.name}.{number}", subgraph


def captured(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names of outer values that the graphs inside a node read and return."""
    for _, inner in subgraphs_of(node):
        own = {value.name for value in (*inner.input, *inner.initializer)} | {name for nested in inner.node for name in nested.output}
        read = [name for nested in inner.node for name in (*nested.input, *captured(nested))]
        yield from (name for name in (*read, *(value.name for value in inner.output)) if name and name not in own)


def used_nodes(nodes: list[onnx.NodeProto], wanted: set[str]) -> list[onnx.NodeProto]:
    """Select the nodes that the wanted values need; add all that these read to `wanted`."""
    kept = []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update(node.input, captured(node))
    return kept[::-1]


def with_outputs(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """Copy a model with these outputs alone, in this order; ONNX Runtime infers the types that the model does not give."""
    import onnx

    made, typed = copy.deepcopy(model), {value.name: value for value in model.graph.output}
    del made.graph.output[:]
    made.graph.output.extend(typed.get(name) or onnx.ValueInfoProto(name=name) for name in dict.fromkeys(names))
    return made


def part_of(model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], given: Mapping[str, Any], outputs: Sequence[str]) -> onnx.ModelProto:
    """Make a model of some nodes, which reads the arrays that are given, by name, and the constants that its nodes read."""
    import onnx

    read = {name for node in nodes for name in (*node.input, *captured(node))}
    made = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    made.graph.name = "part"
    made.graph.node.extend(nodes)
    made.graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in read and tensor.name not in given)
    made.graph.input.extend(
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in given.items()
    )
    made.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    return made


def graphs_of(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """Walk the graph of a model and the bodies of control flow in it."""
    yield model.graph
    for node in iter_nodes(model.graph):
        yield from (body for _, body in subgraphs_of(node))


def merge_provenance(first: str, second: str) -> str:
    """Combine the metadata of two nodes that a rewrite merges; `assign_provenance` splits it again."""
    return _SEPARATOR.join(dict.fromkeys((*first.split(_SEPARATOR), *second.split(_SEPARATOR))))


def assign_provenance(graph: ir.Graph) -> None:
    """Give every node, including those in subgraphs, a unique name and a provenance, in place.

    The optimizer and the inliner can make nodes that have neither. Such a node takes the FX node of the value that it feeds, else of a
    value that it reads. A node in a subgraph takes that of its control flow node.
    """
    _assign(graph, None)
    taken: set[str] = set()
    for node in _all_nodes(graph):
        base = node.name or f"{node.metadata_props.get(FX_NODE_KEY, 'node')}/{node.op_type}"
        name, number = base, 1
        while name in taken:
            name, number = f"{base}_{number}", number + 1
        node.name = name
        taken.add(name)


def _all_nodes(graph: ir.Graph) -> Iterator[ir.Node]:
    """Yield the nodes of a graph before those of its subgraphs, so that top-level nodes keep their names."""
    nodes = list(graph)
    yield from nodes
    for node in nodes:
        for subgraph in subgraphs(node):
            yield from _all_nodes(subgraph)


def subgraphs(node: ir.Node) -> list[ir.Graph]:
    """List the bodies of a control flow node; see `subgraphs_of`."""
    import onnx_ir as ir  # whoever has a node of it has imported it; runners of cached models need names of this file only

    found: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            found.append(attribute.value)
        elif attribute.type == ir.AttributeType.GRAPHS:
            found.extend(attribute.value)
    return found


def _assign(graph: ir.Graph, outer: str | None) -> None:
    nodes = list(graph)
    for node in nodes:
        _split_merged(node)
        if outer is not None:
            node.metadata_props.setdefault(FX_NODE_KEY, outer)
    for node in reversed(nodes):  # consumers first: in a chain of nodes without provenance, all take that of the last
        _infer(node, [user for output in node.outputs for user, _ in output.uses()])
    for node in nodes:
        _infer(node, [source for value in node.inputs if value is not None and (source := value.producer()) is not None])
        if FX_NODE_KEY not in node.metadata_props:  # it connects graph inputs to graph outputs, which are named after FX nodes
            node.metadata_props[FX_NODE_KEY] = str(node.outputs[0].name).removesuffix(".out")
            node.metadata_props[INFERRED_KEY] = "outputs"
        for subgraph in subgraphs(node):
            _assign(subgraph, node.metadata_props[FX_NODE_KEY])


def _split_merged(node: ir.Node) -> None:
    """Choose the FX node among several: the one that the output is named after, else the first, where the rewrite's pattern ends."""
    names = node.metadata_props.get(FX_NODE_KEY, "").split(_SEPARATOR)
    if len(names) < 2:  # noqa: PLR2004 - several
        return
    called = {str(output.name).split(":")[0].split("/")[0] for output in node.outputs}
    called |= {name.rsplit(".", 1)[0] for name in called}
    node.metadata_props[FX_NODES_KEY] = _SEPARATOR.join(names)
    node.metadata_props[FX_NODE_KEY] = next((name for name in names if name in called), names[0])


def _infer(node: ir.Node, neighbours: Sequence[ir.Node]) -> None:
    """Copy a neighbour's provenance, unless the node has its own."""
    if FX_NODE_KEY not in node.metadata_props:
        origin = next((other.metadata_props[FX_NODE_KEY] for other in neighbours if FX_NODE_KEY in other.metadata_props), None)
        if origin is not None:
            node.metadata_props[FX_NODE_KEY] = origin
            node.metadata_props[INFERRED_KEY] = "neighbour"
