"""The short road: a function is traced to an ATen graph and compiled by the backend, without Dynamo and AOTAutograd.

These two take 94 % of the time that a program takes. What they do for the backend is done here in a simpler way, for functions without
gradients, branches on values and arguments that share memory. The graph enters where AOTAutograd passes it on, with all that a
`LoweredGraph` says: what is written to, which inputs are weights, which outputs PyTorch makes as views.
"""

# ruff: noqa: ANN401 - programs return anything

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch._dynamo.source import LocalSource
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from ortlens import OrtBackend
from ortlens.backend.lowering.entry import LoweredGraph
from ortlens.backend.lowering.returned_views import base_of, without_returned_views

_COPY = torch.ops.aten.copy_.default
_UNSAFE_VIEW = torch.ops.aten._unsafe_view.default
_Layout: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], int]
"""Sizes, strides, and a distance in memory."""


@dataclass(frozen=True, kw_only=True)
class GraphRoad:
    """Compiles functions of random programs; stands in for `torch.compile`.

    Attributes:
        through_ort: Whether the backend compiles the graph. If not, PyTorch runs it as it is, without the backend's decompositions: a
            difference that shows there as well is the tracer's.
    """

    through_ort: bool = True

    def compiled(self, function: Callable[..., Any], *, dynamic: bool | None, options: dict[str, Any] | None) -> Callable[..., Any]:
        """Make a function that is traced when it is called."""
        backend = OrtBackend.get_cached_instance_for_options(options) if self.through_ort else None
        return _Compiled(function, backend, dynamic=dynamic)


class _Compiled:
    """A function with the graphs that were made of it, one per kind of arguments."""

    def __init__(self, function: Callable[..., Any], backend: OrtBackend | None, *, dynamic: bool | None) -> None:
        self._function = function
        self._backend = backend
        self._dynamic = dynamic
        self._graphs: dict[Any, list[_Graph]] = {}

    def __call__(self, model: torch.nn.Module, *ins: Any) -> Any:
        given = _Arguments.of(model, ins)
        graphs = self._graphs.setdefault(given.kind, [])
        graph = next((item for item in graphs if item.fits(given.tensors)), None)
        if graph is None:
            symbolic = self._dynamic is True or (self._dynamic is None and bool(graphs))
            graph = _Graph(self._function, given, self._backend, symbolic=symbolic)
            graphs.append(graph)
        return graph(given.tensors)


