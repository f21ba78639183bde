"""What `torch.compile(...).aot_compile` saves of our backend, and what `torch.compiler.load_compiled_function` makes of it.

AOTAutograd keeps what surrounds a graph: copies of new values into buffers, views, the step of autograd. Of each graph it keeps a
`CompiledPhase`: the graph as it was planned and converted, so that the process that loads it does neither. Torch's loader unpickles all
that, so a file decides what runs; nothing here reads one that torch was not asked to load.
"""

from __future__ import annotations

import contextvars
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch.fx

from ortlens._torch.ahead import (
    BundledAOTAutogradSerializableCallable,
    GraphModuleSerializableCallable,
    OutputCode,
    SerializableCallable,
    bytes_from_graphs,
    graphs_from_bytes,
)
from ortlens.backend.basis.provenance import module_path
from ortlens.backend.basis.saved_graph import DamagedError, SavedGraph
from ortlens.backend.cache import ConvertedModel, surroundings
from ortlens.backend.lowering.buffer_writes import order_of_writes, set_order_of_writes
from ortlens.backend.lowering.entry import with_plain_tangents
from ortlens.backend.partitioning.plan import Plan, Verdict, split
from ortlens.errors import ConversionError, SessionError, UnsupportedVersionError, UsageError
from ortlens.trace.guard import lens_guard
from ortlens.trace.recorder import CURRENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from ortlens.backend.api import OrtBackend
    from ortlens.backend.basis.options import OrtBackendOptions
    from ortlens.backend.compile_context import CompileContext
    from ortlens.backend.graph import CompiledGraph, PlannedGraph
    from ortlens.backend.lowering.entry import LoweredGraph
    from ortlens.backend.runtime.runner import PartitionRunner
    from ortlens.trace.recorder import Recorder

_COMPILED, _GRAPHS = "compiled", "graphs"  # names of files
_KEPT = ("val", "stack_trace")  # of what torch notes of a node: the value decides how calls run, the line is for the lens


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RestoredPlan:
    """What another process planned and converted, in place of a `Planner`."""

    lowered: LoweredGraph
    promoted: torch.fx.GraphModule  # the graph that was partitioned
    plan: Plan
    models: list[ConvertedModel]  # one per partition, with the user's transforms applied
    context: CompileContext  # of the graph that is made of it

    def runners(self) -> list[PartitionRunner]:
        """Make one runner per partition, without sessions."""
        partitions = zip(split(self.plan, self.promoted), self.models, strict=True)
        return [self.context.runner(self.lowered, self.plan, partition, made, cached=True) for partition, made in partitions]

    def refused(self, runner: PartitionRunner, error: Exception, *, broadly: bool) -> None:  # noqa: ARG002 - as `Planner.refused`
        """Raise `ConversionError`: without what converts there is no other plan, and PyTorch runs the graph."""
        where = f"partition {runner.partition.index} of a graph that was compiled ahead of time"
        raise ConversionError(f"ONNX Runtime refused {where}: {error}") from error


class CompiledPhase(OutputCode):
    """One graph of ours, as AOTAutograd calls, keeps and loads it."""

    def __init__(self, graph: CompiledGraph, backend_of: Callable[[OrtBackendOptions], OrtBackend]) -> None:
        """Take a graph that is planned, and what finds the backend for its options, in this process and in others."""
        super().__init__()
        self._boxed_call = True
        self._backend_of = backend_of
        self._options = graph.context.options
        self._saved = SavedGraph(manifest={}, files={})
        self._use(graph)

    def _use(self, graph: CompiledGraph) -> None:
        self._graph: CompiledGraph | None = graph
        run: Callable[[list[Any]], list[Any]] = lambda args: graph.run(args)  # noqa: E731, PLW0108 - the first call replaces `run`
        self._run: Callable[[list[Any]], Any] = with_plain_tangents(run, graph.lowered.tangents)

    def __call__(self, inputs: Any) -> Any:
        """Run the graph; the list is emptied."""
        return self._run(inputs)

    def prepare_for_serialization(self) -> None:
        """Become what can be pickled; AOTAutograd calls this on a copy."""
        if self._graph is not None:
            self._options = _portable_options(self._options)
            self._saved, self._graph, self._run = _saved_from(self._graph), None, _not_loaded

    def post_compile(self, *_: Any) -> None:
        """Become what can be called; AOTAutograd calls this after loading."""
        recorder, backend = CURRENT.get(), self._backend_of(self._options)
        lowered, planner_of = _restored_from(self._saved)
        seen = recorder if lowered.phase != "backward" else None
        with backend.seen_by(seen, lowered.module):
            self._use(backend.compiler.graph_of(lowered, recorder=recorder, planner_of=planner_of))

    def set_triton_bundle(self, _: Any) -> None:
        """Do without: no kernel here is Triton's."""


