"""Finds the weights that a model only looks up, as an embedding does."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import onnx


def lookup_tables(model: onnx.ModelProto, weights: Iterable[str]) -> frozenset[str]:
    """The weights that Gather alone reads, at places that differ per call; as constants they would gain nothing.

    Args:
        model: With weights as inputs.
        weights: The names of these inputs.

    Returns:
        The names of those weights.
    """
    given = frozenset(weights)
    varying = {value.name for value in model.graph.input} - given
    tables: set[str] = set()
    others = {value.name for value in model.graph.output}
    for node in model.graph.node:
        read = [*node.input, *captured(node)]
        if varying.intersection(read):
            varying.update(node.output)
        looks_up = node.op_type == "Gather" and not node.domain and node.input[1] in varying
        others.update(read[1:] if looks_up else read)
        tables.update(read[:1] if looks_up else ())
    return frozenset(tables & given) - others


def captured(node: onnx.NodeProto) -> Iterator[str]:
    """What the graphs inside a node read.

    Args:
        node: Of a model.

    Yields:
        Names, those of the graphs' own values among them.
    """
    for attribute in node.attribute:
        for inner in (attribute.g, *attribute.graphs):
            for nested in inner.node:
                yield from nested.input
                yield from captured(nested)
