"""Plans one graph: partitions it and converts the partitions, again without the nodes that fail, until every partition has a model."""

from __future__ import annotations

import functools
import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ortlens._shell import progress
from ortlens.backend.basis.error_text import full_text, short_text
from ortlens.backend.basis.node_provenance import node_names
from ortlens.backend.basis.options import registered_ops
from ortlens.backend.basis.provenance import is_large, target_name, tensors_in
from ortlens.backend.cache import ConvertedModel, key_of
from ortlens.backend.compile_context import MAX_PLANS
from ortlens.backend.conversion import converter
from ortlens.backend.conversion.converter import NodeFailures
from ortlens.backend.conversion.optimize import optimize_model
from ortlens.backend.conversion.upcasting import narrow_dtypes
from ortlens.backend.lowering import passes
from ortlens.backend.lowering.returned_views import inputs_of
from ortlens.backend.lowering.wholes import parts_of, put_together
from ortlens.backend.operators.basics import NotConvertibleError
from ortlens.backend.partitioning.kernel_times import if_slower
from ortlens.backend.partitioning.plan import Plan, Verdict, plan_partitions, split
from ortlens.backend.partitioning.support import Support, slower_in_parts, storage_readers
from ortlens.backend.runtime.devices import cpu_provider_computes, reason_against, runs_on_cpu_alone
from ortlens.errors import ConversionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import onnx_ir as ir

    from ortlens.backend.compile_context import CompileContext
    from ortlens.backend.lowering.entry import LoweredGraph, Phases
    from ortlens.backend.partitioning.plan import GraphPartition
    from ortlens.backend.runtime.runner import PartitionRunner
    from ortlens.trace.records import ReasonCode


class Exclusions:
    """The excluded nodes of one graph; they only grow.

    Attributes:
        verdicts: Node name -> why ONNX Runtime does not run it.
    """

    def __init__(self, verdicts: Mapping[str, Verdict]) -> None:
        """Start with nodes that are excluded from the beginning."""
        self.verdicts: dict[str, Verdict] = dict(verdicts)

    def failed(self, failures: Mapping[str, Exception], what: str) -> None:
        """Exclude the nodes that cannot be converted; `what` comes before the exception in the reason."""
        for name, error in failures.items():
            if (known := _not_convertible(error)) is not None:
                self.verdicts[name] = Verdict(supported=False, code="no_converter", reason=f"it has no ONNX form for this call: {known}")
                continue
            reason = f"{what} {short_text(error)}"
            self.verdicts[name] = Verdict(supported=False, code="converter_raised", reason=reason, exception=full_text(error))

    def partition_failed(self, partition: GraphPartition, code: ReasonCode, reason: str, exception: str | None = None) -> None:
        """Exclude all nodes of a partition that are not excluded yet."""
        for node in partition.nodes:
            self.verdicts.setdefault(node.name, Verdict(supported=False, code=code, reason=reason, exception=exception))

    def session_refused(self, partition: GraphPartition, origins: Mapping[str, str], error: Exception, *, broadly: bool = False) -> None:
        """Exclude the nodes that the message of ONNX Runtime names, with their equals; the whole partition if it names none.

        Equals have the same operator, attributes, dtypes and, unless a kernel is missing, sizes. After many refusals, `broadly` ignores
        sizes and attributes: each would cost another plan. `origins` maps ONNX names to FX names.
        """
        message, exception = str(error), full_text(error)
        named = _named(origins, message)
        sized = not broadly and not any(text in message for text in _NO_KERNEL)
        kinds = {_kind_of(node, sized=sized, exactly=not broadly) for node in partition.nodes if node.name in named}
        refused = [node for node in partition.nodes if _kind_of(node, sized=sized, exactly=not broadly) in kinds]
        for node in refused:
            self.verdicts[node.name] = Verdict(supported=False, code="session_refused", reason=_reason([node], error), exception=exception)
        if not refused:
            self.partition_failed(partition, "session_refused", _reason(partition.nodes, error), exception)


