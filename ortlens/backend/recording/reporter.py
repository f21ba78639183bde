"""Reports one graph to the recorder, and to torch's structured trace (`TORCH_TRACE`), from which tlparse makes its pages."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from ortlens import _torch
from ortlens._shell import display_name
from ortlens.analysis.problems.catalogue import remedy
from ortlens.backend.basis import node_provenance, placements, provenance
from ortlens.backend.basis.provenance import operations
from ortlens.backend.partitioning.plan import NodeKind, Verdict, kind_of
from ortlens.backend.recording import records
from ortlens.backend.recording.records import Identity, changed_at
from ortlens.trace import records as r
from ortlens.trace.guard import reported

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    import torch.fx

    from ortlens.backend.lowering.entry import LoweredGraph, Phases
    from ortlens.backend.partitioning.plan import Plan
    from ortlens.backend.runtime.runner import PartitionRunner
    from ortlens.backend.runtime.session import SessionInfo
    from ortlens.trace.recorder import Recorder
    from ortlens.trace.runlog import EagerLog, RunLog


class SessionReporter:
    """Reports the sessions of a graph's latest plan, and what is found in their calls. What fails here never reaches the graph."""

    def __init__(self, recorder: Recorder, identities: dict[PartitionRunner, Identity], names: Mapping[str, str]) -> None:
        """Take the partitions of a plan with their ids, and the names of inputs in the program by those in the graph."""
        self.recorder = recorder
        self.identities = identities
        self.names = names

    @reported("recording a graph")
    def session_made(self, runner: PartitionRunner, info: SessionInfo, dumped: str | None) -> RunLog | None:
        """Record a session, with the file that its model was dumped to; returns the log for its calls."""
        session_id = self.recorder.next_id("s")
        identity = self.identities[runner] = replace(self.identities[runner], session_id=session_id)
        changes: dict[str, Any] = {"path": dumped} if dumped else {}
        initializer_bytes = records.embedded_bytes(runner.model) + records.frozen_bytes(info)
        self.recorder.amend(r.Model, identity.model_id, initializer_bytes=initializer_bytes, **changes)
        change = self._change(runner) if info.cause == "weights" else {}
        session = records.session_record(session_id, identity, runner, info, change)
        self.recorder.add(session)
        placements.record(self.recorder, session, info.session, info.wanted_providers, runner.model)
        for weight in info.frozen:
            self.recorder.amend(r.GraphInput, (identity.graph_id, weight.name), **records.spread_of(weight.contiguous))
        for finding in (*records.layout_copies(identity.partition_id, runner), *records.device_copies(identity.partition_id, runner)):
            self._add_once(finding)
        return self.recorder.run_log(session_id, identity.graph_id)

    def _change(self, runner: PartitionRunner) -> dict[str, Any]:
        """Describe what happened to weights, as fields of a session; the line that changed them is looked for where the call came from."""
        if runner.weights.change == "other_module":  # none of them changed
            return {"weights_change": runner.weights.change}
        names = tuple(name for node in runner.weights.changed if (name := self.names.get(node.name, node.name)) != node.name)
        place = changed_at(names, is_new=runner.weights.change == "replaced")
        return {
            "weights_change": runner.weights.change,
            "changed_weights": names,
            "changed_file": place and display_name(place.file),
            "changed_line": place and place.line,
        }

    @reported("recording a graph")
    def session_dropped(self, runner: PartitionRunner, kept: int) -> None:
        """Record, once per partition, that a session was dropped for another one."""
        partition_id = self.identities[runner].partition_id
        finding = r.Finding(
            rule="session_dropped",
            subject=partition_id,
            severity="warning",
            title=f"{partition_id} met more than {kept} combinations of sizes; the least recently used session is dropped for each new one",
            evidence=f"dynamic_shapes=False makes a session per combination of sizes; a partition keeps {kept}",
            hazard="A dropped session is created again when its sizes return, which takes as long as the first time.",
            **remedy("Leave dynamic_shapes out: one session then serves all sizes.", "Or pad inputs to fewer sizes."),
        )
        self._add_once(finding)

    @reported("recording a graph")
    def called_in_capture(self, runner: PartitionRunner) -> None:
        """Record, once per partition, that PyTorch computes calls while it captures a CUDA graph."""
        partition_id = self.identities[runner].partition_id
        finding = r.Finding(
            rule="called_in_capture",
            subject=partition_id,
            severity="info",
            title=f"{partition_id} was called while PyTorch captured a CUDA graph: PyTorch computed it, and the graph replays that",
            evidence="torch.cuda.is_current_stream_capturing() was true",
            hazard="ONNX Runtime ends the process if it is called there. Replays of the captured graph do not use it.",
            **remedy("Leave torch.cuda.graph out, and set cuda_graph=True: sessions then replay graphs of their own.", cuda_graph=True),
        )
        self._add_once(finding)

    @reported("recording a graph")
    def stale_weights_detected(self, runner: PartitionRunner, title: str, nodes: Sequence[torch.fx.Node]) -> None:
        """Record that weights changed in a way that torch does not count."""
        partition_id = self.identities[runner].partition_id
        read = f"inputs of {partition_id}: {', '.join(self.names.get(node.name, node.name) for node in nodes)}"
        finding = r.Finding(
            rule="uncounted_write",
            subject=partition_id,
            severity="warning",
            title=title,
            evidence=f"{read}; the bytes of weights above 4 KiB are compared in turn, a window per call",
            hazard="Calls between the write and now may have returned results of the previous values.",
            **remedy(
                "Write under torch.no_grad() to the parameter itself, not to its .data, its storage or a numpy view of it.",
                "Or set freeze_weights=False.",
                freeze_weights=False,
            ),
        )
        self.recorder.add(finding)

    def _add_once(self, finding: r.Finding) -> None:
        if finding not in self.recorder.records(r.Finding):
            self.recorder.add(finding)


