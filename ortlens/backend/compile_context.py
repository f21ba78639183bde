"""How one graph is compiled: the options and what else the planner, the graph and the cache have in common.

Its runners call back here when a session is made, fails or is dropped, to report it.
"""

from __future__ import annotations

import collections
import os
import pathlib
import threading
import warnings
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ortlens._files import whole_file
from ortlens.backend.basis.error_text import full_text, short_text
from ortlens.backend.basis.options import dump_prefix
from ortlens.backend.lowering.returned_views import inputs_of
from ortlens.backend.runtime import devices, in_place
from ortlens.backend.runtime.program import eager_nodes
from ortlens.backend.runtime.runner import IN_A_ROW, MAX_SIZE_SESSIONS, PartitionRunner, RunnerEvents, count_of
from ortlens.backend.runtime.session import SessionFactory
from ortlens.backend.runtime.threads import work_of
from ortlens.errors import ConversionError

if TYPE_CHECKING:
    import itertools
    from collections.abc import Sequence

    import onnx

    from ortlens.backend.basis.options import OrtBackendOptions
    from ortlens.backend.cache import ConvertedModel, ModelCache
    from ortlens.backend.lowering.entry import LoweredGraph
    from ortlens.backend.partitioning.plan import GraphPartition, Plan
    from ortlens.backend.recording.reporter import GraphReporter
    from ortlens.backend.runtime.runner import Verdict
    from ortlens.backend.runtime.session import SessionInfo
    from ortlens.trace.runlog import RunLog


_FAILED: dict[Verdict, str] = {
    "kept": "a run of {} failed and PyTorch computed it; the session stayed in use",
    "sizes lost": f"{{}} falls back to PyTorch for calls of these sizes, because {IN_A_ROW} runs in a row failed",
    "partition lost": f"{{}} falls back to PyTorch, because {IN_A_ROW} runs in a row failed, or runs of many sizes",
}


MAX_PLANS = 12
"""How often one graph is planned. In the last but one plan, every partition that still fails is excluded as a whole."""


class RunCounts:
    """The counters of all partitions of a backend."""

    def __init__(self) -> None:
        """Start without any."""
        self._live: dict[int, itertools.count[int]] = {}
        self._gone: list[int] = []  # appending is atomic; a finalizer may run in any thread, and must not wait for a lock

    def follow(self, owner: object, counter: itertools.count[int]) -> None:
        """Count the runs of a partition from now on, even when its runner is gone; `counter` must not refer to the runner."""
        self._live[id(counter)] = counter
        weakref.finalize(owner, lambda key: self._gone.append(count_of(self._live.pop(key))), id(counter)).atexit = False

    def total(self) -> int:
        """Count all runs so far."""
        return sum(self._gone) + sum(count_of(counter) for counter in list(self._live.values()))


