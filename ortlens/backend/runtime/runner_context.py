"""What a runner needs to know, and whom it notifies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ortlens.analysis.speed import AbTiming
    from ortlens.backend.options import OrtBackendOptions
    from ortlens.backend.runtime.failures import Verdict
    from ortlens.backend.runtime.runner import PartitionRunner
    from ortlens.backend.runtime.session_info import SessionInfo
    from ortlens.backend.runtime.speed_trial import SpeedTrials
    from ortlens.trace.runlog import RunLog


class RunnerContext(Protocol):
    """The surroundings of a runner: a graph that was just compiled, one from the cache, or a lens that runs a partition by itself."""

    @property
    def options(self) -> OrtBackendOptions:
        """The user's options."""

    @property
    def trials(self) -> SpeedTrials | None:
        """Where partitions are timed against PyTorch; None: they are not."""

    def session_made(self, runner: PartitionRunner, info: SessionInfo) -> RunLog | None:
        """React to a new session; return the log for its calls, or None to log none."""

    def run_failed(self, runner: PartitionRunner, error: Exception, verdict: Verdict) -> None:
        """React to a run that ONNX Runtime failed and PyTorch did not."""

    def session_dropped(self, runner: PartitionRunner) -> None:
        """React to a session that is dropped because `MAX_SIZE_SESSIONS` others were used since."""

    def left_to_torch(self, runner: PartitionRunner, compared: AbTiming) -> None:
        """React to a runner that leaves its partition to PyTorch from now on because that is faster."""

    def stale_weights_detected(self, runner: PartitionRunner, names: Sequence[str], calls: int) -> None:
        """React to changed weights that earlier calls may have missed; every change is noticed after `calls` calls."""
