"""Forms of a model that a session computes right and fast, where it would not compute the model as it is.

**Linear layers for ONNX Runtime's CUDA provider**: a product that reads the weight as PyTorch stores it, and an addition of the bias.
AOTAutograd makes matrices of the inputs of a layer, and ONNX a Gemm of it. On CUDA, Gemm first writes the bias into every row of the
result. An addition takes as long, but ONNX Runtime fuses it with the GELU or the normalisation that follows, if no Reshape lies between.
FusedMatMul reads transposed weights; a Transpose of a constant would be folded into a copy on the device.

**Masked attention for processors that stall at denormal numbers.** The softmax of ONNX Runtime makes a denormal number of a score that a
mask hides. Processors of Intel take about 150 cycles for one, so that a softmax of which half is hidden takes five to seven times as long
as without a mask (versions 1.31 and 1.32). So no score is more than 72 below the largest of its row: its exponential is 5e-32 of the
largest one, and a normal number. HardSigmoid then takes that away from each weight: what is hidden weighs exactly 0, as infinities and
unused memory behind a mask need it, and no other weight changes that a sum could show. Of the activations with a threshold,
ThresholdedRelu and Shrink give 0 for NaN. Only weights that a product reads are changed, not those that the model returns: there, 0
should be 0.

**Runs that fail where ONNX Runtime would hide an overflow**, so that PyTorch computes the call. A row of a normalisation whose squares
overflow has no deviation to divide by. ONNX Runtime makes 0 of it, PyTorch NaN or 0, as the number of columns and its vectors have it.
Integers of 8 bits are two halves in MatMulNBits (see `packed_weights`), whose products with infinity, or with what is near it, are NaN
where their sum is none. Checks read what is there or small: an inverse deviation per row, the activations of a product. One Unsqueeze,
which copies nothing, fails the run: it adds no dimension to the last result that they vouch for, or an impossible one; a Reshape would
vanish before another. What exceeds 1.8e19, whose square is infinite, is taken for an overflow; NaN is not.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import onnx
import torch

from ortlens.backend.runtime.graph_view import CONTRIB, GraphView, attributes_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ortlens.backend.runtime.weights import FrozenWeight

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
    given = attributes_of(node)
    weight = node.input[1]
    if given.pop("transB", 0):
        is_turned = True
    else:
        maker = graph.makers.get(weight)
        is_turned = maker is not None and maker.op_type == "Transpose" and [*maker.attribute[0].ints] == [1, 0]  # it is always given
        weight = maker.input[0] if maker is not None and is_turned else weight
    plain = all(given.pop(name, plain) == plain for name, plain in (("transA", 0), ("alpha", 1.0), ("beta", 1.0)))
    return weight if is_turned and plain and graph.types.get(weight) in _FLOATS and weight not in graph.makers else None


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
        axis = attributes_of(node).get("axis", -1)
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
            axis = attributes_of(node).get("axis", -1)
            sizes = self._graph.sizes.get(node.input[0])
            rows = (node.output[2],) if sizes is None or "" in sizes else (len(sizes), *sizes[:axis])
            found.setdefault(rows, []).append(node.output[2])
        return list(found.values())

    def _add(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        output = f"{self._result}/overflow:{len(self._made)}"
        node = onnx.helper.make_node(op_type, list(inputs), [output], name=f"overflow check: {op_type} {len(self._made)}", **attributes)
        self._made.append(node)
        return output
