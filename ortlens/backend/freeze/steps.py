"""The source of a frozen call: takes the arguments apart and checks them, runs sessions, PyTorch's nodes and writes to state.

The arguments' structure, dtypes and sizes are constants in the source. Whatever is not exactly as traced goes to `slow`, which
accepts what means the same, or says what differs.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.export.graph_signature import ConstantArgument

from ortlens import _torch
from ortlens.backend.basis.memory_order import is_contiguous, is_dense
from ortlens.backend.deploy.signature import ConstantLeaf, NumberLeaf, Size, TensorLeaf
from ortlens.backend.freeze.arguments import PLAIN
from ortlens.backend.lowering.exported import mutated_inputs
from ortlens.backend.lowering.returned_views import inputs_of, outputs_of, owner_of, resolving
from ortlens.backend.runtime import call, in_place
from ortlens.backend.runtime.generated import Emitter, function_from_source, listed, source_of
from ortlens.backend.runtime.program import eager_nodes, make_program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch.export import ExportedProgram

    from ortlens.backend.deploy.signature import Leaf
    from ortlens.backend.freeze.arguments import Arguments
    from ortlens.backend.graph import CompiledGraph
    from ortlens.backend.lowering.exported import Result
    from ortlens.backend.partitioning.plan import GraphPartition
    from ortlens.backend.runtime.binding import BoundInput, Output
    from ortlens.backend.runtime.generated import Lines
    from ortlens.backend.runtime.memory_assumptions import MemoryAssumptions
    from ortlens.backend.runtime.runner import PartitionRunner
    from ortlens.trace.recorder import Recorder
    from ortlens.trace.runlog import RunLog


_SLOW = "return slow(args, kwargs)"


class _EntryWriter(Emitter):
    """Writes one function. All names in it are made here; the user's texts are constants only."""

    def __init__(self, in_spec: Any, leaves: Sequence[Leaf], names: Sequence[str]) -> None:
        """Prepare to write, with a local name for each leaf of the `(args, kwargs)` that `in_spec` describes."""
        self._spec = in_spec
        self._leaves = leaves
        self._names = names
        self.slow_if: list[str] = []  # further conditions under which a call is not as traced
        self.refuses_signs = True  # whether a negative or conjugate view is not as traced
        self.asks_interpreter = True  # whether a call is not as traced where PyTorch's kernels do not compute operators
        self._next = iter(names)
        super().__init__(  # the globals of the function, but for `slow` and `admits`
            tensors=PLAIN,
            strided=torch.strided,
            flatten=_torch.flatten,
            unflatten=_torch.unflatten,
            no_grad=torch.no_grad,
            copysign=math.copysign,
            **_torch.interpreter_scope(),
        )

    def source(self, body: Lines, result: str) -> str:
        """Write the function `call`, with the lines of `body` between the checks and the return."""
        first = [f"if {_torch.IS_INTERPRETED}: {_SLOW}"] if self.asks_interpreter else []
        lines = [*first, *self._arguments(), *self._checks(), *body, f"return {result}"]
        return source_of("call(self, /, *args, **kwargs)", lines)

    def result(self, out_spec: Any, texts: Sequence[str]) -> str:
        """Write an expression for the result, from the source of each leaf."""
        return self._built(out_spec, iter(texts))

    def _arguments(self) -> Lines:
        args, kwargs = self._spec.children()
        count = f"len(args) != {args.num_children}" if args.num_children else "args"
        named = f"len(kwargs) != {kwargs.num_children}" if kwargs.num_children else "kwargs"
        return [f"if {count} or {named}: {_SLOW}", *self._items("args", args), *self._entries("kwargs", kwargs)]

    def _items(self, source: str, spec: Any) -> Lines:
        targets, further = self._targets(spec)
        return [f"{listed(targets)}= {source}", *further] if targets else []

    def _entries(self, source: str, spec: Any) -> Lines:
        targets, further = self._targets(spec)
        lines = [f"{name} = {source}[{self._key(key)}]" for name, key in zip(targets, spec.context or (), strict=True)]
        return ["try:", lines, f"except KeyError: {_SLOW}", *further] if lines else []

    def _key(self, key: object) -> str:
        return repr(key) if type(key) in (str, int) else self.constant(key, "key")

    def _targets(self, spec: Any) -> tuple[list[str], Lines]:
        """Make a local name for each child, and the lines that take it apart further."""
        targets: list[str] = []
        lines: list[Any] = []
        for child in spec.children():
            if child.is_leaf():
                targets.append(next(self._next))
                continue
            targets.append(f"tree_{len(self.scope)}")
            self.scope[targets[-1]] = None  # keeps the name for this one
            lines += self._opened(targets[-1], child)
        return targets, lines

    def _opened(self, name: str, spec: Any) -> Lines:
        if spec.type in (tuple, list):
            return [f"if type({name}) is not {spec.type.__name__} or len({name}) != {spec.num_children}: {_SLOW}", *self._items(name, spec)]
        if spec.type is dict:
            return [f"if type({name}) is not dict or len({name}) != {spec.num_children}: {_SLOW}", *self._entries(name, spec)]
        leaves = [next(self._next) for _ in range(spec.num_leaves)]
        known = self.constant(spec, "spec")
        opened = [f"{listed(leaves)}= {name}"] if leaves else []
        return [f"{name}, structure = flatten({name})", f"if structure != {known}: {_SLOW}", *opened]

    def _checks(self) -> list[str]:
        lines, varying = [], []
        for name, leaf in zip(self._names, self._leaves, strict=True):
            if isinstance(leaf, TensorLeaf):
                lines += [f"try: differs = {' or '.join(self._against(name, leaf))}", "except RuntimeError: differs = True"]
                lines.append(f"if differs: {_SLOW}")  # the shape of a nested tensor raises
                varying += [f"{name}.shape"] if any(isinstance(size, Size) for size in leaf.sizes) else []
            elif isinstance(leaf, NumberLeaf):
                lines.append(f"if type({name}) is not int: {_SLOW}")
                varying.append(name)
            else:
                lines.append(f"if {self._not_constant(name, leaf)}: {_SLOW}")
        if varying:
            self.scope["known"] = set()
            together = varying[0] if len(varying) == 1 else f"({', '.join(varying)})"
            lines += [f"try: sizes = {together}", "except RuntimeError: sizes = None"]
            lines += [f"if sizes not in known and not admits(known, sizes, ({listed(self._names)})): {_SLOW}"]
        return [*lines, *(f"if {condition}: {_SLOW}" for condition in self.slow_if)]

    def _against(self, name: str, leaf: TensorLeaf) -> Iterator[str]:
        """List the conditions under which a tensor is not exactly as traced."""
        yield f"type({name}) not in tensors"
        yield f"{name}.dtype is not {self.constant(getattr(torch, leaf.dtype), 'dtype')}"
        if all(isinstance(size, int) for size in leaf.sizes):
            yield f"{name}.shape != {leaf.sizes!r}"
        else:
            yield f"{name}.dim() != {len(leaf.sizes)}"
        yield f"not {name}.is_cpu" if leaf.device == "cpu" else f"{name}.device.type != {leaf.device!r}"
        yield f"{name}.layout is not strided"
        if self.refuses_signs:
            yield f"{name}.is_neg()" + (f" or {name}.is_conj()" if "complex" in leaf.dtype else "")

    def _not_constant(self, name: str, leaf: ConstantLeaf) -> str:
        value = leaf.value
        if value is None or isinstance(value, bool):
            return f"{name} is not {value!r}"
        if value != value:  # noqa: PLR0124 - a NaN, of which only itself is certain to be the same
            return f"{name} is not {self.constant(value, 'value')}"
        if value == 0 and type(value) is float:
            return f"type({name}) is not float or {name} != 0.0 or copysign(1.0, {name}) != {math.copysign(1.0, value)}"
        if type(value) in (int, float, str):
            return f"type({name}) is not {type(value).__name__} or {name} != {self.constant(value, 'value')}"
        return f"{name} is not {self.constant(value, 'value')}"

    def _built(self, spec: Any, texts: Iterator[str]) -> str:
        if spec.is_leaf():
            return next(texts)
        items = [self._built(child, texts) for child in spec.children()]
        if spec.type is tuple:
            return f"({listed(items)})"
        if spec.type is list:
            return f"[{', '.join(items)}]"
        if spec.type is dict:
            return "{" + ", ".join(f"{self._key(key)}: {item}" for key, item in zip(spec.context, items, strict=True)) + "}"
        return f"unflatten([{', '.join(items)}], {self.constant(_torch.shallow_spec(spec), 'made')})"


