"""Convert a partition to an ONNX model, node by node.

The functions are those of torch's registry and our own. Each ONNX node is named after the FX node that it was made from and keeps
that name in its metadata, so that dumps, Netron and ONNX Runtime's kernels can be traced back. A node that cannot be converted does
not stop the others: one pass finds all failures of a partition.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import onnx_ir.tensor_adapters
import torch

from ortlens import _torch
from ortlens._process import with_value
from ortlens._shell import no_progress
from ortlens.backend.basis import dtypes
from ortlens.backend.basis.dtypes import LIMITS, int_range
from ortlens.backend.basis.memory_order import memory_order
from ortlens.backend.basis.node_provenance import FX_NODE_KEY, assign_provenance, subgraphs
from ortlens.backend.conversion import upcasting
from ortlens.backend.operators import basics

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable


class NodeFailures(Exception):  # noqa: N818 - carries several failures
    """The ONNX functions of some nodes of a partition raised.

    Attributes:
        failures: FX node name -> the exception.
    """

    def __init__(self, failures: dict[str, Exception]) -> None:
        """List the nodes in the message, given the exceptions by FX node name."""
        super().__init__(", ".join(failures))
        self.failures = failures


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """An ONNX model and what is needed to use its outputs."""

    model: ir.Model  # the model; every tensor on the partition's boundary is an input or an output
    # For each output, the order of its dimensions in memory if PyTorch expects a permuted layout: the model's output is the tensor permuted
    # so that it is contiguous. None for a contiguous output.
    output_permutations: tuple[tuple[int, ...] | None, ...]
    output_types: tuple[Any, ...]  # A fake value with the element type and shape of each output


def onnx_from_partition(
    module: torch.fx.GraphModule, registry: Any, name: str, step: Callable[[int], None] = no_progress, *, upcast: Collection[str] = ()
) -> Converted:
    """Convert a partition whose nodes carry `meta["val"]`; inputs are named after placeholders, outputs after FX nodes."""
    converter = _Converter(module, registry, name, upcasting.narrow_dtypes(upcast))
    with _torch.quiet():
        converter.run(step)
    return Converted(model=converter.model, output_permutations=tuple(converter.permutations), output_types=tuple(converter.output_types))


class _Converter:
    def __init__(self, module: torch.fx.GraphModule, registry: Any, name: str, narrow: Collection[torch.dtype]) -> None:
        self._module = upcasting.in_float32(module, narrow)
        self._narrow = narrow
        self._registry = registry
        self._recorder = _torch.NodeRecorder(registry)
        self._values: dict[str, Any] = {}
        self._failures: dict[str, Exception] = {}
        self._named: set[int] = set()
        self._rounded: dict[str, ir.Value] = {}
        self.permutations: list[tuple[int, ...] | None] = []
        self.output_types: list[Any] = []
        graph = ir.Graph([], [], nodes=[], name=name)
        self.model = ir.Model(graph, ir_version=10)

    def run(self, step: Callable[[int], None]) -> None:
        handlers = {
            "placeholder": self._placeholder,
            "get_attr": self._constant,
            "call_function": self._call,
            "output": self._outputs,
        }
        for node in self._module.graph.nodes:
            handlers[node.op](node)
            step(1)
        if self._failures:
            raise NodeFailures(self._failures)
        _torch.add_opset_imports(self.model)

    def _placeholder(self, node: torch.fx.Node) -> None:
        given = node.meta.get(upcasting.GIVEN)
        value = self._typed(node.name, node.meta["val"] if given is None else given)
        self._values[node.name] = value if given is None else self._cast(value, torch.float32, node.name, "in")
        self.model.graph.inputs.append(value)

    def _cast(self, value: ir.Value, to: torch.dtype, name: str, role: str) -> ir.Value:
        output = self._recorder.symbolic(f"{name}.cast_{role}")
        self.model.graph.append(upcasting.cast(value, to, output, f"{name}/Cast_{role}"))
        return output

    def _constant(self, node: torch.fx.Node) -> None:
        tensor = upcasting.wide_value(getattr(self._module, str(node.target)), self._narrow)
        value = self._typed(node.name, tensor)
        if _torch.is_fake(tensor):  # in a dry run: the model is never serialised
            dtype = ir.DataType(dtypes.ELEMENT_TYPES[tensor.dtype].onnx)
            value.const_value = ir.ExternalTensor("absent", 0, 0, dtype, shape=ir.Shape(tensor.shape), name=node.name)
        else:
            value.const_value = ir.tensor_adapters.TorchTensor(tensor.detach().cpu().contiguous(), name=node.name)
        self.model.graph.initializers[node.name] = value
        self._values[node.name] = value

    def _call(self, node: torch.fx.Node) -> None:
        if node.target is operator.getitem:
            source = self._values[node.all_input_nodes[0].name]
            if isinstance(source, Sequence):
                self._values[node.name] = source[node.args[1]]  # type: ignore[index]  # FX keeps an int there
                return
        try:
            self._translate(node)
        except Exception as error:  # noqa: BLE001 - any exception of a function is a reason to leave the node to PyTorch
            self._failures[node.name] = error
            self._values[node.name] = self._stand_in(node)

    def _translate(self, node: torch.fx.Node) -> None:
        function = _torch.dispatch(node, self._registry)
        if function is None:
            raise LookupError(f"no ONNX function for {node.target}")
        rounds = upcasting.decides(node)
        args = [self._argument(arg, rounds=rounds) for arg in node.args]
        kwargs = {key: self._argument(arg, rounds=rounds) for key, arg in node.kwargs.items()}
        if "dtype" in kwargs and kwargs["dtype"] is None:
            kwargs["dtype"] = -1  # the default of onnxscript's functions
        if _takes_another_default(node) and kwargs.get("dtype", -1) == -1:
            kwargs["dtype"] = ir.DataType(dtypes.ELEMENT_TYPES[node.meta["val"].dtype].onnx)
        with with_value(basics.device_type, _device_type(node)):
            outputs, nodes, functions = self._recorder.call(function, args, kwargs)
        if not isinstance(outputs, Sequence) and len(getattr(getattr(node.target, "_schema", None), "returns", ())) > 1:
            outputs = [outputs]  # the function returns only the first; `support` has checked that no other is used
        outputs = _checked_outputs(node, function, outputs)
        _name_nodes(nodes, node.name, origin=node.name)
        self.model.graph.extend(nodes)
        for identifier, function_made in functions.items():
            if identifier not in self.model.functions:
                is_ir = isinstance(function_made, ir.Function)
                self.model.functions[identifier] = (
                    function_made if is_ir else ir.serde.deserialize_function(function_made.to_function_proto())
                )
        self._name_outputs(node, outputs)

    def _name_outputs(self, node: torch.fx.Node, outputs: Any) -> None:
        value = node.meta["val"]
        if isinstance(outputs, Sequence):
            read = _places_read(node)
            for place, (output, item) in enumerate(zip(outputs, value, strict=False)):
                # An output that nobody reads may have another shape than PyTorch's, which an optimiser would pass on to an input.
                self._name_output(output, f"{node.name}.{place}", item, typed=read is None or place in read)
        elif isinstance(value, (tuple, list)):
            outputs.name = node.name  # an ONNX sequence, which has no tensor's type
        else:
            self._name_output(outputs, node.name, value)
        self._values[node.name] = outputs

    def _name_output(self, output: Any, name: str, item: Any, *, typed: bool = True) -> None:
        if isinstance(output, ir.Value) and output.producer() is not None and id(output) not in self._named:
            self._named.add(id(output))
            output.name = name
            if typed:
                set_type(output, item)

    def _argument(self, arg: Any, *, rounds: bool = False) -> Any:
        if isinstance(arg, torch.fx.Node):
            return self._rounded_value(arg) if rounds or upcasting.is_rounded_number(arg) else self._values[arg.name]
        if isinstance(arg, (list, tuple)):
            return [self._argument(item, rounds=rounds) for item in arg]
        if isinstance(arg, torch.dtype):
            return ir.DataType(dtypes.ELEMENT_TYPES[arg].onnx)
        if isinstance(arg, (torch.device, torch.memory_format, torch.layout)):
            return str(arg)
        return arg

    def _rounded_value(self, node: torch.fx.Node) -> Any:
        """Return the value of a node, rounded to PyTorch's type where it is computed in a wider one."""
        value, given = self._values[node.name], node.meta.get(upcasting.GIVEN)
        if not isinstance(given, torch.Tensor) or node.op != "call_function":
            return value
        if node.name not in self._rounded:
            narrow = self._cast(value, given.dtype, node.name, "rounded")
            self._rounded[node.name] = self._cast(narrow, torch.float32, node.name, "widened")
        return self._rounded[node.name]

    def _stand_in(self, node: torch.fx.Node) -> Any:
        """Make placeholder values for a node that failed, so that the other nodes can be converted."""
        value = node.meta.get("val")
        if isinstance(value, (tuple, list)):
            return [self._typed(f"{node.name}.{place}", item) for place, item in enumerate(value)]
        return self._typed(node.name, value)

    def _typed(self, name: str, value: Any) -> ir.Value:
        made = self._recorder.symbolic(name)
        set_type(made, value)
        return made

    def _outputs(self, node: torch.fx.Node) -> None:
        sources: Any = node.args[0]  # a partition returns a tuple of nodes
        for source in sources:
            given, value = source.meta.get(upcasting.GIVEN), self._values[source.name]
            tensor = source.meta["val"] if given is None else given
            if given is not None:
                value = self._cast(value[0] if isinstance(value, Sequence) else value, given.dtype, source.name, "out")
            permutation = memory_order(tensor)
            self.permutations.append(permutation)
            self.output_types.append(tensor if permutation is None else tensor.permute(permutation))
            value = self._output_value(value, source.name, tensor, permutation)
            self.model.graph.outputs.append(value)

    def _output_value(self, value: Any, name: str, tensor: Any, permutation: tuple[int, ...] | None) -> ir.Value:
        """Make the output value: never an input, never the same value twice, and contiguous in PyTorch's order."""
        made: ir.Value = value[0] if isinstance(value, Sequence) else value
        taken = made.producer() is None or any(made is output for output in self.model.graph.outputs)
        if permutation is None and not taken:
            return made
        attributes = {} if permutation is None else {"perm": ir.AttrInt64s("perm", permutation)}
        op_type = "Identity" if permutation is None else "Transpose"
        node = ir.Node("", op_type, [made], list(attributes.values()), num_outputs=1, name=f"{name}/{op_type}_out")
        node.metadata_props[FX_NODE_KEY] = name
        node.outputs[0].name = f"{name}.out"
        set_type(node.outputs[0], tensor if permutation is None else tensor.permute(permutation))
        self.model.graph.append(node)
        return node.outputs[0]