def _not_loaded(_: list[Any]) -> Any:
    raise SessionError("a saved graph is called only after AOTAutograd has loaded it")


class CompiledAhead(SerializableCallable):
    """A graph of Dynamo's that was compiled ahead of time, with all that its calls need."""

    def __init__(self, compiled: Any) -> None:
        """Take what AOTAutograd made of the graph."""
        self._run = BundledAOTAutogradSerializableCallable(compiled)
        self._recorder: Recorder | None = CURRENT.get()  # what its calls are recorded by
        self._lock = threading.Lock()

    @classmethod
    def serialize_compile_artifacts(cls, fn: CompiledAhead) -> bytes:
        """Write it, after the versions that it is for."""
        compiled = BundledAOTAutogradSerializableCallable.serialize_compile_artifacts(fn._run)
        return SavedGraph(manifest={"surroundings": surroundings()}, files={_COMPILED: compiled}).to_bytes()

    @classmethod
    def deserialize_compile_artifacts(cls, data: bytes) -> CompiledAhead:
        """Read it; raise `UnsupportedVersionError` where it was written with other versions, or on another kind of machine."""
        try:
            saved = SavedGraph.from_bytes(data)
        except DamagedError as error:
            said = "this function was compiled ahead of time by another version of ortlens, or its file was changed"
            raise UnsupportedVersionError(f"{said} ({error}); compile it again with what is installed here") from error
        written = saved.manifest["surroundings"]
        if written != surroundings():
            raise UnsupportedVersionError(_difference(written, surroundings()))
        made = cls(contextvars.Context().run(_loaded, saved.files[_COMPILED]))  # without a lens, which records it where it is called
        made._recorder = None
        return made

    def __call__(self, *args: Any) -> Any:
        """Run the graph; under a lens that has not recorded it yet, through sessions that this lens records."""
        recorder = CURRENT.get()
        if recorder is not None and recorder is not self._recorder:
            self.record_into(recorder)
        return self._run(*args)

    def record_into(self, recorder: Recorder) -> None:
        """Run in sessions that a lens records, from now on, in place of those so far."""
        with self._lock, lens_guard(recorder, "recording what was compiled ahead of time"):
            if recorder is not self._recorder:
                self._recorder = recorder  # first, so that what fails is tried once
                made = _loaded(BundledAOTAutogradSerializableCallable.serialize_compile_artifacts(self._run))
                self._run = BundledAOTAutogradSerializableCallable(made)


def saved_form(compiled: Any, module: torch.fx.GraphModule) -> SerializableCallable:
    """Return what torch can save: what AOTAutograd made of a graph, or the graph itself where PyTorch runs it as Dynamo recorded it."""
    if not hasattr(compiled, "serialize"):
        return GraphModuleSerializableCallable(module)
    if compiled.serialize is None:
        raise UsageError("nothing can be compiled ahead of time while torch's caches are disabled: AOTAutograd keeps nothing then")
    return CompiledAhead(compiled)


