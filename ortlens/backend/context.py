"""The context in which one graph is compiled: the options, what conversion needs, and where results and failures are reported."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ortlens.backend.dump import dump_model
from ortlens.backend.error_text import full_text, short_text
from ortlens.backend.runtime.failures import IN_A_ROW
from ortlens.backend.runtime.runner import MAX_SIZE_SESSIONS
from ortlens.errors import ConversionError
from ortlens.units import time_from_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx

    from ortlens.analysis.speed import AbTiming
    from ortlens.backend.cache.store import ModelCache
    from ortlens.backend.options import OrtBackendOptions
    from ortlens.backend.recording.reporter import GraphReporter
    from ortlens.backend.runtime.failures import Verdict
    from ortlens.backend.runtime.run_counts import RunCounts
    from ortlens.backend.runtime.runner import PartitionRunner
    from ortlens.backend.runtime.session_info import SessionInfo
    from ortlens.backend.runtime.speed_trial import SpeedTrials
    from ortlens.trace.runlog import RunLog

_FAILED: dict[Verdict, str] = {
    "kept": "a run of {} failed and PyTorch computed it; the session stayed in use",
    "sizes lost": f"{{}} falls back to PyTorch for calls of these sizes, because {IN_A_ROW} runs in a row failed",
    "partition lost": f"{{}} falls back to PyTorch, because {IN_A_ROW} runs in a row failed, or runs of many sizes",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileContext:
    """How one graph is compiled. It also serves the graph's runners as their `RunnerContext`.

    Attributes:
        options: The user's options.
        registry: The functions that convert ATen operators to ONNX; None for a graph that is already converted.
        cache: Models of earlier processes; None: every partition is converted.
        whole_graph_key: The key under which the whole graph is cached once it is prepared, if at all.
        reporter: Reports the graph to a lens; None when there is none.
        dry_run: Partition and convert only; a call returns fake tensors for fake tensors.
        deployed: Convert for a model that runs without PyTorch, with what is left to PyTorch for its speed alone.
        counts: Counts the runs for the backend; None: they are not counted there.
        trials: Where partitions are timed against PyTorch; None: they are not.
    """

    options: OrtBackendOptions
    registry: Any = None
    cache: ModelCache | None = None
    whole_graph_key: str | None = None
    reporter: GraphReporter | None = None
    dry_run: bool = False
    deployed: bool = False
    counts: RunCounts | None = None
    trials: SpeedTrials | None = None

    def transformed(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Apply the user's `pre_ort_model_transforms`, which may change the model in place."""
        for place, transform in enumerate(self.options.pre_ort_model_transforms or ()):
            try:
                model = transform(model) or model
            except Exception as error:  # noqa: PERF203 - the message names the transform that raised
                name = getattr(transform, "__name__", repr(transform))
                raise ConversionError(f"pre_ort_model_transforms[{place}] ({name}) raised {type(error).__name__}: {error}") from error
        return model

    def session_made(self, runner: PartitionRunner, info: SessionInfo) -> RunLog | None:
        """Dump the model of a partition's first session and report it; return the log for its calls, None without a reporter."""
        if self.counts is not None and not runner.ran_before:
            self.counts.follow(runner, runner.counter)
        dumped = None if runner.ran_before else self._dump(runner)
        if self.reporter is None:
            return None
        missing = [name for name in info.wanted_providers if name not in info.providers]
        if missing:
            self.reporter.provider_missing(missing, info.providers)
        return self.reporter.session_made(runner, info, dumped)

    def run_failed(self, runner: PartitionRunner, error: Exception, verdict: Verdict) -> None:
        """Report a run that ONNX Runtime failed and PyTorch did not."""
        self.report_failure("run_failed", _FAILED[verdict].format(f"partition {runner.partition.index}"), error)
        if self.reporter is not None and verdict == "partition lost":
            self.reporter.partition_lost(runner, f"ONNX Runtime failed at run time: {short_text(error)}", full_text(error))

    def session_dropped(self, runner: PartitionRunner) -> None:
        """Report a session that was dropped because many others were used since."""
        if self.reporter is not None:
            self.reporter.session_dropped(runner, MAX_SIZE_SESSIONS)

    def left_to_torch(self, runner: PartitionRunner, compared: AbTiming) -> None:
        """Report that a partition is left to PyTorch from now on because that is faster."""
        if self.reporter is not None:
            ort_ns, torch_ns = map(time_from_ns, compared.least_ns)
            reason = f'on_slow="fallback": a run of its partition took {ort_ns} in ONNX Runtime and {torch_ns} in PyTorch'
            self.reporter.partition_lost(runner, reason, code="policy")

    def stale_weights_detected(self, runner: PartitionRunner, names: Sequence[str], calls: int) -> None:
        """Report and warn of changed weights that earlier calls may have missed; after `calls` every change is noticed."""
        shapes = [list(node.meta["val"].shape) for node in runner.partition.inputs if node.name in names]
        which = " and ".join(f"a weight of shape {shape}" for shape in shapes)
        said = f"{which} changed in a way that torch does not count; up to {calls - 1} earlier calls may have used the previous values"
        if self.reporter is not None:
            self.reporter.stale_weights_detected(runner, said, names)
        warnings.warn(f"ortlens: {said}; write under torch.no_grad() instead", RuntimeWarning, stacklevel=2)

    def report_failure(self, rule: str, title: str, error: Exception) -> None:
        """Report and warn of a failure after which the results are still correct."""
        if self.reporter is not None:
            self.reporter.failure(rule, title, error)
        warnings.warn(f"ortlens: {title}: {short_text(error)}", RuntimeWarning, stacklevel=2)

    def _dump(self, runner: PartitionRunner) -> str | None:
        try:
            return dump_model(runner.model, runner.partition.module, self.options)
        except OSError as error:
            self.report_failure("dump_failed", "a model could not be dumped; it runs nevertheless", error)
            return None