class FrozenSteps:
    """The steps of a frozen program."""

    def __init__(  # noqa: PLR0913 - each is a part of what was compiled
        self,
        program: ExportedProgram,
        graph: CompiledGraph,
        values: Sequence[Any],
        *,
        results: Sequence[Result],
        memory: MemoryAssumptions,
        recorder: Recorder | None = None,
    ) -> None:
        """Take over a graph that has run once.

        `values` are the inputs of the graph: the weights and state that calls use, None for the user's inputs. With a recorder, calls go
        through the graph and its runners, where a lens looks on.
        """
        self._watched = recorder is not None
        self.results = results
        self.memory = memory  # what calls assume about the memory of their arguments
        self.graph = graph  # the compiled graph, with sessions
        self.program = program  # the decomposed program
        self._values = list(values)
        specs = program.graph_signature.input_specs
        written = mutated_inputs(program)
        self._user = graph.lowered.arguments
        # The buffers that calls change, by name.
        self.state = {
            str(spec.target): value for spec, value in zip(specs, values, strict=True) if value is not None and spec.arg.name in written
        }
        self._lock = threading.Lock()
        for runner in graph.runners if recorder is not None else ():
            prepared = runner.prepared_for([None] * len(runner.partition.inputs))
            session_id = None if prepared is None else prepared.session_id
            log = next((log for log in recorder.logs()[0] if log.session_id == session_id), None) if recorder is not None else None
            weights = runner.factory.weight_nodes()
            places = [place for place, node in enumerate(runner.partition.inputs) if node not in weights]
            runner.run = _without(self.call_of(runner, log), places)

    def changed_weights(self) -> tuple[str, ...]:
        """Name the frozen weights that were written to since."""
        names = self.graph.weight_inputs()
        frozen = (weight for runner in self.graph.runners for weight in runner.weights.frozen if weight.name in names)
        return tuple(sorted({names[weight.name][0] for weight in frozen if not weight.is_still(weight.tensor)}))

    def function(
        self, arguments: Arguments, slow: Callable[[tuple[Any, ...], dict[str, Any]], Any], *, checks_all: bool = True
    ) -> Callable[..., Any]:
        """Generate the function of a call; its first argument is the frozen callable.

        `slow` gets arguments that are not exactly as traced. Without `checks_all`, the function checks neither autocast nor what calls
        assume about memory, and takes negative and conjugate views.
        """
        whole = self._runs_in_sessions_alone()
        placeholders = self.graph.placeholders() if self.graph.runners else inputs_of(self.graph.lowered.module.graph)
        names = dict(zip((placeholders[place] for place in self._user), (f"u{n}" for n in range(len(self._user))), strict=True))
        leaves = [names[placeholders[place]] for place in self._user]
        entry = _EntryWriter(arguments.spec, arguments.signature.leaves, leaves)
        entry.refuses_signs = entry.asks_interpreter = checks_all
        if checks_all and self.memory.needed:
            entry.slow_if.append(f"not {entry.constant(self.memory.holds, 'holds')}(({listed(leaves)}))")
        if checks_all and not whole:  # what PyTorch computes depends on it
            entry.slow_if.append(f"{entry.constant(_torch.autocasts, 'autocasts')}()")
        for place, node in enumerate(placeholders):
            if node not in names:
                names[node] = entry.constant(self._values[place], "input")
        run = self._call_of_program(entry, placeholders, names)
        effects, returned = self._outcome(entry, names, placeholders)
        body = self._guarded([run, *effects], entry, needs_no_grad=not whole or bool(effects))
        source = entry.source(body, entry.result(self.program.call_spec.out_spec, returned))
        made = function_from_source("call", source, {**entry.scope, "slow": slow, "admits": arguments.admits})
        return _torch.skipped_by_dynamo(made, "a frozen callable has been compiled already")

    def _runs_in_sessions_alone(self) -> bool:
        """Tell whether PyTorch computes nothing; then neither gradients nor autocast can change a call."""
        graph = self.graph
        return bool(graph.runners) and not self._watched and graph.lowered.views is None and not eager_nodes(graph.plan)

    def _call_of_program(self, entry: _EntryWriter, placeholders: Sequence[torch.fx.Node], names: dict[Any, str]) -> str:
        """Write the call of the straight-line function that alternates between sessions and PyTorch; its results are `out`."""
        graph = self.graph
        passed = list(range(len(placeholders)))
        run: Callable[[list[Any]], list[Any]]
        if self._watched:
            run = lambda args: graph.run(args)  # noqa: E731, PLW0108 - a lens replaces `run` while it looks on
        elif not graph.runners:
            run = graph.run
        else:
            parts = [_PartitionStep(runner.partition, self.call_of(runner)) for runner in graph.runners]
            weights = graph.lowered.static_inputs
            fixed = {node: self._values[place] for place, node in enumerate(placeholders) if place in weights}
            run = make_program(graph.plan, graph.promoted, parts, None, fixed)
            run = run if entry.refuses_signs else resolving(run)
            others = [place for place in passed if place not in weights]
            if graph.lowered.views is None:
                passed = others
            else:
                run = graph.lowered.views.around(_taking(run, others))
        args = ", ".join(names[placeholders[place]] for place in passed)
        return f"out = {entry.constant(run, 'program')}([{args}])"

    def call_of(self, runner: PartitionRunner, log: RunLog | None = None) -> Callable[..., tuple[Any, ...]]:
        """Make a function that runs a partition's session without weight checks; it takes neither weights nor constants."""
        info = runner.sessions[0]
        spec = call.CallSpec(
            inputs=[item for _, item in _passed(runner)],
            outputs=self._outputs(runner),
            on_stale=_never,
            on_failure=self._failure_of(runner),
            count=runner.counter.__next__,
            log=log,
            preallocate=runner.factory.options.preallocate_output,
            rest=info.threads.rest(),
            constants=self._constants(runner),
            replays=runner.factory.options.cuda_graph,
        )
        return call.make_call(info.session, spec)

    def _outputs(self, runner: PartitionRunner) -> list[Output]:
        """List the outputs of a session; new values of state take the memory of the old ones where that is proved to be right."""
        passed = _passed(runner)
        inputs, places = [item for _, item in passed], {node: place for place, (node, _) in enumerate(passed)}
        state = {node for place, node in enumerate(self.graph.placeholders()) if place not in self._user}
        old = {output: runner.partition.inputs[place] for output, place in runner.factory.updates.items()}
        updates = {output: places[node] for output, node in old.items() if node in state and node in places}
        return in_place.with_memory_of_inputs(runner.factory.outputs(runner.sessions[0].session), inputs, updates, runner.model)

    def _constants(self, runner: PartitionRunner) -> list[tuple[BoundInput, torch.Tensor]]:
        """List the weights that are no constants of the session, such as tables that are only looked up."""
        values = dict(zip(self.graph.placeholders(), self._values, strict=True))
        items = zip(runner.partition.inputs, runner.factory.inputs(runner.weights.frozen), strict=True)
        weights = runner.factory.weight_nodes()
        return [(item, values[node]) for node, item in items if node in weights and item.frozen is None]

    def _failure_of(self, runner: PartitionRunner) -> Callable[[tuple[Any, ...], Exception], tuple[Any, ...]]:
        """Make the handler of ONNX Runtime's failures: as in compiled code, PyTorch computes the partition and may itself raise."""
        values = dict(zip(self.graph.placeholders(), self._values, strict=True))
        weights = runner.factory.weight_nodes()

        def failed(args: tuple[Any, ...], error: Exception) -> tuple[Any, ...]:
            passed = iter(args)
            with torch.no_grad(), _torch.without_autocast():
                return runner.failed(tuple(values[node] if node in weights else next(passed) for node in runner.partition.inputs), error)

        return failed

    def _outcome(self, entry: _EntryWriter, names: dict[Any, str], placeholders: Sequence[torch.fx.Node]) -> tuple[list[str], list[str]]:
        """Write the lines that store new values of state and of inputs, and the source of each leaf of the result."""
        old = [names[node] for node in placeholders]
        lines: list[str] = []
        placed: list[str] = []
        copied: list[tuple[str, str]] = []
        state: list[tuple[str, str]] = []
        dense = True
        returned: list[str] = []
        made = zip(self.program.graph_signature.output_specs, outputs_of(self.program.graph), self.results, strict=True)
        for place, (spec, node, result) in enumerate(made):
            text = f"out[{place}]"
            if result.written is not None:
                lines.append(f"if {text} is not {old[result.written]}: {old[result.written]}.copy_({text})")
            elif isinstance(spec.arg, ConstantArgument):
                returned.append(entry.constant(spec.arg.value, "value"))
            elif result.owner is not None:
                name, source = f"v{len(returned)}", old[result.owner]
                if result.is_view:
                    placed.append(f"{name} = {entry.constant(result.in_memory_of, 'placed')}({source}, {text})")
                    source = name
                if result.owner not in self._user:  # the next call writes over it
                    dense &= self._is_kept_by_clone(result.owner, node, is_view=result.is_view)
                    state.append((name, source))
                returned.append(source if result.owner in self._user else name)
            elif self._is_overwritten(node):
                returned.append(f"v{len(returned)}")
                copied.append((returned[-1], text))
            else:
                returned.append(text)
        return [*_copied(entry, copied), *lines, *placed, *_copied(entry, state, dense=dense)], returned

    def _is_overwritten(self, node: Any) -> bool:
        """Tell whether a result lies in the memory of state that calls write to, or in that of its new value."""
        specs = self.program.graph_signature.input_specs
        inputs = zip(inputs_of(self.program.graph), specs, strict=True)
        state = {made for made, spec in inputs if spec.target in self.state}
        new = {made for made, result in zip(outputs_of(self.program.graph), self.results, strict=True) if result.written is not None}
        return isinstance(node, torch.fx.Node) and owner_of(node, new) in state | new

    def _is_kept_by_clone(self, owner: int, node: torch.fx.Node, *, is_view: bool) -> bool:
        """Tell whether a clone of state, or of a view of it, has the same strides, so that what surrounds it need not be copied."""
        state = self._values[owner]
        if not is_view:
            return is_dense(state) and (state.layout is not torch.strided or not state.storage_offset())
        made = zip(outputs_of(self.program.graph), self.results, strict=True)
        new = [value.meta["val"] for value, other in made if other.written == owner]
        return all(map(is_contiguous, (state, *new))) and is_dense(node.meta["val"])

    def _guarded(self, lines: Lines, entry: _EntryWriter, *, needs_no_grad: bool) -> Lines:
        if needs_no_grad:
            lines = ["with no_grad():", lines]
        if self.state:
            lines = [f"with {entry.constant(self._lock, 'lock')}:", lines]
        return lines


