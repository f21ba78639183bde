"""Finds the weights that a model only looks up, as an embedding does."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import onnx


def lookup_tables(model: onnx.ModelProto, weights: Iterable[str]) -> frozenset[str]:
    """Find the weights that Gather alone reads, at places that differ per call; as constants they would gain nothing."""
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
    """Yield the names that the graphs inside a node read, those of their own values among them."""
    for attribute in node.attribute:
        for inner in (attribute.g, *attribute.graphs):
            for nested in inner.node:
                yield from nested.input
                yield from captured(nested)