def _name_nodes(nodes: Iterable[ir.Node], owner: str, *, origin: str) -> None:
    """Name nodes, their outputs and what their bodies hold after the owner of the nodes; all have one FX node as their origin."""
    for number, node in enumerate(nodes):
        node.name = f"{owner}/{node.op_type}" + (f"_{number}" if number else "")
        node.metadata_props[FX_NODE_KEY] = origin
        for place, output in enumerate(node.outputs):
            output.name = f"{node.name}:{place}"
        for body in subgraphs(node):
            for place, value in enumerate(body.inputs):
                value.name = f"{node.name}.{place}"
            _name_nodes(body, node.name, origin=origin)


def set_type(value: ir.Value, meta: Any) -> None:
    """Set the element type and shape of an ONNX value from a fake value; symbolic sizes become named dimensions."""
    if isinstance(meta, torch.Tensor):
        value.dtype = ir.DataType(dtypes.ELEMENT_TYPES[meta.dtype].onnx)
        sizes = (size if isinstance(size, int) else size.node.expr for size in meta.shape)
        value.shape = ir.Shape([int(size) if isinstance(size, int) or size.is_number else str(size) for size in sizes])
    elif isinstance(meta, (bool, torch.SymBool)):
        value.dtype, value.shape = ir.DataType.BOOL, ir.Shape([])
    elif isinstance(meta, (int, torch.SymInt)):
        value.dtype, value.shape = ir.DataType.INT64, ir.Shape([])
        value.meta[LIMITS] = int_range(meta) or value.meta.get(LIMITS)
    elif isinstance(meta, (float, torch.SymFloat)):
        value.dtype, value.shape = ir.DataType.DOUBLE, ir.Shape([])


