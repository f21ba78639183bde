"""How many threads a session gets, and whether they spin while they wait.

ONNX Runtime and PyTorch each have a pool of threads for the same cores. A thread that spins after its work takes a core from
whoever comes next, so what is right depends on who that is.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ortlens import _torch
from ortlens.backend.lowering import provenance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import onnxruntime

_SMALL = 1_000_000
"""Operations that one thread has done in about 0.1 ms; waking another takes a fifth of that, and ONNX Runtime splits single
operators only."""

_LARGE = 200_000_000
"""Operations that take about a millisecond. PyTorch's threads spin for about as long after their work; ending them and starting
them anew takes 0.2 ms where a core is free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadChoice:
    """The threads of a session.

    Attributes:
        count: Threads that work on one operator; 0 when the user's `SessionOptions` leave it to ONNX Runtime.
        spinning: Whether they wait actively while a run goes on.
        reason: Why, in words.
        rests_torch: Whether PyTorch's threads are ended before each run: they would spin on while the session wants their cores.
    """

    count: int
    spinning: bool
    reason: str
    rests_torch: bool = False

    def rest(self) -> Callable[[], Any] | None:
        """What to call before each run; None when there is nothing to do."""
        return _torch.thread_rester() if self.rests_torch else None

    def apply(self, options: onnxruntime.SessionOptions) -> None:
        """Write the choice into options for a session.

        Args:
            options: Changed in place.
        """
        options.intra_op_num_threads = self.count
        options.add_session_config_entry("session.intra_op.allow_spinning", "1" if self.spinning else "0")
        if self.spinning:  # between runs the cores belong to whoever else wants them
            options.add_session_config_entry("session.force_spinning_stop", "1")


def choose(work: int | None, *, alternates: bool) -> ThreadChoice:
    """The threads for a partition.

    Args:
        work: As counted by `work_of`.
        alternates: Whether PyTorch computes something before or after it in every call.

    Returns:
        The choice, made anew for every session: torch's number of threads may have changed.
    """
    count = torch.get_num_threads()
    if count == 1:
        return ThreadChoice(count=1, spinning=False, reason="one, as PyTorch has")
    if work is not None and work < _SMALL:
        return ThreadChoice(count=1, spinning=False, reason=f"one: {work:,} operations are done before a second thread wakes")
    if alternates:
        rests = work is not None and work >= _LARGE and _torch.thread_rester() is not None
        return ThreadChoice(
            count=count,
            spinning=False,
            reason=f"{count}, as PyTorch has; they sleep while they wait, since PyTorch computes too"
            + (", and PyTorch's are ended before each run, for they would spin" if rests else ""),
            rests_torch=rests,
        )
    return ThreadChoice(
        count=count, spinning=True, reason=f"{count}, as PyTorch has; they spin within a run, since all of the graph runs here"
    )


def usable_cores() -> int:
    """Cores that this process may use, which a container or an affinity mask may have made fewer than there are."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def work_of(nodes: Iterable[torch.fx.Node]) -> int | None:
    """How much a partition computes.

    Args:
        nodes: Its FX nodes, with `meta["val"]`.

    Returns:
        Floating-point operations of matrix products plus the elements of everything; None when sizes are symbolic.
    """
    total = 0
    for node in nodes:
        for tensor in provenance.tensors_in(node.meta.get("val")):
            if any(_torch.is_symbolic(size) for size in tensor.shape):
                return None
            total += tensor.numel()
        total += provenance.node_flops(node)
    return total


def of_the_user(options: onnxruntime.SessionOptions) -> ThreadChoice:
    """What the user's own options say.

    Args:
        options: As given for `ort_session_options`.

    Returns:
        The choice.
    """
    try:
        spinning = options.get_session_config_entry("session.intra_op.allow_spinning") != "0"
    except RuntimeError:  # not said: ONNX Runtime spins
        spinning = True
    return ThreadChoice(count=options.intra_op_num_threads, spinning=spinning, reason="as the given ort_session_options say")