class _PartitionStep(NamedTuple):
    partition: GraphPartition
    run: Callable[..., tuple[Any, ...]]


def _copied(entry: _EntryWriter, copied: Sequence[tuple[str, str]], *, dense: bool = True) -> list[str]:
    """Write the line that copies results whose memory the next call overwrites; results that share memory share their copy's."""
    if not copied:
        return []
    names, texts = zip(*copied, strict=True)
    if len(copied) == 1 and dense:
        return [f"{names[0]} = {texts[0]}.clone()"]
    return [f"{listed(names)}= {entry.constant(in_copies, 'in_copies')}({', '.join(texts)})"]


def in_copies(*values: torch.Tensor) -> list[torch.Tensor]:
    """Copy tensors with the memory around and between their elements; copies lie as the tensors do, without gradients."""
    storages: dict[int, torch.UntypedStorage] = {}
    made = []
    for value in values:
        storage = value.untyped_storage()
        copy = storages.setdefault(storage.data_ptr(), storage.clone())  # type: ignore[no-untyped-call]  # torch has no annotations here
        made.append(torch.empty(0, dtype=value.dtype, device=value.device).set_(copy, value.storage_offset(), value.shape, value.stride()))
    return made


def _taking(run: Callable[[list[Any]], list[Any]], places: Sequence[int]) -> Callable[[list[Any]], list[Any]]:
    return lambda args: run([args[place] for place in places])


def _without(run: Callable[..., tuple[Any, ...]], places: Sequence[int]) -> Callable[..., tuple[Any, ...]]:
    return lambda *args: run(*[args[place] for place in places])


def _passed(runner: PartitionRunner) -> list[tuple[torch.fx.Node, BoundInput]]:
    weights = runner.factory.weight_nodes()
    items = zip(runner.partition.inputs, runner.factory.inputs(runner.weights.frozen), strict=True)
    return [(node, item) for node, item in items if node not in weights]


def _never(_args: tuple[Any, ...]) -> tuple[Any, ...]:
    raise AssertionError("a frozen call does not check weights")