def _device_type(node: torch.fx.Node) -> str:
    value = node.meta.get("val")
    made = value[0] if isinstance(value, (tuple, list)) and value else value
    return made.device.type if isinstance(made, torch.Tensor) else "cpu"


def _takes_another_default(node: torch.fx.Node) -> bool:
    """Tell whether a tensor is made of numbers in PyTorch's default dtype, and that is not the one of ONNX functions."""
    made = node.meta["val"]
    if not isinstance(made, torch.Tensor) or made.dtype is torch.float32 or not made.is_floating_point():
        return False
    takes = any(argument.name == "dtype" for argument in getattr(getattr(node.target, "_schema", None), "arguments", ()))
    return takes and not any(isinstance(source.meta.get("val"), torch.Tensor) for source in node.all_input_nodes)


def _checked_outputs(node: torch.fx.Node, function: Any, outputs: Any) -> Any:
    """Check what a function returned for a node: one value for one tensor, else at least as many as are read."""
    if not isinstance(outputs, Sequence):
        return outputs
    value, read = node.meta["val"], _places_read(node)
    is_one = isinstance(value, torch.Tensor)
    needed = 1 if is_one else len(value) if read is None else max(read, default=-1) + 1
    if len(outputs) < needed:
        name = getattr(function, "name", None) or getattr(function, "__name__", repr(function))
        raise TypeError(
            f"the function {name} returns {len(outputs)} values and {node.target} needs {needed}; "
            "a function with @script must say what it returns, as in `-> FLOAT[...]`, a plain function need not"
        )
    return outputs[0] if is_one else outputs


