"""Records of an ONNX model: its graph, its nodes with types, shapes, operations and execution provider, one partition, and the model."""

from __future__ import annotations

import ast
import copy
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import onnx

from ortlens.backend.basis.node_provenance import captured, graphs_of, iter_nodes, operator_name, structure_of
from ortlens.lens.onnx_model.signature import tensor_of
from ortlens.lens.profiling.kernel_records import bits_of
from ortlens.trace import records as r
from ortlens.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ortlens.lens.onnx_model.signature import Input
    from ortlens.lens.onnx_model.source import ModelSource


GRAPH, PARTITION, MODEL = "g0", "p0", "m0"  # the ids: a model is one graph, one partition and one model
MODEL_FILE = f"models/{MODEL}.onnx"  # the name of the model's structure among the attachments of a capture
_MOST = 1 << 62  # a record holds 64 bits
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d{1,9})(?!\d)[^\n]*(?:\n[ \t]+(?P<source>[^\n]+))?')


def records_of(
    source: ModelSource, inputs: Sequence[Input], named: onnx.ModelProto | None, sizes: Mapping[str, tuple[int, ...]]
) -> list[r.Record]:
    """Make the records of a model; without a structure, `named`, there are no nodes. Sizes of a call stand for symbolic ones."""
    if named is None:
        return _unknown(source, inputs)
    symbolic, problem = values_of(named)
    actual = values_of(named, sizes)[0] if sizes else symbolic
    nodes = list(_nodes(named, symbolic, actual))
    constants = [tensor.name for tensor in named.graph.initializer]
    names = [*(each.name for each in inputs), *constants]
    graph = _graph(
        source,
        len(nodes),
        coverage=1.0 if nodes else None,
        dynamic_shapes=any(not isinstance(size, int) for each in inputs for size in each.shape or ()),
        inputs=tuple(names),
        input_sizes=tuple(_bytes(actual.get(name)) or 0 for name in names),
        weights=tuple(constants),
    )
    known = {name: symbolic.get(name) or Value(dtype=None, shape=None, bits=0) for name in names}
    given = [r.GraphInput(graph_id=GRAPH, input=name, name=name, dtype=value.dtype, shape=value.shape) for name, value in known.items()]
    found: list[r.Record] = [graph, *given, *nodes]
    found += [_partition(source, inputs, named, nodes, actual), _model(source, named)]
    if problem:
        found.append(_not_inferred(source, problem))
    return found


def _unknown(source: ModelSource, inputs: Sequence[Input]) -> list[r.Record]:
    graph = _graph(source, 0, inputs=tuple(each.name for each in inputs))
    partition = r.Partition(partition_id=PARTITION, graph_id=GRAPH, node_count=0, input_count=len(inputs), output_count=0, model_id=MODEL)
    return [graph, partition, r.Model(model_id=MODEL, partition_id=PARTITION, node_count=0)]


def _graph(source: ModelSource, count: int, **known: Any) -> r.Graph:
    file = None if source.path is None else str(source.path)
    known |= {"node_count": count, "op_count": count, "partition_count": 1, "fallback_count": 0}
    return r.Graph(graph_id=GRAPH, phase="inference", name=source.name, file=file, **known)


def _partition(
    source: ModelSource, inputs: Sequence[Input], named: onnx.ModelProto, nodes: list[r.Node], actual: Mapping[str, Value]
) -> r.Partition:
    return r.Partition(
        partition_id=PARTITION,
        graph_id=GRAPH,
        node_count=len(nodes),
        input_count=len(inputs),
        output_count=len(named.graph.output),
        input_bytes=_sum(_bytes(actual.get(each.name)) for each in inputs),
        output_bytes=_sum(_bytes(actual.get(value.name)) for value in named.graph.output),
        weight_bytes=source.constant_bytes,
        flops=_sum(node.flops or 0 for node in nodes),
        model_id=MODEL,
    )


def _model(source: ModelSource, named: onnx.ModelProto) -> r.Model:
    return r.Model(
        model_id=MODEL,
        partition_id=PARTITION,
        path=MODEL_FILE,
        **structure_of(named),
        initializer_bytes=source.constant_bytes,
        size_bytes=named.ByteSize(),
        sha256=source.digest,
    )


