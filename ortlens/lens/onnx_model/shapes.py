"""Types and shapes of every value of a model, by ONNX shape inference, and the floating-point operations that follow from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import onnx

from ortlens.backend.conversion.node_provenance import iter_nodes, subgraphs_of
from ortlens.lens.onnx_model.source import bits_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Shape: TypeAlias = "tuple[int | str, ...]"

_MOST_ELEMENTS = 1 << 48
_MOST = 1 << 62  # records hold 64 bits

_NAMES = {"FLOAT": "float32", "DOUBLE": "float64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """What is known of a value."""

    dtype: str | None  # element type in numpy's words, such as `float32`; None where it is unknown
    shape: Shape | None  # sizes, names of symbolic ones, `?` for those without a name; None where the number of dimensions is unknown
    bits: int  # of one element

    @property
    def bytes(self) -> int | None:
        """Its size; None with symbolic sizes."""
        count = elements(self.shape)
        return None if count is None else math.ceil(count * self.bits / 8)


def elements(shape: Shape | None) -> int | None:
    """Count the elements of a shape; None if a size is not known, or if no machine holds so many."""
    if shape is None:
        return None
    sizes = [size for size in shape if isinstance(size, int)]
    count = math.prod(sizes) if len(sizes) == len(shape) else -1
    return count if 0 <= count < _MOST_ELEMENTS else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """The values of a model."""

    by_name: Mapping[str, Value] = field(default_factory=dict)  # with those in bodies; outer ones come first where names are equal
    problem: str = ""  # why inference failed; empty when it did not


def values_of(structure: onnx.ModelProto, sizes: Mapping[str, Sequence[int]] | None = None) -> Values:
    """Infer types and shapes, with the sizes of a call in place of symbolic ones.

    Operators that ONNX does not define, such as those of ONNX Runtime's own domain, have none.
    """
    given = structure if sizes is None else _with_sizes(structure, sizes)
    problem = ""
    try:
        inferred = onnx.shape_inference.infer_shapes(given, data_prop=True)
    except Exception as error:  # noqa: BLE001 - onnx raises classes of its own; what the model itself declares remains
        inferred, problem = given, f"{type(error).__name__}: {error}"[:2000]
    found: dict[str, Value] = {}
    graphs = [inferred.graph, *(body for node in iter_nodes(inferred.graph) for _, body in subgraphs_of(node))]
    for graph in graphs:
        for tensor in graph.initializer:
            found.setdefault(tensor.name, _value(tensor.data_type, tuple(tensor.dims)))
        for info in (*graph.input, *graph.output, *graph.value_info):
            if (value := _from_type(info.type)) is not None:
                found.setdefault(info.name, value)
    return Values(by_name=found, problem=problem)


def _with_sizes(structure: onnx.ModelProto, sizes: Mapping[str, Sequence[int]]) -> onnx.ModelProto:
    """Copy a model with the sizes of a call in its inputs, and without the shapes that it declares: they may be symbolic."""
    made = onnx.ModelProto()
    made.CopyFrom(structure)
    del made.graph.value_info[:]
    for value in (*made.graph.input, *made.graph.output):
        if value.type.WhichOneof("value") != "tensor_type":
            continue
        if value.name in sizes:
            del value.type.tensor_type.shape.dim[:]
            for size in sizes[value.name]:
                value.type.tensor_type.shape.dim.add(dim_value=size)
        elif value.type.tensor_type.HasField("shape") and any(not dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim):
            for dim in value.type.tensor_type.shape.dim:
                dim.ClearField("dim_param")
    return made


def _from_type(kind: onnx.TypeProto) -> Value | None:
    which = kind.WhichOneof("value")
    if which == "sequence_type":
        return _from_type(kind.sequence_type.elem_type)
    if which == "optional_type":
        return _from_type(kind.optional_type.elem_type)
    if which != "tensor_type":
        return None
    tensor = kind.tensor_type
    shape = (
        tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in tensor.shape.dim)
        if tensor.HasField("shape")
        else None
    )
    return _value(tensor.elem_type, shape)


def _value(element_type: int, shape: Shape | None) -> Value:
    known = element_type and element_type in onnx.TensorProto.DataType.values()
    name = onnx.TensorProto.DataType.Name(element_type) if known else None
    return Value(dtype=None if name is None else _NAMES.get(name, name.lower()), shape=shape, bits=bits_of(element_type))


def flops_of(node: onnx.NodeProto, values: Mapping[str, Value]) -> int:
    """Count the floating-point operations of a node as PyTorch does; 0 for what is not counted, and where a size is unknown.

    Matrix products and convolutions count two per product.
    """
    count = _COUNTED.get(node.op_type)
    try:
        found = 0 if count is None else count(node, [values.get(name) for name in node.input], values.get(node.output[0]))
    except (AttributeError, IndexError, TypeError, ValueError):  # a size is not known
        return 0
    return found if 0 < found < _MOST else 0


def _sizes(value: Any) -> tuple[int, ...]:
    if elements(value.shape) is None:
        raise ValueError("a symbolic size")
    return tuple(value.shape)


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    found = next((each for each in node.attribute if each.name == name), None)
    return default if found is None else onnx.helper.get_attribute_value(found)


def _product(left: int) -> Callable[[onnx.NodeProto, list[Any], Any], int]:
    """Return a counter for products whose left side is an input: elements of the result times the length of the sums."""

    def count(node: onnx.NodeProto, inputs: list[Any], output: Any) -> int:
        rows = _sizes(inputs[left])
        depth = rows[0 if _attribute(node, "transA", 0) and node.op_type in ("Gemm", "FusedGemm", "FusedMatMul") else -1]
        return 2 * math.prod(_sizes(output)) * depth

    return count


def _convolution(weight: int) -> Callable[[onnx.NodeProto, list[Any], Any], int]:
    def count(_node: onnx.NodeProto, inputs: list[Any], output: Any) -> int:
        return 2 * math.prod(_sizes(output)) * math.prod(_sizes(inputs[weight])[1:])

    return count


def _transposed(_node: onnx.NodeProto, inputs: list[Any], _output: Any) -> int:
    return 2 * math.prod(_sizes(inputs[0])) * math.prod(_sizes(inputs[1])[1:])


def _blocked(node: onnx.NodeProto, inputs: list[Any], _output: Any) -> int:
    weights: int = _attribute(node, "K", 0) * _attribute(node, "N", 0)
    return 2 * math.prod(_sizes(inputs[0])[:-1]) * weights


_COUNTED: Mapping[str, Callable[[onnx.NodeProto, list[Any], Any], int]] = {
    "MatMul": _product(0),
    "Gemm": _product(0),
    "FusedGemm": _product(0),
    "FusedMatMul": _product(0),
    "MatMulInteger": _product(0),
    "QLinearMatMul": _product(0),
    "MatMulNBits": _blocked,
    "Conv": _convolution(1),
    "FusedConv": _convolution(1),
    "ConvInteger": _convolution(1),
    "QLinearConv": _convolution(3),
    "ConvTranspose": _transposed,
}
