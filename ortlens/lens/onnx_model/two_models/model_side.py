"""An ONNX model of which any value can be computed, also from given ones: one of two that are compared."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime

from ortlens._ort import CPU
from ortlens._process import fewer_cores
from ortlens.backend.basis.node_provenance import captured, part_of, used_nodes
from ortlens.errors import SessionError, UsageError
from ortlens.lens.onnx_model.sessions import plain
from ortlens.lens.onnx_model.signature import inputs_of
from ortlens.lens.onnx_model.source import with_names
from ortlens.lens.onnx_model.two_models.pairing import ModelGraph
from ortlens.lens.profiling.kernel_records import LARGE

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence
    from pathlib import Path

    from ortlens.lens.onnx_model.source import ModelSource

_PASSING = frozenset({"MaxPool", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Gather", "Identity", "Clip", "Relu"})
"""Operators whose result has the scale of their first input, where they compute on quantised values."""

_QUANTISED = frozenset({"int8", "uint8", "int16", "uint16"})
_SCALE_OF_RESULT = {
    "QuantizeLinear": 1,
    "QLinearConv": 6,
    "QLinearMatMul": 6,
    "QLinearAdd": 6,
    "QLinearMul": 6,
    "QGemm": 7,
    "QLinearConcat": 0,
}
"""Where the scale of its result is among the inputs of an operator; for others it is the fourth."""

_NUMBERS = "biufc"  # kinds of types that are compared
_LIMIT = 600  # characters of ONNX Runtime's own text


def is_quantised(node: onnx.NodeProto) -> bool:
    """Whether a node reads or writes quantised values with their scales beside them."""
    return "Linear" in node.op_type or node.op_type == "QGemm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How quantised values stand for numbers: `(value - zero) * scale`, both shaped to apply to the whole value."""

    names: tuple[str, ...]  # of the scale, and of the zero if there is one
    scale: np.ndarray[Any, Any]
    zero: np.ndarray[Any, Any]

    def real(self, value: np.ndarray[Any, Any]) -> Any:
        """Compute the numbers."""
        return ((value.astype(np.float64) - self.zero) * self.scale).astype(np.float32)

    def quantised(self, value: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> Any:
        """Compute the nearest quantised values."""
        info = np.iinfo(dtype)
        return np.clip(np.rint(value / self.scale) + self.zero, info.min, info.max).astype(dtype)

    def reach(self, dtype: np.dtype[Any]) -> tuple[Any, Any]:
        """Compute the largest magnitudes of negative and of positive numbers that can be held."""
        info = np.iinfo(dtype)
        return (self.zero - info.min) * self.scale, (info.max - self.zero) * self.scale


def _sort(graph: onnx.GraphProto) -> None:
    """Put nodes after those that they read, as some converters do not."""
    nodes = list(graph.node)
    makers = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    before = {place: {makers[name] for name in (*node.input, *captured(node)) if name in makers} for place, node in enumerate(nodes)}
    if any(max(places, default=-1) > place for place, places in before.items()):
        nodes = [onnx.NodeProto.FromString(nodes[place].SerializeToString()) for place in TopologicalSorter(before).static_order()]
        del graph.node[:]
        graph.node.extend(nodes)


def _own(name: str, given: Container[str]) -> str:
    """Name a value as it is computed, where another is given in its place."""
    return f"{name}//own" if name in given else name


class ModelSide:
    """A model in a folder of its own, with its weights beside it, so that parts of it take no more memory than they need."""

    def __init__(self, source: ModelSource, folder: Path, name: str) -> None:
        """Write the model; raise `UsageError` where ONNX cannot read it, as one in ONNX Runtime's own format."""
        self.name = source.name
        if source.structure is None or source.loadable is None:
            raise UsageError(
                f"{source.name} cannot be compared value by value: its nodes are not known; give the ONNX file that it was made from"
            )
        model = onnx.load(source.path) if source.path is not None else onnx.ModelProto.FromString(source.data or b"")
        path = folder / f"{name}.onnx"
        onnx.save_model(model, path, save_as_external_data=True, location=f"{name}.weights", size_threshold=LARGE)
        self._model = with_names(onnx.load(path, load_external_data=False))
        _sort(self._model.graph)
        self.graph, self.inputs = ModelGraph(self._model), inputs_of(self._model)
        self._path = path
        self.feed: Mapping[str, np.ndarray[Any, Any]] = {}
        self.dtypes: dict[str, np.dtype[Any]] = {}  # of values that were computed, and of inputs
        self.shapes: dict[str, tuple[int, ...]] = {}

    @cached_property
    def _tensors(self) -> dict[str, onnx.TensorProto]:
        return self._constants | {tensor.name: tensor for tensor in self._model.graph.initializer}

    @cached_property
    def _constants(self) -> dict[str, onnx.TensorProto]:
        nodes = (node for node in self._model.graph.node if node.op_type == "Constant")
        return {node.output[0]: item.t for node in nodes for item in node.attribute if item.name == "value"}

    def constant(self, name: str) -> np.ndarray[Any, Any] | None:
        """Read a constant of the file; None if there is none of that name, or numpy has no such type."""
        try:
            return onnx.numpy_helper.to_array(self._tensors[name], str(self._path.parent))
        except (KeyError, TypeError, ValueError):
            return None

    def weights(self) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
        """Yield the constants that are floats, and those that stand for floats where they are read."""
        for name in self._tensors:
            value = self.constant(name)
            if value is not None and (value.dtype.kind == "f" or (value.dtype.name in _QUANTISED and self.scale_of(name) is not None)):
                self.dtypes[name] = value.dtype
                yield name, self.real(name, value)

    def values(
        self, names: Sequence[str], given: Mapping[str, np.ndarray[Any, Any]] | None = None, *, rewrites: bool = False
    ) -> dict[str, np.ndarray[Any, Any]]:
        """Compute values by name, from the inputs and from what is `given` in place of values; as they are in the model.

        A given value that is asked for is computed, and what reads it gets the given one. What numpy has no type for is left out.
        ONNX Runtime's rewrites change nothing but where they are wanted.
        """
        found = {name: self.feed[name] for name in names if name in self.feed}
        found |= {name: value for name in names if (value := self.constant(name)) is not None}
        made = [name for name in dict.fromkeys(names) if name in self.graph.makers]
        results = zip(made, self._run(*self._cut(made, given or {}), rewrites=rewrites) if made else [], strict=True)
        found |= {name: value for name, value in results if isinstance(value, np.ndarray) and value.dtype.kind in _NUMBERS}
        self.dtypes |= {name: value.dtype for name, value in found.items()}
        self.shapes |= {name: value.shape for name, value in found.items()}
        return found

    def _run(self, model: onnx.ModelProto, feed: Mapping[str, np.ndarray[Any, Any]], *, rewrites: bool) -> list[Any]:
        path = self._path.with_name(f"part-{self._path.name}")
        path.write_bytes(model.SerializeToString())
        options = onnxruntime.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 4, fewer_cores()
        if not rewrites:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            options.add_session_config_entry("session.disable_prepacking", "1")
        given = {name: onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value)) for name, value in feed.items()}
        try:
            session = onnxruntime.InferenceSession(path, options, providers=[CPU])
            return [plain(value) for value in session.run_with_ort_values(None, given)]
        except Exception as error:
            raise SessionError(f"ONNX Runtime cannot run a part of {self.name}: {' '.join(str(error).split())[:_LIMIT]}") from error

    def _cut(
        self, names: Sequence[str], given: Mapping[str, np.ndarray[Any, Any]]
    ) -> tuple[onnx.ModelProto, dict[str, np.ndarray[Any, Any]]]:
        """Make the part of the model that computes these values, and choose what it reads."""
        nodes = self.nodes()
        for node in nodes:
            node.output[:] = [_own(name, given) for name in node.output]
        wanted = {_own(name, given) for name in names}
        kept = used_nodes(nodes, wanted)
        read = {name: value for name, value in {**self.feed, **given}.items() if name in wanted}
        return part_of(self._model, kept, read, [_own(name, given) for name in names]), read

    def nodes(self) -> list[onnx.NodeProto]:
        """Copy the nodes of the model."""
        made = onnx.GraphProto()
        made.node.extend(self._model.graph.node)
        return list(made.node)

    def name_elsewhere(self, name: str, place: str) -> str:
        """Name a value in another model: a weight alike in all places."""
        return name and (f"//theirs/{name}" if name in self._tensors and name not in self._constants else f"//theirs/{place}/{name}")

    def conversion(self, name: str, numbers: str, other: ModelSide, partner: str, *, back: bool = False) -> list[onnx.NodeProto]:
        """Make the nodes that compute `numbers`, as the other model has its value, from a value of this one; or the way back."""
        scale = self.scale_of(name) if self.dtypes[name].name in _QUANTISED else None
        ends, side, value = (numbers, name)[:: -1 if not back else 1], self if back else other, name if back else partner
        shape = onnx.helper.make_node("Constant", [], [f"{ends[1]}/shape"], value_ints=side.shapes[value])
        same = self.shapes[name] == other.shapes[partner]
        middle = ends[1] if same else f"{ends[1]}/flat"
        if scale is not None:
            made = onnx.helper.make_node("QuantizeLinear" if back else "DequantizeLinear", [ends[0], *scale.names], [middle])
        elif self.dtypes[name] == other.dtypes[partner]:
            made = onnx.helper.make_node("Identity", [ends[0]], [middle])
        else:
            made = onnx.helper.make_node("Cast", [ends[0]], [middle], to=onnx.helper.np_dtype_to_tensor_dtype(side.dtypes[value]))
        return [made] if same else [made, shape, onnx.helper.make_node("Reshape", [middle, f"{ends[1]}/shape"], [ends[1]])]

    def outputs(self, nodes: Sequence[onnx.NodeProto], other: ModelSide) -> dict[str, np.ndarray[Any, Any]]:
        """Compute the outputs, with rewrites, where these nodes are those of the model; they also read weights of the other one."""
        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        del model.graph.node[:], model.graph.value_info[:]
        model.graph.node.extend(nodes)
        for tensor in other._model.graph.initializer:
            model.graph.initializer.add().CopyFrom(tensor)
            model.graph.initializer[-1].name = other.name_elsewhere(tensor.name, "")
        results = self._run(model, self.feed, rewrites=True)
        return dict(zip(self.graph.outputs, results, strict=True))

    def is_number(self, name: str) -> bool:
        """Whether it is known which numbers a value that was computed stands for: not where a call chooses its scale, nor in NCHWc."""
        node = self.graph.makers.get(name)
        if node is not None and node.domain == "com.microsoft.nchwc" and node.op_type != "ReorderOutput":
            return False
        return self.dtypes[name].name not in _QUANTISED or self.scale_of(name) is not None

    def real(self, name: str, value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Compute the numbers that a value stands for, where it is quantised."""
        scale = self.scale_of(name) if value.dtype.name in _QUANTISED else None
        return value if scale is None else scale.real(value)

    def stored(self, name: str, numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Write numbers in the type that a value has in this model."""
        dtype, numbers = self.dtypes[name], numbers.reshape(self.shapes[name])
        scale = self.scale_of(name) if dtype.name in _QUANTISED else None
        with np.errstate(over="ignore"):  # what float16 cannot hold is infinite there, too
            return numbers.astype(dtype) if scale is None else scale.quantised(numbers, dtype)

    def scale_of(self, name: str) -> Scale | None:
        """Find the constant scale of a quantised value: where it is made, where it is read, or of what it was made from."""
        node = self.graph.makers.get(name)
        if node is not None and is_quantised(node) and node.op_type not in ("DequantizeLinear", "DynamicQuantizeLinear"):
            return self._scale(node, _SCALE_OF_RESULT.get(node.op_type, 3))
        reader = next((each for each in self.graph.readers.get(name, ()) if is_quantised(each)), None)
        if reader is not None:
            return self._scale(reader, list(reader.input).index(name) + 1)
        return self.scale_of(node.input[0]) if node is not None and node.op_type in _PASSING else None

    def _scale(self, node: onnx.NodeProto, place: int) -> Scale | None:
        scale, zero = (self.constant(name) for name in [*node.input[place : place + 2], "", ""][:2])
        if scale is None or scale.ndim > 1:
            return None
        zero = np.zeros(scale.shape) if zero is None else zero
        shape: list[int] = []
        if scale.size > 1:
            held = self._tensors.get(node.input[place - 1])
            axis = next((item.i for item in node.attribute if item.name == "axis"), 1 if "uantizeLinear" in node.op_type else 0)
            if held is None or not -len(held.dims) <= axis < len(held.dims) or held.dims[axis] != scale.size:
                return None
            shape = [1] * len(held.dims)
            shape[axis] = scale.size
        return Scale(
            names=tuple(node.input[place : place + 2]),
            scale=scale.astype(np.float64).reshape(shape),
            zero=zero.astype(np.float64).reshape(shape),
        )