_numbers: dict[str, int] = collections.defaultdict(int)  # of dumped files, by prefix
_lock = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileContext(RunnerEvents):
    """How one graph is compiled."""

    options: OrtBackendOptions
    registry: Any = None  # the functions that convert ATen operators to ONNX; None for a graph that is already converted
    cache: ModelCache | None = None  # models of earlier processes; None: every partition is converted
    whole_graph_key: str | None = None  # the key under which the whole graph is cached once it is prepared, if at all
    reporter: GraphReporter | None = None  # reports the graph to a lens; None when there is none
    dry_run: bool = False  # partition and convert only; a call returns fake tensors for fake tensors
    deployed: bool = False  # convert for a model that runs without PyTorch, with what is left to PyTorch for its speed alone
    counts: RunCounts | None = None  # counts the runs for the backend; None: they are not counted there

    def transformed(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Apply the user's `pre_ort_model_transforms`, which may change the model in place."""
        for place, transform in enumerate(self.options.pre_ort_model_transforms or ()):
            try:
                model = transform(model) or model
            except Exception as error:
                name = getattr(transform, "__name__", repr(transform))
                raise ConversionError(f"pre_ort_model_transforms[{place}] ({name}) raised {type(error).__name__}: {error}") from error
        return model

    def runner(
        self, lowered: LoweredGraph, plan: Plan, partition: GraphPartition, made: ConvertedModel, *, cached: bool
    ) -> PartitionRunner:
        """Make the runner of a partition from its model, which has the user's transforms applied; `cached`: by an earlier process."""
        inference, inputs = lowered.phase == "inference", inputs_of(plan.graph)
        static = {inputs[place] for place in lowered.static_inputs if place < len(inputs)}
        factory = SessionFactory(
            partition=partition,
            model=made.model,
            permutations=made.permutations,
            output_names=made.output_names,
            options=self.options,
            weight_inputs=frozenset(place for place, node in enumerate(partition.inputs) if node in static),
            freezes=inference and self.options.freeze_weights is not False,
            replays=inference,
            alternates=not inference or plan.partition_count > 1 or bool(eager_nodes(plan)),
            work=work_of(partition.nodes),
            updates=in_place.updates_of(partition, lowered.mutated, plan) if self.updates_in_place(lowered) else {},
            cached=cached,
        )
        return PartitionRunner(factory, self)

    def updates_in_place(self, lowered: LoweredGraph) -> bool:
        """Tell whether sessions may update inputs of the graph: their new values are its first outputs, unless these are made as views."""
        first = lowered.views is None or lowered.views.new_values_first
        return lowered.phase == "inference" and first and not self.deployed and devices.runs_on_cpu_alone(self.options)

    def session_made(self, runner: PartitionRunner, info: SessionInfo) -> RunLog | None:
        """Dump the model of a partition's first session and report it; return the log for its calls, None without a reporter."""
        if self.counts is not None and not runner.ran_before:
            self.counts.follow(runner, runner.counter)
        dumped = None if runner.ran_before or self.deployed else self._dump(runner)
        return None if self.reporter is None else self.reporter.sessions.session_made(runner, info, dumped)

    def run_failed(self, runner: PartitionRunner, error: Exception, verdict: Verdict) -> None:
        """Report and warn of a failed run, and of a partition that PyTorch runs from now on."""
        self.report_failure("run_failed", _FAILED[verdict].format(f"partition {runner.partition.index}"), error)
        if self.reporter is not None and verdict == "partition lost":
            self.reporter.partition_lost(runner, f"ONNX Runtime failed at run time: {short_text(error)}", full_text(error))

    def session_dropped(self, runner: PartitionRunner) -> None:
        """Report a session that was dropped for another one."""
        if self.reporter is not None:
            self.reporter.sessions.session_dropped(runner, MAX_SIZE_SESSIONS)

    def called_in_capture(self, runner: PartitionRunner) -> None:
        """Report a call that PyTorch computed because it captures a CUDA graph."""
        if self.reporter is not None:
            self.reporter.sessions.called_in_capture(runner)

    def graph_failed(self, runner: PartitionRunner, error: Exception) -> None:
        """Report and warn of a CUDA graph that could not be captured."""
        title = f"capturing a CUDA graph of partition {runner.partition.index} failed; its session runs without one"
        self.report_failure("cuda_graph_failed", title, error)

    def stale_weights_detected(self, runner: PartitionRunner, names: Sequence[str], calls: int) -> None:
        """Report and warn of changed weights that earlier calls may have missed; after `calls` every change is noticed."""
        given = runner.factory.input_names()
        nodes = [node for node, name in zip(runner.partition.inputs, given, strict=True) if name in names]
        shapes = [list(node.meta["val"].shape) for node in nodes]
        which = " and ".join(f"a weight of shape {shape}" for shape in shapes)
        said = f"{which} changed in a way that torch does not count; up to {calls - 1} earlier calls may have used the previous values"
        if self.reporter is not None:
            self.reporter.sessions.stale_weights_detected(runner, said, nodes)
        warnings.warn(f"ortlens: {said}; write under torch.no_grad() instead", RuntimeWarning, stacklevel=2)

    def report_failure(self, rule: str, title: str, error: Exception) -> None:
        """Report and warn of a failure after which the results are still correct."""
        if self.reporter is not None:
            self.reporter.failure(rule, title, error)
        warnings.warn(f"ortlens: {title}: {short_text(error)}", RuntimeWarning, stacklevel=2)

    def _dump(self, runner: PartitionRunner) -> str | None:
        """Write a model, numbered per prefix across all backends, and the text of its FX graph; return its path, None for no dump."""
        prefix = dump_prefix(self.options)
        if not prefix:
            return None
        with _lock:
            number = _numbers[prefix]
            _numbers[prefix] += 1
        path = pathlib.Path(f"{prefix}{number}.onnx")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(path) as binary, whole_file(path.with_suffix(".txt")) as text:  # both are on the disk before either is in place
                binary.write(runner.model.SerializeToString())
                binary.flush()
                os.fsync(binary.fileno())
                text.write(f"{runner.partition.module.graph}\n".encode())
        except OSError as error:
            self.report_failure("dump_failed", "a model could not be dumped; it runs nevertheless", error)
            return None
        return str(path)
