"""Each kernel against the machine's measured peaks: the roofline model of Williams, Waterman and Patterson (2009)."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ortlens.analysis.identity import nodes_of
from ortlens.analysis.index import graph_by_session, nodes_by_name, profiled_sessions
from ortlens.trace.records import OUTSIDE, column, same

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ortlens.trace.records import Capture, Kernel, Session

CPU = "CPUExecutionProvider"
COMPARED = (CPU, "CUDAExecutionProvider")  # providers whose peaks are measured
PRODUCTS = re.compile(r"MatMul|Gemm|Conv|Attention|Einsum", re.IGNORECASE)
"""Operators of kernels whose floating-point operations PyTorch's counter counts."""

_LONG_KERNEL_NS = 50_000
_LONG_SESSION_NS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """A kernel against the machine's measured peaks."""

    session_id: str = column("Session it ran in.")
    kernel: str = column("Name of the executed node.")
    op_type: str = column("Its operator.")
    node: str | None = column("FX node that its time is charged to.")
    mean_ns: int = column("Time per run.", unit="ns")
    flops: int | None = column(
        "Floating-point operations per run; empty where they are not counted, as for functions such as exp.", unit="flops"
    )
    bytes: int | None = column("Bytes that it reads and writes per run.", unit="bytes")
    intensity: float | None = column("Floating-point operations per byte; empty where either is not known.")
    flops_per_s: float | None = column("Floating-point operations per second that it reached.")
    bytes_per_s: float | None = column("Bytes per second that it reached; more than memory delivers where data stay in caches.")
    peak_flops_per_s: float | None = column("What the machine reached with a matrix product of its element type, on as many threads.")
    peak_bytes_per_s: float | None = column("What the machine reached reading and writing memory, on as many threads.")
    bound: Literal["compute", "memory"] = column("Which peak would take longer.")
    limit_ns: int = column("Time that it would take at that peak.", unit="ns")
    reached: float = column("Share of that peak that it reached, 0 to 1; above 1 where data stay in caches.")
    dtype: str = column("Element type of its operations.")
    threads: int = column("Threads that ONNX Runtime had for it; 0 on a GPU.")
    provider: str = column("Execution provider that ran it.")
    file: str | None = column("File of the user line.")
    line: int | None = column("Number of the user line.")


def roofs(capture: Capture) -> tuple[Roof, ...]:
    """Hold every profiled kernel of the CPU, or of a GPU, against the peaks that were measured in its capture.

    Absent are kernels that took no time, products whose operations are unknown, and all of a capture without peaks, which `profile`
    measures for sessions that `is_worth_comparing`.
    """
    return tuple(row for session, kernels in profiled_sessions(capture) for row in _of_session(capture, session, kernels))


def is_worth_comparing(kernels: Sequence[Kernel], provider: str = CPU) -> bool:
    """Tell whether a kernel of a provider takes 50 µs per run, or all of them 1 ms: long enough to measure its peaks for them."""
    times = [kernel.mean_ns or 0 for kernel in kernels if kernel.provider == provider]
    return max(times, default=0) >= _LONG_KERNEL_NS or sum(times) >= _LONG_SESSION_NS


def usable_cores(capture: Capture) -> int | None:
    """Return the cores that the recorded process could use, or all cores if unreported; None when neither was recorded."""
    known = (capture.figures.cpu_usable, capture.figures.cpu_count)
    return next((count for count in known if count is not None and count > 0), None)


def _of_session(capture: Capture, session: Session, kernels: list[Kernel]) -> Iterator[Roof]:
    nodes, graph_id = nodes_by_name(capture), graph_by_session(capture)[session.session_id]
    cores = session.threads or usable_cores(capture) or 1
    sharing = Counter(name for kernel in kernels if PRODUCTS.search(kernel.op_type) for name in nodes_of(kernel))
    for kernel in (kernel for kernel in kernels if kernel.provider in COMPARED and kernel.op_type != OUTSIDE):
        threads = cores if kernel.provider == CPU else 0
        byte_peak = _peak(capture, None, threads, kernel.provider)
        made_from = [nodes[graph_id, name] for name in nodes_of(kernel) if (graph_id, name) in nodes]
        dtype = next((node.dtype for node in made_from if node.dtype), "float32")
        is_product = bool(PRODUCTS.search(kernel.op_type))
        flops = sum((node.flops or 0) / sharing[node.node] for node in made_from) if is_product else 0.0
        flop_peak = _peak(capture, dtype, threads, kernel.provider)
        if not kernel.mean_ns or (is_product and not (flops and flop_peak)):
            continue
        by_flops = flops * 1e9 / flop_peak if flop_peak else 0.0
        by_bytes = (kernel.bytes or 0) * 1e9 / byte_peak if byte_peak else 0.0
        if limit_ns := max(by_flops, by_bytes):
            yield Roof(
                session_id=session.session_id,
                flops=round(flops) or None,
                intensity=flops / kernel.bytes if flops and kernel.bytes else None,
                flops_per_s=flops * 1e9 / kernel.mean_ns if flops else None,
                bytes_per_s=kernel.bytes * 1e9 / kernel.mean_ns if kernel.bytes else None,
                peak_flops_per_s=flop_peak,
                peak_bytes_per_s=byte_peak,
                bound="compute" if by_flops >= by_bytes else "memory",
                limit_ns=round(limit_ns),
                reached=limit_ns / kernel.mean_ns,
                dtype=dtype,
                threads=threads,
                **same(kernel, "kernel", "op_type", "node", "mean_ns", "bytes", "file", "line", "provider"),
            )


def _peak(capture: Capture, dtype: str | None, threads: int, provider: str) -> float | None:
    """Find the peak of an element type, or of memory, on as many threads; None where it was not measured."""
    key = (dtype, threads, provider)
    found = (peak.per_s for peak in capture.figures.peaks if (peak.dtype, peak.threads, peak.provider) == key)
    return next((value for value in found if 0 < value < float("inf")), None)
