"""What is bound to a session: its inputs, its outputs, and the native binding of one call at a time; its model, so that they need no copy.

ONNX Runtime takes contiguous tensors only. A transposed or channels-last tensor is contiguous in another order of dimensions.
The model of a session takes it in that order and begins with a Transpose, which ONNX Runtime can move through the graph, fuse
into a matrix product, or cancel against the Transpose of an output. A copy before the call could not be avoided.

A model that ends in a Reshape copies its output: inside a run ONNX Runtime lets a Reshape share the memory of its input, but an
output of the model has memory of its own. So the session returns the input of the Reshape, written into the memory of the output.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnx
import torch

from ortlens import _ort
from ortlens.backend.basis import dtypes
from ortlens.backend.basis.memory_order import inverse_order
from ortlens.backend.basis.node_provenance import FX_NODE_KEY, INFERRED_KEY
from ortlens.backend.runtime import devices
from ortlens.backend.runtime.graph_view import GraphView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import onnxruntime

    from ortlens.backend.runtime.weights import FrozenWeight


_FAR = 4  # times as many elements: sizes that vary less share what the arena holds
_FEW = 4096  # elements, of which activations are small
TRIALS = 4  # runs of a large size before its memory is kept: one that comes again and again is faster so


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundInput:
    """One input of a partition."""

    name: str  # name in the ONNX model
    meta: Any  # a fake tensor or a number: dtype, device and (symbolic) shape
    frozen: FrozenWeight | None = None  # the weight that the session holds as a constant in its place; then it is checked and not bound
    bound: bool = True  # false when the session does not take it: the optimiser may remove an input
    permutation: tuple[int, ...] | None = None  # memory order in which the session takes it; see `with_permuted_inputs`
    steady: bool = False  # whether its memory stays where it is, as that of a weight does
    guarded: bool = False  # whether Dynamo's guards make sure of its sizes. What PyTorch's operators return has none


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One output of a partition."""

    name: str  # name in the ONNX model
    meta: Any  # a fake tensor or a number: what PyTorch expects
    permutation: tuple[int, ...] | None = None  # memory order in which the session writes it; see `backend.memory_order`
    shape: tuple[int, ...] | None = None  # shape in which the session writes it, if that differs; see `without_last_reshapes`
    # Position of the input whose memory it takes, where no inputs overlap; see `runtime.in_place`. None: it is allocated.
    in_place: int | None = None
    repeatable: bool = True  # whether a run may be repeated on what a failed run has written there


class Binding:
    """A native binding, its session, and the buffers of its numbers."""

    __slots__ = (
        "bind_input",
        "bind_output",
        "elements",
        "fence",
        "get_outputs",
        "inputs_at",
        "kept",
        "most",
        "native",
        "numbers",
        "outputs_at",
        "run",
        "session",
        "spares",
    )

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        inputs: Sequence[BoundInput],
        outputs: Sequence[Output],
        constants: Sequence[tuple[BoundInput, torch.Tensor]] = (),
    ) -> None:
        """Bind what never moves: constants, and the buffers of numbers.

        This object keeps the values of the constants alive, and the session, which it releases after the native binding.
        """
        # Addresses of the inputs and outputs of fixed sizes that are bound, by position.
        self.inputs_at, self.outputs_at = [0] * len(inputs), [0] * len(outputs)
        self.session = session
        self.fence: Any = None  # the event that orders its runs on a device; made by `DeviceCalls`
        self.native = _ort.new_binding(session)
        self.elements = self.most = 0  # of the inputs of varying sizes: in the last call, and in the largest one
        self.spares = False  # whether the next run gives memory back: then the outputs must not lie in the arena
        self.run: Callable[..., object] = _ort.runner_of(session)
        self._run_next(_ort.first_run_of(session), 1)
        self.bind_input = self.native.bind_input
        self.bind_output = self.native.bind_output
        self.get_outputs = self.native.get_outputs
        self.numbers = {item.name: number_buffer(item.meta) for item in inputs if item.bound and not isinstance(item.meta, torch.Tensor)}
        for name, buffer in self.numbers.items():
            element = dtypes.ELEMENT_TYPES[buffer.dtype].onnx
            self.bind_input(name, devices.ort_device(buffer.device), element, (), buffer.data_ptr())
        self.kept = [self._bind_constant(item, value) for item, value in constants if item.bound]

    def resize(self, elements: int) -> None:
        """Have runs give memory back: the first few of a size far larger than all before, and one that is far smaller than the last."""
        last, self.elements = self.elements, elements
        grows, falls = elements > _FAR * self.most, _FAR * elements < last
        self.most = max(self.most, elements)
        if (grows or falls) and max(elements, last) > _FEW:
            self._run_next(_ort.shrinking_run_of(self.session), TRIALS if grows else 1)

    def _run_next(self, run: Callable[..., object] | None, times: int) -> None:
        """Run in another way for some times."""
        if run is not None:
            self.run, self.spares = functools.partial(self._run_counted, run, itertools.count(times - 1, -1)), True

    def _run_counted(self, run: Callable[..., object], left: Iterator[int], native: Any, options: object) -> None:
        if next(left) <= 0 and isinstance(self.run, functools.partial):  # else a subclass runs it otherwise
            self.run, self.spares = _ort.runner_of(self.session), False
        run(native, options)

    def _bind_constant(self, item: BoundInput, value: torch.Tensor) -> torch.Tensor:
        name = item.name if item.permutation is None else permuted_name(item.name)
        plain = value.detach().to(devices.memory_of(value.device)).resolve_neg()
        plain = (plain if item.permutation is None else plain.permute(item.permutation)).contiguous()
        kept = plain if plain.data_ptr() else plain.new_zeros(max(plain.numel(), 1))  # ONNX Runtime requires an address
        self.bind_input(name, devices.ort_device(plain.device), dtypes.ELEMENT_TYPES[plain.dtype].onnx, plain.shape, kept.data_ptr())
        return kept

    def __del__(self) -> None:
        """Release the native binding before the session: the other order crashes the process."""
        for name in ("bind_input", "bind_output", "get_outputs", "run", "native", "session"):
            if hasattr(self, name):
                delattr(self, name)


