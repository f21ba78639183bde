"""One graph, from FX to a function: decide, partition, convert, make sessions, and start over without what fails.

Conversion happens while AOTAutograd compiles; sessions are made at the first call, when the weights are at hand. Both
may find out that a node cannot go to ONNX Runtime after all. Then the node is excluded, with the reason, and the graph
is planned anew; whatever happens, PyTorch can always run what is left.
"""

from __future__ import annotations

import threading
import time
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch.fx

from ortlens import _torch
from ortlens.backend.cache.keys import key_of
from ortlens.backend.cache.store import CachedModel, ModelCache
from ortlens.backend.conversion import converter
from ortlens.backend.conversion.optimize import optimize_model
from ortlens.backend.gc_paused import gc_paused
from ortlens.backend.lowering import type_promotion
from ortlens.backend.partitioning import extraction
from ortlens.backend.partitioning.plan import Plan, plan_partitions
from ortlens.backend.partitioning.support import Support, Verdict, storage_readers
from ortlens.backend.recording.reporter import GraphReporter, Phases
from ortlens.backend.runtime import program, threads
from ortlens.backend.runtime.runner import PartitionRunner, runner_for
from ortlens.backend.runtime.session_config import ModelRefused
from ortlens.errors import ConversionError, OrtLensError, SessionError, UsageError
from ortlens.progress import progress

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx
    import onnx_ir as ir

    from ortlens.backend.options import OrtBackendOptions
    from ortlens.backend.runtime.session_info import SessionInfo
    from ortlens.trace.records import Phase
    from ortlens.trace.runlog import RunLog

_MAX_PLANS = 12
"""How often one graph is planned anew before every partition that still fails goes back to PyTorch whole."""


_HEAVY_BYTES = 1 << 28
"""Weights of which making the sessions takes more than a second: a gigabyte takes about five."""


@dataclass(slots=True)
class Job:
    """What a graph is compiled from.

    Attributes:
        module: The ATen graph, as AOTAutograd hands it over; never changed.
        phase: `inference`, `forward` or `backward`.
        options: The user's.
        registry: ATen-to-ONNX functions.
        can_run_on: Device type -> None, or why its tensors cannot go to ONNX Runtime.
        static_inputs: Positions of parameters and buffers among the inputs.
        input_names: What to call the inputs outside, in a deployed model.
        output_names: What to call the outputs.
        dry_run: Plan and convert only; a call gives fake tensors for fake tensors.
        cache: Models of earlier processes; None: all are converted.
        reporter: Turns what happens into records; None when nobody watches.
        prepared: Called with the graph once its sessions are there.
        transforms: Applied to each ONNX model before its session is made.
        dump: Called with each ONNX model and its partition when the session is made.
    """

    module: torch.fx.GraphModule
    phase: Phase
    options: OrtBackendOptions
    registry: Any
    can_run_on: Callable[[str], str | None]
    static_inputs: frozenset[int]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    dry_run: bool
    cache: ModelCache | None
    reporter: GraphReporter | None
    prepared: Callable[[CompiledGraph], None] | None
    transforms: Callable[[onnx.ModelProto], onnx.ModelProto]
    dump: Callable[[onnx.ModelProto, torch.fx.GraphModule], str | None]