def _places_read(node: torch.fx.Node) -> frozenset[int] | None:
    """Find which outputs of a node are read; None when its users read them all at once."""
    users = list(node.users)
    if any(user.target is not operator.getitem for user in users):
        return None
    return frozenset(user.args[1] for user in users if isinstance(user.args[1], int))


def to_opset(model: ir.Model, version: int) -> ir.Model:
    """Convert a model without local functions in place to a newer version of the default operator set, or raise `ValueError`."""
    from onnxscript import version_converter

    with _torch.quiet():
        version_converter.convert_version(model, target_version=version)
    reached = model.opset_imports.get("")
    if reached != version:
        raise ValueError(f"the model cannot be converted from operator set {reached} to {version}")
    return model


def proto_from_model(model: ir.Model, output_types: Sequence[Any]) -> Any:
    """Serialise a model, with unique names and provenance for its nodes, and outputs typed anew: the optimiser may lose types."""
    # Some execution providers confuse the inputs if one of them is unused (OpenVINO: wrong results).
    model.graph.inputs[:] = [value for value in model.graph.inputs if value.uses() or value.is_graph_output()]
    assign_provenance(model.graph)
    for output, meta in zip(model.graph.outputs, output_types, strict=True):
        set_type(output, meta)
    return ir.to_proto(model)
