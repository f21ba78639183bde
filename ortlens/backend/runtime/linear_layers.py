"""Linear layers for ONNX Runtime's CUDA provider: a product that reads the weight as PyTorch stores it, and an addition of the bias.

AOTAutograd makes matrices of the inputs of a layer, and ONNX a Gemm of it. On CUDA, Gemm first writes the bias into every row of the
result. An addition takes as long, but ONNX Runtime fuses it with the GELU or the normalisation that follows, if no Reshape lies between.
FusedMatMul reads transposed weights; a Transpose of a constant would be folded into a copy on the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import onnx

from ortlens.backend.conversion.node_provenance import captured, used_nodes
from ortlens.backend.runtime.rewrites import known_sizes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DOMAIN = "com.microsoft"
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
    layers = _layers(model)
    if not layers:
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    dropped = {id(node) for layer in layers.values() for node in layer.replaced}
    nodes: list[onnx.NodeProto] = []
    for source, node in zip(model.graph.node, made.graph.node, strict=True):
        layer = layers.get(source.output[0])
        nodes += [] if id(source) in dropped and layer is None else [node] if layer is None else _nodes(layer, made.graph)
    read = {value.name for value in made.graph.output}
    kept = used_nodes(nodes, read)
    del made.graph.node[:]
    made.graph.node.extend(kept)
    if all(entry.domain != DOMAIN for entry in made.opset_import):
        made.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
    return made


def _nodes(layer: _Layer, graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    product = layer.replaced[0]
    source, made = layer.source, []
    between = layer.result if layer.bias is None else f"{layer.result}/product"
    if layer.sizes is not None:
        source, sizes = f"{layer.result}/rows", f"{layer.result}/sizes"
        graph.initializer.append(onnx.helper.make_tensor(sizes, onnx.TensorProto.INT64, [len(layer.sizes)], layer.sizes))
        made.append(onnx.helper.make_node("Reshape", [layer.source, sizes], [source], name=f"{product.name}/Reshape"))
    made.append(onnx.helper.make_node("FusedMatMul", [source, layer.weight], [between], name=product.name, domain=DOMAIN, transB=1))
    if layer.bias is not None:
        made.append(onnx.helper.make_node("Add", [between, layer.bias], [layer.result], name=f"{product.name}/Add"))
    for node in made:
        node.metadata_props.extend(product.metadata_props)
    return made


def _layers(model: onnx.ModelProto) -> dict[str, _Layer]:
    """Find the layers, by the name of their result."""
    makers = {name: node for node in model.graph.node for name in node.output}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in (*node.input, *captured(node)):
            readers.setdefault(name, []).append(node)
    returned = {value.name for value in model.graph.output}
    sizes, kinds = known_sizes(model), _element_types(model)
    found: dict[str, _Layer] = {}
    for node in model.graph.node:
        weight = _transposed_weight(node, makers, kinds)
        if weight is None:
            continue
        bias = node.input[2] if node.op_type == "Gemm" and len(node.input) > 2 else None  # noqa: PLR2004 - the optional one
        ranks = [len(sizes.get(name, ())) for name in (node.input[0], weight, bias) if name is not None]
        if ranks[0] < _MATRIX or ranks[1:] not in ([_MATRIX], [_MATRIX, 1]):
            continue
        layer = _Layer(node.input[0], weight, bias, node.output[0], (node,))
        before, after = makers.get(node.input[0]), readers.get(node.output[0], [])
        if before is not None and before.op_type == "Reshape" and [reader.op_type for reader in after] == ["Reshape"]:
            layer = _between_reshapes(layer, before, after[0], sizes) if node.output[0] not in returned else layer
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


def _transposed_weight(node: onnx.NodeProto, makers: Mapping[str, onnx.NodeProto], kinds: Mapping[str, int]) -> str | None:
    """Return the weight of a product of floats that reads it as [out, in], directly or through a Transpose; None for other nodes."""
    if node.domain or node.op_type not in {"Gemm", "MatMul"}:
        return None
    given = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    weight = node.input[1]
    if given.pop("transB", 0):
        is_turned = True
    else:
        maker = makers.get(weight)
        is_turned = maker is not None and maker.op_type == "Transpose" and [*maker.attribute[0].ints] == [1, 0]  # it is always given
        weight = maker.input[0] if maker is not None and is_turned else weight
    plain = all(given.pop(name, plain) == plain for name, plain in (("transA", 0), ("alpha", 1.0), ("beta", 1.0)))
    return weight if is_turned and plain and kinds.get(weight) in _FLOATS and weight not in makers else None


def _element_types(model: onnx.ModelProto) -> dict[str, Any]:
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    return types | {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
