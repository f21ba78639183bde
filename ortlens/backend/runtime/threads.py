"""How many threads a session gets, and whether they spin while waiting.

ONNX Runtime and PyTorch each have a thread pool for the same cores. A thread that spins after its work keeps a core from whatever
runs next, so the best choice depends on what that is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ortlens import _ort, _torch
from ortlens._process import usable_cores
from ortlens.backend.basis import provenance
from ortlens.backend.operators.facts import Call
from ortlens.backend.partitioning import kernel_times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import onnxruntime

_SMALL = 1_000_000
"""Operations that one thread finishes in about 0.1 ms. Waking another thread takes a fifth of that, and ONNX Runtime splits single
operators only."""

_PER_NS = 10
"""Operations that one thread makes in a nanosecond."""
_LARGE = 200_000_000
"""Operations that take about a millisecond. PyTorch's threads spin for about as long after their work; ending and restarting them takes
0.2 ms if a core is free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadChoice:
    """The threads of a session."""

    count: int  # threads that work on one operator; 0 if the user's `SessionOptions` leave it to ONNX Runtime, which takes no more than fit
    spinning: bool  # whether they wait actively during a run
    reason: str  # why, in words
    # Whether PyTorch's threads are ended before each run, because they would keep spinning on the cores of the session.
    rests_torch: bool = False

    def rest(self) -> Callable[[], Any] | None:
        """Return the function to call before each run; None if there is none."""
        return _torch.openmp_pause() if self.rests_torch else None

    def apply(self, options: onnxruntime.SessionOptions) -> None:
        """Write the choice into options for a session."""
        options.intra_op_num_threads = self.count
        options.add_session_config_entry("session.intra_op.allow_spinning", "1" if self.spinning else "0")
        if self.spinning:  # between runs the cores are free for other work
            options.add_session_config_entry("session.force_spinning_stop", "1")


def choose(work: int | None, *, alternates: bool) -> ThreadChoice:
    """Choose the threads for a partition, anew for every session, because torch's number of threads may have changed.

    `work` comes from `work_of`; `alternates` says that PyTorch computes something before or after the partition in every call.
    """
    wanted, cores = torch.get_num_threads(), usable_cores()
    count, why = (
        (wanted, "as many as PyTorch uses") if wanted <= cores else (cores, "as many as the process has cores")
    )  # by its quota, too
    if count == 1:
        return ThreadChoice(count=1, spinning=False, reason=f"1, {why}")
    if work is not None and work < _SMALL:
        return ThreadChoice(count=1, spinning=False, reason=f"1: {work:,} operations finish before a second thread wakes")
    if alternates:
        rests = work is not None and work >= _LARGE and _torch.openmp_pause() is not None
        return ThreadChoice(
            count=count,
            spinning=False,
            reason=f"{count}, {why}; they sleep while waiting, because PyTorch computes too"
            + ("; PyTorch's threads are ended before each run, because they would spin" if rests else ""),
            rests_torch=rests,
        )
    return ThreadChoice(count=count, spinning=True, reason=f"{count}, {why}; they spin during a run, because the whole graph runs here")


def work_of(nodes: Iterable[torch.fx.Node]) -> int | None:
    """Estimate the operations of a partition; None if sizes are symbolic.

    They are those of matrix products, what kernels of which times are known do meanwhile, and else one per element made.
    """
    total = 0
    for node in nodes:
        made = list(provenance.tensors_in(node.meta.get("val")))
        if any(_torch.is_symbolic(size) for tensor in made for size in tensor.shape):
            return None
        times = kernel_times.times_of(Call(node)) if node.op == "call_function" else None
        counted = sum(tensor.numel() for tensor in made) + provenance.node_flops(node)
        total += counted if times is None else max(counted, int(times.ort) * _PER_NS)
    return total


def of_the_user(options: onnxruntime.SessionOptions) -> ThreadChoice:
    """Read the threads from the user's own options."""
    spinning = _ort.config_entry(options, "session.intra_op.allow_spinning") != "0"
    reason = "set by ort_session_options" if options.intra_op_num_threads else "ONNX Runtime's default, as ort_session_options set none"
    return ThreadChoice(count=_ort.threads_of(options), spinning=spinning, reason=reason)
