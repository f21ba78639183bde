"""Linear layers for ONNX Runtime's CUDA provider: a product that reads the weight as PyTorch stores it, and an addition of the bias.

AOTAutograd makes matrices of the inputs of a layer, and ONNX a Gemm of it. On CUDA, Gemm first writes the bias into every row of the
result. An addition takes as long, but ONNX Runtime fuses it with the GELU or the normalisation that follows, if no Reshape lies between.
FusedMatMul reads transposed weights; a Transpose of a constant would be folded into a copy on the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import onnx

from ortlens.backend.runtime.graph_view import CONTRIB, GraphView

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MATRIX = 2  # dimensions
_FLOATS = frozenset({onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16})


class _Layer(NamedTuple):
    source: str  # the input
    weight: str  # [out, in]
    bias: str | None
    result: str
    replaced: tuple[onnx.NodeProto, ...]  # the nodes that compute the result alone
    sizes: Sequence[Any] | None = None  # which the input is to be given first; None: it has them


def with_layers_for_cuda(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model with its linear layers in the form that is faster on CUDA; without any, return the model itself."""
    graph = GraphView(model)
    layers = _layers(graph)
    if not layers:
        return model
    dropped = {id(node) for layer in layers.values() for node in layer.replaced}
    constants: list[onnx.TensorProto] = []

    def change(node: onnx.NodeProto, copy: onnx.NodeProto) -> list[onnx.NodeProto]:
        if (layer := layers.get(node.output[0])) is not None:
            return _nodes(layer, constants)
        return [] if id(node) in dropped else [copy]

    return graph.edited(change, constants, domain=CONTRIB)


def _nodes(layer: _Layer, constants: list[onnx.TensorProto]) -> list[onnx.NodeProto]:
    product = layer.replaced[0]
    source, made = layer.source, []
    between = layer.result if layer.bias is None else f"{layer.result}/product"
    if layer.sizes is not None:
        source, sizes = f"{layer.result}/rows", f"{layer.result}/sizes"
        constants.append(onnx.helper.make_tensor(sizes, onnx.TensorProto.INT64, [len(layer.sizes)], layer.sizes))
        made.append(onnx.helper.make_node("Reshape", [layer.source, sizes], [source], name=f"{product.name}/Reshape"))
    made.append(onnx.helper.make_node("FusedMatMul", [source, layer.weight], [between], name=product.name, domain=CONTRIB, transB=1))
    if layer.bias is not None:
        made.append(onnx.helper.make_node("Add", [between, layer.bias], [layer.result], name=f"{product.name}/Add"))
    for node in made:
        node.metadata_props.extend(product.metadata_props)
    return made


def _layers(graph: GraphView) -> dict[str, _Layer]:
    """Find the layers, by the name of their result."""
    found: dict[str, _Layer] = {}
    for node in graph.of("Gemm", "MatMul"):
        weight = _transposed_weight(node, graph)
        if weight is None:
            continue
        bias = node.input[2] if node.op_type == "Gemm" and len(node.input) > 2 else None  # noqa: PLR2004 - the optional one
        ranks = [len(graph.sizes.get(name, ())) for name in (node.input[0], weight, bias) if name is not None]
        if ranks[0] < _MATRIX or ranks[1:] not in ([_MATRIX], [_MATRIX, 1]):
            continue
        layer = _Layer(node.input[0], weight, bias, node.output[0], (node,))
        before, after = graph.makers.get(node.input[0]), graph.readers.get(node.output[0], ())
        if before is not None and before.op_type == "Reshape" and [reader.op_type for reader in after] == ["Reshape"]:
            layer = layer if node.output[0] in graph.returned else _between_reshapes(layer, before, after[0], graph.sizes)
        found[layer.result] = layer
    return found


def _between_reshapes(layer: _Layer, before: onnx.NodeProto, after: onnx.NodeProto, sizes: Mapping[str, Sequence[Any]]) -> _Layer:
    """Compute a layer in the shape that its result is given; the layer itself, if its input cannot have such a shape."""
    outer, shape, (out, width) = list(sizes.get(before.input[0], ())), list(sizes.get(after.output[0], ())), sizes[layer.weight]
    if not shape or shape[-1] != out:
        return layer
    replaced, wanted = (*layer.replaced, after), [*shape[:-1], width]
    if outer == wanted and "" not in wanted:
        return layer._replace(source=before.input[0], result=after.output[0], replaced=replaced)
    if all(isinstance(size, int) and size for size in wanted):
        return layer._replace(source=before.input[0], result=after.output[0], replaced=replaced, sizes=wanted)
    return layer


def _transposed_weight(node: onnx.NodeProto, graph: GraphView) -> str | None:
    """Return the weight of a product of floats that reads it as [out, in], directly or through a Transpose; None for other nodes."""
    given = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    weight = node.input[1]
    if given.pop("transB", 0):
        is_turned = True
    else:
        maker = graph.makers.get(weight)
        is_turned = maker is not None and maker.op_type == "Transpose" and [*maker.attribute[0].ints] == [1, 0]  # it is always given
        weight = maker.input[0] if maker is not None and is_turned else weight
    plain = all(given.pop(name, plain) == plain for name, plain in (("transA", 0), ("alpha", 1.0), ("beta", 1.0)))
    return weight if is_turned and plain and graph.types.get(weight) in _FLOATS and weight not in graph.makers else None
