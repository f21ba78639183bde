"""What may be seen and done of compiled graphs by those who watch them: the one door of the lens to the backend.

A partition can be run in ONNX Runtime beside its calls, uncounted, in the session in use, in a twin of it, or in a variant with other
settings; and in PyTorch. Its runs, and the calls of its graph, can be passed through a function. The compiled code stays as it is: only the
attribute `run`, which every call looks up, is replaced and put back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import torch.fx

from ortlens.backend.basis import placements
from ortlens.backend.graph import CompiledGraph, eager_graph
from ortlens.backend.lowering.returned_views import inputs_of
from ortlens.backend.partitioning.plan import GraphPartition, NodeKind, Plan, Verdict, kind_of, split, writes
from ortlens.backend.runtime import cuda, devices
from ortlens.backend.runtime.binding import TRIALS, Output
from ortlens.backend.runtime.call import CallSpec, make_call
from ortlens.backend.runtime.program import eager_nodes
from ortlens.backend.runtime.rewrites import unwanted_rewrites
from ortlens.backend.runtime.runner import PartitionRunner, RunnerEvents
from ortlens.backend.runtime.session import Extras, SessionFactory, default_session_options
from ortlens.backend.runtime.threads import ThreadChoice
from ortlens.trace import records as r

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    import onnx
    import onnxruntime

    from ortlens import _ort
    from ortlens.backend.basis.options import OrtBackendOptions, Provider
    from ortlens.backend.recording.records import Identity
    from ortlens.backend.runtime.session import SessionInfo
    from ortlens.trace.recorder import Recorder
    from ortlens.trace.runlog import RunLog

PartitionRun: TypeAlias = Callable[..., tuple[Any, ...]]
GraphCall: TypeAlias = Callable[[list[Any]], list[Any]]

CUDA = cuda.PROVIDER

FIRST_RUNS = TRIALS + 1
"""Runs of a session after which its activations lie in one block: the first of sizes that vary give their memory back."""


class WeightChanged(Exception):  # noqa: N818 - reports a state, not a mistake
    """A frozen weight is not what it was when the session was created; the text is for users, after "not compared"."""


@dataclass(frozen=True, slots=True)
class ObservedGraph:
    """A compiled graph. Two are equal if they are the same graph."""

    of: CompiledGraph

    @property
    def graph_id(self) -> str | None:
        """Its id in the records; None where nobody records it."""
        reporter = self.of.context.reporter
        return None if reporter is None else reporter.graph_id

    @property
    def compile_id(self) -> str | None:
        """The compilation by Dynamo that it comes from."""
        return self.of.lowered.compile_id

    @property
    def phase(self) -> str:
        """`inference`, `forward` or `backward`."""
        return self.of.lowered.phase

    @property
    def lowered(self) -> torch.fx.GraphModule:
        """The ATen graph that was partitioned, as PyTorch would run it."""
        return self.of.lowered.module

    @property
    def mutated(self) -> Sequence[int]:
        """The places of the inputs whose new values its first outputs are."""
        return self.of.lowered.mutated

    @property
    def options(self) -> OrtBackendOptions:
        """The options that it was compiled with."""
        return self.of.context.options

    @property
    def conversions(self) -> int:
        """Equal for graphs that convert operators alike."""
        return id(self.of.context.registry)

    @property
    def is_prepared(self) -> bool:
        """Whether it has been called."""
        return self.of.is_prepared

    def partitions(self) -> list[ObservedPartition]:
        """List its partitions, in the order of execution."""
        return [ObservedPartition(runner, self) for runner in self.of.runners]

    def nodes_in_torch(self) -> Sequence[torch.fx.Node]:
        """List the nodes that PyTorch runs between the partitions."""
        return eager_nodes(self.of.plan)

    def weights(self) -> dict[str, tuple[str, Any]]:
        """Map FX names of parameters and buffers to their names in a deployed model and the tensors of the first call (fake before it)."""
        return self.of.weight_inputs()

    def around(self, around: Callable[[GraphCall, list[Any]], list[Any]]) -> AbstractContextManager[None]:
        """Pass each call through `around`, which takes the present function of the graph and the list of inputs, which that empties."""
        inner = self.of.run
        return _replaced(self.of, lambda args: around(inner, args))

    def in_torch(self) -> AbstractContextManager[None]:
        """Let PyTorch run the graph as it was lowered."""
        return _replaced(self.of, eager_graph(self.lowered, apart=True))

    def unlogged(self) -> GraphCall:
        """Return what runs the graph where no lens times the nodes that PyTorch runs."""
        return self.of.unlogged()

    def alone(self, module: torch.fx.GraphModule, name: str) -> ObservedPartition:
        """Prepare a program as a partition of the graph, such as one operator of it; without the later rewrites."""
        (output,) = module.graph.find_nodes(op="output")
        inputs, nodes = inputs_of(module.graph), module.graph.nodes
        made = [node for node in nodes if node.op == "call_function" and kind_of(node) is not NodeKind.TUPLE]
        part = GraphPartition(index=0, module=module, inputs=tuple(inputs), outputs=tuple(output.args[0]), nodes=tuple(made))
        model, orders = self.converted(module, name, optimized=False)
        options = replace(self.options, on_error="raise")
        factory = SessionFactory(partition=part, model=model, permutations=orders, options=options, alternates=True, work=0)
        runner = PartitionRunner(factory, _UNRECORDED)
        runner.prepare([None] * len(part.inputs))
        return ObservedPartition(runner, self)

    def converted(
        self, module: torch.fx.GraphModule, name: str, *, optimized: bool
    ) -> tuple[onnx.ModelProto, Sequence[tuple[int, ...] | None]]:
        """Convert the program of a partition; returns the model and the memory order of each output, None where it is contiguous.

        `optimized` applies our rewrites, but no transform of the user.
        """
        from ortlens.backend.conversion import converter  # here, since a graph from the cache needs nothing that converts
        from ortlens.backend.conversion.optimize import optimize_model

        made = converter.onnx_from_partition(module, self.of.context.registry, name, upcast=self.options.upcast)
        model = optimize_model(made.model) if optimized else made.model
        return converter.proto_from_model(model, made.output_types), made.output_permutations

    def cut_out(self, name: str) -> tuple[GraphPartition, Verdict] | None:
        """Cut out one node and what is read of it, and tell whether ONNX Runtime runs it; None if it is not there, or computes nothing."""
        plan = self.of.plan
        node = next((node for node in plan.verdicts if node.name == name), None)
        if node is None or node in plan.hoisted_sizes:
            return None
        members = [node, *(user for user in node.users if kind_of(user) is NodeKind.TUPLE)]
        verdicts = dict.fromkeys(members, Verdict(supported=True))
        levels, hoisted = dict.fromkeys(members, 0), plan.hoisted_sizes
        only = Plan(graph=plan.graph, verdicts=verdicts, level=levels, partition_count=1, hoisted_sizes=hoisted)
        return split(only, self.of.promoted)[0], plan.verdicts[node]

    def inputs_of(self, part: GraphPartition, args: Sequence[Any]) -> list[Any]:
        """Compute the inputs of a part in PyTorch; operators that would write to `args`, the inputs of the graph, are skipped."""
        wanted = set(part.inputs)
        env: dict[torch.fx.Node, Any] = dict(zip(self.of.placeholders(), args, strict=True))
        for node in self.of.promoted.graph.nodes:
            if wanted <= env.keys():
                break
            if node.op == "get_attr":
                env[node] = getattr(self.of.promoted, str(node.target))
            elif node.op == "call_function" and writes(node):
                env[node] = env[node.all_input_nodes[0]]  # what it would have written to
            elif node.op == "call_function":
                values = torch.fx.node.map_arg((node.args, node.kwargs), env.__getitem__)
                env[node] = node.target(*values[0], **values[1])
        return [env[node] for node in part.inputs]


@dataclass(frozen=True, slots=True)
class ObservedPartition:
    """One partition of a graph. Two are equal if one thing runs both."""

    runner: PartitionRunner
    graph: ObservedGraph = field(compare=False)

    @property
    def part(self) -> GraphPartition:
        """Its program, which is what PyTorch would run, with its nodes, inputs and outputs."""
        return self.runner.partition

    @property
    def model(self) -> onnx.ModelProto:
        """Its ONNX model, with weights as inputs."""
        return self.runner.model

    @property
    def constants(self) -> frozenset[str]:
        """The inputs of its model that become constants of its sessions."""
        factory = self.runner.factory
        return frozenset(name for place, name in enumerate(factory.input_names()) if factory.freezes and place in factory.weight_inputs)

    @property
    def orders(self) -> Sequence[tuple[int, ...] | None]:
        """The memory order of each output; None where it is contiguous."""
        return self.runner.factory.permutations

    @property
    def identity(self) -> Identity | None:
        """Its ids in the records; None where nobody records its graph."""
        reporter = self.graph.of.context.reporter
        return None if reporter is None else reporter.identity(self.runner)

    @property
    def partition_id(self) -> str | None:
        """Its own id in the records; None where nobody records its graph."""
        return None if (identity := self.identity) is None else identity.partition_id

    @property
    def run(self) -> PartitionRun:
        """What its graph calls."""
        return self.runner.run

    @property
    def sessions(self) -> Sequence[SessionInfo]:
        """The sessions in use: none before the first call, then one, or one per combination of sizes."""
        return self.runner.sessions

    @property
    def latest(self) -> SessionInfo:
        """The newest of its sessions, of which there is one."""
        return self.runner.sessions[-1]

    @property
    def is_single(self) -> bool:
        """Whether one session runs it: of one per size, it is not known which one runs."""
        return len(self.runner.sessions) == 1 and not self.runner.is_lost

    @property
    def attempts(self) -> int:
        """How often a session was to be created, those that ONNX Runtime refused included."""
        return self.runner.attempts

    def request(self) -> _ort.SessionRequest | None:
        """Describe the latest of its sessions, so that another process can make one like it; None without one, or where nobody records."""
        identity = self.identity
        return None if identity is None or not self.sessions else self.runner.factory.request(self.latest, identity.model_id)

    def session_for(self, args: Sequence[Any]) -> SessionInfo | None:
        """Return the session that runs some arguments; None while PyTorch runs the partition."""
        prepared = self.runner.prepared_for(args)
        return None if prepared is None else prepared.info

    def around(self, around: Callable[[PartitionRun, tuple[Any, ...]], tuple[Any, ...]]) -> AbstractContextManager[None]:
        """Pass every run through `around`, which takes the function that runs the partition, and its inputs."""
        inner = self.runner.run
        return _replaced(self.runner, lambda *args: around(inner, args))

    def with_copies(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Copy the inputs that runs update in place, so that a run can be repeated."""
        return self.runner.factory.with_copies(args)

    def uncounted(
        self,
        session: onnxruntime.InferenceSession,
        *,
        updates: bool = False,
        values: Sequence[tuple[str, torch.fx.Node]] | None = None,
        log: RunLog | None = None,
    ) -> PartitionRun:
        """Return a function that runs the partition in a session of it, uncounted; raises `WeightChanged`.

        With `updates` it writes in place what a normal run would. `values` are the outputs of the session, by name, with the nodes that
        they are the values of; without, they are those of the partition.
        """
        factory, frozen = self.runner.factory, self.runner.weights.frozen
        if values is not None:
            from ortlens.backend.conversion.upcasting import narrow_dtypes, wide_value

            narrow = narrow_dtypes(factory.options.upcast)
            outputs = [Output(name=name, meta=wide_value(node.meta["val"], narrow)) for name, node in values]
        else:
            outputs = factory.outputs_in_place(session, frozen) if updates else factory.outputs(session)
        spec = CallSpec(
            inputs=factory.inputs(frozen),
            outputs=outputs,
            on_stale=_changed,
            on_failure=_raised,
            count=lambda: None,
            log=log,
            preallocate=factory.options.preallocate_output,
        )
        return make_call(session, spec)

    def twin(
        self,
        args: Sequence[Any],
        arranged: Callable[[onnxruntime.SessionOptions], AbstractContextManager[object]] = contextlib.nullcontext,
        *,
        model: onnx.ModelProto | None = None,
        without: Sequence[str] = (),
    ) -> Twin | None:
        """Create a second session like the one that runs some arguments; None while PyTorch runs the partition.

        Inside the context that `arranged` returns, the options of the session are changed as wanted. `model` has weights as inputs;
        `without` adds to the rewrites of ONNX Runtime that the session in use disables.
        """
        prepared = self.runner.prepared_for(args)
        if prepared is None:
            return None
        info = prepared.info
        config = self.runner.factory.config(info.frozen, info.dimensions, model, extras=min(info.extras, Extras.STREAM))
        with arranged(config.options):
            session = config.session(config.model.SerializeToString(), without=without)
        return Twin(session=session, model=config.model, session_id=prepared.session_id, info=info)

    def variant(
        self,
        args: Sequence[Any],
        *,
        threads: ThreadChoice | None = None,
        model: onnx.ModelProto | None = None,
        provider: Provider | None = None,
    ) -> ObservedPartition:
        """Prepare the same partition with other settings, unrecorded, to measure or check what they bring; None keeps one."""
        factory, given = self.runner.factory, self.runner.factory.options
        options = replace(
            given,
            on_error="raise",
            ort_session_options=None if threads is not None else given.ort_session_options,
            preferred_execution_providers=given.preferred_execution_providers if provider is None else [provider],
        )
        changed = replace(factory, options=options, model=model or self.model, threads=threads, updates={})
        made = PartitionRunner(changed, _UNRECORDED)
        made.prepare(args)
        return ObservedPartition(made, self.graph)

    def in_float32(self, args: Sequence[Any]) -> ObservedPartition:
        """Prepare the same partition with factors that are not rounded to TF32."""
        return self.variant(args, provider=cuda.IN_FLOAT32)

    def rounds_by(self, args: Sequence[Any]) -> Sequence[str]:
        """Name the settings by which the session for some arguments rounds to TF32; none if it does not."""
        info = self.session_for(args)
        return () if info is None or info.calls is None else info.calls.rounds_by()

    def ensure_session(self, args: Sequence[Any]) -> None:
        """Have a session for some arguments: the one there is, if it holds their weights, else a new one."""
        self.runner.ensure_session(args)

    def as_converted(self, args: Sequence[Any], *, optimized: bool = False) -> ObservedPartition:
        """Prepare the partition converted again without the later rewrites, which remove values; `optimized` applies ours."""
        model, _ = self.graph.converted(self.part.module, f"partition_{self.part.index}", optimized=optimized)
        return self.variant(args, model=model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """A second session of a partition."""

    session: onnxruntime.InferenceSession  # of the same model and settings, with the same weights: shared, not copied
    model: onnx.ModelProto
    session_id: str | None  # recorded id of the session that runs the partition; None when it is not recorded
    info: SessionInfo  # what is known about that session


def graphs_of(recorder: Recorder) -> tuple[ObservedGraph, ...]:
    """List the graphs of our backend that a recorder heard of, oldest first, including those that a recompile replaced."""
    return tuple(ObservedGraph(graph) for graph in recorder.live if isinstance(graph, CompiledGraph))


@contextlib.contextmanager
def in_all(contexts: Iterable[AbstractContextManager[object]]) -> Iterator[None]:
    """Enter contexts one after the other, such as those of many partitions."""
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


def note_messages(recorder: Recorder, session_id: str, messages: tuple[str, ...]) -> None:
    """Record what was said about a session, and which placements that explains."""
    recorder.amend(r.Session, session_id, messages=messages)
    placements.explained(recorder, session_id, messages)


def unlogged(graphs: Iterable[ObservedGraph]) -> AbstractContextManager[None]:
    """Run graphs as where no lens watches: no clock and no log in them."""
    subjects: Iterator[Any] = (subject for graph in graphs if graph.is_prepared for subject in (graph.of, *graph.of.runners))
    return in_all(_replaced(subject, subject.unlogged()) for subject in subjects)


@contextlib.contextmanager
def uncounted_eager(recorder: Recorder) -> Iterator[None]:
    """Restore counts and times of nodes that PyTorch runs, 0 for new graphs: calls of the lens's own do not count."""
    before = {log: log.of_thread() for log in recorder.logs()[1].values()}
    try:
        yield
    finally:
        for log in recorder.logs()[1].values():
            log.put_back(None, before.get(log))


def operators_of(part: GraphPartition) -> list[torch.fx.Node]:
    """List the operators of a partition, without the selections of one output among several."""
    return [node for node in part.nodes if kind_of(node) is not NodeKind.TUPLE]


def disabled_rewrites(model: onnx.ModelProto, providers: Iterable[str]) -> list[str]:
    """Name the rewrites of ONNX Runtime that sessions of a model do without, because they would change its results."""
    return unwanted_rewrites(model, [(name, {}) for name in providers])


def session_options(threads: int, *, spinning: bool) -> onnxruntime.SessionOptions:
    """Make the options of a session as for one of ours, with other threads."""
    return default_session_options(ThreadChoice(count=threads, spinning=spinning, reason="asked for"))


def is_sized(tensor: torch.Tensor) -> bool:
    """Tell whether sessions on the device of a tensor are called by rules of their own, such as graphs of kernels."""
    return devices.kind_of(tensor.device).calls is not None


def provider_of(device: torch.device) -> str | None:
    """Name the execution provider for a device; None if ONNX Runtime has none."""
    return devices.kind_of(device).provider


def providers_for(tensors: Iterable[torch.Tensor], options: OrtBackendOptions) -> list[tuple[str, dict[str, Any]]]:
    """Choose the execution providers of a session for tensors; none where the session options name devices."""
    return devices.providers_for([tensor.device for tensor in tensors], options)


@contextlib.contextmanager
def _replaced(subject: PartitionRunner | CompiledGraph, outer: Callable[..., Any]) -> Iterator[None]:
    """Replace the function that a graph or partition runs while the context lasts, or until the subject replaces it for a right result."""
    inner, subject.run = subject.run, outer
    try:
        yield
    finally:
        if subject.run is outer:
            subject.run = inner


_UNRECORDED = RunnerEvents()
"""Those of a runner that is measured: neither it nor what it is compared with logs its calls, which would be charged to ONNX Runtime."""


def _changed(_args: tuple[Any, ...]) -> tuple[Any, ...]:
    raise WeightChanged("its session holds other weights now: they changed meanwhile, or several modules share this code")


def _raised(*args: Any) -> NoReturn:
    raise args[-1]