def number_buffer(meta: Any) -> torch.Tensor:
    """Return a zero without dimensions, of dtype bool or int64, to pass or receive a number in."""
    is_bool = isinstance(meta, (bool, torch.SymBool))
    return torch.zeros((), dtype=torch.bool if is_bool else torch.int64, device="cpu")


def with_permuted_inputs(model: onnx.ModelProto, orders: Mapping[str, tuple[int, ...]]) -> onnx.ModelProto:
    """Copy a model to take inputs in memory order, see `backend.memory_order`, by a Transpose each; without any, return it."""
    if not orders:
        return model
    turned = {value.name: onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in model.graph.input if value.name in orders}
    made = GraphView(model).edited(lambda _, copy: [copy], first=[_turned(value, orders[name]) for name, value in turned.items()])
    for value in made.graph.input:
        value.CopyFrom(turned.get(value.name, value))
    return made


def _turned(value: onnx.ValueInfoProto, order: tuple[int, ...]) -> onnx.NodeProto:
    """Rename and permute an input in place; return the node that computes the value of the old name from it."""
    plain = value.name
    value.name = permuted_name(plain)
    sizes = list(value.type.tensor_type.shape.dim)
    del value.type.tensor_type.shape.dim[:]
    value.type.tensor_type.shape.dim.extend(sizes[dim] for dim in order)
    node = onnx.helper.make_node("Transpose", [value.name], [plain], name=f"{plain}/Transpose_in", perm=inverse_order(order))
    for key, text in ((FX_NODE_KEY, plain), (INFERRED_KEY, "input")):
        node.metadata_props.add(key=key, value=text)
    return node


def without_last_reshapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model without Reshapes that compute outputs of fixed size; these get the shape of its input. Without any, return it."""
    graph = GraphView(model)
    dropped = _last_reshapes(graph)
    if not dropped:
        return model
    inner = {node.input[0]: node.output[0] for node in dropped}
    gone = set(map(id, dropped))

    def change(node: onnx.NodeProto, copy: onnx.NodeProto) -> list[onnx.NodeProto]:
        copy.input[:] = [inner.get(name, name) for name in node.input]
        copy.output[:] = [inner.get(name, name) for name in node.output]
        return [] if id(node) in gone else [copy]

    made = graph.edited(change)
    types = {value.name: value.type for value in model.graph.value_info}
    sources = {name: source for source, name in inner.items()}
    for value in made.graph.output:
        if value.name in sources:
            value.type.CopyFrom(types[sources[value.name]])
    return made


_RESHAPES = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")


def _last_reshapes(graph: GraphView) -> list[onnx.NodeProto]:
    """List nodes that only reshape, for an output, a value that another node computes and that is neither returned nor read in a body."""
    found: dict[str, onnx.NodeProto] = {}
    for value in graph.model.graph.output:
        node = graph.makers.get(value.name)
        if node is None or node.op_type not in _RESHAPES or node.domain or value.name in graph.readers:
            continue
        source = node.input[0]
        fixed = all(all(isinstance(size, int) for size in graph.sizes.get(name, [""])) for name in (source, value.name))
        if fixed and source in graph.makers and source not in graph.returned | graph.captured:
            found.setdefault(source, node)
    return list(found.values())


def given_shape(shape: Sequence[object], sizes: Sequence[object]) -> tuple[int, ...] | None:
    """Return a session's shape of an output, if it is fixed, differs from PyTorch's and has as many elements; else None."""
    own, wanted = ([size for size in given if isinstance(size, int)] for given in (shape, sizes))
    if len(own) != len(shape) or len(wanted) != len(sizes) or own == wanted or math.prod(own) != math.prod(wanted):
        return None
    return tuple(own)


def permuted_name(name: str) -> str:
    """Return a name, which no FX node has, for an input that the model takes in memory order."""
    return f"{name}.as_it_lies"