@dataclass(eq=False)
class CompiledGraph:
    """A graph that runs; `run` takes a list of inputs, empties it, and returns a list of outputs."""

    job: Job
    runners: list[PartitionRunner] = field(default_factory=list)
    phases: Phases = field(default_factory=Phases)
    run: Callable[[list[Any]], list[Any]] = field(init=False)
    plan: Plan = field(init=False)
    promoted: torch.fx.GraphModule = field(init=False)
    _excluded: dict[str, Verdict] = field(default_factory=dict)
    _weights: dict[str, Any] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        """Plan and convert; sessions come with the first call."""
        self.run = self._first_run
        try:
            self._promote()
            self._build()
            if self.job.dry_run:
                self.run = eager_graph(self.job.module)
        except Exception as error:  # noqa: BLE001 - whatever went wrong, PyTorch has the right answer
            self._give_up(error)

    def _promote(self) -> None:
        """Make type promotion explicit, on a copy: the graph as it came stays what PyTorch can run."""
        started = time.perf_counter_ns()
        copied = torch.fx.GraphModule(self.job.module, _copy_of(self.job.module.graph))
        type_promotion.promote(copied)
        for node in copied.graph.find_nodes(op="call_function", target=torch.ops.aten._assert_tensor_metadata.default):  # noqa: SLF001 - a name
            copied.graph.erase_node(node)  # what it says of dtype and device was settled while tracing
        copied.graph.eliminate_dead_code()
        self._excluded.update(storage_readers(copied.graph))
        self.promoted = copied
        self.phases.partition_ns += time.perf_counter_ns() - started

    def _build(self) -> None:
        """Plan and convert until every partition has a model."""
        for attempt in range(_MAX_PLANS):
            started = time.perf_counter_ns()
            support = Support(self.job.registry, self.job.can_run_on, self._excluded)
            graph = self.promoted.graph
            self.plan = plan_partitions(graph, support.verdict, min_nodes=self.job.options.min_partition_nodes)
            parts = extraction.split(self.plan, self.promoted)
            self.phases.partition_ns += time.perf_counter_ns() - started
            with progress("converting to ONNX", sum(len(part.module.graph.nodes) for part in parts), "node") as step:
                converted = [self._convert(part, step, whole=attempt == _MAX_PLANS - 2) for part in parts]
            if None not in converted:
                self.runners = [runner for runner in converted if runner is not None]
                self._report_plan()
                return
        raise ConversionError(f"the graph could not be planned in {_MAX_PLANS} attempts")

    def _convert(self, part: extraction.Partition, step: Callable[[int], None], *, whole: bool) -> PartitionRunner | None:
        """A runner for a partition, or None when nodes had to be excluded."""
        cache = self.job.cache
        key = cache and self.model_key(part)
        entry = cache.load(key) if cache and key else None
        made = self._made(part, step, whole=whole) if entry is None else entry
        if made is None:
            return None
        if cache and key and entry is None and made.facts["optimized"]:
            self._keep(cache, key, made)
        started = time.perf_counter_ns()
        proto = self.job.transforms(made.model)
        self.phases.optimize_ns += time.perf_counter_ns() - started
        return runner_for(
            part,
            proto,
            made.facts,
            self,
            weight_inputs=self._weight_inputs(part),
            inference=self.job.phase == "inference",
            alternates=self.job.phase != "inference" or self.plan.partition_count > 1 or bool(program.eager_nodes(self.plan)),
            work=threads.work_of(part.nodes),
            cached=entry is not None,
        )

    def model_key(self, part: extraction.Partition) -> str | None:
        """The name of a partition's model in the cache; None for one that has no lasting name."""
        return key_of("partition", part.module, part.index, self.job.options.export_options)

    def _made(self, part: extraction.Partition, step: Callable[[int], None], *, whole: bool) -> CachedModel | None:
        """The ONNX model of a partition and what else is known of it, or None when nodes had to be excluded."""
        started = time.perf_counter_ns()
        try:
            converted = converter.onnx_from_partition(part.module, self.job.registry, f"partition_{part.index}", step)
        except converter.NodeFailures as failures:
            self._exclude_failures(part, failures, whole=whole)
            return None
        finally:
            self.phases.convert_ns += time.perf_counter_ns() - started
        started = time.perf_counter_ns()
        model, optimized = self._optimized(part, converted.model)
        wanted = self.job.options.export_options and self.job.options.export_options.opset_version
        if wanted:
            model = converter.to_opset(model, wanted)
        proto = converter.proto_from_model(model, converted.output_types)
        self.phases.optimize_ns += time.perf_counter_ns() - started
        return CachedModel(model=proto, facts={"permutations": converted.output_permutations, "optimized": optimized})

    def _keep(self, cache: ModelCache, key: str, made: CachedModel) -> None:
        try:
            cache.store(key, made)
        except OSError as error:
            self._tell("cache_failed", "a converted model could not be kept in cache_dir; it runs all the same", error)

    def _optimized(self, part: extraction.Partition, model: ir.Model) -> tuple[ir.Model, bool]:
        """The model made smaller, and whether that worked."""
        if self.job.dry_run:
            return model, False
        try:
            return optimize_model(model), True
        except Exception as error:  # noqa: BLE001 - optimisation is optional, and a failed pass leaves the model unchanged
            if self.job.reporter is not None:
                title = f"the ONNX optimiser failed on partition_{part.index}; the model runs unoptimised"
                self.job.reporter.failure("optimiser_failed", title, error)
            return model, False

    def _static_inputs(self) -> frozenset[torch.fx.Node]:
        placeholders = self.placeholders()
        return frozenset(placeholders[i] for i in self.job.static_inputs if i < len(placeholders))

    def _weight_inputs(self, part: extraction.Partition) -> frozenset[int]:
        static = self._static_inputs()
        return frozenset(i for i, node in enumerate(part.inputs) if node in static)

    def _exclude_failures(self, part: extraction.Partition, failures: converter.NodeFailures, *, whole: bool) -> None:
        for name, error in failures.failures.items():
            reason = f"its ONNX function raised {short_text(error)}"
            if self.job.options.on_error == "raise":
                raise ConversionError(f"node {name} could not be converted: {reason}") from error
            self._excluded[name] = Verdict(supported=False, code="converter_raised", reason=reason, exception=_whole_text(error))
        if whole:
            self._exclude_part(part, "converter_raised", "its partition could not be converted")

    def _exclude_part(self, part: extraction.Partition, code: Any, reason: str, exception: str | None = None) -> None:
        for node in part.nodes:
            self._excluded.setdefault(node.name, Verdict(supported=False, code=code, reason=reason, exception=exception))

    def _first_run(self, args: list[Any]) -> list[Any]:
        with self._lock:
            if self.run == self._first_run:
                try:
                    gc_paused(self._prepare, args)
                except Exception as error:  # noqa: BLE001 - whatever went wrong, PyTorch has the right answer
                    self._give_up(error)
        return self.run(args)

    def _give_up(self, error: Exception) -> None:
        """Leave the whole graph to PyTorch, unless the user asked to be told or asked for what cannot be."""
        if self.job.options.on_error == "raise" or (isinstance(error, OrtLensError) and not isinstance(error, ConversionError)):
            raise error from error.__cause__
        title = "a graph could not be prepared for ONNX Runtime and stays in PyTorch"
        if self.job.reporter is not None:
            self.job.reporter.graph_lost(self.job.module, f"preparing the graph raised {short_text(error)}", _whole_text(error))
        self._tell("backend_failed", title, error)
        self.runners = []
        self.run = eager_graph(self.job.module)

    def _prepare(self, args: list[Any]) -> None:
        """Make all sessions, planning anew without what ONNX Runtime refuses, then write the program."""
        for _ in range(_MAX_PLANS):
            with progress("making ONNX Runtime sessions", len(self.runners), "session", at_once=self._is_heavy(args)) as step:
                refused = [runner for runner in self.runners if not self._prepare_runner(runner, args, step)]
            if not refused:
                break
            self._build()
        log = None
        if self.job.reporter is not None:
            log = self.job.reporter.eager_log(program.eager_nodes(self.plan))
            self.job.reporter.amend_phases(self.phases)
        self._weights = {node.name: args[place] for place, node in enumerate(self.placeholders()) if place in self.job.static_inputs}
        self.run = program.make_program(self.plan, self.promoted, self.runners, log)
        if self.job.prepared is not None:
            self.job.prepared(self)

    def _is_heavy(self, args: list[Any]) -> bool:
        """Whether ONNX Runtime will be busy for seconds with packing weights, before a first session is there."""
        weights = [args[place] for place in self.job.static_inputs if place < len(args)]
        return sum(weight.nbytes for weight in weights if isinstance(weight, torch.Tensor)) > _HEAVY_BYTES

    def _prepare_runner(self, runner: PartitionRunner, args: list[Any], step: Callable[[int], None]) -> bool:
        placeholders = dict(zip(self.placeholders(), args, strict=True))
        values = [placeholders.get(node) for node in runner.part.inputs]
        started = time.perf_counter_ns()
        try:
            with _torch.real_tensors():
                runner.prepare(values)
        except UsageError as error:
            if self.job.reporter is not None:
                self.job.reporter.failure("provider_unavailable", str(error), error)
            raise
        except ModelRefused as error:
            if self.job.options.on_error == "raise":
                raise SessionError(f"ONNX Runtime refused partition {runner.part.index}: {error}") from error
            self._exclude_refused(runner, error)
            return False
        finally:
            self.phases.session_ns += time.perf_counter_ns() - started
            step(1)
        return True

    def weight_inputs(self) -> dict[str, tuple[str, Any]]:
        """The inputs that are parameters or buffers.

        Returns:
            FX name -> the name outside, and the tensor of the last preparation (a fake one before the first).
        """
        names = self.outer_input_names()
        return {
            node.name: (names[place], self._weights.get(node.name, node.meta.get("val")))
            for place, node in enumerate(self.placeholders())
            if place in self.job.static_inputs
        }

    def outer_input_names(self) -> list[str]:
        """What to call the inputs outside: the user's names where they are known and differ, else the nodes'."""
        own = [node.name for node in self.placeholders()]
        given = list(self.job.input_names)
        return given if len(given) == len(own) == len(set(given)) else own

    def output_nodes(self) -> list[Any]:
        """What the graph returns: nodes, and constants as they are."""
        output = next(node for node in self.promoted.graph.nodes if node.op == "output")
        returned: Any = output.args[0]
        return list(returned) if isinstance(returned, (list, tuple)) else [returned]

    @property
    def is_prepared(self) -> bool:
        """Whether it ran already; until then there is nothing to intercept, since the first call makes what runs."""
        return self.run != self._first_run

    def left_in_torch(self) -> dict[str, str]:
        """The nodes that PyTorch runs.

        Returns:
            FX name -> the reason in words.
        """
        return {node.name: self.plan.verdicts[node].reason or "" for node in program.eager_nodes(self.plan)}

    def whole(self) -> PartitionRunner | None:
        """The partition that makes every output of the graph from its inputs, if there is one; then nothing is left to PyTorch."""
        if len(self.runners) != 1 or program.eager_nodes(self.plan):
            return None
        (runner,) = self.runners
        made = set(runner.part.outputs)
        return runner if all(isinstance(node, torch.fx.Node) and node in made for node in self.output_nodes()) else None

    def placeholders(self) -> list[torch.fx.Node]:
        """The inputs of the graph, in order."""
        return [node for node in self.promoted.graph.nodes if node.op == "placeholder"]

    def _exclude_refused(self, runner: PartitionRunner, error: Exception) -> None:
        """Exclude the nodes that ONNX Runtime's message names, else the whole partition."""
        message = str(error)
        reason = f"ONNX Runtime refused it: {short_text(error)}"
        named = {fx for onnx_name, fx in runner.node_names().items() if f"'{onnx_name}'" in message or f"({onnx_name})" in message}
        targets = {node.target for node in runner.part.nodes if node.name in named}
        dtypes = {_output_dtype(node) for node in runner.part.nodes if node.name in named}
        found = False
        for node in runner.part.nodes:
            if node.name in named or (node.target in targets and _output_dtype(node) in dtypes):
                refused = Verdict(supported=False, code="session_refused", reason=reason, exception=_whole_text(error))
                self._excluded[node.name] = refused
                found = True
        if not found:
            self._exclude_part(runner.part, "session_refused", reason, _whole_text(error))

    @property
    def options(self) -> OrtBackendOptions:
        """The user's options, for the runners."""
        return self.job.options

    def session_made(self, runner: PartitionRunner, info: SessionInfo) -> RunLog | None:
        """Dump and record a new session; see `RunnerContext`."""
        path = None if runner.ran_before else self._dumped(runner)
        if self.job.reporter is None:
            return None
        missing = [name for name in info.wanted_providers if name not in info.providers]
        if missing:
            self.job.reporter.provider_missing(missing, info.providers)
        return self.job.reporter.session_made(runner, info, path)

    def _dumped(self, runner: PartitionRunner) -> str | None:
        try:
            return self.job.dump(runner.model, runner.part.module)
        except OSError as error:
            self._tell("dump_failed", "a model could not be dumped; it runs all the same", error)
            return None

    def run_failed(self, runner: PartitionRunner, error: Exception) -> None:
        """Record a partition that went back to PyTorch; see `RunnerContext`."""
        reason = f"ONNX Runtime failed while running it: {short_text(error)}"
        self._tell("run_failed", f"a partition of {len(runner.part.nodes)} nodes went back to PyTorch", error)
        if self.job.reporter is not None:
            self.job.reporter.partition_lost(runner, reason, _whole_text(error))

    def _report_plan(self) -> None:
        if self.job.reporter is not None:
            least = self.job.options.min_partition_nodes
            self.job.reporter.planned(self.plan, self.runners, self.phases, weights=self._static_inputs(), min_nodes=least)

    def _tell(self, rule: str, title: str, error: Exception) -> None:
        if self.job.reporter is not None:
            self.job.reporter.failure(rule, title, error)
        warnings.warn(f"ortlens: {title}: {short_text(error)}", RuntimeWarning, stacklevel=2)

    def session_calls(self) -> int:
        """How often sessions of this graph ran."""
        return sum(runner.calls() for runner in self.runners)


