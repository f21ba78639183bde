"""Runs that fail where ONNX Runtime would hide an overflow, so that PyTorch computes the call.

A row of a normalisation whose squares overflow has no deviation to divide by. ONNX Runtime makes 0 of it, PyTorch NaN or 0, as the number
of columns and its vectors have it. Integers of 8 bits are two halves in MatMulNBits (see `packed_weights`), whose products with infinity,
or with what is near it, are NaN where their sum is none.

Checks read what is there or small: an inverse deviation per row, the activations of a product. One Unsqueeze, which copies nothing, fails
the run: it adds no dimension to the last result that they vouch for, or an impossible one; a Reshape would vanish before another. What
exceeds 1.8e19, whose square is infinite, is taken for an overflow; NaN is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx

from ortlens.backend.runtime.graph_view import GraphView

if TYPE_CHECKING:
    from collections.abc import Sequence

_FINITE, _IMPOSSIBLE = "overflow: finite", "overflow: dimension"  # names of constants; no name of an FX node has a space
_CHECKED = frozenset({"LayerNormalization", "InstanceNormalization", "MatMulNBits"})


def with_overflow_checks(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model with checks of its normalisations and products of integers; without any, return the model itself."""
    graph = GraphView(model)
    hiding = [node for node in graph.nodes if _may_hide(node, graph)]
    if not hiding:
        return model
    finite = onnx.helper.make_tensor(_FINITE, onnx.TensorProto.FLOAT, [1], [0.0])
    impossible = onnx.helper.make_tensor(_IMPOSSIBLE, onnx.TensorProto.INT64, [1], [99])
    left, checked = list(map(id, hiding)), list[onnx.NodeProto]()

    def change(node: onnx.NodeProto, copy: onnx.NodeProto) -> list[onnx.NodeProto]:
        if id(node) not in left:
            return [copy]
        checked.append(copy)
        return [copy, *(_Checks(copy, graph).nodes(checked) if len(checked) == len(left) else ())]

    return graph.edited(change, [finite, impossible])


def _activations(node: onnx.NodeProto, graph: GraphView) -> str:
    """Return what a node normalises or multiplies, before it was reshaped to groups, or joined with itself for halves of integers."""
    name = node.input[0]
    while (maker := graph.makers.get(name)) is not None and (maker.op_type == "Reshape" or _is_doubled(maker)):
        name = maker.input[0]
    return str(name)


def _is_doubled(node: onnx.NodeProto) -> bool:
    return node.op_type == "Concat" and len(set(node.input)) == 1


def _may_hide(node: onnx.NodeProto, graph: GraphView) -> bool:
    return node.op_type in _CHECKED and graph.types.get(_activations(node, graph)) == onnx.TensorProto.FLOAT


class _Checks:
    """Writes the checks of a model; they have no origin in it, as they read nodes of many lines."""

    def __init__(self, last: onnx.NodeProto, graph: GraphView) -> None:
        self._last, self._result, self._graph = last, last.output[0], graph
        self._made: list[onnx.NodeProto] = []

    def nodes(self, checked: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
        """Give inverse deviations names, and write what reads them and fails the run; to be placed after the last node."""
        squared = dict.fromkeys(_activations(node, self._graph) for node in checked if node.op_type != "LayerNormalization")
        sums = [self._add("ReduceSumSquare", name, keepdims=0) for name in squared]
        for alike in self._deviations([node for node in checked if node.op_type == "LayerNormalization"]):
            each = self._add("Min", *alike) if len(alike) > 1 else alike[0]
            sums.append(self._add("Reciprocal", self._add("ReduceMin", each, keepdims=0)))
        self._last.output[0] = hidden = f"{self._result}/unchecked"
        added = self._add("Compress", _IMPOSSIBLE, self._add("IsInf", self._add("Max", *sums, _FINITE)))
        self._add("Unsqueeze", hidden, added)
        self._made[-1].output[0] = self._result
        return self._made

    def _deviations(self, norms: Sequence[onnx.NodeProto]) -> list[list[str]]:
        """Collect the inverse deviations of layer norms, those of one shape together."""
        found: dict[tuple[object, ...], list[str]] = {}
        for node in norms:
            node.output.extend([""] * (3 - len(node.output)))
            node.output[2] = node.output[2] or f"{node.output[0]}/deviation"
            axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), -1)
            sizes = self._graph.sizes.get(node.input[0])
            rows = (node.output[2],) if sizes is None or "" in sizes else (len(sizes), *sizes[:axis])
            found.setdefault(rows, []).append(node.output[2])
        return list(found.values())

    def _add(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        output = f"{self._result}/overflow:{len(self._made)}"
        node = onnx.helper.make_node(op_type, list(inputs), [output], name=f"overflow check: {op_type} {len(self._made)}", **attributes)
        self._made.append(node)
        return output
