"""`Lens.verify`: compares ONNX Runtime's results with PyTorch's, partition by partition, inside one call of the user's function.

Each partition is checked while it runs, because its inputs may be written to later. Runs of the check are not counted, and the call
gets the results of the session. Nodes that stay in PyTorch are not compared.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from ortlens.lens.dynamo.listener import lens_failure
from ortlens.lens.twins import uncounted
from ortlens.lens.verify.as_converted import as_converted
from ortlens.lens.verify.bisect import Bisection, Cause
from ortlens.lens.verify.lockstep import steps
from ortlens.lens.verify.partition_check import PartitionCheck
from ortlens.lens.verify.single_ops import SingleOps
from ortlens.lens.verify.verdicts import Verdict
from ortlens.lens.watching import around_runs
from ortlens.progress import no_progress, progress
from ortlens.trace import records as r

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ortlens.backend.context import CompileContext
    from ortlens.backend.graph import CompiledGraph
    from ortlens.backend.runtime.runner import PartitionRunner
    from ortlens.lens.verify.compare_values import Tolerances
    from ortlens.lens.verify.nonfinite import Origin
    from ortlens.trace.recorder import Recorder

_MAX_CALLS = 8
"""Calls of one partition that are checked within one call of the target; a loop may make thousands."""

_MAX_ATTEMPTS = 3
"""Most calls of the target: again if a call compiled something, which then ran unchecked."""

RULES = ("numbers_differ", "fusion_changes_numbers", "nonfinite_origin")


@dataclass(slots=True)
class _Checked:
    """Results for one partition; of several calls, the worst row of each value is kept."""

    calls: int
    verdicts: dict[tuple[str, str, str | None], Verdict]


class Verification:
    """One run of `verify`."""

    def __init__(
        self, recorder: Recorder, graphs: Callable[[], tuple[CompiledGraph, ...]], tolerances: Tolerances, *, per_op: bool
    ) -> None:
        """Prepare a verification.

        Args:
            recorder: Holds the records; the rows and findings go there.
            graphs: Returns the present graphs of our backend.
            tolerances: The tolerances.
            per_op: Check each operator by itself instead of the values of the partition.
        """
        self._recorder = recorder
        self._graphs = graphs
        self._tolerances = tolerances
        self._per_op = per_op
        self._thread = threading.get_ident()
        self._step: Callable[[int], None] = no_progress
        self._checked: dict[PartitionRunner, _Checked] = {}
        self._contexts: dict[PartitionRunner, CompileContext] = {}
        self._ops: dict[int, SingleOps] = {}
        self._whole: dict[PartitionRunner, PartitionRunner | None] = {}
        self._findings: dict[tuple[str, str, str], r.Finding] = {}

    def run(self, call: Callable[[], object]) -> None:
        """Call the target and check; the rows and findings replace those of an earlier run.

        Args:
            call: Calls the target; its exceptions are raised.
        """
        eager = {log: (list(log.calls), list(log.total_ns)) for log in self._recorder.logs()[1].values()}
        devices = range(torch.cuda.device_count())
        values = sum(len(runner.partition.nodes) for runner in self._sessions())
        with torch.random.fork_rng(devices=devices), contextlib.ExitStack() as after:
            after.callback(_restore, eager)
            self._step = after.enter_context(progress("verifying", values, "value"))
            for _ in range(_MAX_ATTEMPTS):
                before = self._sessions()
                state = torch.get_rng_state()
                with self._watched():
                    call()
                torch.set_rng_state(state)
                if all(runner in self._checked or before.get(runner) == made for runner, made in self._sessions().items()):
                    break
        self._record()

    def _sessions(self) -> dict[PartitionRunner, tuple[int, ...]]:
        """Every partition and the identities of its sessions; a partition with new ones after a call has run in it."""
        return {runner: tuple(id(info) for info in runner.sessions) for graph in self._graphs() for runner in graph.runners}

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for graph in self._graphs():
                for runner in graph.runners if graph.is_prepared else ():
                    self._contexts[runner] = graph.context
                    stack.enter_context(around_runs(runner, self._around(runner)))
            yield

    def _around(self, runner: PartitionRunner) -> Callable[[Callable[..., tuple[Any, ...]], tuple[Any, ...]], tuple[Any, ...]]:
        def around(inner: Callable[..., tuple[Any, ...]], args: tuple[Any, ...]) -> tuple[Any, ...]:
            if threading.get_ident() != self._thread:
                return inner(*args)
            outputs = self._outputs(runner, inner, args)
            known = self._checked.setdefault(runner, _Checked(0, {}))
            known.calls += 1
            if known.calls <= _MAX_CALLS:
                try:
                    with torch.no_grad():
                        self._check(runner, args, outputs, known)
                except Exception as error:  # noqa: BLE001 - a guard of the lens: the user's call goes on
                    lens_failure(self._recorder, "comparing numbers", error)
                    self._merge(known, _all_unchecked(runner, f"ortlens failed while comparing: {type(error).__name__}: {error}"[:300]))
            return outputs

        return around

    def _outputs(self, runner: PartitionRunner, inner: Callable[..., tuple[Any, ...]], args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The results of the session, uncounted if possible; after a changed weight or a failure, by a normal run."""
        info = runner.session_for(args)
        if info is not None:
            with contextlib.suppress(Exception):
                return uncounted(runner, info.session)(*args)
        return inner(*args)

    def _check(self, runner: PartitionRunner, args: tuple[Any, ...], outputs: Sequence[Any], known: _Checked) -> None:
        if runner.session_for(args) is None:
            self._merge(known, _all_unchecked(runner, "PyTorch runs this partition, because ONNX Runtime failed on it; see findings"))
            return
        ops = self._ops_of(runner)
        if self._per_op:
            places = {node: place for place, node in enumerate(runner.partition.module.graph.nodes)}
            for step in steps(runner.partition.module, args, double=False):
                self._merge(known, list(ops.verdicts(step, places[step.node], self._tolerances)))
                self._step(1)
            return
        check = PartitionCheck(runner=runner, args=args, tolerances=self._tolerances, whole=functools.partial(self._whole_of, runner, args))
        check.run(outputs, self._step)
        for suspect, reference in check.suspects:
            self._explain(runner, suspect, Bisection(check, self._contexts[runner], ops).cause(suspect, reference))
        if check.spoilt_outputs():
            for origin in check.origins[:1]:
                self._report_origin(runner, origin)
        self._merge(known, check.verdicts)

    def _whole_of(self, runner: PartitionRunner, args: tuple[Any, ...]) -> PartitionRunner | None:
        """A runner of the model as converted; made once per partition."""
        if runner not in self._whole:
            self._whole[runner] = None
            with contextlib.suppress(Exception):  # then the values that only it holds are reported as not compared
                self._whole[runner] = as_converted(runner, self._contexts[runner], args)
        return self._whole[runner]

    def _ops_of(self, runner: PartitionRunner) -> SingleOps:
        context = self._contexts[runner]
        return self._ops.setdefault(id(context.registry), SingleOps(context.registry, context.options))

    def _merge(self, known: _Checked, verdicts: Sequence[Verdict]) -> None:
        for verdict in verdicts:
            key = (verdict.scope, verdict.node, verdict.onnx_value)
            if key not in known.verdicts or _badness(verdict) > _badness(known.verdicts[key]):
                known.verdicts[key] = verdict

    def _explain(self, runner: PartitionRunner, suspect: Verdict, cause: Cause) -> None:
        suspect.add(cause.text)
        row = suspect.row(self._partition_id(runner))
        node = next(node for node in runner.partition.nodes if node.name == cause.node)
        fused = cause.kind in ("ort", "optimizer", "transform")
        rule = "fusion_changes_numbers" if fused else "numbers_differ"
        by = f" ({' and '.join(cause.optimizers)})" if cause.optimizers else ""
        what = f"a rewrite of the model{by} changes {cause.node}" if fused else f"{cause.node} ({node.target}) differs"
        finding = r.Finding(
            rule=rule,
            subject=cause.node,
            severity="error",
            title=f"{what}{_distance(suspect)}",
            file=row.file,
            line=row.line,
            evidence=f"{cause.text}. max_abs {row.max_abs}, max_rel {row.max_rel}, atol {row.atol}, rtol {row.rtol}; "
            f"closer to fp64: {row.closer_to_fp64 or 'unknown'}",
            hazard="The results of the model differ from PyTorch's by more than rounding explains.",
            mitigation=_mitigation(cause),
        )
        self._findings.setdefault((rule, row.partition_id, cause.node), finding)

    def _report_origin(self, runner: PartitionRunner, origin: Origin) -> None:
        verdict = Verdict(node=origin.node.name, scope="value", place=0, line_of=origin.node)
        row = verdict.row(self._partition_id(runner))
        finding = r.Finding(
            rule="nonfinite_origin",
            subject=row.node,
            severity="warning",
            title=f"{origin.kind} comes from {row.node} ({origin.node.target})",
            file=row.file,
            line=row.line,
            evidence=f"{row.node} {origin.note}; it reaches an output of {row.partition_id}.",
            hazard="NaN and infinities spread to all values that are computed from them.",
            mitigation="Scale the values down before this line, or compute it in bfloat16 or float32, which have a larger range."
            if origin.overflow
            else "Keep the inputs of this line in range: add an epsilon to a divisor, clamp before a logarithm or a root.",
        )
        self._findings.setdefault(("nonfinite_origin", row.partition_id, row.node), finding)

    def _partition_id(self, runner: PartitionRunner) -> str:
        reporter = self._contexts[runner].reporter
        return "" if reporter is None else reporter.identity(runner).partition_id

    def _record(self) -> None:
        rows: list[r.Numeric] = []
        for runner, known in self._checked.items():
            for verdict in sorted(known.verdicts.values(), key=lambda verdict: (verdict.place, verdict.scope != "value")):
                if known.calls > _MAX_CALLS and verdict.scope == "output":
                    verdict.add(f"calls {_MAX_CALLS + 1} to {known.calls} of this partition were not compared")
                rows.append(verdict.row(self._partition_id(runner)))
        first = next((place for place, row in enumerate(rows) if row.ok is False), None)
        if first is not None:
            rows[first] = replace(rows[first], first_divergence=True)
        self._recorder.replace_all(r.Numeric, rows)
        others = [finding for finding in self._recorder.records(r.Finding) if finding.rule not in RULES]
        self._recorder.replace_all(r.Finding, [*others, *self._findings.values()])