class GraphReporter:
    """Reports one graph to the recorder, and amends its records when the graph changes. What fails here never reaches the graph."""

    def __init__(  # noqa: PLR0913 - what is known of the graph, each by name
        self, recorder: Recorder, *, phase: r.Phase, compile_id: str | None, op_count: int, aot_ns: int, loading_ns: int = 0
    ) -> None:
        """Add the record of the graph; `compile_id` and `op_count` are those of Dynamo."""
        self.recorder = recorder
        self.graph_id = recorder.next_id("g")
        self.sessions = SessionReporter(recorder, {}, {})
        self._compute: frozenset[str] = frozenset()
        recorder.add(
            r.Graph(
                graph_id=self.graph_id, compile_id=compile_id, phase=phase, op_count=op_count, aot_ns=aot_ns, loading_ns=loading_ns or None
            )
        )

    @reported("recording a graph")
    def planned(  # noqa: PLR0913 - what is known of the plan, each by name
        self,
        plan: Plan,
        runners: list[PartitionRunner],
        phases: Phases,
        *,
        inputs: Mapping[torch.fx.Node, str],
        weights: Collection[torch.fx.Node],
        min_nodes: int,
    ) -> None:
        """Record a plan in place of the graph's earlier plan; `inputs` have names of the program, `weights` are parameters or buffers."""
        self.recorder.forget_graph(self.graph_id)
        next_id = self.recorder.next_id
        ids = {runner: Identity(graph_id=self.graph_id, partition_id=next_id("p"), model_id=next_id("m")) for runner in runners}
        self.sessions = SessionReporter(self.recorder, ids, {node.name: name for node, name in inputs.items()})
        self.recorder.add(*(records.input_record(self.graph_id, node, name) for node, name in inputs.items()))
        for runner, identity in ids.items():
            self.recorder.add(records.partition_record(identity, runner))
            data = node_provenance.with_input_names(runner.model, self.sessions.names).SerializeToString()
            path = f"models/{identity.model_id}.onnx"
            self.recorder.attach(path, data)
            self.recorder.add(records.model_record(identity, path, runner, data))
        origins = records.onnx_origins(runner.model for runner in runners)
        updated = frozenset(node for runner in runners for node in runner.factory.updated_in_place())
        for node in plan.verdicts:
            if kind_of(node) is not NodeKind.TUPLE:
                self._node(plan, runners, node, origins, in_place=node in updated)
        self._counts(plan, runners, weights, min_nodes)
        self.amend_phases(phases)

    def identity(self, runner: PartitionRunner) -> Identity:
        """Return the ids under which a partition of this graph's latest plan is recorded."""
        return self.sessions.identities[runner]

    @reported("recording a graph")
    def amend_phases(self, phases: Phases) -> None:
        """Update the time spent in each phase."""
        graph = next(graph for graph in self.recorder.records(r.Graph) if graph.graph_id == self.graph_id)
        before = sum(ns or 0 for ns in (graph.loading_ns, graph.dynamo_ns, graph.aot_ns))
        self._amend_graph(**asdict(phases), compile_ns=phases.total() + before)

    @reported("recording a graph")
    def eager_log(self, nodes: tuple[torch.fx.Node, ...]) -> EagerLog | None:
        """Make a log for the nodes that PyTorch runs, in the order of the graph; None when there are none."""
        return self.recorder.eager_log(self.graph_id, tuple(node.name for node in nodes)) if nodes else None

    @reported("recording a graph")
    def partition_lost(self, runner: PartitionRunner, reason: str, exception: str | None = None) -> None:
        """Record that a partition fell back to PyTorch at run time."""
        lost = Verdict(supported=False, code="session_refused", reason=reason, exception=exception)
        for node in runner.partition.nodes:
            if kind_of(node) is NodeKind.COMPUTE:
                change: dict[str, Any] = {"supported": False, "reason_code": lost.code, "reason": reason, "partition_id": None}
                self.recorder.amend(r.Node, (self.graph_id, node.name), **change)
                self.recorder.add(records.fallback_record(self.graph_id, node, lost))
        self._recount()

    @reported("recording a graph")
    def graph_lost(self, module: torch.fx.GraphModule, reason: str, exception: str | None = None) -> None:
        """Record that PyTorch runs the whole graph because compiling it failed."""
        self.recorder.forget_graph(self.graph_id)
        compute = [node for node in module.graph.nodes if kind_of(node) is NodeKind.COMPUTE]
        self._all_fall_back(compute, Verdict(supported=False, code="converter_raised", reason=reason, exception=exception))

    @reported("recording a graph")
    def graph_skipped(self, module: torch.fx.GraphModule, reason: str) -> None:
        """Record that an option or a rule leaves a graph to PyTorch, before it is lowered."""
        self._all_fall_back(operations(module), Verdict(supported=False, code="policy", reason=reason))

    @reported("recording a graph")
    def failure(self, rule: str, title: str, error: Exception) -> None:
        """Record a failure after which the results are still correct."""
        self.recorder.add(records.failure_finding(rule, title, error))

    def _node(self, plan: Plan, runners: list[PartitionRunner], node: torch.fx.Node, origins: records.Origins, *, in_place: bool) -> None:
        copies = (runner for runner in runners if node in runner.partition.carried)
        runner = runners[plan.level[node]] if plan.in_partition(node) else next(copies, None)
        partition_id = None if runner is None else self.identity(runner).partition_id
        self.recorder.add(records.node_record(self.graph_id, plan, node, partition_id=partition_id, origins=origins, in_place=in_place))
        if records.is_fallback(plan, node):
            self.recorder.add(records.fallback_record(self.graph_id, node, plan.verdicts[node]))

    def _counts(self, plan: Plan, runners: list[PartitionRunner], weights: Collection[torch.fx.Node], min_nodes: int) -> None:
        compute = [node for node in plan.verdicts if kind_of(node) is NodeKind.COMPUTE]
        self._compute = frozenset(node.name for node in compute)
        covered = sum(1 for node in compute if plan.in_partition(node))
        inputs = [node for node in plan.graph.nodes if node.op == "placeholder"]
        self._amend_graph(
            node_count=len(compute),
            partition_count=len(runners),
            fallback_count=sum(1 for node in plan.verdicts if records.is_fallback(plan, node)),
            coverage=covered / len(compute) if compute else None,
            dynamic_shapes=any(records.is_dynamic(node.meta.get("val")) for node in inputs),
            inputs=tuple(node.name for node in inputs),
            input_sizes=tuple(provenance.tensor_bytes(node.meta.get("val")) for node in inputs),
            weights=tuple(node.name for node in inputs if node in weights),
            min_partition_nodes=min_nodes,
        )

    def _recount(self) -> None:
        nodes = [node for node in self.recorder.records(r.Node) if node.graph_id == self.graph_id and node.node in self._compute]
        fallbacks = [fallback for fallback in self.recorder.records(r.Fallback) if fallback.graph_id == self.graph_id]
        covered = [node for node in nodes if node.partition_id is not None]
        self._amend_graph(
            partition_count=len({node.partition_id for node in covered}),
            fallback_count=len(fallbacks),
            coverage=len(covered) / len(nodes) if nodes else None,
        )

    def _all_fall_back(self, nodes: list[torch.fx.Node], verdict: Verdict) -> None:
        self.recorder.add(*(records.fallback_record(self.graph_id, node, verdict) for node in nodes))
        self._amend_graph(node_count=len(nodes), partition_count=0, fallback_count=len(nodes), coverage=0.0 if nodes else None)

    def _amend_graph(self, **changes: Any) -> None:
        self.recorder.amend(r.Graph, self.graph_id, **changes)


