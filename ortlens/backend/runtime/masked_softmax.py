"""Masked attention for processors that stall at denormal numbers.

The softmax of ONNX Runtime makes a denormal number of a score that a mask hides. Processors of Intel take about 150 cycles for one, so
that a softmax of which half is hidden takes five to seven times as long as without a mask (versions 1.31 and 1.32). So no score is more
than 72 below the largest of its row: its exponential is 5e-32 of the largest one, and a normal number. HardSigmoid then takes that away
from each weight: what is hidden weighs exactly 0, as infinities and unused memory behind a mask need it, and no other weight changes
that a sum could show. Of the activations with a threshold, ThresholdedRelu and Shrink give 0 for NaN.

Only weights that a product reads are changed, not those that the model returns: there, 0 should be 0.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import onnx
import torch

from ortlens.backend.runtime.graph_view import GraphView

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ortlens.backend.runtime.weights import FrozenWeight

_LAST_AXIS, _BELOW = "masked softmax: axis", "masked softmax: below"  # names of constants; no name of an FX node has a space
_DISTANCE = 72.0  # a row of 4 million such scores still has normal weights
_HIDING = -80.0  # what hides a score, by which its exponential is nearly denormal; Swin adds -100
_MOVES = frozenset({"Cast", "Expand", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
_ORDERING = frozenset({"Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Trilu"})
_LARGEST = 1 << 20  # numbers of a mask
_FARTHEST = 64  # values between a softmax and a mask, and between that and what it is made of
_PRODUCTS = frozenset({"MatMul", "FusedMatMul"})


def with_normal_weights(model: onnx.ModelProto, frozen: Sequence[FrozenWeight]) -> onnx.ModelProto:
    """Copy a model with the hidden scores of its attention raised; without any, return the model itself."""
    graph = _MaskedScores(GraphView(model), frozen)
    found = {node.output[0] for node in graph.view.of("Softmax") if graph.is_masked_attention(node)}
    if not found:
        return model
    axis = onnx.helper.make_tensor(_LAST_AXIS, onnx.TensorProto.INT64, [1], [-1])
    below = onnx.helper.make_tensor(_BELOW, onnx.TensorProto.FLOAT, [], [_DISTANCE])
    return graph.view.edited(lambda node, copy: _raised(copy) if node.output[0] in found else [copy], [axis, below])


def _is_mask(weight: torch.Tensor) -> bool:
    """Tell whether a weight is a matrix of a few megabytes at most, some of whose numbers hide scores."""
    is_table = weight.dtype is torch.float32 and weight.dim() > 1 and 0 < weight.numel() <= _LARGEST
    return is_table and float(weight.detach().min()) <= _HIDING


def _raised(softmax: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Write a softmax over raised scores, and what takes the weight of these away. NaN stays, and so does a row without any score."""
    scores, result = softmax.input[0], softmax.output[0]
    steps = (("ReduceMax", scores, _LAST_AXIS), ("Sub", f"{result}/ReduceMax", _BELOW), ("Max", scores, f"{result}/Sub"))
    nodes = [onnx.helper.make_node(kind, [*read], [f"{result}/{kind}"], name=f"{softmax.name}/{kind}") for kind, *read in steps]
    softmax.input[0], softmax.output[0] = nodes[-1].output[0], f"{result}/Softmax"
    least = 1.001 * math.exp(-_DISTANCE)
    cut = onnx.helper.make_node("HardSigmoid", [*softmax.output], [result], name=f"{softmax.name}/HardSigmoid", alpha=1.0, beta=-least)
    for node in (*nodes, cut):
        node.metadata_props.extend(softmax.metadata_props)
    return [*nodes, softmax, cut]


class _MaskedScores:
    """Which values of a model are scores with a mask."""

    def __init__(self, view: GraphView, frozen: Sequence[FrozenWeight]) -> None:
        """Look at a model that holds the weights as initializers."""
        self.view = view
        self._weights = {weight.name: weight.tensor for weight in frozen}
        self._numbers = {name: tensor for name, tensor in view.constants.items() if tensor.data_location != onnx.TensorProto.EXTERNAL}
        tables = (tensor for tensor in view.constants.values() if tensor.data_type != onnx.TensorProto.INT64)  # those are places
        self._constants = {tensor.name for tensor in tables if len(tensor.dims) > 1 and min(tensor.dims[-2:]) > 1}
        self._known: dict[str, bool] = {}  # of values: whether they hide scores

    def is_masked_attention(self, node: onnx.NodeProto) -> bool:
        """Tell whether a node is a softmax over masked scores, in float32 over the last dimension, for products alone."""
        if self.view.types.get(node.input[0]) != onnx.TensorProto.FLOAT:
            return False
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), -1)
        is_last = axis in (-1, len(self.view.sizes.get(node.input[0], ())) - 1)
        return is_last and self._is_multiplied(node.output[0]) and self._hides(node.input[0])

    def _is_multiplied(self, name: str) -> bool:
        readers = self.view.readers.get(name, ())
        if name in self.view.returned or not readers:
            return False
        return all(
            reader.op_type in _PRODUCTS or (reader.op_type in {*_MOVES, "Where"} and self._is_multiplied(reader.output[0]))
            for reader in readers
        )

    def _hides(self, name: str, depth: int = 0) -> bool:
        """Tell whether a value is or has taken up a mask that hides many scores, as a causal one does, and one of padding seldom."""
        if name not in self._known:
            self._known[name] = depth < _FARTHEST and self._takes_up_mask(name, depth + 1)
        return self._known[name]

    def _takes_up_mask(self, name: str, depth: int) -> bool:
        if name in self._weights:
            return _is_mask(self._weights[name])
        if self._is_hiding(name):
            return len(self._numbers[name].dims) > 1
        node = self.view.makers.get(name)
        if node is None:
            return False
        if node.op_type in _MOVES:
            return self._hides(node.input[0], depth)
        chosen = node.input[1:] if node.op_type == "Where" else node.input
        if node.op_type in {"Where", "Add"} and any(self._hides(value, depth) for value in chosen):
            return True
        return node.op_type in {"Where", "Mul"} and any(map(self._is_hiding, chosen)) and self._tells_places(node)

    def _is_hiding(self, name: str) -> bool:
        """Tell whether a constant of the model itself hides scores, such as minus infinity."""
        tensor = self._numbers.get(name)
        if tensor is None or tensor.data_type != onnx.TensorProto.FLOAT:
            return False
        return bool((onnx.numpy_helper.to_array(tensor) <= _HIDING).any())

    def _orders(self, node: onnx.NodeProto) -> bool:
        return node.op_type in _ORDERING and not any(name in self._numbers and not self._numbers[name].dims for name in node.input)

    def _tells_places(self, node: onnx.NodeProto) -> bool:
        """Tell whether a value comes from a comparison of places with each other, or from a matrix of constants."""
        waiting, seen = [node], {node.output[0]}
        while waiting and len(seen) <= _FARTHEST:
            for name in waiting.pop().input:
                maker = self.view.makers.get(name)
                if name in self._constants or (maker is not None and self._orders(maker)):
                    return True
                if maker is not None and name not in seen:
                    seen.add(name)
                    waiting.append(maker)
        return False
