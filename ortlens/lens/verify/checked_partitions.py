"""Checks every partition that runs in a call of the user's function, while it runs, because its inputs may be written to later."""

from __future__ import annotations

import contextlib
import functools
import operator
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch

from ortlens.backend.observed import in_all, uncounted_eager
from ortlens.lens.observing.digests import Digests
from ortlens.lens.verify.causes import CauseSearch, Culprit, finding_of_origin, finding_of_value
from ortlens.lens.verify.compare_values import ValueVerdict, unchecked
from ortlens.lens.verify.lockstep import NodeRaised, maker_of, steps
from ortlens.lens.verify.partition_check import InnerValues, PartitionCheck
from ortlens.lens.verify.single_ops import SingleOps
from ortlens.trace.guard import lens_failed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from ortlens.backend.observed import GraphCall, ObservedGraph, ObservedPartition, PartitionRun
    from ortlens.lens.observing.compilations import CompiledTargets
    from ortlens.lens.observing.time_budget import TimeBudget
    from ortlens.lens.verify.call_state import CallState
    from ortlens.lens.verify.compare_values import Tolerances
    from ortlens.trace import records as r
    from ortlens.trace.recorder import Recorder

Treatment: TypeAlias = Callable[["ObservedPartition", tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]]
MAX_CALLS = 8  # calls of one partition that are checked within one call of the target; a loop may make thousands


@dataclass(slots=True)
class Checked:
    """Results for one partition; of several calls, the worst row of each value is kept."""

    calls: int  # how often it was called
    verdicts: dict[tuple[str, int, str | None], ValueVerdict] = field(default_factory=dict)
    compared: int = 0  # how many of the calls were compared from beginning to end
    is_cut_short: bool = False  # whether the time was over before others were


