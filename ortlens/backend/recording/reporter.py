"""What the backend does, told to the recorder as records."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ortlens import _torch
from ortlens.backend.conversion import node_provenance
from ortlens.backend.conversion.converter import memory_order
from ortlens.backend.lowering import provenance
from ortlens.backend.partitioning.plan import writes
from ortlens.backend.partitioning.support import NodeKind, Verdict, kind_of
from ortlens.backend.runtime.session_info import signature_text
from ortlens.trace import records as r

if TYPE_CHECKING:
    import torch.fx

    from ortlens.backend.partitioning.plan import Plan
    from ortlens.backend.runtime.runner import PartitionRunner
    from ortlens.backend.runtime.session_info import SessionInfo
    from ortlens.trace.recorder import Recorder
    from ortlens.trace.runlog import EagerLog, RunLog


@dataclass(slots=True)
class Phases:
    """Time spent per phase of the backend's work, in ns."""

    partition_ns: int = 0
    convert_ns: int = 0
    optimize_ns: int = 0
    session_ns: int = 0

    def total(self) -> int:
        """All of it."""
        return self.partition_ns + self.convert_ns + self.optimize_ns + self.session_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The ids of a partition in the records.

    Attributes:
        graph_id: Its graph.
        partition_id: Itself.
        model_id: Its ONNX model.
        session_id: Its latest session; None before the first call.
    """

    graph_id: str
    partition_id: str
    model_id: str
    session_id: str | None


class GraphReporter:
    """Records one graph: its nodes, partitions, models and sessions, as they come and when they change."""

    def __init__(self, recorder: Recorder, *, phase: r.Phase, compile_id: str | None, op_count: int, aot_ns: int) -> None:
        """Announce the graph.

        Args:
            recorder: Where records go.
            phase: `inference`, `forward` or `backward`.
            compile_id: Dynamo's id.
            op_count: Operations in Dynamo's own graph.
            aot_ns: Time from the entry of the backend to here.
        """
        self.graph_id = recorder.next_id("g")
        self._recorder = recorder
        self._ids: dict[PartitionRunner, tuple[str, str]] = {}
        self._sessions: dict[PartitionRunner, str] = {}
        self._compute: frozenset[str] = frozenset()
        recorder.add(r.Graph(graph_id=self.graph_id, compile_id=compile_id, phase=phase, op_count=op_count, aot_ns=aot_ns))

    def planned(
        self, plan: Plan, runners: list[PartitionRunner], phases: Phases, *, weights: frozenset[torch.fx.Node], min_nodes: int
    ) -> None:
        """Record a plan; an earlier plan of this graph is forgotten.

        Args:
            plan: Where each node runs.
            runners: One per partition.
            phases: Time spent so far.
            weights: Inputs of the graph that are parameters or buffers.
            min_nodes: Compute nodes that a partition had to have.
        """
        self._recorder.forget_graph(self.graph_id)
        self._sessions = {}
        self._ids = {runner: (self._recorder.next_id("p"), self._recorder.next_id("m")) for runner in runners}
        for runner in runners:
            self._partition(runner)
        origins = _onnx_names(runners)
        for node in plan.verdicts:
            if kind_of(node) is not NodeKind.TUPLE:
                self._node(plan, runners, node, origins)
        self._counts(plan, runners)
        self._boundary(plan, weights, min_nodes)
        self.amend_phases(phases)

    def identity(self, runner: PartitionRunner) -> Identity:
        """Under which ids a partition is recorded.

        Args:
            runner: A runner of this graph's latest plan.

        Returns:
            The ids.
        """
        partition_id, model_id = self._ids[runner]
        return Identity(graph_id=self.graph_id, partition_id=partition_id, model_id=model_id, session_id=self._sessions.get(runner))

    def _counts(self, plan: Plan, runners: list[PartitionRunner]) -> None:
        compute = [node for node in plan.verdicts if kind_of(node) is NodeKind.COMPUTE]
        self._compute = frozenset(node.name for node in compute)
        covered = sum(1 for node in compute if plan.in_partition(node))
        fallbacks = sum(1 for node in plan.verdicts if _is_fallback(plan, node))
        placeholders = (node.meta.get("val") for node in plan.graph.nodes if node.op == "placeholder")
        self._recorder.amend(
            r.Graph,
            self.graph_id,
            node_count=len(compute),
            partition_count=len(runners),
            fallback_count=fallbacks,
            coverage=covered / len(compute) if compute else None,
            dynamic_shapes=any(_is_dynamic(value) for value in placeholders),
        )

    def _boundary(self, plan: Plan, weights: frozenset[torch.fx.Node], min_nodes: int) -> None:
        """What the graph takes, and what else has to be known to cut it anew."""
        inputs = [node for node in plan.graph.nodes if node.op == "placeholder"]
        self._recorder.amend(
            r.Graph,
            self.graph_id,
            inputs=tuple(node.name for node in inputs),
            input_sizes=tuple(provenance.tensor_bytes(node.meta.get("val")) for node in inputs),
            weights=tuple(node.name for node in inputs if node in weights),
            min_partition_nodes=min_nodes,
        )

    def amend_phases(self, phases: Phases) -> None:
        """Record the time spent per phase.

        Args:
            phases: Time spent so far.
        """
        graph = next(graph for graph in self._recorder.records(r.Graph) if graph.graph_id == self.graph_id)
        self._recorder.amend(
            r.Graph,
            self.graph_id,
            partition_ns=phases.partition_ns,
            convert_ns=phases.convert_ns,
            optimize_ns=phases.optimize_ns,
            session_ns=phases.session_ns,
            compile_ns=phases.total() + (graph.aot_ns or 0) + (graph.dynamo_ns or 0),
        )

    def _partition(self, runner: PartitionRunner) -> None:
        partition_id, model_id = self._ids[runner]
        part, weights = runner.part, runner.weight_nodes()
        flowing = [node for node in part.inputs if node not in weights]
        self._recorder.add(
            r.Partition(
                partition_id=partition_id,
                graph_id=self.graph_id,
                node_count=sum(1 for node in part.nodes if kind_of(node) is NodeKind.COMPUTE),
                input_count=len(part.inputs),
                output_count=len(part.outputs),
                input_bytes=sum(provenance.tensor_bytes(node.meta.get("val")) for node in flowing),
                output_bytes=sum(provenance.tensor_bytes(node.meta.get("val")) for node in part.outputs),
                weight_bytes=sum(provenance.tensor_bytes(node.meta.get("val")) for node in weights),
                flops=sum(provenance.node_flops(node) for node in part.nodes),
                model_id=model_id,
            )
        )
        self._model(runner, partition_id, model_id)

    def _model(self, runner: PartitionRunner, partition_id: str, model_id: str) -> None:
        data = runner.model.SerializeToString()
        name = f"models/{model_id}.onnx"
        self._recorder.attach(name, data)
        ops = Counter(node.op_type if not node.domain else f"{node.domain}::{node.op_type}" for node in runner.model.graph.node)
        self._recorder.add(
            r.Model(
                model_id=model_id,
                partition_id=partition_id,
                path=name,
                opset=next((entry.version for entry in runner.model.opset_import if entry.domain == ""), None),
                node_count=len(runner.model.graph.node),
                ops=tuple(f"{op}:{count}" for op, count in ops.most_common()),
                initializer_bytes=sum(tensor.ByteSize() for tensor in runner.model.graph.initializer),
                size_bytes=len(data),
                sha256=hashlib.sha256(data).hexdigest(),
                cached=runner.cached,
            )
        )

    def _node(self, plan: Plan, runners: list[PartitionRunner], node: torch.fx.Node, origins: dict[str, dict[str, r.Confidence]]) -> None:
        line, module = provenance.user_line(node), provenance.module_path(node)
        verdict, inside, value = plan.verdicts[node], plan.in_partition(node), node.meta.get("val")
        items = _items_of(node)
        target = provenance.target_name(node)
        counted = kind_of(node) is NodeKind.COMPUTE
        self._recorder.add(
            r.Node(
                graph_id=self.graph_id,
                node=node.name,
                target=target,
                kind=_KINDS[kind_of(node)],
                inputs=_read_by(node),
                module=module.path,
                module_type=module.type,
                file=line.file,
                line=line.line,
                source=line.source,
                dtype=provenance.dtype_text(value),
                shape=provenance.shape_text(value),
                partition_id=self._ids[runners[plan.level[node]]][0] if inside else self._carrier(runners, node),
                supported=inside or verdict.supported,
                reason_code=verdict.code,
                reason=verdict.reason,
                flops=provenance.node_flops(node) if counted else 0,
                bytes=provenance.node_bytes(node) if counted else 0,
                output_bytes=provenance.tensor_bytes(value) if counted else 0,
                is_output=_is_returned(node),
                mutates=writes(node),
                onnx_nodes=tuple(origins.get(node.name, ())) if inside else (),
                onnx_confidences=tuple(origins.get(node.name, {}).values()) if inside else (),
                items=tuple(item.name for item in items),
                item_sizes=tuple(provenance.tensor_bytes(item.meta.get("val")) for item in items),
                item_outputs=tuple(item.name for item in items if any(user.op == "output" for user in item.users)),
                item_inputs=tuple(source.name for source in node.all_input_nodes if kind_of(source) is NodeKind.TUPLE),
                roaming=node in plan.hoisted_sizes,
            )
        )
        if _is_fallback(plan, node):
            self._recorder.add(_fallback(self.graph_id, node, verdict))

    def _carrier(self, runners: list[PartitionRunner], node: torch.fx.Node) -> str | None:
        """The first partition that computes a number for itself."""
        return next((self._ids[runner][0] for runner in runners if node in runner.part.carried), None)

    def session_made(self, runner: PartitionRunner, info: SessionInfo, dumped: str | None) -> RunLog | None:
        """Record a session.

        Args:
            runner: Its partition's runner.
            info: The session.
            dumped: File the model was dumped to.

        Returns:
            A log for its calls.
        """
        partition_id, model_id = self._ids[runner]
        session_id = self._sessions[runner] = self._recorder.next_id("s")
        changes: dict[str, Any] = {"path": dumped} if dumped else {}
        embedded = sum(tensor.ByteSize() for tensor in runner.model.graph.initializer)
        frozen = sum(weight.contiguous.nbytes for weight in info.frozen)
        self._recorder.amend(r.Model, model_id, initializer_bytes=embedded + frozen, **changes)
        self._recorder.add(
            r.Session(
                session_id=session_id,
                partition_id=partition_id,
                model_id=model_id,
                providers=info.providers,
                input_signature=signature_text(info, runner.part),
                create_ns=info.create_ns,
                held_bytes=info.held_bytes,
                cause=info.cause,
                frozen_bytes=frozen,
                copied_bytes=info.copied_bytes,
                threads=info.threads.count,
                spinning=info.threads.spinning,
                threads_reason=info.threads.reason,
            )
        )
        self._layout_copies(runner, partition_id)
        return self._recorder.run_log(session_id, self.graph_id)

    def _layout_copies(self, runner: PartitionRunner, partition_id: str) -> None:
        """Record inputs that ONNX Runtime cannot take as they lie in memory, when that costs something."""
        for node in runner.part.inputs:
            value = node.meta.get("val")
            size = provenance.tensor_bytes(value)
            as_it_lies = _torch.is_contiguous(value) or memory_order(value) is not None
            if node in runner.weight_nodes() or size < _WORTH_TELLING or as_it_lies:
                continue
            line, strides = provenance.user_line(node), tuple(node.meta["val"].stride())
            self._recorder.add(
                r.Finding(
                    rule="layout_copy",
                    subject=f"{partition_id}:{node.name}",
                    severity="info",
                    title=f"{partition_id} copies its input {node.name} with every call: {size:,} bytes",
                    file=line.file,
                    line=line.line,
                    evidence=f"shape {provenance.shape_text(value)}, strides {strides}; the copy is part of bind_ns",
                    hazard="ONNX Runtime takes dense tensors only; the copy costs about as much as reading and writing the tensor.",
                    mitigation="Hand the tensor over contiguous, or make it so once where it is made.",
                )
            )

    def partition_lost(self, runner: PartitionRunner, reason: str, exception: str | None = None) -> None:
        """Record that a partition went back to PyTorch while running.

        Args:
            runner: Its runner.
            reason: Why, in words.
            exception: What was raised, with its class.
        """
        lost = Verdict(supported=False, code="session_refused", reason=reason, exception=exception)
        for node in runner.part.nodes:
            if kind_of(node) is NodeKind.COMPUTE:
                change: dict[str, Any] = {"supported": False, "reason_code": "session_refused", "reason": reason, "partition_id": None}
                self._recorder.amend(r.Node, (self.graph_id, node.name), **change)
                self._recorder.add(_fallback(self.graph_id, node, lost))
        self._recount()

    def _recount(self) -> None:
        """Coverage after a loss, from the records themselves."""
        nodes = [node for node in self._recorder.records(r.Node) if node.graph_id == self.graph_id and node.node in self._compute]
        fallbacks = [fallback for fallback in self._recorder.records(r.Fallback) if fallback.graph_id == self.graph_id]
        covered = [node for node in nodes if node.partition_id is not None]
        self._recorder.amend(
            r.Graph,
            self.graph_id,
            partition_count=len({node.partition_id for node in covered}),
            fallback_count=len(fallbacks),
            coverage=len(covered) / len(nodes) if nodes else None,
        )

    def eager_log(self, nodes: tuple[torch.fx.Node, ...]) -> EagerLog | None:
        """A log for the nodes that PyTorch runs.

        Args:
            nodes: In the order of the graph.

        Returns:
            The log, or None when there are none.
        """
        return self._recorder.eager_log(self.graph_id, tuple(node.name for node in nodes)) if nodes else None

    def lost_whole(self, module: torch.fx.GraphModule, reason: str, exception: str | None = None) -> None:
        """Record that PyTorch runs the whole graph, because compiling it failed.

        Args:
            module: The ATen graph.
            reason: Why, in words.
            exception: What was raised, with its class.
        """
        self._recorder.forget_graph(self.graph_id)
        compute = [node for node in module.graph.nodes if kind_of(node) is NodeKind.COMPUTE]
        self._all_stay(compute, Verdict(supported=False, code="converter_raised", reason=reason, exception=exception))

    def left_alone(self, module: torch.fx.GraphModule, reason: str) -> None:
        """Record that a graph was left to PyTorch by choice, before it was lowered.

        Args:
            module: The graph as Dynamo made it.
            reason: Why, in words.
        """
        ops = [node for node in module.graph.nodes if node.op in ("call_function", "call_method", "call_module")]
        self._all_stay(ops, Verdict(supported=False, code="policy", reason=reason))

    def _all_stay(self, nodes: list[torch.fx.Node], verdict: Verdict) -> None:
        self._recorder.add(*(_fallback(self.graph_id, node, verdict) for node in nodes))
        coverage = 0.0 if nodes else None
        self._recorder.amend(r.Graph, self.graph_id, node_count=len(nodes), partition_count=0, fallback_count=len(nodes), coverage=coverage)

    def provider_missing(self, wanted: list[str], got: tuple[str, ...]) -> None:
        """Record that a session runs on other providers than were asked for.

        Args:
            wanted: Providers that ONNX Runtime did not take.
            got: Those it took.
        """
        self._recorder.add(
            r.Finding(
                rule="provider_fallback",
                severity="warning",
                title=f"{', '.join(wanted)} is not in use; the model runs on {', '.join(got) or 'nothing'}",
                evidence=f"asked for {', '.join(wanted)}, ONNX Runtime registered {', '.join(got) or 'none'}",
                hazard="The model may run on a slower device than you think.",
                mitigation="Install the build of ONNX Runtime that has the provider, with its libraries; `ortlens doctor` lists them.",
            )
        )

    def finding(self, rule: str, title: str, error: Exception) -> None:
        """Record something that went wrong and was survived.

        Args:
            rule: Name of what went wrong.
            title: What happened, in one line.
            error: What was raised.
        """
        hazard, mitigation = _CONSEQUENCES.get(rule, _WENT_BACK)
        self._recorder.add(
            r.Finding(
                rule=rule,
                severity="warning",
                title=title,
                evidence=f"{type(error).__name__}: {error}"[:2000],
                hazard=hazard,
                mitigation=mitigation,
            )
        )


_WORTH_TELLING = 1 << 16
"""Bytes; below, a copy costs less than a call."""

_WENT_BACK = (
    "The answer is right, PyTorch gives it; the model is slower than it could be.",
    'Set on_error="raise" to see the whole traceback where it happens.',
)
_CONSEQUENCES = {
    "optimiser_failed": (
        "The model runs in ONNX Runtime as it was converted; it may be larger and slower than it could be.",
        "Nothing needs to be done. A newer onnxscript may optimise it.",
    ),
    "cache_failed": (
        "The model runs; the next process converts it anew.",
        "Check that cache_dir names a folder that can be written.",
    ),
    "dump_failed": ("The model runs; the file is not there.", "Check that dump_path names a place that can be written."),
    "provider_unavailable": ("The model does not run.", "Name a provider that is installed; `ortlens doctor` lists them."),
}
"""What a survived failure means for the user and what to do: hazard and mitigation, by rule; `_WENT_BACK` for the others."""


def _fallback(graph_id: str, node: torch.fx.Node, verdict: Verdict) -> r.Fallback:
    line = provenance.user_line(node)
    return r.Fallback(
        graph_id=graph_id,
        node=node.name,
        target=provenance.target_name(node),
        reason_code=verdict.code or "policy",
        reason=verdict.reason or "",
        exception=verdict.exception,
        file=line.file,
        line=line.line,
        source=line.source,
    )


_KINDS: dict[NodeKind, r.NodeKind] = {NodeKind.COMPUTE: "compute", NodeKind.SIZE: "size", NodeKind.EFFECT: "effect"}


def _read_by(node: torch.fx.Node) -> tuple[str, ...]:
    """Names of what a node reads; an item of a tuple counts as the node that made the tuple, constants do not count."""
    names: dict[str, None] = {}
    for source in node.all_input_nodes:
        maker = source
        while kind_of(maker) is NodeKind.TUPLE and maker.all_input_nodes:
            maker = maker.all_input_nodes[0]
        if maker.op != "get_attr":
            names[maker.name] = None
    return tuple(names)


def _items_of(node: torch.fx.Node) -> list[torch.fx.Node]:
    """What is taken of the tuple that a node makes, and of tuples within it."""
    items = [user for user in node.users if kind_of(user) is NodeKind.TUPLE]
    return [found for item in items for found in (item, *_items_of(item))]


def _is_returned(node: torch.fx.Node) -> bool:
    return any(user.op == "output" or (kind_of(user) is NodeKind.TUPLE and _is_returned(user)) for user in node.users)


def _is_fallback(plan: Plan, node: torch.fx.Node) -> bool:
    """Numbers that Python computes between partitions are no fallbacks: they cost nothing and belong there."""
    return kind_of(node) in (NodeKind.COMPUTE, NodeKind.EFFECT) and not plan.in_partition(node)


def _is_dynamic(value: Any) -> bool:
    from ortlens import _torch

    if _torch.is_symbolic(value):
        return True
    return any(not isinstance(size, int) for tensor in provenance.tensors_in(value) for size in tensor.shape)


def _onnx_names(runners: list[PartitionRunner]) -> dict[str, dict[str, r.Confidence]]:
    """FX node -> the ONNX nodes made from it, those in the bodies of control flow included, and how sure that is."""
    names: dict[str, dict[str, r.Confidence]] = {}
    for runner in runners:
        for node in node_provenance.iter_nodes(runner.model.graph):
            label = node_provenance.provenance_of(node)
            for fx_name in label.nodes:
                names.setdefault(fx_name, {})[node.name] = label.confidence
    return names