def _of_whole(call: torch.fx.Node, parts: Sequence[torch.fx.Node], plan: Plan) -> Verdict | None:
    """Return why an operator stays in PyTorch of which all parts do; None where some do not."""
    verdicts = [plan.verdicts[node] for node in parts]
    if any(map(plan.in_partition, parts)):
        return None
    verdict = next((verdict for verdict in verdicts if not verdict.supported and verdict.code != "too_small"), verdicts[0])
    return verdict._replace(reason=f"{target_name(call)} stays in PyTorch whole: of its parts, {verdict.reason}", supported=False)


def lacks_kernel(origins: Mapping[str, str], error: Exception) -> bool:
    """Tell whether ONNX Runtime refuses a model for lack of a kernel, which is no failure: like an operator without an ONNX function."""
    return _MISSING.search(str(error)) is not None and bool(_named(origins, str(error)))


def _not_convertible(error: BaseException | None) -> NotConvertibleError | None:
    while error is not None and not isinstance(error, NotConvertibleError):
        error = error.__cause__
    return error


def _named(origins: Mapping[str, str], message: str) -> set[str]:
    return {fx for name, fx in origins.items() if any(form.format(name) in message for form in _FORMS)}


_FORMS = ("'{}'", "({})", '("{}", ', "Name: {} ")  # how messages of ONNX Runtime name a node
_NO_KERNEL = ("NOT_IMPLEMENTED", "Could not find an implementation")
"""What ONNX Runtime says when it has no kernel for an operator and element types, whatever the sizes."""
_MISSING = re.compile(r"Could not find an implementation for (?P<operator>\w+)\(\d+\)")

_UNDEFINED = re.compile(r"Type 'tensor\((?P<type>\w+)\)' of input parameter \([^)]*\) of operator \((?P<operator>\w+)\)")


def _reason(nodes: Sequence[torch.fx.Node], error: Exception) -> str:
    """Explain why ONNX Runtime refuses nodes: for a missing kernel its operator and element types, else the message."""
    missing, undefined = _MISSING.search(str(error)), _UNDEFINED.search(str(error))
    if undefined is not None:
        return f"ONNX defines no {undefined['operator']} of {undefined['type']}"
    if missing is None:
        return f"ONNX Runtime refused it: {short_text(error)}"
    values = [tensor for node in nodes for source in (node, *node.all_input_nodes) for tensor in tensors_in(source.meta.get("val"))]
    kinds = " and ".join(dict.fromkeys(str(tensor.dtype).removeprefix("torch.") for tensor in values))
    return f"ONNX Runtime has no kernel of {missing['operator']} for {kinds} on this device"


def _kind_of(node: torch.fx.Node, *, sized: bool, exactly: bool) -> tuple[Any, ...]:
    """Collect what decides whether ONNX Runtime takes a node: equal for nodes that share their fate."""
    values = [_value_text(source.meta.get("val"), sized=sized) for source in (node, *node.all_input_nodes)]
    attributes = [_without_nodes(node.args), _without_nodes(node.kwargs)] if exactly else []
    return (node.target, *values, *map(repr, attributes))


def _without_nodes(arguments: Any) -> Any:
    return torch.fx.node.map_arg(arguments, lambda _: None)


def _value_text(value: Any, *, sized: bool) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{list(value.shape) if sized else ''}"
    return ", ".join(_value_text(item, sized=sized) for item in value) if isinstance(value, (list, tuple)) else type(value).__name__


