"""`Lens.verify`: compares ONNX Runtime's results with PyTorch's, partition by partition, inside one call of the user's function.

Each partition is checked while it runs, because its inputs may be written to later. Runs of the check are not counted, and the call
gets the results of the session. Then the call as a whole is compared with the same call of the function itself. Everything that a
call changes is put back.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from ortlens._shell import display_name
from ortlens.lens.dynamo.listener import lens_failure
from ortlens.lens.twins import uncounted
from ortlens.lens.verify.as_converted import as_converted
from ortlens.lens.verify.bisect import Bisection
from ortlens.lens.verify.call_check import CallCheck, eager_call
from ortlens.lens.verify.call_outcome import outcome_of
from ortlens.lens.verify.call_state import CallState
from ortlens.lens.verify.findings import RULES, finding_of_call, finding_of_origin, finding_of_value
from ortlens.lens.verify.lockstep import steps
from ortlens.lens.verify.partition_check import PartitionCheck
from ortlens.lens.verify.single_ops import SingleOps
from ortlens.lens.verify.substitutes import lowered_by_pytorch, with_pytorchs_numbers
from ortlens.lens.verify.verdicts import Verdict
from ortlens.lens.watching import around_runs
from ortlens.progress import no_progress, progress
from ortlens.trace import records as r

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping, Sequence

    from ortlens.backend.context import CompileContext
    from ortlens.backend.runtime.runner import PartitionRunner
    from ortlens.lens.targets import CompiledTargets
    from ortlens.lens.verify.bisect import Cause
    from ortlens.lens.verify.call_outcome import Outcome
    from ortlens.lens.verify.compare_values import Tolerances
    from ortlens.lens.verify.nonfinite import Origin
    from ortlens.trace.recorder import Recorder
    from ortlens.trace.runlog import RunLog

_MAX_CALLS = 8
"""Calls of one partition that are checked within one call of the target; a loop may make thousands."""

_MAX_ATTEMPTS = 3
"""Most calls of the target: again if a call compiled something, which then ran unchecked."""


@dataclass(slots=True)
class _Checked:
    """Results for one partition; of several calls, the worst row of each value is kept."""

    calls: int
    verdicts: dict[tuple[str, str, str | None], Verdict]


class Verification:
    """One run of `verify`."""

    def __init__(self, recorder: Recorder, targets: CompiledTargets, tolerances: Tolerances, *, per_op: bool) -> None:
        """Prepare a verification.

        Args:
            recorder: Holds the records; the rows and findings go there.
            targets: What was compiled, and the present graphs of our backend.
            tolerances: The tolerances.
            per_op: Check each operator by itself instead of the values of the partition, and of the call.
        """
        self._recorder = recorder
        self._targets = targets
        self._graphs = targets.graphs
        self._tolerances = tolerances
        self._per_op = per_op
        self._thread = threading.get_ident()
        self._step: Callable[[int], None] = no_progress
        self._checked: dict[PartitionRunner, _Checked] = {}
        self._contexts: dict[PartitionRunner, CompileContext] = {}
        self._ops: dict[int, SingleOps] = {}
        self._whole: dict[PartitionRunner, PartitionRunner | None] = {}
        self._findings: dict[tuple[str, str, str], r.Finding] = {}
        self._call: list[Verdict] = []

    def run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Call the target and check; the rows and findings replace those of an earlier run.

        Args:
            args: Positional arguments of the target; exceptions of the call are raised.
            kwargs: Keyword arguments.
        """
        logs = self._recorder.logs()
        eager = {log: (list(log.calls), list(log.total_ns)) for log in logs[1].values()}
        values = sum(len(runner.partition.nodes) for runner in self._sessions())
        call = functools.partial(self._targets.call, args, kwargs)
        target = self._targets.callables[0][0] if self._targets.callables else None
        state = CallState(target, args, kwargs)
        with contextlib.ExitStack() as after:
            after.callback(_restore, eager)
            after.callback(state.restore)
            self._step = after.enter_context(progress("verifying", values, "value"))
            compiled = self._compiled(call, state)
            if not self._per_op:
                self._compare_call(target, args, kwargs, state, compiled)
        self._forget_calls(set(logs[0]))
        self._record()

    def _compiled(self, call: Callable[[], object], state: CallState) -> Outcome:
        """What the compiled function gives, while its partitions are checked."""
        for attempt in range(_MAX_ATTEMPTS):
            before = self._sessions()
            with self._watched(self._checking):
                compiled = outcome_of(call, state)
            state.restore()
            known = all(runner in self._checked or before.get(runner) == made for runner, made in self._sessions().items())
            if known or attempt == _MAX_ATTEMPTS - 1:
                break
        return compiled

    def _sessions(self) -> dict[PartitionRunner, tuple[int, ...]]:
        """Every partition and the identities of its sessions; a partition with new ones after a call has run in it."""
        return {runner: tuple(id(info) for info in runner.sessions) for graph in self._graphs() for runner in graph.runners}

    @contextlib.contextmanager
    def _watched(self, treat: Callable[[PartitionRunner, tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]]) -> Iterator[None]:
        """Pass every run of a partition through a function of the partition, its inputs and its outputs."""
        with contextlib.ExitStack() as stack:
            for graph in self._graphs():
                for runner in graph.runners if graph.is_prepared else ():
                    self._contexts[runner] = graph.context
                    stack.enter_context(around_runs(runner, self._around(runner, treat)))
            yield

    def _around(
        self, runner: PartitionRunner, treat: Callable[[PartitionRunner, tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]]
    ) -> Callable[[Callable[..., tuple[Any, ...]], tuple[Any, ...]], tuple[Any, ...]]:
        def around(inner: Callable[..., tuple[Any, ...]], args: tuple[Any, ...]) -> tuple[Any, ...]:
            if threading.get_ident() != self._thread:
                return inner(*args)
            return treat(runner, args, self._outputs(runner, inner, args))

        return around

    def _checking(self, runner: PartitionRunner, args: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        known = self._checked.setdefault(runner, _Checked(0, {}))
        known.calls += 1
        if known.calls <= _MAX_CALLS:
            try:
                with torch.no_grad(), torch.random.fork_rng(devices=range(torch.cuda.device_count())):
                    self._check(runner, args, outputs, known)
            except Exception as error:  # noqa: BLE001 - a guard of the lens: the user's call goes on
                lens_failure(self._recorder, "comparing numbers", error)
                self._merge(known, _all_unchecked(runner, f"ortlens failed while comparing: {type(error).__name__}: {error}"[:300]))
        return outputs

    def _compare_call(self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], state: CallState, compiled: Outcome) -> None:
        """Compare the call as a whole with the same call of the function itself."""
        place = _first_line(target)
        eager = eager_call(target, args, kwargs)
        if eager is None:
            self._call = [_no_call("the function itself is not known, so the call as a whole was not compared", place)]
            return
        try:
            check = CallCheck(eager=eager, state=state, tolerances=self._tolerances, place_in_code=place)
            check.run(compiled)
            if check.wrong():
                call = functools.partial(self._targets.call, args, kwargs)
                check.trace(call, self._watched(with_pytorchs_numbers), lowered_by_pytorch(self._graphs()))
            self._conclude(check)
        except Exception as error:  # noqa: BLE001 - a guard of the lens: what was compared inside stays
            lens_failure(self._recorder, "comparing the call", error)
            self._call = [_no_call(f"ortlens failed while comparing: {type(error).__name__}: {error}"[:300], place)]

    def _conclude(self, check: CallCheck) -> None:
        """Where the numbers inside have no verdict, because each is right for its inputs, the call has none either."""
        inside = [(runner, verdict) for runner, known in self._checked.items() for verdict in known.verdicts.values()]
        if check.cause == "inside" and not any(verdict.ok is False for _, verdict in inside):
            for verdict in check.wrong():
                verdict.ok = None
                verdict.note = "no verdict: every value is right for its inputs, and the function amplifies rounding differences"
        wrong, self._call = check.wrong(), check.verdicts
        if wrong:
            first = next(((runner, verdict) for runner, verdict in inside if verdict.ok is False), None)
            row = None if first is None else first[1].row(self._partition_id(first[0]))
            self._findings["call_differs", "", "call"] = finding_of_call(wrong, check.cause, row)

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
        node = next(node for node in runner.partition.nodes if node.name == cause.node)
        partition_id = self._partition_id(runner)
        finding = finding_of_value(suspect, cause, node, partition_id)
        self._findings.setdefault((finding.rule, partition_id, cause.node), finding)

    def _report_origin(self, runner: PartitionRunner, origin: Origin) -> None:
        partition_id = self._partition_id(runner)
        self._findings.setdefault(("nonfinite_origin", partition_id, origin.node.name), finding_of_origin(origin, partition_id))

    def _partition_id(self, runner: PartitionRunner) -> str:
        reporter = self._contexts[runner].reporter
        return "" if reporter is None else reporter.identity(runner).partition_id

    def _record(self) -> None:
        rows: list[r.Numeric] = []
        for runner, known in (*self._checked.items(), *self._not_run()):
            for verdict in sorted(known.verdicts.values(), key=lambda verdict: (verdict.place, verdict.scope != "value")):
                if known.calls > _MAX_CALLS and verdict.scope == "output":
                    verdict.add(f"calls {_MAX_CALLS + 1} to {known.calls} of this partition were not compared")
                rows.append(verdict.row(self._partition_id(runner)))
        rows += [verdict.row(None) for verdict in self._call]
        first = next((place for place, row in enumerate(rows) if row.ok is False), None)
        if first is not None:
            rows[first] = replace(rows[first], first_divergence=True)
        self._recorder.replace_all(r.Numeric, rows)
        others = [finding for finding in self._recorder.records(r.Finding) if finding.rule not in RULES]
        mine = sorted(self._findings.values(), key=lambda finding: RULES.index(finding.rule))
        self._recorder.replace_all(r.Finding, [*others, *mine])

    def _not_run(self) -> Iterator[tuple[PartitionRunner, _Checked]]:
        """Partitions of backward graphs whose forward ran in the call, and that themselves did not."""
        graphs = self._graphs()
        called = {graph.lowered.compile_id for graph in graphs if any(runner in self._checked for runner in graph.runners)}
        for graph in graphs:
            if graph.lowered.phase == "backward" and graph.lowered.compile_id in called:
                for runner in graph.runners:
                    if runner not in self._checked:
                        self._contexts[runner] = graph.context
                        unchecked = _all_unchecked(runner, "the backward did not run in this call")
                        yield runner, _Checked(0, {(verdict.scope, verdict.node, None): verdict for verdict in unchecked})

    def _forget_calls(self, known: Container[RunLog]) -> None:
        """Calls of sessions that were made meanwhile are ours, not the user's."""
        for log in self._recorder.logs()[0]:
            if log not in known:
                log.forget()


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


def _no_call(note: str, place: tuple[str | None, int | None]) -> Verdict:
    return Verdict(node="result", scope="call", place=0, note=note, line_of=None, place_in_code=place)


def _first_line(target: Any) -> tuple[str | None, int | None]:
    """File and first line of a function; of a module, those of its `forward`."""
    function = getattr(target, "__self__", target)
    function = function.forward if isinstance(function, torch.nn.Module) else target
    code = getattr(inspect.unwrap(function) if callable(function) else None, "__code__", None)
    return (None, None) if code is None else (display_name(code.co_filename), code.co_firstlineno)