def _nodes(named: onnx.ModelProto, symbolic: Mapping[str, Value], actual: Mapping[str, Value]) -> Iterator[r.Node]:
    makers = {value: node.name for node in iter_nodes(named.graph) for value in node.output if value}
    outputs = {value.name for value in named.graph.output}
    for node in iter_nodes(named.graph):
        known = symbolic.get(node.output[0]) if node.output else None
        reads = tuple(dict.fromkeys(makers.get(name, name) for name in (*node.input, *captured(node)) if name))
        file, line, text = user_line(node)
        classes = _listed(_metadata(node, "pkg.torch.onnx.class_hierarchy"))
        made = _sum(_bytes(actual.get(name)) for name in node.output if name)
        touched = _sum([made, *(_bytes(actual.get(name)) for name in node.input if name)])
        yield r.Node(
            graph_id=GRAPH,
            node=node.name,
            target=operator_name(node),
            module=_module(node),
            module_type=classes[-2].rpartition(".")[2] if len(classes) > 1 else None,
            file=file,
            line=line,
            source=text,
            dtype=None if known is None else known.dtype,
            shape=None if known is None else known.shape,
            partition_id=PARTITION,
            supported=True,
            flops=flops_of(node, actual),
            bytes=touched,
            onnx_nodes=(node.name,),
            onnx_confidences=("exact",),
            onnx_ops=(node.op_type,),
            inputs=reads,
            output_bytes=made,
            is_output=not outputs.isdisjoint(node.output),
        )


def _bytes(value: Value | None) -> int | None:
    return None if value is None else value.bytes


def _sum(parts: Any) -> int | None:
    """Add up parts; None as soon as one is unknown, or where the sum does not fit a record."""
    known = list(parts)
    return None if any(part is None for part in known) or sum(known) >= _MOST else sum(known)


def _metadata(node: onnx.NodeProto, key: str) -> str:
    return next((entry.value for entry in node.metadata_props if entry.key == key), "")


def _module(node: onnx.NodeProto) -> str | None:
    """Find the path of the nn.Module: PyTorch's exporter writes it into the node's metadata, its predecessor into the name."""
    if scopes := _listed(_metadata(node, "pkg.torch.onnx.name_scopes")):
        return next((scope for scope in reversed(scopes[:-1]) if scope), None)
    parts = [part for part in node.name.split("/")[:-1] if part] if node.name.startswith("/") else []
    path: list[str] = []
    for part in parts:  # a list of modules repeats its own name: /layers/layers.0/attn/MatMul
        if path and part.startswith(f"{path[-1]}."):
            path[-1] = part
        else:
            path.append(part)
    return ".".join(path) or None


def _listed(text: str) -> list[str]:
    try:
        found = ast.literal_eval(text) if text else []
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return []
    return [str(item) for item in found] if isinstance(found, (list, tuple)) else []


def user_line(node: onnx.NodeProto) -> tuple[str | None, int | None, str | None]:
    """Find the innermost line of the user's that PyTorch's exporter noted."""
    frames = list(_FRAME.finditer(_metadata(node, "pkg.torch.onnx.stack_trace")))
    users = [frame for frame in frames if "site-packages" not in frame["file"]] or frames
    if not users:
        return None, None, None
    return users[-1]["file"], int(users[-1]["line"]), (users[-1]["source"] or "").strip() or None


def _not_inferred(source: ModelSource, problem: str) -> r.Finding:
    return r.Finding(
        rule="shapes_unknown",
        severity="info",
        subject=MODEL,
        title=f"types and shapes of {source.name} could not be inferred; those that it declares are shown",
        evidence=problem,
        hazard="FLOPs and sizes are missing, and with them what depends on them. Running the model is not affected.",
        mitigation="Check the model with onnx.checker.check_model(path, full_check=True).",
    )


def slow_quantised(named: onnx.ModelProto) -> list[r.Finding]:
    """Report products with quantised weights that compute in float32 on the CPU because nothing else was allowed."""
    nodes = [node for node in iter_nodes(named.graph) if node.op_type == "MatMulNBits" and not _attribute(node, "accuracy_level")]
    if not nodes:
        return []
    finding = r.Finding(
        rule="no_accuracy_level",
        severity="warning",
        subject=MODEL,
        title=f"{counted(len(nodes), 'MatMulNBits node has', 'MatMulNBits nodes have')} no `accuracy_level`: the CPU computes in float32",
        evidence=f"first at {nodes[0].name}",
        hazard="Weights are converted in each call: 3 times as long as computing in int8 with weights of 4 bits, and 40 times of 8 bits.",
        mitigation="Set `accuracy_level` to 4 in these nodes, which computes in int8, and compare the results with `ortlens compare`.",
    )
    return [finding]