def _saved_from(graph: PlannedGraph) -> SavedGraph:
    """Save a graph that is planned, with or without sessions; raise `ConversionError` if preparing it failed."""
    lowered, plan = graph.lowered, graph.plan
    if len(graph.runners) != plan.partition_count:
        raise ConversionError("PyTorch runs the whole graph, which has no plan to save")
    views = lowered.views and replace(lowered.views, module=_portable(lowered.views.module), views=_portable(lowered.views.views))
    lowered = replace(lowered, module=_portable(lowered.module), views=views, aot_ns=0, loading_ns=0)
    manifest = {
        "verdicts": [(node.name, verdict) for node, verdict in plan.verdicts.items()],
        "level": [(node.name, level) for node, level in plan.level.items()],
        "partition_count": plan.partition_count,
        "hoisted_sizes": [node.name for node in plan.hoisted_sizes],
        "order_of_writes": order_of_writes(graph.promoted.graph),
    }
    files = {_GRAPHS: bytes_from_graphs((lowered, _portable(graph.promoted)))}
    for place, runner in enumerate(graph.runners):
        orders, names = tuple(runner.factory.permutations), tuple(runner.factory.output_names)
        files[str(place)] = ConvertedModel(model=runner.model, permutations=orders, output_names=names).saved().to_bytes()
    return SavedGraph(manifest=manifest, files=files)


def _restored_from(saved: SavedGraph) -> tuple[LoweredGraph, Callable[[CompileContext], RestoredPlan]]:
    """Read what `_saved_from` made: the graph, and what makes its plan."""
    facts = saved.manifest
    lowered, promoted = graphs_from_bytes(saved.files[_GRAPHS])
    for module in (lowered.module, *((lowered.views.module, lowered.views.views) if lowered.views else ())):
        module.recompile()  # torch leaves that to the reader; of the promoted graph, only parts are called
    nodes = {node.name: node for node in promoted.graph.nodes}
    set_order_of_writes(nodes, facts["order_of_writes"])
    plan = Plan(
        graph=promoted.graph,
        verdicts={nodes[name]: Verdict(*verdict) for name, verdict in facts["verdicts"]},
        level={nodes[name]: level for name, level in facts["level"]},
        partition_count=facts["partition_count"],
        hoisted_sizes=frozenset(nodes[name] for name in facts["hoisted_sizes"]),
    )
    models = [ConvertedModel.restored(SavedGraph.from_bytes(saved.files[str(place)])) for place in range(plan.partition_count)]
    return lowered, lambda context: RestoredPlan(lowered=lowered, promoted=promoted, plan=plan, models=models, context=context)


def _portable(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Copy a graph with what this package reads of it: other notes refer to Dynamo's, to modules and to nodes."""
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    graph.output(graph.graph_copy(module.graph, copies))
    for source, copied in copies.items():
        copied.meta = {key: source.meta[key] for key in _KEPT if key in source.meta}
        if (owner := module_path(source)).path is not None:
            copied.meta["nn_module_stack"] = {"": owner}
    made = torch.fx.GraphModule(module, graph)
    made.meta = {}
    return made


def _loaded(data: bytes) -> Any:
    return BundledAOTAutogradSerializableCallable.deserialize_compile_artifacts(data).compiled_fn


def _portable_options(options: OrtBackendOptions) -> OrtBackendOptions:
    """Return the options for another process, without those that have done their part: models are converted and transformed."""
    if options.ort_session_options is not None:
        raise UsageError("ort_session_options cannot be saved: compile ahead without it, or compile where it is called")
    return replace(options, pre_ort_model_transforms=None, custom_translation_table=None, cache_dir=None, dump_path=None)


def _difference(written: str, present: str) -> str:
    before, now = (dict(entry.partition("=")[::2] for entry in text.split()) for text in (written, present))
    differing = [name for name in dict.fromkeys((*before, *now)) if before.get(name) != now.get(name)]
    listed = ", ".join(f"{name} {before.get(name)} (here {now.get(name)})" for name in differing)
    return f"this function was compiled ahead of time with {listed}; compile it again with what is installed here"
