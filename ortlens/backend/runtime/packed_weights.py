"""Products with quantised weights, in the forms that a session computes with small memory and fast: MatMulNBits, and unsigned operands.

A weight-only quantised layer multiplies by `(q - zero) * scale`, where `q` are 8-bit integers. ONNX Runtime folds that into a float32
constant when it loads the model: four bytes per weight. MatMulNBits keeps the integers and converts them while it multiplies. Its
kernels for 8 bits either unpack the whole matrix in each call or round the other operand to 8 bits as well. Those for 4 bits do neither,
so 8 bits are split into `16 * high + low`, and `[x, x]` is multiplied by `[high, low]`. Values that fit into 4 bits are not split.

ONNX Runtime packs the integers itself, by folding nodes that read torch's memory: constants that we pass would stay in memory beside
what the kernel makes of them.

A product of integers, `aten._int_mm`, is MatMulInteger. Its kernels for processors with VNNI or AMX take an unsigned first operand; one of
int8 goes to a loop that takes up to forty times as long (versions 1.31 and 1.32). So 128 is added to that, as its zero point. Without
VNNI, the sums of such a kernel overflow, and ONNX Runtime makes the weight unsigned as well (see `processor.py`), which it can where
the weight is a constant.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import onnx
import torch

from ortlens.backend.runtime.graph_view import CONTRIB, GraphView, attributes_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ortlens.backend.runtime.weights import FrozenWeight


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

    @property
    def block(self) -> int | None:
        """Size of the blocks of MatMulNBits for a matrix [out, in]; None if none divides it as its scales and zero points do."""
        out, width = self.matrix.shape
        counts = (self.scales, self.zeros.numel())
        if any(count > 1 and count % out for count in counts):  # runs that do not end where rows do
            return None
        runs = [width, *(out * width // count for count in counts if count > out)]
        return next((size for size in _BLOCKS if all(run % size == 0 for run in runs)), None)

    @property
    def blocks(self) -> int:
        """Blocks of a row."""
        return self.matrix.shape[1] // (self.block or 1)

    @property
    def is_of_4_bits(self) -> bool:
        """Whether all integers and zero points are within [-8, 7], or within [0, 15]."""
        low = min(int(self.matrix.min()), int(self.zeros.min()))
        high = max(int(self.matrix.max()), int(self.zeros.max()))
        return (low >= -_OFFSET and high < _OFFSET) or (low >= 0 and high < 2 * _OFFSET)


class Constants:
    """Constants of one model."""

    def __init__(self, graph: GraphView, weights: Mapping[str, torch.Tensor]) -> None:
        """Look at a model that holds the weights as initializers; their tensors must be contiguous."""
        self._graph, self._weights = graph, weights
        self._known = set(graph.constants)
        for node in graph.nodes:
            if node.input and self._known.issuperset(name for name in node.input if name):
                self._known.update(node.output)

    def made_by(self, name: str) -> str | None:
        """Return the operator that makes a value; None for inputs and constants."""
        maker = self._graph.makers.get(name)
        return None if maker is None else str(maker.op_type)

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
        node = self._graph.makers.get(name)
        step = None if node is None or node.domain else _STEPS.get(node.op_type)
        if node is None or step is None or not node.input:
            return None
        if node.op_type == "Mul" and (swapped := self._followed(node.input[1])) is not None:
            return self._scaled(swapped, node, 0)
        found = self._followed(node.input[0])
        return None if found is None else step(self, found, node)

    def _cast(self, found: Dequantised, node: onnx.NodeProto) -> Dequantised | None:
        return replace(found, is_float=True) if attributes_of(node).get("to") == _FLOAT else None

    def _transposed(self, found: Dequantised, node: onnx.NodeProto) -> Dequantised | None:
        order = attributes_of(node).get("perm")
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

    def _scaled(self, found: Dequantised, node: onnx.NodeProto, place: int = 1) -> Dequantised | None:
        shape = self._shape(node.input[place])
        if shape is None or not found.is_float or found.scale or not _is_of_runs(found.matrix, shape):
            return None
        return replace(found, scale=node.input[place], scales=shape.numel())

    def _dequantised(self, found: Dequantised, node: onnx.NodeProto) -> Dequantised | None:
        shape, attributes = self._shape(node.input[1]), attributes_of(node)
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
        if (weight := self._weights.get(name)) is not None:
            return weight
        tensor = self._graph.constants.get(name)
        if tensor is not None:
            is_external = tensor.data_location == onnx.TensorProto.EXTERNAL
            return None if is_external else torch.from_numpy(onnx.numpy_helper.to_array(tensor).copy())
        node = self._graph.makers.get(name)
        source = None if node is None or node.op_type not in _MOVES else self.value(node.input[0])
        if node is None or source is None:
            return None
        if node.op_type == "Cast":
            dtype = _TYPES.get(attributes_of(node)["to"])
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
    "Mul": Constants._scaled,  # noqa: SLF001 - same
    "DequantizeLinear": Constants._dequantised,  # noqa: SLF001 - same
}


def _is_of_runs(matrix: torch.Tensor, shape: torch.Size) -> bool:
    """Tell whether something of a shape has one element for each run of the last dimension, as the weight lies in memory."""
    return matrix.is_contiguous() and (shape.numel() == 1 or tuple(shape) == (*matrix.shape[:-1], 1))


SMALLEST_BYTES = 1 << 14
"""Smaller weights gain nothing from being kept as integers."""
_BLOCKS = (256, 128, 64, 32, 16)  # sizes that the kernel takes
_OFFSET = 8  # the zero point of MatMulNBits without zero points
_IN_FLOAT32 = 1  # level of accuracy: the other operand is not rounded to fewer bits
_MATRIX = 2
_UINT8 = 2


def with_packed_weights(model: onnx.ModelProto, frozen: Sequence[FrozenWeight]) -> onnx.ModelProto:
    """Copy a model with other nodes for products that read quantised weights; without any, return the model itself."""
    if not any(weight.integer_bytes >= SMALLEST_BYTES for weight in frozen):
        return model
    graph, made = GraphView(model), list[onnx.TensorProto]()
    constants = Constants(graph, {weight.name: weight.contiguous for weight in frozen})
    found = {id(node): product for node in graph.of("MatMul", "Gemm") if (product := _product(node, constants)) is not None}
    whole = {id(node) for node in graph.of("MatMulInteger") if _is_of_int8(node, graph, constants)}
    if not found and not whole:
        return model

    def change(node: onnx.NodeProto, copy: onnx.NodeProto) -> list[onnx.NodeProto]:
        writer = _ProductWriter(node, made)
        return writer.nodes(found[id(node)]) if id(node) in found else writer.integers() if id(node) in whole else [copy]

    return graph.edited(change, made, domain=CONTRIB)


def _product(node: onnx.NodeProto, constants: Constants) -> Dequantised | None:
    """Find what a node multiplies by, `[out, in]`; None unless it is a dequantised weight and MatMulNBits can do the same."""
    given = attributes_of(node)
    if not given.get("alpha", 1) == given.get("beta", 1) == 1 or given.get("transA"):
        return None
    if constants.is_constant(node.input[0]) or constants.made_by(node.input[0]) == "DequantizeLinear":
        return None  # ONNX Runtime multiplies quantised tensors as integers
    found = constants.dequantised(node.input[1])
    if found is None or found.matrix.dim() != _MATRIX:
        return None
    made = found if given.get("transB") else replace(found, matrix=found.matrix.t())
    if not made.matrix.is_contiguous() or made.matrix.nbytes < SMALLEST_BYTES:  # the integers lie in the order [in, out], or there are few
        return None
    return None if made.block is None else made


def _is_of_int8(node: onnx.NodeProto, graph: GraphView, constants: Constants) -> bool:
    """Tell whether a node multiplies a value of int8 by a constant, both without zero points."""
    is_int8 = graph.types.get(node.input[0]) == onnx.TensorProto.INT8
    return len(node.input) <= _MATRIX and is_int8 and constants.is_constant(node.input[1])


class _ProductWriter:
    """Writes the nodes of one product, which all carry the origin of the node that they replace."""

    def __init__(self, source: onnx.NodeProto, constants: list[onnx.TensorProto]) -> None:
        self._source, self._constants = source, constants
        self._made: list[onnx.NodeProto] = []

    def nodes(self, product: Dequantised) -> list[onnx.NodeProto]:
        """Write the nodes that compute what the source computes."""
        (out, width), per_row = product.matrix.shape, product.scales <= product.matrix.shape[0]
        halves, zeros, scales = self._in_one(product) if product.is_of_4_bits else self._in_two(product)
        packed = halves[0] if len(halves) == 1 else self._add("Concat", *halves, axis=1)
        x = self._source.input[0]
        repeated = x if len(halves) == 1 else self._add("Concat", *[x] * len(halves), axis=-1)
        given = [repeated, packed, scales, *([] if bool((zeros == _OFFSET).all()) else [self._constant(_nibbles(zeros))])]
        sizes = {"K": width * len(halves), "N": out, "bits": 4, "block_size": product.block}
        result = self._add("MatMulNBits", *given, domain=CONTRIB, accuracy_level=_IN_FLOAT32, **sizes)
        if per_row and product.scale is not None:
            result = self._add("Mul", result, self._reshaped(product.scale, [product.scales]))
        if len(self._source.input) > _MATRIX and self._source.input[_MATRIX]:
            self._add("Add", result, self._source.input[_MATRIX])
        self._made[-1].output[0] = self._source.output[0]
        return self._made

    def integers(self) -> list[onnx.NodeProto]:
        """Write the nodes of a product of int8 whose first operand is unsigned: adding 128 flips its highest bit."""
        unsigned = self._add("BitwiseXor", self._add("Cast", self._source.input[0], to=_UINT8), self._bytes(128))
        self._add("MatMulInteger", unsigned, self._source.input[1], self._bytes(128))
        self._made[-1].output[0] = self._source.output[0]
        return self._made

    def _in_one(self, product: Dequantised) -> tuple[list[str], torch.Tensor, str]:
        """Pack integers of 4 bits into blocks; return them, their zero points and scales."""
        is_positive = min(int(product.matrix.min()), int(product.zeros.min())) >= 0
        same_bits = self._add("Cast", product.weight, to=_UINT8)
        integers = same_bits if is_positive else self._add("BitwiseXor", same_bits, self._bytes(_OFFSET))  # adds it to the low half
        zeros = _spread(product.zeros, product) + (0 if is_positive else _OFFSET)
        return [self._packed(integers, product)], zeros, self._block_scales(product)

    def _in_two(self, product: Dequantised) -> tuple[list[str], torch.Tensor, str]:
        """Split integers of 8 bits into high and low halves; return both as `_in_one` does."""
        same_bits, zeros = self._add("Cast", product.weight, to=_UINT8), _spread(product.zeros, product)
        if product.matrix.dtype is torch.int8:
            same_bits, zeros = self._add("BitwiseXor", same_bits, self._bytes(128)), zeros + 128
        high = self._add("BitShift", same_bits, self._bytes(4), direction="RIGHT")
        low_scales = self._block_scales(product)
        high_scales = self._add("Mul", low_scales, self._constant(torch.tensor(16.0, dtype=torch.float32)))
        scales = self._add("Concat", high_scales, low_scales, axis=1)
        return [self._packed(high, product), self._packed(same_bits, product)], torch.cat([zeros >> 4, zeros & 15], dim=1), scales

    def _block_scales(self, product: Dequantised) -> str:
        """Return the scale of each block: 1 where whole rows are scaled afterwards."""
        out, blocks = product.matrix.shape[0], product.blocks
        if product.scales <= out or product.scale is None:
            return self._add("Expand", self._constant(torch.ones(1, 1, dtype=torch.float32)), self._constant(torch.tensor([out, blocks])))
        grouped = self._reshaped(product.scale, [out, product.scales // out, 1])
        shape = [out, product.scales // out, blocks * out // product.scales]
        return self._reshaped(self._add("Expand", grouped, self._constant(torch.tensor(shape))), [out, blocks])

    def _packed(self, integers: str, product: Dequantised) -> str:
        """Pack the low halves of bytes, two in one, the first in the low half."""
        sizes = [product.matrix.shape[0], product.blocks, product.matrix.shape[1] // product.blocks // 2, 2]
        pairs = self._reshaped(self._add("BitwiseAnd", integers, self._bytes(15)), sizes)
        first, second = (self._add("Gather", pairs, self._constant(torch.tensor(place)), axis=3) for place in (0, 1))
        return self._add("BitwiseOr", first, self._add("BitShift", second, self._bytes(4), direction="LEFT"))

    def _reshaped(self, value: str, shape: list[int]) -> str:
        return self._add("Reshape", value, self._constant(torch.tensor(shape)))

    def _bytes(self, value: int) -> str:
        return self._constant(torch.tensor(value, dtype=torch.uint8))

    def _constant(self, tensor: torch.Tensor) -> str:
        name = f"{self._source.output[0]}/packed_{len(self._constants)}"
        self._constants.append(onnx.numpy_helper.from_array(tensor.numpy(), name))
        return name

    def _add(self, op_type: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        number = len(self._made)
        name = self._source.name if op_type.startswith("MatMul") else f"{self._source.name}/packed_{number}"
        output = f"{self._source.output[0]}/packed:{number}"
        node = onnx.helper.make_node(op_type, list(inputs), [output], name=name, domain=domain, **attributes)
        node.metadata_props.extend(self._source.metadata_props)
        self._made.append(node)
        return output


def _spread(values: torch.Tensor, product: Dequantised) -> torch.Tensor:
    out = product.matrix.shape[0]
    per_row = (values if values.numel() > 1 else values.expand(out)).reshape(out, -1)
    return per_row.repeat_interleave(product.blocks // per_row.shape[1], dim=1)


def _nibbles(values: torch.Tensor) -> torch.Tensor:
    """Pack integers of 4 bits, two in one byte; rows of an odd number end in a half that nobody reads."""
    even = torch.nn.functional.pad(values, (0, values.shape[1] % 2)).to(torch.uint8)
    return even[:, 0::2] | (even[:, 1::2] << 4)