@dataclass(frozen=True, kw_only=True)
class _Arguments:
    """What a function is called with, as the inputs of a graph.

    Attributes:
        names: Those of the module's tensors, parameters and buffers last.
        weights: How many parameters and buffers there are.
        plain: The other arguments; None in place of each tensor.
        tensors: The module's, then the arguments.
    """

    names: tuple[str, ...]
    weights: int
    plain: tuple[Any, ...]
    tensors: tuple[torch.Tensor, ...]

    @classmethod
    def of(cls, model: torch.nn.Module, ins: Sequence[Any]) -> "_Arguments":
        weights = {**model._parameters, **model._buffers}
        state: dict[str, Any] = {**{name: value for name, value in vars(model).items() if isinstance(value, torch.Tensor)}, **weights}
        return cls(
            names=tuple(state),
            weights=len(weights),
            plain=tuple(None if isinstance(item, torch.Tensor) else item for item in ins),
            tensors=(*state.values(), *(item for item in ins if isinstance(item, torch.Tensor))),
        )

    @property
    def kind(self) -> Any:
        """What arguments need to have in common to share a graph, apart from sizes."""
        return (self.names, self.plain, tuple((item.dtype, item.dim()) for item in self.tensors))

    def call(self, function: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """Call the function with other tensors in place of these."""
        state, rest = dict(zip(self.names, tensors, strict=False)), iter(tensors[len(self.names) :])
        return tuple(function(types.SimpleNamespace(**state), *(next(rest) if item is None else item for item in self.plain)))


class _Graph:
    """One traced and compiled graph."""

    def __init__(self, function: Callable[..., Any], given: _Arguments, backend: OrtBackend | None, *, symbolic: bool) -> None:
        self._layouts = None if symbolic else _layouts(given.tensors)
        self._shapes = ShapeEnv()
        mode = FakeTensorMode(shape_env=self._shapes, static_shapes=not symbolic, allow_non_fake_inputs=True)
        self._fakes = [mode.from_tensor(item.detach()) for item in given.tensors]

        table = {} if backend is None else backend.compiler.tables()[1]

        def traced() -> torch.fx.GraphModule:
            return _traced(lambda *tensors: given.call(function, tensors), self._fakes, table, "symbolic" if symbolic else "fake")

        module = traced()
        if self._shapes.replacements:  # sizes that an operator fixed: AOTAutograd traces once more, after Dynamo, and sees numbers
            module = traced()
        self._mutated = mutated = _returning_new_values(module.graph)
        module.recompile()
        self._rebuilt = _views_of_new_values(module.graph, [self._fakes[place] for place in mutated])
        self._laid_like_inputs = backend is not None
        if backend is None:
            self._run: Callable[[list[Any]], Any] = lambda args: module(*args)
            return
        outputs = range(len(mutated), len(_outputs(module.graph)))
        lowered = LoweredGraph(
            module=module,
            phase="inference",
            static_inputs=frozenset(range(len(given.names) - given.weights, len(given.names))) - set(mutated),
            compile_id=None,
            op_count=len(module.graph.nodes),
            aot_ns=0,
            views=without_returned_views(module, {place: place in self._rebuilt for place in outputs}, mutated, parts=outputs),
            mutated=mutated,
        )
        self._run = backend.compiler.compile(lowered, recorder=None)

    def fits(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the graph is valid for arguments of the same dtypes and numbers of dimensions."""
        if self._layouts is not None:
            return self._layouts == _layouts(tensors)
        names = [LocalSource(f"t{place}") for place in range(len(tensors))]
        guards = self._shapes.produce_guards(self._fakes, names, ignore_static=False)
        # Each by itself: torch's `evaluate_guards_for_args` joins them by `and`, although one may hold an `or` without parentheses.
        return all(self._shapes.evaluate_guards_expression(guard, tensors) for guard in guards)

    def __call__(self, tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """Run it, write new values back, and return the outputs, those that are views of what was written to as such."""
        made = list(self._run(list(tensors)))
        for place, value in zip(self._mutated, made, strict=False):
            tensors[place].copy_(value)
        for place, (written, whole, layout) in self._rebuilt.items():
            source, value = tensors[self._mutated[written]], made[place]
            if layout is not None:
                size, stride, distance = layout
                shift = source.storage_offset() + distance
            else:  # as AOTAutograd does it; see `ReturnedViews.written`
                size, stride = value.shape, value.stride()
                shift = value.storage_offset() + (0 if self._laid_like_inputs else source.storage_offset() - made[written].storage_offset())
            made[place] = source if whole else source.as_strided(size, stride, shift)
        return tuple(made[len(self._mutated) :])


def _traced(
    function: Callable[..., Any], fakes: Sequence[torch.Tensor], table: Mapping[Any, Callable[..., Any]], mode: Literal["symbolic", "fake"]
) -> torch.fx.GraphModule:
    """Trace a function to a graph that writes to nothing but its inputs.

    `functionalize` overlooks what composite operators write to tensors that they make themselves. Operator by operator it sees it.
    """
    made: torch.fx.GraphModule = make_fx(torch.func.functionalize(function, remove="mutations"), dict(table), mode)(*fakes)
    if any(_writes(node) and node.args[0].op != "placeholder" for node in made.graph.nodes):
        plain = make_fx(function, {}, mode)(*fakes)
        for view in (_UNSAFE_VIEW, torch.ops.aten.view.default):
            for node in plain.graph.find_nodes(op="call_function", target=view):
                # `functionalize` takes the first for a view, as nobody else does; what they read may lie otherwise in the second trace.
                node.target = torch.ops.aten.reshape.default
        plain.recompile()
        made = make_fx(torch.func.functionalize(plain, remove="mutations"), dict(table), mode)(*fakes)
    if left := [node for node in made.graph.nodes if _writes(node) and node.args[0].op != "placeholder"]:
        raise ValueError(f"{left[0]} writes to something that is no input")
    return made


def _writes(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _layouts(tensors: Sequence[torch.Tensor]) -> list[tuple[Any, ...]]:
    return [(item.shape, item.stride()) for item in tensors]


def _outputs(graph: torch.fx.Graph) -> list[Any]:
    (output,) = graph.find_nodes(op="output")
    return list(output.args[0])


def _returning_new_values(graph: torch.fx.Graph) -> tuple[int, ...]:
    """Return the new values of inputs, before the other outputs, instead of writing them; the positions of these inputs."""
    inputs = list(graph.find_nodes(op="placeholder"))
    written = {inputs.index(node.args[0]): node for node in graph.find_nodes(op="call_function", target=_COPY) if node.args[0] in inputs}
    (output,) = graph.find_nodes(op="output")
    mutated = tuple(sorted(written))
    output.args = ((*(written[place].args[1] for place in mutated), *output.args[0]),)
    for node in written.values():
        node.replace_all_uses_with(node.args[1])
        graph.erase_node(node)
    graph.eliminate_dead_code()
    return mutated


def _views_of_new_values(graph: torch.fx.Graph, inputs: Sequence[torch.Tensor]) -> dict[int, tuple[int, bool, _Layout | None]]:
    """The outputs that lie in an input that is written to."""
    outputs = _outputs(graph)
    found: dict[int, tuple[int, bool, _Layout | None]] = {}
    for place, given in enumerate(outputs[len(inputs) :], len(inputs)):
        node, chain = given, []
        while isinstance(node, torch.fx.Node) and node not in outputs[: len(inputs)] and base_of(node) is not None:
            chain.append(node)
            node = node.args[0]
        if isinstance(node, torch.fx.Node) and node in outputs[: len(inputs)]:
            written = outputs.index(node)
            found[place] = (written, given is node, _layout_in(inputs[written], chain))
    return found


def _layout_in(tensor: torch.Tensor, chain: Sequence[torch.fx.Node]) -> _Layout | None:
    """How a view of a tensor lies in it: the new value that the trace has in its place may lie otherwise."""
    view: Any = tensor
    for node in reversed(chain):
        args, kwargs = torch.fx.node.map_arg((node.args[1:], node.kwargs), lambda item: item.meta["val"])
        view = node.target(view, *args, **kwargs)  # type: ignore[operator]  # a call_function node
    distance = view.storage_offset() - tensor.storage_offset()
    known = all(isinstance(number, int) for number in (*view.shape, *view.stride(), distance))
    return (tuple(view.shape), tuple(view.stride()), distance) if known else None