class Planner:
    """Plans one graph, as often as nodes have to be excluded."""

    plan: Plan  # the latest plan: where each node runs

    def __init__(self, lowered: LoweredGraph, context: CompileContext, phases: Phases) -> None:
        """Make type promotion explicit on a copy of the graph, so that PyTorch can still run the original; updates `phases`."""
        self._lowered = lowered
        self._context = context
        self._phases = phases
        started = time.perf_counter_ns()
        # The graph with explicit type promotion, which is what gets partitioned.
        self._prepared = passes.prepared(
            lowered.partitioned,
            lambda target: bool(context.registry.get_decomps(target)),
            mutated=lowered.mutated,
            of_users={**registered_ops(), **(context.options.custom_translation_table or {})},
            writes=lowered.phase == "inference" and not context.deployed,  # a model to deploy returns the new values
            leaves=context.updates_in_place(lowered),
        )
        self.promoted = self._prepared.module
        self.exclusions = Exclusions({**storage_readers(self.promoted.graph), **self._writes()})  # the nodes that failed so far
        self.exclusions.failed(self._prepared.failures, "how it converts element types is not known:")
        phases.partition_ns += time.perf_counter_ns() - started

    def runners(self) -> list[PartitionRunner]:
        """Plan and convert until every partition has a model; returns one runner per partition, without sessions.

        Raises ConversionError if nodes fail and `on_error` is `"raise"`, or if there is no plan after `MAX_PLANS` attempts.
        """
        for attempt in range(MAX_PLANS):
            partitions = self._partitioned()
            with progress("converting to ONNX", sum(len(partition.module.graph.nodes) for partition in partitions), "node") as step:
                runners = [self._runner(partition, step, last=attempt == MAX_PLANS - 2) for partition in partitions]
            complete = [runner for runner in runners if runner is not None]
            if len(complete) == len(partitions) and self._in_place_writes_succeeded(complete):
                return complete
        raise ConversionError(f"the graph could not be planned in {MAX_PLANS} attempts")

    def refused(self, runner: PartitionRunner, error: Exception, *, broadly: bool) -> None:
        """Exclude the nodes for which ONNX Runtime refuses the model of a partition; `broadly` as for `Exclusions.session_refused`."""
        self.exclusions.session_refused(runner.partition, node_names(runner.model), error, broadly=broadly)

    def _writes(self) -> dict[str, Verdict]:
        """Keep the writes into large buffers in PyTorch, but for those of sessions."""
        return {name: Verdict(supported=False, code="policy", reason=reason) for name, reason in self._prepared.kept.items()}

    def _in_place_writes_succeeded(self, runners: list[PartitionRunner]) -> bool:
        """Tell whether sessions make the writes that were left to them in place; if not, PyTorch does, in another plan."""
        made = {node for runner in runners for node in runner.factory.updated_in_place()}
        if made.issuperset(self._prepared.left_to_sessions):
            return True
        self._prepared.write_all_in_place()
        self.exclusions.verdicts.update(self._writes())
        return False

    def _made_of_weights(self) -> frozenset[torch.fx.Node]:
        """Find the nodes that compute with parameters, buffers and constants alone."""
        found = {node for place, node in enumerate(inputs_of(self.promoted.graph)) if place in self._lowered.static_inputs}
        for node in self.promoted.graph.nodes:
            if node.op == "get_attr" or (node.op == "call_function" and node.all_input_nodes and found.issuperset(node.all_input_nodes)):
                found.add(node)
        return frozenset(found)

    def _partitioned(self) -> list[GraphPartition]:
        started = time.perf_counter_ns()
        folded = self._made_of_weights() if self._lowered.phase == "inference" else frozenset()
        support = Support(
            self._context.registry,
            functools.partial(reason_against, planned=self._context.dry_run and not self._context.deployed),
            self.exclusions.verdicts,
            deployed=self._context.deployed,
            without_bfloat16=runs_on_cpu_alone(self._context.options) and not cpu_provider_computes("bfloat16"),
            upcast=narrow_dtypes(self._context.options.upcast),
            folded=folded,
        )
        graph = self.promoted.graph
        updated = [inputs_of(graph)[place].meta.get("val") for place in self._lowered.mutated]
        # Of these, PyTorch would also copy the new values.
        updates = any(isinstance(value, torch.Tensor) and is_large(value) for value in updated)
        by_times = not (self._context.deployed or updates) and runs_on_cpu_alone(self._context.options)
        if by_times:
            put_together(graph, slower_in_parts)
        apart = set[torch.fx.Node]()  # calls of which all parts stay, and which do not take their place: those have prices of their own
        while True:
            parts = {call: nodes for call, nodes in parts_of(graph).items() if call not in apart}
            self.plan = plan_partitions(
                graph,
                support.verdict,
                min_nodes=self._context.options.min_partition_nodes,
                if_slower=functools.partial(if_slower, folded=folded, parts=parts) if by_times else lambda _: None,
            )
            if put_together(graph, functools.partial(_of_whole, plan=self.plan)):
                continue
            left = {call for call, nodes in parts.items() if not any(map(self.plan.in_partition, nodes))}
            if not by_times or not left:
                break
            apart |= left
        partitions = split(self.plan, self.promoted)
        self._phases.partition_ns += time.perf_counter_ns() - started
        return partitions

    def _runner(self, partition: GraphPartition, step: Callable[[int], None], *, last: bool) -> PartitionRunner | None:
        """Make the runner of a partition; None when nodes had to be excluded."""
        try:
            cached, hit = self._model_of(partition, step)
        except NodeFailures as failures:
            if self._context.options.on_error == "raise":
                name, error = next(iter(failures.failures.items()))
                raise ConversionError(f"node {name} could not be converted: its ONNX function raised {short_text(error)}") from error
            self.exclusions.failed(failures.failures, "its ONNX function raised")
            if last:
                self.exclusions.partition_failed(partition, "converter_raised", "its partition could not be converted")
            return None
        started = time.perf_counter_ns()
        model = self._context.transformed(cached.model)
        self._phases.optimize_ns += time.perf_counter_ns() - started
        return self._context.runner(self._lowered, self.plan, partition, replace(cached, model=model), cached=hit)

    def _model_of(self, partition: GraphPartition, step: Callable[[int], None]) -> tuple[ConvertedModel, bool]:
        """Load a partition's model from the cache or make it, before the user's transforms; tells whether it comes from the cache."""
        cache = self._context.cache
        if cache is None:
            return self._converted(partition, step), False
        key = model_key(partition, self._context)
        cached = cache.model(key)
        if cached is not None:
            return cached, True
        made = self._converted(partition, step)
        if key is not None and made.is_optimized:
            try:
                cache.store(key, made.saved())
            except OSError as error:
                title = "a converted model could not be kept in cache_dir; it runs nevertheless"
                self._context.report_failure("cache_failed", title, error)
        return made, False

    def _converted(self, partition: GraphPartition, step: Callable[[int], None]) -> ConvertedModel:
        options, started = self._context.options, time.perf_counter_ns()
        try:
            name = f"partition_{partition.index}"
            converted = converter.onnx_from_partition(partition.module, self._context.registry, name, step, upcast=options.upcast)
        finally:
            self._phases.convert_ns += time.perf_counter_ns() - started
        started = time.perf_counter_ns()
        model, optimized = self._optimized(partition, converted.model)
        if wanted := options.export_options and options.export_options.opset_version:
            model = converter.to_opset(model, wanted)
        proto = converter.proto_from_model(model, converted.output_types)
        self._phases.optimize_ns += time.perf_counter_ns() - started
        names = tuple(value.name for value in proto.graph.output)
        orders = tuple(converted.output_permutations)
        return ConvertedModel(model=proto, permutations=orders, output_names=names, is_optimized=optimized)

    def _optimized(self, partition: GraphPartition, model: ir.Model) -> tuple[ir.Model, bool]:
        if self._context.dry_run and (self._context.deployed or runs_on_cpu_alone(self._context.options)):
            return model, False
        try:
            return optimize_model(model), True
        except Exception as error:  # noqa: BLE001 - optimisation is optional, and a failed pass leaves the model unchanged
            if self._context.reporter is not None:
                title = f"the ONNX optimiser failed on partition_{partition.index}; the model runs unoptimised"
                self._context.reporter.failure("optimiser_failed", title, error)
            return model, False


def model_key(partition: GraphPartition, context: CompileContext) -> str | None:
    """Return the cache key of a partition's model; None if the partition has none."""
    return key_of("partition", partition.module, partition.index, context.options.export_options, context.options.upcast)
