"""The way back from an ONNX node: which FX nodes it was made from, written into its metadata.

Conversion labels each node that it makes. Inlining hands labels on, and so do rewrites (see `keep_labels`): a node that
stands for several then names them all. What is still without a label afterwards takes its neighbour's, and says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import onnx_ir as ir

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import onnx

    from ortlens.trace.records import Confidence

FX_NODE_KEY = "ortlens.node"
"""Key in an ONNX node's metadata: the FX node it was made from; of several, the one that makes its output."""

FX_NODES_KEY = "ortlens.nodes"
"""Key in an ONNX node's metadata: all FX nodes that it computes, where a rewrite put several together."""

INFERRED_KEY = "ortlens.inferred"
"""Key in an ONNX node's metadata: there when its FX node was taken from a neighbour, since a rewrite had made it without any."""

_SEPARATOR = ","


class Label(NamedTuple):
    """What an ONNX node's metadata says of where it comes from.

    Attributes:
        node: FX node that makes its output; empty when it is not known.
        nodes: Every FX node that it computes, that one included.
        inferred: Whether this was taken from a neighbour.
    """

    node: str
    nodes: tuple[str, ...]
    inferred: bool

    @property
    def confidence(self) -> Confidence:
        """How sure it is that the FX nodes made this ONNX node."""
        if not self.node:
            return "none"
        return "inferred" if self.inferred else "fused" if len(self.nodes) > 1 else "exact"


def label_of(node: onnx.NodeProto) -> Label:
    """The way back from a node.

    Args:
        node: Of a model that went through `label_graph`.

    Returns:
        Its label; one with an empty name for a node that was put in later.
    """
    found = {entry.key: entry.value for entry in node.metadata_props}
    name = found.get(FX_NODE_KEY, "")
    several = found.get(FX_NODES_KEY)
    nodes = tuple(several.split(_SEPARATOR)) if several else (name,) if name else ()
    return Label(node=name, nodes=nodes, inferred=INFERRED_KEY in found)


def nodes_of(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """All nodes of a graph.

    Args:
        graph: Of a model.

    Yields:
        Its nodes in order, each followed by those in the bodies of its control flow.
    """
    for node in graph.node:
        yield node
        for _, body in bodies_of(node):
            yield from nodes_of(body)


def bodies_of(node: onnx.NodeProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    """The graphs that a control flow node runs.

    Args:
        node: Any node.

    Yields:
        The name of the attribute, numbered where it holds several, and the graph.
    """
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.name, attribute.g
        for number, body in enumerate(attribute.graphs):
            yield f"{attribute.name}.{number}", body


def merged(first: str, second: str) -> str:
    """The label of a node that a rewrite put in the place of several.

    Args:
        first: Label of one of them, or of several already.
        second: The same of the next.

    Returns:
        All names, each once; `label_graph` tells them apart again.
    """
    return _SEPARATOR.join(dict.fromkeys((*first.split(_SEPARATOR), *second.split(_SEPARATOR))))


def label_graph(graph: ir.Graph) -> None:
    """Give every node, those in the bodies of control flow included, a name of its own and a way back.

    The optimiser and the inliner make nodes without either; such a node takes the FX node of the value it feeds, or of the
    one it reads. A node in a body takes that of the node which the body belongs to.

    Args:
        graph: Of the model as the optimiser left it; changed in place.
    """
    _label(graph, None)
    taken: set[str] = set()
    for node in _everywhere(graph):
        base = node.name or f"{node.metadata_props.get(FX_NODE_KEY, 'node')}/{node.op_type}"
        name, number = base, 1
        while name in taken:
            name, number = f"{base}_{number}", number + 1
        node.name = name
        taken.add(name)


def _everywhere(graph: ir.Graph) -> Iterator[ir.Node]:
    """Nodes of a graph first, then those of bodies, so that the names on top stay as they are."""
    nodes = list(graph)
    yield from nodes
    for node in nodes:
        for body in _bodies(node):
            yield from _everywhere(body)


def _bodies(node: ir.Node) -> list[ir.Graph]:
    bodies: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            bodies.append(attribute.value)
        elif attribute.type == ir.AttributeType.GRAPHS:
            bodies.extend(attribute.value)
    return bodies


def _label(graph: ir.Graph, outer: str | None) -> None:
    nodes = list(graph)
    for node in nodes:
        _choose(node)
        if outer is not None:
            node.metadata_props.setdefault(FX_NODE_KEY, outer)
    for node in reversed(nodes):  # users first, so that a chain of unlabelled nodes takes the label at its end
        _take(node, [user for output in node.outputs for user, _ in output.uses()])
    for node in nodes:
        _take(node, [source for value in node.inputs if value is not None and (source := value.producer()) is not None])
        if FX_NODE_KEY not in node.metadata_props:  # it reads inputs and makes outputs only: those have FX names
            node.metadata_props[FX_NODE_KEY] = str(node.outputs[0].name).removesuffix(".out")
            node.metadata_props[INFERRED_KEY] = "outputs"
        for body in _bodies(node):
            _label(body, node.metadata_props[FX_NODE_KEY])


def _choose(node: ir.Node) -> None:
    """Of several names, the one that its output is called after; else the first, which the rewrite's pattern ends in."""
    names = node.metadata_props.get(FX_NODE_KEY, "").split(_SEPARATOR)
    if len(names) < 2:  # noqa: PLR2004 - several
        return
    called = {str(output.name).split(":")[0].split("/")[0] for output in node.outputs}
    called |= {name.rsplit(".", 1)[0] for name in called}
    node.metadata_props[FX_NODES_KEY] = _SEPARATOR.join(names)
    node.metadata_props[FX_NODE_KEY] = next((name for name in names if name in called), names[0])


def _take(node: ir.Node, neighbours: Sequence[ir.Node]) -> None:
    if FX_NODE_KEY not in node.metadata_props:
        origin = next((other.metadata_props[FX_NODE_KEY] for other in neighbours if FX_NODE_KEY in other.metadata_props), None)
        if origin is not None:
            node.metadata_props[FX_NODE_KEY] = origin
            node.metadata_props[INFERRED_KEY] = "neighbour"