def all_nan(feed: Mapping[str, Any], outputs: Mapping[str, Any]) -> list[r.Finding]:
    """Report outputs that are NaN in every element, where no input has one."""
    names = [name for name, value in outputs.items() if (nan := _nan(value)) is not None and nan.all()]
    if not names or any(nan is not None and nan.any() for nan in map(_nan, feed.values())):
        return []
    is_half = any(outputs[name].dtype == "float16" for name in names)
    finding = r.Finding(
        rule="all_nan",
        severity="error",
        subject=MODEL,
        title=f"every element of {', '.join(f'`{name}`' for name in names)} is NaN, and no element of the inputs",
        hazard="float16 ends at 65,504; what is larger is infinite, and infinities subtracted are NaN." if is_half else "",
        mitigation=f"{'Export the model again in float32' if is_half else 'Pass other inputs'}; `verify` names what differs.",
    )
    return [finding]


def _nan(value: Any) -> Any:
    return value != value if getattr(getattr(value, "dtype", None), "kind", "") == "f" and value.size else None  # noqa: PLR0124 - NaN


Shape: TypeAlias = "tuple[int | str, ...]"

_MOST_ELEMENTS = 1 << 48

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


def values_of(structure: onnx.ModelProto, sizes: Mapping[str, Sequence[int]] | None = None) -> tuple[dict[str, Value], str]:
    """Infer types and shapes by value, with the sizes of a call for symbolic ones; and say why inference failed, if it did.

    Operators that ONNX does not define have none. Values in bodies are there too; outer ones come first where names are equal.
    """
    given = structure if sizes is None else _with_sizes(structure, sizes)
    problem = ""
    try:
        inferred = onnx.shape_inference.infer_shapes(given, data_prop=True)
    except Exception as error:  # noqa: BLE001 - onnx raises classes of its own; what the model itself declares remains
        inferred, problem = given, f"{type(error).__name__}: {error}"[:2000]
    found: dict[str, Value] = {}
    for graph in graphs_of(inferred):
        for tensor in graph.initializer:
            found.setdefault(tensor.name, _value(tensor.data_type, tuple(tensor.dims)))
        for info in (*graph.input, *graph.output, *graph.value_info):
            if (value := _from_type(info.type)) is not None:
                found.setdefault(info.name, value)
    return found, problem


def _with_sizes(structure: onnx.ModelProto, sizes: Mapping[str, Sequence[int]]) -> onnx.ModelProto:
    """Copy a model with the sizes of a call in its inputs, and without the shapes that it declares: they may be symbolic."""
    made = copy.deepcopy(structure)
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
    tensor = tensor_of(kind)
    if tensor is None:
        return None
    sizes = tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in tensor.shape.dim)
    return _value(tensor.elem_type, sizes if tensor.HasField("shape") else None)


def _value(element_type: int, shape: Shape | None) -> Value:
    known = element_type and element_type in onnx.TensorProto.DataType.values()
    name = onnx.TensorProto.DataType.Name(element_type) if known else None
    return Value(dtype=None if name is None else _NAMES.get(name, name.lower()), shape=shape, bits=bits_of(element_type))


def flops_of(node: onnx.NodeProto, values: Mapping[str, Value]) -> int:
    """Count the operations of a node as PyTorch does, two per product; 0 for what is not counted, and where a size is unknown."""
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


def _attribute(node: onnx.NodeProto, name: str) -> int:
    return next((each.i for each in node.attribute if each.name == name), 0)


def _product(node: onnx.NodeProto, inputs: list[Any], output: Any) -> int:
    """Count elements of the result times the length of the sums."""
    depth = _sizes(inputs[0])[0 if _attribute(node, "transA") and node.op_type in ("Gemm", "FusedGemm", "FusedMatMul") else -1]
    return 2 * math.prod(_sizes(output)) * depth


def _convolution(node: onnx.NodeProto, inputs: list[Any], output: Any) -> int:
    """Count elements of the result, or of the input of a transposed one, times those of a filter."""
    weight = inputs[3 if node.op_type == "QLinearConv" else 1]
    return 2 * math.prod(_sizes(inputs[0] if node.op_type == "ConvTranspose" else output)) * math.prod(_sizes(weight)[1:])


def _blocked(node: onnx.NodeProto, inputs: list[Any], _output: Any) -> int:
    return 2 * math.prod(_sizes(inputs[0])[:-1]) * _attribute(node, "K") * _attribute(node, "N")


_COUNTED: Mapping[str, Callable[[onnx.NodeProto, list[Any], Any], int]] = {
    **dict.fromkeys(("MatMul", "Gemm", "FusedGemm", "FusedMatMul", "MatMulInteger", "QLinearMatMul"), _product),
    "MatMulNBits": _blocked,
    **dict.fromkeys(("Conv", "FusedConv", "ConvInteger", "QLinearConv", "ConvTranspose"), _convolution),
}
