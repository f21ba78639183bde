"""The rewrites of ONNX Runtime to disable for a model, because they change its results or are slower than what they replace."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import onnx
from onnx import numpy_helper

from ortlens.backend.runtime import devices
from ortlens.backend.runtime.graph_view import GraphView, attributes_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_WRONG_OPTIMIZERS = ("Pad_Fusion", "DivMulFusion")
"""Rewrites that change results: Pad_Fusion fuses a Pad with zeros into a MaxPool, which pads with -inf. DivMulFusion makes x / y of
(1 / y) * x, also of integers, whose quotient is rounded."""

_NORM_OPTIMIZERS = ("LayerNormFusionL1", "LayerNormFusionL2", "SimplifiedLayerNormFusion")
"""They replace an epsilon that is no constant float32, or the first operand, by 1e-5 (`layer_norm_fusion.cc`). They also fuse a scale or a
bias that is larger than what is normalised, which makes an invalid model or one whose runs fail."""

_DOUBLE_OPTIMIZERS = ("MatMulScaleFusion",)  # they keep a factor of float64 in an attribute, which is a float32

_BATCH_NORM_OPTIMIZERS = ("MatMul_BatchNormalization_Fusion",)
"""It scales the last dimension of a product, also if a Reshape or a Transpose moves it before the normalisation."""

_EXPAND_OPTIMIZERS = ("ExpandElimination",)  # it takes an Expand of a dimension of size 1 to size 0 for one that changes nothing

_ZERO_OPTIMIZERS = ("NoopElimination",)  # it drops an Add of 0.0, or a Sub of -0.0, which makes 0.0 of -0.0: the sign of a later 1 / x

_CAST_OPTIMIZERS = ("MatmulTransposeFusion",)
"""It swaps a Transpose of the first dimension and a Cast in front of a product, also a Cast that ONNX Runtime adds to compute float16, and
leaves a graph behind at which NchwcTransformer ends the process."""

_SLOW_OPTIMIZERS = ("SkipLayerNormFusion",)
"""Rewrites that are slower on the CPU: an addition and a normalisation of [64, 256] take 12 us, the fused operator 71 us."""

_SCALE_OPTIMIZERS = ("MatMulScaleFusion",)
"""It makes the factor a part of the product, and MLAS has its fast product of a single row for the factor 1 only: scores of one token
over 2,048 keys take 55 us, with the factor inside 144 us. Products of more rows are 5 to 12 % faster with the factor inside."""

_FLOATS = frozenset({onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16})
MOVES = frozenset({"Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})


def unwanted_rewrites(model: onnx.ModelProto, chosen: Sequence[tuple[str, Any]]) -> list[str]:
    """List the optimizers of ONNX Runtime to disable for a model that holds frozen weights as initializers."""
    on_cpu_only = bool(chosen) and all(name == devices.CPU for name, _ in chosen)  # without any, the session options name devices
    graph = GraphView(model)
    return [
        *_WRONG_OPTIMIZERS,
        *(() if _epsilons_are_constant(graph) and not _widens_what_is_normalised(graph) else _NORM_OPTIMIZERS),
        *(_DOUBLE_OPTIMIZERS if onnx.TensorProto.DOUBLE in _element_types(model.graph) else ()),
        *(_BATCH_NORM_OPTIMIZERS if _normalises_what_was_moved(graph) else ()),
        *(_EXPAND_OPTIMIZERS if _may_expand_to_nothing(graph) else ()),
        *(_ZERO_OPTIMIZERS if _adds_zero(graph) else ()),
        *(_CAST_OPTIMIZERS if _casts_turned_batch(graph) else ()),
        *(_SLOW_OPTIMIZERS if on_cpu_only else ()),
        *(_SCALE_OPTIMIZERS if on_cpu_only and _scales_single_rows(graph) else ()),
    ]


def _epsilons_are_constant(graph: GraphView) -> bool:
    """Tell whether the second operand of every sum of a mean under a square root is a constant float32."""
    constants = {name for name, tensor in graph.constants.items() if tensor.data_type == onnx.TensorProto.FLOAT}
    means = {node.output[0] for node in graph.of("ReduceMean")}
    under = [graph.makers.get(node.input[0]) for node in graph.of("Sqrt")]
    sums = [node for node in under if node is not None and node.op_type == "Add" and means.intersection(node.input)]
    return all(node.input[1] in constants for node in sums)


def _widens_what_is_normalised(graph: GraphView) -> bool:
    """Tell whether a scale or a bias broadcasts, or may broadcast, what a square root has divided."""
    roots: set[str] = set()  # square roots and their reciprocals
    divided: set[str] = set()
    for node in graph.nodes:
        inverts = node.op_type in {"Div", "Reciprocal"} and node.input[-1] in roots and node.input[0] in graph.constants.keys() | roots
        if node.op_type == "Sqrt" or inverts:
            roots.update(node.output)
        elif node.op_type in {"Div", "Mul"} and roots.intersection(node.input):
            divided.update(node.output)
        elif node.op_type in {"Add", "Cast", "Mul"} and (inside := divided.intersection(node.input)):
            if any(graph.sizes.get(name) is None or graph.sizes[name] != graph.sizes.get(node.output[0]) for name in inside):
                return True
            divided.update(node.output)
    return False


def _element_types(graph: onnx.GraphProto) -> Iterator[int]:
    yield from (value.type.tensor_type.elem_type for value in graph.input)
    yield from (tensor.data_type for tensor in graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype"):
                yield attribute.i
            elif attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t.data_type
            elif attribute.type == onnx.AttributeProto.GRAPH:
                yield from _element_types(attribute.g)


def _scales_single_rows(graph: GraphView) -> bool:
    """Tell whether products that a number scales, before or after, have one row each, as far as is known; scores of a token do."""
    sizes = graph.sizes
    scaled: set[str] = set()
    for node in graph.of("Mul", "Div"):
        if any(name in sizes and set(sizes[name]) <= {1} for name in node.input):
            scaled.update((*node.input, *node.output))
    products = [node for node in graph.of("MatMul") if scaled.intersection((*node.input, *node.output))]
    rows = {sizes[node.output[0]][-2] for node in products if len(sizes.get(node.output[0], ())) > 1}
    return rows == {1}


def _may_expand_to_nothing(graph: GraphView) -> bool:
    """Tell whether an Expand makes a size 0, or its sizes are not constants yet: ONNX Runtime may find them later."""
    targets = [graph.constants.get(node.input[1]) for node in graph.of("Expand")]
    return any(target is None or not numpy_helper.to_array(target).all() for target in targets)


def _normalises_what_was_moved(graph: GraphView) -> bool:
    makers = (graph.makers.get(node.input[0]) for node in graph.of("BatchNormalization"))
    return any(maker is not None and maker.op_type in MOVES for maker in makers)


def _casts_turned_batch(graph: GraphView) -> bool:
    """Tell whether a product reads what a Transpose of the first dimension and a Cast make, maybe one that is added for float16."""
    has_half = onnx.TensorProto.FLOAT16 in _element_types(graph.model.graph)
    for name in (name for node in graph.of("MatMul") for name in node.input):
        made = graph.makers.get(name)
        is_cast = made is not None and made.op_type == "Cast"
        turned = graph.makers.get(made.input[0]) if made is not None and is_cast else made
        if (
            (is_cast or has_half)
            and turned is not None
            and turned.op_type == "Transpose"
            and moves_batch(attributes_of(turned).get("perm", []))
        ):
            return True
    return False


def moves_batch(order: Sequence[int]) -> bool:
    """Tell whether a permutation moves the first dimension behind all others but, maybe, the last."""
    return len(order) > 2 and 0 in order[-2:] and list(order[:-2]) == list(range(1, len(order) - 1))  # noqa: PLR2004 - a matrix has no batch


def _adds_zero(graph: GraphView) -> bool:
    """Tell whether an Add of 0.0, or a Sub of -0.0, of one element may make 0.0 of -0.0; the values of weights are not looked at."""
    numbers = [tensor for tensor in graph.constants.values() if math.prod(tensor.dims) == 1 and tensor.data_type in _FLOATS]
    texts = {tensor.name: None if tensor.data_location else str(numpy_helper.to_array(tensor).item()) for tensor in numbers}
    zeros = {sign: {name for name, text in texts.items() if text in (None, sign)} for sign in ("0.0", "-0.0")}
    return any(
        (node.op_type == "Add" and zeros["0.0"].intersection(node.input)) or (node.op_type == "Sub" and node.input[1] in zeros["-0.0"])
        for node in graph.of("Add", "Sub")
    )
