"""What a probe measures: one change to a call of the target, or to the runs of one partition."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from ortlens.backend.runtime.turns import clocked
from ortlens.lens.shadow_sessions import uncounted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ortlens.backend.graph import CompiledGraph
    from ortlens.backend.recording.reporter import Identity
    from ortlens.backend.runtime.runner import PartitionRunner
    from ortlens.backend.runtime.threads import ThreadChoice
    from ortlens.trace.recorder import Recorder

Run: TypeAlias = Callable[..., tuple[Any, ...]]
"""Runs a partition: takes its inputs, returns its outputs."""

Pair: TypeAlias = tuple[Callable[[], int], Callable[[], int]]
"""The present setting and the changed one; each runs once and returns the time in ns."""


_SMALL = 1024


@dataclass(slots=True, eq=False)
class ObservedPartition:
    """A partition as it ran in one call of the target.

    Attributes:
        runner: Its runner.
        graph: Its graph.
        identity: Its ids.
        values: Inputs of its first run.
        runs: How often it ran.
    """

    runner: PartitionRunner
    graph: CompiledGraph
    identity: Identity
    values: tuple[Any, ...] = ()
    runs: int = 0

    @property
    def choice(self) -> ThreadChoice:
        """The threads of its session."""
        return self.runner.sessions[-1].threads

    @property
    def node_count(self) -> int:
        """Its compute nodes."""
        return len(self.runner.partition.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One change to measure.

    Attributes:
        rule: The rule that the finding belongs to.
        subject: The finding's subject.
        change: The change, as a noun: `letting threads sleep`.
        mitigation: How to make it permanent.
        pair: Makes the two ways to compare; returns None when there is nothing to compare after all.
        per_call: How often the timed run happens in one call of the target.
        worth_ns: Gain per call from which it is a warning, where no rule expected it.
        worth_share: Share of the time that the gain must be, likewise.
    """

    rule: str
    subject: str
    change: str
    mitigation: str
    pair: Callable[[], Pair | None]
    per_call: int = 1
    worth_ns: int = 0
    worth_share: float = 0.1


def as_entered(values: Sequence[Any]) -> tuple[Any, ...]:
    """Keep inputs for later runs; copy small integer tensors: programs advance positions in a cache in place, at last beyond its end."""
    return tuple(value.clone() if _is_small_index(value) else value for value in values)


def _is_small_index(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_floating_point() and not value.is_complex() and value.numel() <= _SMALL


def present(seen: ObservedPartition) -> Run:
    """Return the present setting: the session in use, uncounted."""
    return uncounted(seen.runner, seen.runner.sessions[-1].session)


def prepared(variant: PartitionRunner, seen: ObservedPartition) -> Run:
    """Give a variant of a partition its session, with the weights of `seen`, and return a function of its inputs."""
    variant.prepare(seen.values)
    return variant.run


def timed(run: Run, values: tuple[Any, ...]) -> Callable[[], int]:
    """Return a function that makes a run on the same inputs and returns its time in ns."""
    return clocked(lambda: run(*values))


@contextlib.contextmanager
def uncounted_eager(recorder: Recorder) -> Iterator[None]:
    """Restore the counts of nodes that PyTorch runs: calls of a probe count neither there nor in sessions."""
    logs = recorder.logs()[1]
    before = {graph_id: (log.calls[:], log.total_ns[:]) for graph_id, log in logs.items()}
    try:
        yield
    finally:
        for graph_id, (calls, total_ns) in before.items():
            logs[graph_id].calls[:], logs[graph_id].total_ns[:] = calls, total_ns
