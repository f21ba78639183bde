"""What a model computes from its constants alone: which values are dequantised weights, and with which scales and zero points."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx

_FLOAT = 1
_WHOLE = (torch.int8, torch.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dequantised:
    """A value that is `(q - zero) * scale` of a weight."""

    weight: str
    matrix: torch.Tensor  # its integers in the shape of the value; a view of the weight
    is_float: bool  # whether they have been converted to float32
    zeros: torch.Tensor  # zero points, for runs of equal length over the weight as it lies in memory
    scale: str | None = None  # name of the scales, for such runs as well; None without
    scales: int = 1  # their number


class Constants:
    """Constants of one model."""

    def __init__(self, model: onnx.ModelProto, weights: Mapping[str, torch.Tensor]) -> None:
        """Index a model that holds the weights as initializers; their tensors must be contiguous."""
        self._weights = weights
        self._initializers = {tensor.name: tensor for tensor in model.graph.initializer}
        self._makers = {name: node for node in model.graph.node for name in node.output}
        self._known = set(self._initializers)
        for node in model.graph.node:
            if node.input and self._known.issuperset(name for name in node.input if name):
                self._known.update(node.output)

    def made_by(self, name: str) -> str | None:
        """Return the operator that makes a value; None for inputs and constants."""
        return self._makers[name].op_type if name in self._makers else None

    def is_constant(self, name: str) -> bool:
        """Tell whether a value depends on constants alone."""
        return name in self._known

    def dequantised(self, name: str) -> Dequantised | None:
        """Follow a value back to the weight that it dequantises; None for anything else, or where the runs of its scales are unknown."""
        found = self._followed(name) if name in self._known else None
        return found if found is not None and found.is_float else None

    def _followed(self, name: str) -> Dequantised | None:
        weight = self._weights.get(name)
        if weight is not None:
            zero = torch.zeros(1, dtype=torch.int32)
            return Dequantised(weight=name, matrix=weight, is_float=False, zeros=zero) if weight.dtype in _WHOLE else None
        node = self._makers.get(name)
        step = None if node is None or node.domain else _STEPS.get(node.op_type)
        if node is None or step is None or not node.input:
            return None
        if node.op_type == "Mul" and (swapped := self._followed(node.input[1])) is not None:
            return self._scaled(swapped, node.input[0])
        found = self._followed(node.input[0])
        return None if found is None else step(self, found, node)

    def _cast(self, found: Dequantised, node: onnx.NodeProto) -> Dequantised | None:
        return replace(found, is_float=True) if _attributes(node).get("to") == _FLOAT else None

    def _transposed(self, found: Dequantised, node: onnx.NodeProto) -> Dequantised | None:
        order = _attributes(node).get("perm")
        return replace(found, matrix=found.matrix.permute(order)) if order else None

    def _reshaped(self, found: Dequantised, node: onnx.NodeProto) -> Dequantised | None:
        shape = self.value(node.input[1])
        if shape is None or 0 in shape.tolist() or not found.matrix.is_contiguous():
            return None
        return replace(found, matrix=found.matrix.reshape(shape.tolist()))

    def _shifted(self, found: Dequantised, node: onnx.NodeProto) -> Dequantised | None:
        zeros = self.value(node.input[1])
        if zeros is None or not found.is_float or found.scale or not _is_of_runs(found.matrix, zeros.shape):
            return None
        return self._with_zeros(found, zeros)

    @staticmethod
    def _with_zeros(found: Dequantised, zeros: torch.Tensor) -> Dequantised | None:
        whole = zeros.reshape(-1).to(torch.int32)
        low, high = (0, 255) if found.matrix.dtype == torch.uint8 else (-128, 127)
        fits = bool((whole == zeros.reshape(-1)).all()) and int(whole.min()) >= low and int(whole.max()) <= high
        return replace(found, zeros=whole) if fits else None

    def _multiplied(self, found: Dequantised, node: onnx.NodeProto) -> Dequantised | None:
        return self._scaled(found, node.input[1])

    def _scaled(self, found: Dequantised, scale: str) -> Dequantised | None:
        shape = self._shape(scale)
        if shape is None or not found.is_float or found.scale or not _is_of_runs(found.matrix, shape):
            return None
        return replace(found, scale=scale, scales=shape.numel())

    def _dequantised(self, found: Dequantised, node: onnx.NodeProto) -> Dequantised | None:
        shape, attributes = self._shape(node.input[1]), _attributes(node)
        if found.is_float or shape is None or attributes.get("block_size") or not found.matrix.is_contiguous():
            return None
        if shape.numel() > 1 and attributes.get("axis", 1) % found.matrix.dim():
            return None  # only runs that lie next to each other
        made = replace(found, is_float=True, scale=node.input[1], scales=shape.numel())
        if len(node.input) <= 2 or not node.input[2]:  # noqa: PLR2004 - there is no zero point
            return made
        zeros = self.value(node.input[2])
        return None if zeros is None else self._with_zeros(made, zeros)

    def _shape(self, name: str) -> torch.Size | None:
        value = self.value(name)
        return None if value is None or value.dtype != torch.float32 else value.shape

    def value(self, name: str) -> torch.Tensor | None:
        """Return a scale or zero point; None if it is not constant, or computed in another way than by moves and casts."""
        import onnx

        if (weight := self._weights.get(name)) is not None:
            return weight
        tensor = self._initializers.get(name)
        if tensor is not None:
            is_external = tensor.data_location == onnx.TensorProto.EXTERNAL
            return None if is_external else torch.from_numpy(onnx.numpy_helper.to_array(tensor).copy())
        node = self._makers.get(name)
        source = None if node is None or node.op_type not in _MOVES else self.value(node.input[0])
        if node is None or source is None:
            return None
        if node.op_type == "Cast":
            dtype = _TYPES.get(_attributes(node)["to"])
            return None if dtype is None else source.to(dtype)
        shape = self.value(node.input[1])
        return None if shape is None or 0 in shape.tolist() else source.reshape(shape.tolist())


_MOVES = ("Cast", "Reshape")
_TYPES = {1: torch.float32, 2: torch.uint8, 3: torch.int8, 6: torch.int32, 7: torch.int64}
_STEPS: dict[str, Any] = {
    "Cast": Constants._cast,  # noqa: SLF001 - the steps of this class, by operator
    "Transpose": Constants._transposed,  # noqa: SLF001 - same
    "Reshape": Constants._reshaped,  # noqa: SLF001 - same
    "Sub": Constants._shifted,  # noqa: SLF001 - same
    "Mul": Constants._multiplied,  # noqa: SLF001 - same
    "DequantizeLinear": Constants._dequantised,  # noqa: SLF001 - same
}


def _is_of_runs(matrix: torch.Tensor, shape: torch.Size) -> bool:
    """Tell whether something of a shape has one element for each run of the last dimension, as the weight lies in memory."""
    if not matrix.is_contiguous():
        return False
    return shape.numel() == 1 or (tuple(shape) == (*matrix.shape[:-1], 1))


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {attribute.name: list(attribute.ints) or attribute.i for attribute in node.attribute}