def _restore(eager: dict[Any, tuple[list[int], list[int]]]) -> None:
    """Restore the counts and times of the nodes that PyTorch runs: these calls were ours."""
    for log, (calls, total_ns) in eager.items():
        for place in range(len(calls)):
            log.calls[place], log.total_ns[place] = calls[place], total_ns[place]


def _badness(verdict: Verdict) -> tuple[int, float]:
    """Order of severity: wrong, then right, then not checked; then by the largest difference."""
    rank = {False: 2, True: 1, None: 0}[verdict.ok]
    return rank, 0.0 if verdict.comparison is None else verdict.comparison.max_abs


def _all_unchecked(runner: PartitionRunner, note: str) -> list[Verdict]:
    places = {node.name: place for place, node in enumerate(runner.partition.module.graph.nodes)}
    return [Verdict(node=node.name, scope="output", place=places[node.name], note=note, line_of=node) for node in runner.partition.outputs]


def _distance(verdict: Verdict) -> str:
    found = verdict.comparison
    if found is None:
        return ": another shape"
    return ": NaN or infinite on one side only" if found.clashes else f" by up to {found.max_abs:.3g}"


def _mitigation(cause: Cause) -> str:
    if cause.optimizers:
        names = ";".join(cause.optimizers)
        return (
            "Disable the rewrite: set options = onnxruntime.SessionOptions(), "
            f'options.add_session_config_entry("optimization.disable_specified_optimizers", "{names}") as ort_session_options; '
            "and report it to ONNX Runtime."
        )
    return {
        "converter": "Pass another function in custom_translation_table, or fix the one passed there; if it is not yours, report it.",
        "transform": "Fix the transform, or remove it.",
        "optimizer": "Report it with the model, which is right as converted.",
        "ort": "Lower the level: ort_session_options with graph_optimization_level = ORT_DISABLE_ALL. Report it to ONNX Runtime.",
    }.get(cause.kind, "Compare the operators one by one: verify(..., per_op=True).")
