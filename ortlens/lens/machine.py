"""What the machine reaches at most, measured where a profile has kernels that are worth judging by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortlens.analysis.findings.kernels import is_worth_judging
from ortlens.backend import peak
from ortlens.backend.threads import usable_cores
from ortlens.lens.dynamo import lens_failure
from ortlens.trace import records as r

if TYPE_CHECKING:
    from ortlens.trace.recorder import Recorder


def measure_peaks(recorder: Recorder) -> None:
    """Measure the peaks that the kernels of a profile are held against; nothing where all kernels are short.

    The figures go into the environment of every capture made after, see `ortlens.backend.peak`. What fails becomes a finding.

    Args:
        recorder: Holds the kernels, and their sessions and nodes.
    """
    judged = {kernel.session_id for kernel in recorder.records(r.Kernel) if is_worth_judging(kernel)}
    sessions = [session for session in recorder.records(r.Session) if session.session_id in judged]
    parts = {session.partition_id for session in sessions}
    dtypes = {node.dtype for node in recorder.records(r.Node) if node.partition_id in parts and node.flops and node.dtype}
    try:
        for threads in {session.threads or usable_cores() for session in sessions}:
            peak.measure(dtypes, threads)
    except Exception as error:  # noqa: BLE001 - a guard of the lens: a profile is a profile without it too
        lens_failure(recorder, "measuring what the machine reaches", error)