def _copy_of(graph: torch.fx.Graph) -> torch.fx.Graph:
    copied = torch.fx.Graph()
    mapping: dict[torch.fx.Node, torch.fx.Node] = {}
    output = copied.graph_copy(graph, mapping)
    copied.output(output)
    for source, copy in mapping.items():
        copy.meta = dict(source.meta)
    return copied


def _output_dtype(node: torch.fx.Node) -> Any:
    return getattr(node.meta.get("val"), "dtype", None)


def short_text(error: BaseException, limit: int = 300) -> str:
    """The innermost cause of an error, in one line.

    Args:
        error: What was raised.
        limit: Longest text, in characters.

    Returns:
        Class and message.
    """
    while error.__cause__ is not None and not isinstance(error, OrtLensError):
        error = error.__cause__
    text = " ".join(str(error).split())
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return said if len(said) <= limit else said[: limit - 3] + "..."


def _whole_text(error: BaseException, limit: int = 4000) -> str:
    """Class and message of an error and of what caused it, outermost first, in lines."""
    lines: list[str] = []
    seen: BaseException | None = error
    while seen is not None:
        lines.append(f"{type(seen).__name__}: {seen}".strip())
        seen = seen.__cause__
    return "\n".join(lines)[:limit]


def eager_graph(module: torch.fx.GraphModule) -> Callable[[list[Any]], list[Any]]:
    """A graph run by PyTorch alone, for when everything else failed.

    Args:
        module: The ATen graph.

    Returns:
        A boxed function.
    """

    def run(args: list[Any]) -> list[Any]:
        inputs = list(args)
        args.clear()
        return list(module(*inputs))

    return run