@dataclass(slots=True)
class CheckedPartitions:
    """The partitions that ran, and the verdicts on them. When the budget is over, nothing more is compared, and no cause is looked for."""

    recorder: Recorder
    graphs: Callable[[], tuple[ObservedGraph, ...]]
    tolerances: Tolerances
    step: Callable[[int], None]  # called with 1 after each value
    budget: TimeBudget
    per_op: bool  # check each operator by itself instead of the values of the partition
    most: int | None = MAX_CALLS  # calls of one partition that are checked; None: all
    checked: dict[ObservedPartition, Checked] = field(default_factory=dict)  # results by partition, in the order in which they first ran
    findings: dict[tuple[str, str, str], r.Finding] = field(default_factory=dict)  # what was found out, by rule, partition and node
    ran: set[ObservedPartition] = field(default_factory=set)  # the partitions that ran since `begin`
    open_reason: str = ""  # why a value that differs in them has no verdict; empty if there is none such
    in_other_threads: bool = False  # whether partitions ran in other threads, where they are not checked
    saw_everything: bool = True  # whether nothing was left out: for lack of time, in another thread, or for a failed comparison
    _thread: int = field(default_factory=threading.get_ident)
    _ops: dict[int, SingleOps] = field(default_factory=dict)
    _whole: dict[ObservedPartition, ObservedPartition | None] = field(default_factory=dict)
    _raised: dict[ObservedPartition, NodeRaised] = field(default_factory=dict)

    def begin(self) -> None:
        """Begin with another target."""
        self.ran.clear()
        self._raised.clear()
        self.open_reason, self.in_other_threads, self.saw_everything = "", False, True

    def wrong(self) -> Iterator[tuple[ObservedPartition, ValueVerdict]]:
        """Yield what is wrong in the partitions that ran since `begin`, in the order of the graph."""
        for partition, known in self.checked.items():
            if partition in self.ran:
                verdicts = sorted(known.verdicts.values(), key=lambda verdict: verdict.place)
                yield from ((partition, verdict) for verdict in verdicts if verdict.ok is False)

    def adopt(self, other: CheckedPartitions) -> None:
        """Take over what another check of the same partitions found wrong."""
        for partition, verdict in other.wrong():
            self._merge(self.checked.setdefault(partition, Checked(0)), [verdict])
        self.findings.update(other.findings)
        self.open_reason = self.open_reason or other.open_reason

    def sessions(self) -> dict[ObservedPartition, tuple[int, ...]]:
        """Map every partition to the identities of its sessions; new ones after a call mean that it ran in that call."""
        return {item: tuple(map(id, item.sessions)) for graph in self.graphs() for item in graph.partitions()}

    def watched(self, treat: Treatment) -> AbstractContextManager[None]:
        """Pass every run of a partition through a function of the partition, its inputs and its outputs that returns the outputs."""
        partitions = (partition for graph in self.graphs() if graph.is_prepared for partition in graph.partitions())
        return in_all(partition.around(functools.partial(self._around, partition, treat)) for partition in partitions)

    def _around(self, partition: ObservedPartition, treat: Treatment, inner: PartitionRun, args: tuple[Any, ...]) -> tuple[Any, ...]:
        if threading.get_ident() != self._thread:
            self.in_other_threads, self.saw_everything = True, False
            return inner(*args)
        return treat(partition, args, _outputs(partition, inner, args))

    def checking(self, partition: ObservedPartition, args: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Check a run of a partition; to be passed to `watched`."""
        self.ran.add(partition)
        known = self.checked.setdefault(partition, Checked(0))
        known.calls += 1
        if self.budget.is_over():
            self.saw_everything, known.is_cut_short = False, True
            self._merge(known, [] if known.verdicts else _all_unchecked(partition, f"not compared: {self.budget.over}", left_out=True))
        elif self.most is None or known.calls <= self.most:
            try:
                with torch.no_grad(), torch.random.fork_rng(devices=range(torch.cuda.device_count())):
                    self._check(partition, args, outputs, known)
            except NodeRaised as raised:
                self._raised[partition] = raised
                self._merge(known, _all_unchecked(partition, f"not compared: PyTorch stops before: {raised}"))
            except Exception as error:  # noqa: BLE001 - a guard of the lens: the user's call goes on
                self.saw_everything = False
                lens_failed(self.recorder, "comparing numbers", error)
                self._merge(known, _all_unchecked(partition, f"ortlens failed while comparing: {type(error).__name__}: {error}"[:300]))
        return outputs

    def report_raised(self, expected: Exception | None) -> None:
        """Report nodes at which PyTorch alone raises; if the function itself does not, `expected` is None, and the check failed."""
        for partition, raised in self._raised.items():
            if expected is None:
                self.saw_everything = False
                lens_failed(self.recorder, "comparing numbers", raised)
                continue
            text = f"PyTorch raises {type(raised.error).__name__} for these inputs, and ONNX Runtime returns a value"
            (suspect,) = unchecked([raised.node], "op" if self.per_op else "value", "")
            suspect.ok = False
            self._merge(self.checked[partition], [suspect])
            self._explain(partition, suspect, Culprit(kind="check", node=suspect.node, text=text))

    def _check(self, partition: ObservedPartition, args: tuple[Any, ...], outputs: Sequence[Any], known: Checked) -> None:
        if partition.session_for(args) is None:
            self._merge(known, _all_unchecked(partition, "PyTorch runs this partition, because ONNX Runtime failed on it; see findings"))
            return
        ops = self._ops.setdefault(partition.graph.conversions, SingleOps(partition.graph))
        if self.per_op:
            self._check_ops(partition, args, known, ops)
            return
        whole = functools.partial(self._whole_of, partition, args)
        check = PartitionCheck(partition=partition, args=args, tolerances=self.tolerances, whole=whole, budget=self.budget)
        check.run(outputs, self.step)
        self._note_end(known, whole=check.is_whole)
        for suspect, step in check.suspects:
            cause = Culprit(kind="unknown", node=suspect.node, text=f"no cause was looked for: {self.budget.over}")
            if not self.budget.is_over():
                cause = CauseSearch(check, ops).cause(suspect, step)
            self._explain(partition, suspect, cause)
        if check.spoilt_outputs() and check.origins:
            origin, partition_id = check.origins[0], partition.partition_id or ""
            self.findings.setdefault(("nonfinite_origin", partition_id, origin.node.name), finding_of_origin(origin, partition_id))
        self.open_reason = self.open_reason or check.open_reason
        self._merge(known, check.verdicts)

    def _check_ops(self, partition: ObservedPartition, args: tuple[Any, ...], known: Checked, ops: SingleOps) -> None:
        """Check operators one by one; those that the time is not enough for are listed."""
        module = partition.part.module
        left = {node: None for node in module.graph.nodes if node.op == "call_function" and node.target is not operator.getitem}
        for step in steps(module, args, double=False):
            if self.budget.is_over():
                break
            self._merge(known, list(ops.verdicts(step, self.tolerances)))
            left.pop(step.node, None)
            self.step(1)
        if not known.compared:
            self._merge(known, unchecked(list(left), "op", f"not compared: {self.budget.over}", left_out=True))
        self._note_end(known, whole=not left)

    def _note_end(self, known: Checked, *, whole: bool) -> None:
        """Note whether a call was compared to its end."""
        known.compared += whole
        known.is_cut_short = known.is_cut_short or not whole
        self.saw_everything = self.saw_everything and whole

    def _whole_of(self, partition: ObservedPartition, args: tuple[Any, ...]) -> ObservedPartition | None:
        """Return the partition as it was converted, made once, with the weights and sizes of this call."""
        if partition not in self._whole:
            self._whole[partition] = None
            with contextlib.suppress(Exception):  # then the values that only it holds are reported as not compared
                self._whole[partition] = partition.as_converted(args)
        made = self._whole[partition]
        if made is not None:
            with contextlib.suppress(Exception):  # then its failure to run is the reason
                made.ensure_session(args)  # modules that share the code have other weights
        return made

    def _merge(self, known: Checked, verdicts: Sequence[ValueVerdict]) -> None:
        for verdict in verdicts:
            key = (verdict.scope, verdict.place, verdict.onnx_value)
            if key not in known.verdicts or _badness(verdict) > _badness(known.verdicts[key]):
                known.verdicts[key] = verdict

    def _explain(self, partition: ObservedPartition, suspect: ValueVerdict, cause: Culprit) -> None:
        suspect.add(cause.text)
        node = next(node for node in partition.part.module.graph.nodes if node.name == cause.node)
        partition_id = partition.partition_id or ""
        finding = finding_of_value(suspect, cause, node, partition_id)
        self.findings.setdefault((finding.rule, partition_id, cause.node), finding)

    def not_run(self) -> Iterator[tuple[ObservedPartition, Checked]]:
        """Yield partitions of backward graphs that did not run though their forward did, and their outputs without verdicts."""
        graphs, note = self.graphs(), "the backward did not run in this call"
        called = {graph.compile_id for graph in graphs if any(partition in self.checked for partition in graph.partitions())}
        for graph in graphs:
            if graph.phase == "backward" and graph.compile_id in called:
                for partition in graph.partitions():
                    if partition not in self.checked:
                        left = _all_unchecked(partition, note)
                        yield partition, Checked(0, {("output", verdict.place, None): verdict for verdict in left})


def _badness(verdict: ValueVerdict) -> tuple[int, float]:
    """Rank by severity: wrong, then right, then not checked; then by the largest difference."""
    rank = {False: 2, True: 1, None: 0}[verdict.ok]
    return rank, 0.0 if verdict.comparison is None else verdict.comparison.max_abs


def _all_unchecked(partition: ObservedPartition, note: str, *, left_out: bool = False) -> list[ValueVerdict]:
    (output,) = partition.part.module.graph.find_nodes(op="output")
    return unchecked(output.all_input_nodes, "output", note, left_out=left_out)


def _outputs(partition: ObservedPartition, inner: PartitionRun, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Compute the results of the session, uncounted if possible; after a changed weight or a failure, by a normal run."""
    if (info := partition.session_for(args)) is not None:
        with contextlib.suppress(Exception):
            return partition.uncounted(info.session)(*args)
    return inner(*partition.with_copies(args))


def keep_call(recorder: Recorder, targets: CompiledTargets, first: CallState) -> None:
    """Make the call of `explain` once more, uncounted, and record digests of the inputs of its graphs and of what their nodes compute.

    Values inside a partition are computed without rewrites of ONNX Runtime; its outputs are those of the session that runs. Of what PyTorch
    computes there is what a partition reads or the graph returns. However many calls were made, this one starts from the `first` state,
    with the random numbers of seed 0; then the state is what it was.
    """
    digests = Digests()
    seen: set[ObservedPartition] = set()

    def keep(graph: ObservedGraph, nodes: Iterable[Any], values: Iterable[Any]) -> None:
        weights, given = graph.weights(), graph.lowered.graph.find_nodes(op="placeholder")
        inputs = [node.name for place, node in enumerate(given) if node.name not in weights and place not in graph.mutated]
        for node, value in zip(nodes, values, strict=True):
            if getattr(node, "op", "") == "call_function":
                maker, item = maker_of(node)
                digests.keep(graph.graph_id or "", maker.name, item or 0, value)
            elif getattr(node, "name", "") in inputs:  # buffers that the graph writes to are none
                digests.keep(graph.graph_id or "", node.name, inputs.index(node.name), value, is_input=True)

    def of_graph(graph: ObservedGraph, inner: GraphCall, args: list[Any]) -> list[Any]:
        keep(graph, graph.lowered.graph.find_nodes(op="placeholder"), args)
        made, ends = inner(args), graph.lowered.graph.output_node().args[0]
        keep(graph, cast("Iterable[Any]", ends), made)
        return made

    def of_partition(partition: ObservedPartition, inner: PartitionRun, args: tuple[Any, ...]) -> tuple[Any, ...]:
        outputs, part = _outputs(partition, inner, args), partition.part
        if partition not in seen:
            seen.add(partition)
            keep(partition.graph, part.inputs, args)
            nodes, values = part.module.graph.nodes, InnerValues(partition, args)
            returned = dict(zip((node.name for node in part.outputs), outputs, strict=True))
            keep(partition.graph, nodes, (returned.get(node.name, values.take(node)) for node in nodes))
        return outputs

    args, kwargs = targets.arguments("explain", (), {})
    state = type(first)(targets.first(), args, kwargs)
    graphs = [graph for graph in targets.graphs() if graph.is_prepared]
    watched = [partition.around(functools.partial(of_partition, partition)) for graph in graphs for partition in graph.partitions()]
    watched += [graph.around(functools.partial(of_graph, graph)) for graph in graphs]
    try:
        with uncounted_eager(recorder), in_all(watched):
            first.restore()
            torch.manual_seed(0)
            targets.call(args, kwargs)
    finally:
        state.restore()
    recorder.add(*digests.values())