ARTIFACT = "ortlens_partitions"
"""Name of the artifact of each graph."""


def trace_partitions(lowered: LoweredGraph, plan: Callable[[], Plan]) -> Exception | None:
    """Write where each node runs into torch's trace; return what failed."""
    failure = None
    try:
        entry = _described(lowered, plan())
    except Exception as error:  # noqa: BLE001 - observing never breaks the observed
        failure, entry = error, {"error": f"{type(error).__name__}: {error}"[:2000]}
    try:
        _torch.trace_artifact(ARTIFACT, entry)
    except Exception as error:  # noqa: BLE001 - likewise
        failure = failure or error
    return failure


def _described(lowered: LoweredGraph, plan: Plan) -> dict[str, Any]:
    partitions: dict[int, list[torch.fx.Node]] = {}
    outside = []
    for node, verdict in plan.verdicts.items():
        if plan.in_partition(node):
            partitions.setdefault(plan.level[node], []).append(node)
        elif kind_of(node) in (NodeKind.COMPUTE, NodeKind.EFFECT):
            outside.append(_placed(node) | {"reason_code": verdict.code, "reason": verdict.reason})
    return {
        "phase": lowered.phase,
        "partitions": [
            {
                "partition": number,
                "operators": dict(Counter(provenance.target_name(node) for node in nodes).most_common()),
                "nodes": [node.name for node in nodes],
            }
            for number, nodes in enumerate(partitions[level] for level in sorted(partitions))
        ],
        "in_pytorch": outside,
    }


def _placed(node: torch.fx.Node) -> dict[str, Any]:
    line = provenance.user_line(node)
    return {"node": node.name, "operator": provenance.target_name(node), "file": line.file, "line": line.line, "source": line.source}
