"""What is compiled for a lens: notes each compilation, while a backend works on it, and lists them as PyTorch's `explain` does."""

from __future__ import annotations

import contextlib
import inspect
import threading
import time
import weakref
from dataclasses import dataclass, replace
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from ortlens import _torch
from ortlens.backend.basis.provenance import count_ops, needs_gradient
from ortlens.backend.freeze.arguments import bound_arguments, named_arguments, needed_arguments, parameters_of, parameters_source
from ortlens.errors import UsageError
from ortlens.lens.observing.break_texts import lines_of
from ortlens.lens.observing.environment import chosen_options, rank_of_process
from ortlens.lens.observing.listener import DynamoWatch, calling_line
from ortlens.trace import records as r
from ortlens.trace.guard import lens_context, lens_guard
from ortlens.trace.recorder import CURRENT
from ortlens.trace.sources import MAX_CHARS, MAX_FILES, attachment_of, kept_lines, recorded_lines
from ortlens.units import counted
from ortlens.views.rendering import failure_html, screen_html
from ortlens.views.screen import Screen
from ortlens.views.table import ShownTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torch.export import ExportedProgram

    from ortlens.analysis.ledger import StepReading
    from ortlens.backend.basis.options import OrtBackendOptions
    from ortlens.backend.graph import CompiledGraph
    from ortlens.backend.observed import ObservedGraph
    from ortlens.lens.observing.environment import LensRecorder
    from ortlens.trace.recorder import Recorder


_NOTING = "noting a compilation"
SHOWN = ("reason", "user_stack", "occurrences")  # of a break


