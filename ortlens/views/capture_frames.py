"""The frames of a capture: one property per table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING

from ortlens._os_errors import with_clear_os_errors
from ortlens.analysis.actions import ActionRow
from ortlens.analysis.findings.registry import findings_of
from ortlens.trace.frames import frame_from_capture, frame_from_records
from ortlens.trace.schema import table_from_record
from ortlens.views.actions import action_rows

if TYPE_CHECKING:
    import pandas as pd

    from ortlens.trace.records import Capture


@with_clear_os_errors
class CaptureFrames(ABC):
    """Frames over a capture. Subclasses say where the capture comes from."""

    @abstractmethod
    def captured(self) -> Capture:
        """Take a snapshot of everything recorded so far.

        Returns:
            The capture; cheap, and never changed afterwards.
        """

    @property
    def graphs(self) -> pd.DataFrame:
        """FX graphs that Dynamo handed to the backend, one row per graph and phase."""
        return frame_from_capture(self.captured(), "graphs")

    @property
    def breaks(self) -> pd.DataFrame:
        """Graph breaks, one row per distinct place."""
        return frame_from_capture(self.captured(), "breaks")

    @property
    def recompiles(self) -> pd.DataFrame:
        """Second compilations of the same code, with the guard that failed."""
        return frame_from_capture(self.captured(), "recompiles")

    @property
    def nodes(self) -> pd.DataFrame:
        """FX nodes after decomposition, with where they run and the user line that made them."""
        return frame_from_capture(self.captured(), "nodes")

    @property
    def partitions(self) -> pd.DataFrame:
        """Sets of nodes that became one ONNX model each."""
        return frame_from_capture(self.captured(), "partitions")

    @property
    def fallbacks(self) -> pd.DataFrame:
        """Nodes that stay in PyTorch, with the reason."""
        return frame_from_capture(self.captured(), "fallbacks")

    @property
    def models(self) -> pd.DataFrame:
        """ONNX models of the partitions."""
        return frame_from_capture(self.captured(), "models")

    @property
    def sessions(self) -> pd.DataFrame:
        """ONNX Runtime sessions with the statistics of their calls."""
        return frame_from_capture(self.captured(), "sessions")

    @property
    def runs(self) -> pd.DataFrame:
        """The latest calls one by one, split into bind, run and output."""
        return frame_from_capture(self.captured(), "runs")

    @property
    def kernels(self) -> pd.DataFrame:
        """Nodes that ONNX Runtime really executed, after its own fusions."""
        return frame_from_capture(self.captured(), "kernels")

    @property
    def numerics(self) -> pd.DataFrame:
        """Values compared between ONNX Runtime and PyTorch."""
        return frame_from_capture(self.captured(), "numerics")

    @property
    def findings(self) -> pd.DataFrame:
        """What ortlens reports, with evidence: what was recorded, and what the rules find in the records; the most expensive first."""
        capture = self.captured()
        return frame_from_capture(replace(capture, findings=findings_of(capture)), "findings")

    @property
    def actions(self) -> pd.DataFrame:
        """What to do, one row per cause, the most useful first: breaks, operators in PyTorch, recompiles and findings."""
        return frame_from_records(table_from_record("actions", ActionRow), action_rows(self.captured()))

    @property
    def ledger(self) -> pd.DataFrame:
        """Where the wall time of a call went."""
        return frame_from_capture(self.captured(), "ledger")

    @property
    def steps(self) -> pd.DataFrame:
        """What prefill, decode and the Python around the model take in a call of `generate`."""
        return frame_from_capture(self.captured(), "steps")