class Compilations:
    """The compilations of one lens."""

    def __init__(self, recorder: LensRecorder, claims: Callable[[object], bool], *, dry_run: bool) -> None:
        """Begin without any; `claims` is as for `DynamoWatch`, and nothing can be called after a dry run."""
        self.recorder = recorder
        self.targets = CompiledTargets(recorder, dry_run=dry_run)
        self.watch = DynamoWatch(recorder, claims)
        self.modules: list[torch.fx.GraphModule] = []  # Dynamo's graphs, and exported programs, in order
        self.originals: dict[str | None, torch.fx.GraphModule] = {}  # Dynamo's graphs by compile id
        self._sources = KeptSources(recorder)

    @contextlib.contextmanager
    def recording(self, graph_module: torch.fx.GraphModule) -> Iterator[str | None]:
        """Record what a backend does with a Dynamo graph inside the block; yield Dynamo's id of the compilation."""
        with (
            CURRENT.recording_into(self.recorder),
            lens_context(self.recorder, _NOTING, lambda: self._noted(graph_module)) as compile_id,
        ):
            yield compile_id

    def elsewhere(
        self, backend: Callable[..., Any], graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Callable[..., Any]:
        """Compile a Dynamo graph with another backend than ours, which also gets `kwargs`, and record it and its calls."""
        with self.recording(graph_module) as compile_id:
            compiled = backend(graph_module, example_inputs, **kwargs)
            with lens_guard(self.recorder, _NOTING):
                return recorded(self.recorder, graph_module, compiled, compile_id, example_inputs)
            return compiled

    @contextlib.contextmanager
    def by_our_backend(self) -> Iterator[None]:
        """Record every graph that our backend compiles inside the block, whichever backend object compiles it."""
        self.recorder.on_graph = self._entered
        with CURRENT.recording_into(self.recorder):
            yield

    @contextlib.contextmanager
    def _entered(self, graph_module: Any, options: OrtBackendOptions) -> Iterator[None]:
        self.note_options(options)
        with self._noted(graph_module):
            yield

    @contextlib.contextmanager
    def _noted(self, graph_module: torch.fx.GraphModule) -> Iterator[str | None]:
        """Note what is being compiled, while it is."""
        self.modules.append(graph_module)
        if (rank := rank_of_process()) is not None:  # now: the process group may be gone when the capture is taken
            self.recorder.note(rank=rank)
        if (at := calling_line()) is not None:  # lines of a library alone are not the user's
            for node in (node for each in graph_module.modules() if isinstance(each, torch.fx.GraphModule) for node in each.graph.nodes):
                if trace := node.meta.get("stack_trace"):
                    node.meta["stack_trace"] = f'  File "{at.file}", line {at.line}, in {at.function}\n{trace}'
        target = self.targets.note_compilation()
        with self.watch.backend_at_work() as compile_id:
            self.originals[compile_id] = graph_module
            known = {graph.graph_id for graph in self.recorder.records(r.Graph)}
            nodes = self.recorder.count(r.Node)
            yield compile_id
        self._sources.note((*self.recorder.records(r.Node)[nodes:], *self.recorder.records(r.Break)))
        for graph in self.recorder.records(r.Graph):
            if graph.graph_id not in known:
                self.recorder.amend(r.Graph, graph.graph_id, target=target)

    def note_options(self, options: OrtBackendOptions) -> None:
        """Note what differs from the defaults of our backend."""
        self.recorder.facts.update(chosen_options(options))
        self.recorder.note(option_upcast=tuple(options.upcast))

    def note_uncompiled(self, backend: object) -> None:
        """Keep lines of breaks in what could not be compiled; report a module compiled by `backend` of which only methods were called."""
        self._sources.note((*self.recorder.records(r.Break), *self.recorder.records(r.CallLine)))
        if self.modules or self.recorder.count(r.Break) or self.recorder.count(r.Finding):
            return
        for name in (type(each).__name__ for each in _torch.modules_compiled_by(backend) if callable(getattr(each, "generate", None))):
            self.recorder.add(
                r.Finding(
                    rule="compiled_model_bypassed",
                    severity="warning",
                    title=f"nothing was compiled: `generate` of a compiled {name} calls the uncompiled model",
                    evidence="torch.compile(model) returned a module that was never called; "
                    f"its generate is the method of the {name} inside",
                    hazard="The program runs at PyTorch's speed, and this capture stays empty.",
                    mitigation="Compile the model in place, with `model.compile(...)` or "
                    "`model.forward = torch.compile(model.forward, ...)`, or explain `model.generate`.",
                    subject=name,
                )
            )


class KeptSources:
    """Keeps the user's functions as they were when they ran: a file is attached anew for new lines only."""

    def __init__(self, recorder: Recorder) -> None:
        """Begin without files; they are attached to the recorder."""
        self._recorder = recorder
        self._lines: dict[str, dict[int, str]] = {}

    def note(self, records: Iterable[r.Node | r.Break | r.CallLine]) -> None:
        """Attach what is kept of the files that records name. One that changed since it ran, or is very long, has only these lines."""
        for file, lines in recorded_lines(records).items():
            known = self._lines.setdefault(file, {})
            if known.keys() >= lines.keys() or (not known and len(self._lines) > MAX_FILES):
                continue
            known.update(lines)
            text = "".join(lines_of(file))
            kept = kept_lines(text, known) if len(text) <= MAX_CHARS else []
            if kept:
                self._recorder.attach(*attachment_of(file, kept))


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakReason:
    """One distinct graph break.

    Attributes:
        reason: What stopped the graph.
        user_stack: User frames, outermost first, as `file:line function`.
        graph_break: Always True.
        occurrences: Number of graph boundaries that it causes.
    """

    reason: str
    user_stack: tuple[str, ...]
    graph_break: bool = True
    occurrences: int = 1


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ExplainOutput:
    """Graphs and breaks, printable like PyTorch's own `ExplainOutput`.

    Attributes:
        graphs: The FX graphs that Dynamo made, recompilations included.
        graph_count: How many there are.
        graph_break_count: Boundaries between graphs that a break caused. A recompile is not a break.
        recompile_count: Compilations because a guard failed.
        break_reasons: The distinct breaks.
        op_count: Operations in all graphs.
    """

    graphs: tuple[torch.fx.GraphModule, ...]
    graph_count: int
    graph_break_count: int
    recompile_count: int
    break_reasons: tuple[BreakReason, ...]
    op_count: int

    def __str__(self) -> str:
        """Return the counts and the reasons, one per line."""
        lines = [
            f"Graph Count: {self.graph_count}",
            f"Graph Break Count: {self.graph_break_count}",
            f"Recompile Count: {self.recompile_count}",
            f"Op Count: {self.op_count}",
            "Break Reasons:",
        ]
        for number, reason in enumerate(self.break_reasons, start=1):
            lines += [f"  Break Reason {number} (x{reason.occurrences}):", f"    Reason: {reason.reason}", "    User Stack:"]
            lines += [f"      {frame}" for frame in reason.user_stack]
        return "\n".join(lines)

    def __repr__(self) -> str:
        """Return the counts on one line; the graphs themselves would fill the screen."""
        return f"<ExplainOutput {', '.join(self._counts())}>"

    def _repr_html_(self) -> str:
        """Return the counts and the reasons for a notebook; never raises."""
        try:
            rows = [replace(item, user_stack=item.user_stack[:-3:-1]) for item in self.break_reasons]
            table = ShownTable(title="Break reasons", source="break_reasons", records=rows, names=SHOWN)
            return screen_html(Screen(title=", ".join(self._counts()), tables=(table,) if rows else ()))
        except Exception as err:  # noqa: BLE001 - a guard of the lens: looking at an object must not raise
            return failure_html([f"ortlens could not draw this: {type(err).__name__}: {err}", "print() shows it as text."])

    def _counts(self) -> tuple[str, ...]:
        numbers = (self.graph_count, self.graph_break_count, self.recompile_count, self.op_count)
        return tuple(
            counted(number, noun) for number, noun in zip(numbers, ("graph", "graph break", "recompile", "operation"), strict=True)
        )


CallForm: TypeAlias = tuple[tuple[str, str], ...]


class Target(NamedTuple):
    """One of the callables."""

    function: Any  # the target as the user wrote it
    compiled: Callable[..., Any]
    name: str  # different from those of the others
    forms: set[CallForm]  # of the calls that compiled it


class CompiledTargets:
    """The targets of one lens."""

    def __init__(self, recorder: Recorder, *, dry_run: bool) -> None:
        """Begin without targets; after a dry run nothing can be called."""
        self.callables: list[Target] = []  # in order
        self._owners: list[tuple[object, str]] = []  # what a target compiles by itself, with the name of the target
        self.grad_modes: set[bool] = set()  # whether gradients were enabled, in the compilations so far
        self.example: tuple[tuple[Any, ...], dict[str, Any]] | None = None  # what `explain` calls it with, for `freeze`
        self.program: ExportedProgram | None = None  # of the target, if it is traced already
        self.calls = SeenCalls()  # what the compilations were for
        self.changes_objects = False  # whether a compilation traced a change of Python objects
        self.is_empty = False  # whether there were none, because the target computes nothing
        self.steps: list[StepReading] | None = None  # calls of the model inside the `generate` that is explained; None for any other target
        self._recorder = recorder
        self.dry_run = dry_run

    def note_compilation(self) -> str | None:
        """Note the function that Dynamo is compiling now, and return its name, with a number if another one has it; None if unknown."""
        self.grad_modes.add(torch.is_grad_enabled())
        found = _torch.compiled_callable()
        if found is None:
            return None
        with lens_guard(self._recorder, _NOTING):
            self.calls.note(found.function, found.args, found.kwargs)
            self.changes_objects |= _torch.has_side_effects()
        for part, owner in self._owners:
            if part == found.function:
                return owner
        form = form_of_call(found.function, found.args, found.kwargs)
        for known in self.callables:
            if known.function is found.function or known.function == found.function:
                known.forms.add(form)
                return known.name
        return self.add(found.function, found.compiled, form)

    def note_empty(self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, varies_whole: bool) -> None:
        """Note a target that computes nothing, so that Dynamo asks for no graph."""
        with lens_guard(self._recorder, _NOTING):
            self.calls.note(target, args, kwargs, varies_whole=varies_whole)
            self.is_empty = True

    def add(self, function: object, compiled: Callable[..., Any], form: CallForm | None = None, parts: Iterable[object] = ()) -> str:
        """Note a target and the `form` of the call that compiled it, and return its unique name; `parts` are functions that it compiles."""
        name = _name_of(function)
        if namesakes := sum(_name_of(known.function) == name for known in self.callables):
            name += f" ({namesakes + 1})"
        self.callables.append(Target(function, compiled, name, set() if form is None else {form}))
        self._owners += [(part, name) for part in parts]
        return name

    def taking(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[list[Target], list[Target]]:
        """Find the targets that were compiled for such arguments, the first one if none was; and the others."""
        self._require_any()
        fit = [known for known in self.callables if form_of_call(known.function, args, kwargs) in known.forms] or self.callables[:1]
        names = {known.name for known in fit}
        return fit, [known for known in self.callables if known.name not in names]

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the first target; raises UsageError if nothing was compiled yet, or only a dry run was made."""
        self._require_any()
        return self.callables[0].compiled(*args, **kwargs)

    @contextlib.contextmanager
    def refusals_told(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[None]:
        """Raise `UsageError` with one sentence in place of Dynamo's text where the model itself refuses the arguments."""
        try:
            yield
        except Exception as error:
            source = self.first()
            if not _torch.is_signal(error) or not runs_uncompiled(source):
                raise
            try:
                with _torch.uncompiled():
                    source(*args, **kwargs)
            except Exception as own:  # noqa: BLE001 - whatever the model raises
                known = f"; it was explained with {_forms(source, *self.example)}" if self.example else ""
                raise UsageError(f"the model refuses {_forms(source, args, kwargs)}: {str(own).partition(chr(10))[0]}{known}") from error
            raise

    def uncompiled(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[[], Any] | None:
        """Return a call of the first target as it is; None for an exported program, which cannot be called."""
        source = self.first()
        if not runs_uncompiled(source):
            return None
        if self.steps is not None:  # its clocks are in what was compiled, which runs the model as it is where nothing may be compiled
            return lambda: self.call(args, kwargs)
        return lambda: source(*args, **kwargs)

    def first(self) -> Any:
        """Return the first target, as the user wrote it; raises UsageError as `call` does."""
        self._require_any()
        return self.callables[0].function

    def arguments(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments given, else those of the last call; raise `UsageError` where the target needs some and these are gone."""
        target = self.first()
        last = None if args or kwargs else self.example or (self.calls.kept() if self.calls.function == target else None)
        target = target.__self__ if getattr(target, "__name__", "") == "_wrapped_call_impl" else target  # a module, as Dynamo calls it
        if last is not None or args or kwargs or not (needed := needed_arguments(target)):
            return last or (args, kwargs)
        raise UsageError(f"pass the arguments of the call: `lens.{method}({', '.join(needed)})`")

    def _require_any(self) -> None:
        if self.dry_run:
            raise UsageError("this lens holds a dry run, which ran nothing; call explain() without dry_run=True first")
        if not self.callables and self._recorder.records(r.Break):
            raise UsageError("nothing was compiled: PyTorch could not trace the function and ran it as it is; see lens.breaks for the line")
        if not self.callables:
            raise UsageError(
                "nothing was compiled through this lens yet; call the compiled function once, then ask again. If it was called, PyTorch "
                "may have given up on its code earlier in this process: torch.compiler.reset() clears that"
            )

    def graphs(self) -> tuple[ObservedGraph, ...]:
        """List the graphs of our backend, oldest first, including those that a recompile replaced."""
        from ortlens.backend.observed import graphs_of

        return graphs_of(self._recorder)

    def require_one_graph(self) -> CompiledGraph:
        """Return the newest compilation of the only frame; raise `UsageError` if there is none, or the model is split."""
        graphs = self.graphs()
        if not graphs:
            raise UsageError("there is nothing to export: no graph was compiled through this lens by the ortlens backend")
        recompiled = {record.compile_id for record in self._recorder.records(r.Recompile)}
        every = self._recorder.records(r.Graph)
        first = [record for record in every if record.compile_id not in recompiled and record.phase != "backward"]
        if len(first) > 1:
            raise UsageError(f"the model is split into {len(first)} graphs; one model can be exported from one graph only")
        return [graph.of for graph in graphs if graph.phase != "backward"][-1]

    def refuse_ambiguous(self, options: Iterable[str]) -> None:
        """Reject options whose names are also arguments of the target."""
        names = {name for known in self.callables for name in parameters_of(parameters_source(known.function))}
        if clash := [name for name in options if name in names]:
            raise UsageError(f"the target takes an argument {clash[0]!r} too; pass it by its place, and leave out the option {clash[0]!r}")


class SeenCalls:
    """The calls of targets that compilations were for: the last one, without data, and what has varied in its arguments."""

    def __init__(self) -> None:
        """Begin without any."""
        self.function: Any = None  # what the last compilation was for
        self.first: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})  # arguments of the first call of this kind; its tensors are fake
        self.last = self.first  # those of the last one
        self.varies_whole = False  # whether all sizes vary, as with `dynamic=True`
        self._tensors = list[weakref.ref[torch.Tensor]]()  # of the last one, as they are
        self._varied: dict[tuple[tuple[Any, ...], int | None], Any] = {}  # keys that lead to a leaf, and a dimension -> for `torch.export`
        self._seen: dict[tuple[Any, ...], Any] = {}  # keys that lead to a leaf -> its sizes, or value, when they were seen first

    def note(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, varies_whole: bool | None = None) -> None:
        """Note a call; `varies_whole` is that of the running compilation by default."""
        with _torch.objects_as_trees() as note:
            note((args, kwargs))
            self._note(function, args, dict(kwargs))
        self.varies_whole |= _torch.varies_from_the_start() if varies_whole is None else varies_whole

    def _note(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        leaves, auto = dict(_torch.named_leaves((args, kwargs))), torch.export.Dim.AUTO
        self._tensors = [weakref.ref(leaf) for leaf in leaves.values() if isinstance(leaf, torch.Tensor)]
        seen = {
            path: tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else leaf if type(leaf) is int else None
            for path, leaf in leaves.items()
        }
        if self.function != function or seen.keys() != self._seen.keys():
            self.function, self._seen, self._varied, self.varies_whole, self.first = function, seen, {}, False, ((), {})
        for path, leaf in leaves.items():
            self._varied |= {(path, dim): auto(min=low, max=high) for dim, (low, high) in _torch.marked_dims(leaf).items()}
            before = self._seen[path]
            if isinstance(leaf, torch.Tensor) and isinstance(before, tuple):
                pairs = zip(before, leaf.shape, strict=False)
                self._varied = {(path, dim): auto for dim, (one, other) in enumerate(pairs) if one != other} | self._varied
            elif type(leaf) is int and before != leaf:
                self._varied[path, None] = auto
        with _torch.real_tensors():
            mode = _torch.fake_mode_of(leaves.values())
            self.last = _torch.map_tensors(lambda tensor: _torch.without_data(tensor, mode), (args, kwargs))
        self.first = self.last if self.first == ((), {}) else self.first

    def kept(self) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Return the arguments of the last call; None where a tensor of theirs is gone."""
        tensors = [tensor for reference in self._tensors if (tensor := reference()) is not None]
        if len(tensors) < len(self._tensors):
            return None
        with _torch.objects_as_trees() as note:
            note(self.last)
            found: tuple[tuple[Any, ...], dict[str, Any]] = _torch.map_tensors(lambda _: tensors.pop(0), self.last)
        return found

    @property
    def varies(self) -> bool:
        """Whether anything varies."""
        return self.varies_whole or bool(self._varied)

    def varying(self, path: tuple[Any, ...], leaf: Any) -> Any:
        """Return what varies in a leaf of the arguments, for `program_of`."""
        auto = torch.export.Dim.AUTO
        if isinstance(leaf, torch.Tensor):
            open_ones = {dim: auto for dim, size in enumerate(leaf.shape) if self.varies_whole and size != 1}
            return open_ones | {dim: hint for (place, dim), hint in self._varied.items() if place == path}
        return auto if type(leaf) is int and (self.varies_whole or (path, None) in self._varied) else None


def entry_of(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[CodeType, dict[str, Any]] | None:
    """Return the code that a call of a target begins with, and its variables then; None where it is no function of Python."""
    owner = target if isinstance(target, torch.nn.Module) else getattr(target, "__self__", None)
    function = inspect.unwrap(owner.forward if isinstance(owner, torch.nn.Module) else target)
    function = (isinstance(owner, torch.nn.Module) and _torch.wrapper_of(owner)) or function
    given = args if getattr(function, "__self__", None) is None else (owner, *args)
    function = getattr(function, "__func__", function)
    if not isinstance(function, FunctionType):
        return None
    try:
        return function.__code__, _torch.variables_of_call(function, given, kwargs)
    except (TypeError, ValueError):  # arguments that do not fit, and empty cells
        return None


def runs_uncompiled(target: object) -> bool:
    """Tell whether a target as it is runs without compiled code: an exported program and what was compiled ahead of time do not."""
    return not isinstance(target, torch.export.ExportedProgram) and _torch.compiled_ahead(target) is None


def _name_of(target: object) -> str:
    if (ahead := _torch.name_compiled_ahead(target)) is not None:
        return ahead
    wrapped = inspect.unwrap(target) if callable(target) else target
    owner = getattr(wrapped, "__self__", wrapped)
    if isinstance(owner, torch.nn.Module):
        return type(owner).__name__
    return getattr(wrapped, "__name__", type(wrapped).__name__)


def form_of_call(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> CallForm:
    """Describe arguments by name and kind, with defaults; without a signature by place. Calls of one form differ in sizes and values."""
    owner = getattr(target, "__self__", None)
    function = owner.forward if isinstance(owner, torch.nn.Module) else target
    try:
        named = bound_arguments(function, tuple(args), kwargs, defaults=True)
    except TypeError:  # builtins without a signature, and arguments that do not fit it
        named = {f"#{place}": value for place, value in enumerate(args)} | dict(kwargs)
    return tuple(sorted((name, _kind(value)) for name, value in named.items()))


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}, {value.dim()}-dimensional"
    if isinstance(value, (bool, int, float)):
        return "number"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {_kind(item)}' for key, item in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({', '.join(map(_kind, value))})"
    return type(value).__name__


def recorded(
    recorder: Recorder, module: torch.fx.GraphModule, compiled: Callable[..., Any], compile_id: str | None, inputs: Sequence[Any]
) -> Callable[..., Any]:
    """Record a graph that another backend compiled, and return a function that does the same and logs the time of each call."""
    graph_id = recorder.next_id("g")
    sizes = [size for i in inputs if isinstance(i, torch.Tensor) for size in i.shape]
    recorder.add(
        r.Graph(
            graph_id=graph_id,
            compile_id=compile_id,
            phase="forward" if needs_gradient(inputs) else "inference",
            op_count=count_ops(module),
            dynamic_shapes=any(_torch.is_symbolic(value) for value in (*inputs, *sizes)),
        )
    )
    log = recorder.run_log(None, graph_id)
    clock, thread, record, unlogged = time.perf_counter_ns, threading.get_ident, log.record, log.on_failure

    def call(*args: Any) -> Any:
        started = clock()
        result = compiled(*args)
        done = clock()
        try:
            record(started, started, done, done, thread())
        except Exception as error:  # noqa: BLE001 - a failure to record a call is none of the call
            unlogged(error)
        return result

    return call


def _forms(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    named = named_arguments(parameters_source(target), args, kwargs)
    return ", ".join(f"{name} of shape {list(value.shape)}" for name, value in named if isinstance(value, torch.Tensor))
