"""What one call of a target runs: the graphs that it enters and the partitions in them, with their inputs and times."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend.runtime.ab_timing import clocked, waiting_for
from ortlens.lens.observing.watching import PartitionRun, around_calls, around_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ortlens.backend.graph import CompiledGraph
    from ortlens.backend.recording.records import Identity
    from ortlens.backend.runtime.runner import PartitionRunner
    from ortlens.backend.runtime.threads import ThreadChoice


_SMALL = 1024


@dataclass(slots=True, eq=False)
class ObservedGraph:
    """A graph as a call entered it."""

    graph: CompiledGraph
    graph_id: str
    values: tuple[Any, ...] = ()  # inputs of its first entry
    count: int = 0
    ns: int = 0  # of all entries


@dataclass(slots=True, eq=False)
class ObservedPartition:
    """A partition as a call ran it."""

    runner: PartitionRunner
    graph: CompiledGraph
    identity: Identity
    values: tuple[Any, ...] = ()  # inputs of its first run
    count: int = 0
    ns: int = 0  # of all runs

    @property
    def choice(self) -> ThreadChoice:
        """The threads of its session."""
        return self.runner.sessions[-1].threads


def observe(graphs: Iterable[CompiledGraph], call: Callable[[], Any]) -> tuple[list[ObservedGraph], list[ObservedPartition], Any]:
    """Call a target, and return the graphs and partitions that ran, each the most expensive first, and the result."""
    entered: list[ObservedGraph] = []
    ran: list[ObservedPartition] = []
    with contextlib.ExitStack() as stack:
        for graph in graphs:
            reporter = graph.context.reporter
            if reporter is None or not graph.is_prepared:
                continue
            entered.append(ObservedGraph(graph, reporter.graph_id))
            stack.enter_context(around_calls(graph, _noting(entered[-1], lambda inner, args: inner(args))))
            for runner in graph.runners:
                if len(runner.sessions) == 1 and not runner.is_lost:  # of one per size, it is not known which one runs
                    ran.append(ObservedPartition(runner, graph, reporter.identity(runner)))
                    stack.enter_context(around_runs(runner, _noting(ran[-1], lambda inner, values: inner(*values))))
        result = call()
    return _most_expensive(entered), _most_expensive(ran), result


def _noting(item: ObservedGraph | ObservedPartition, run: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Note inputs and time, of this thread alone."""
    thread = threading.get_ident()

    def around(inner: Any, values: Any) -> Any:
        if threading.get_ident() != thread:
            return run(inner, values)
        item.values = item.values or as_entered(values)
        item.count += 1
        wait = waiting_for(item.values)
        wait()
        started = time.perf_counter_ns()
        outputs = run(inner, values)
        wait()
        item.ns += time.perf_counter_ns() - started
        return outputs

    return around


def _most_expensive(items: list[Any]) -> list[Any]:
    return sorted((item for item in items if item.count), key=lambda item: -item.ns)


def as_entered(values: Sequence[Any]) -> tuple[Any, ...]:
    """Keep inputs for later runs; copy small integer tensors: programs advance positions in a cache in place, at last beyond its end."""
    return tuple(value.clone() if _is_small_index(value) else value for value in values)


def _is_small_index(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_floating_point() and not value.is_complex() and value.numel() <= _SMALL


def timed(run: PartitionRun, values: tuple[Any, ...]) -> Callable[[], int]:
    """Return a function that makes a run on the same inputs and returns its time in ns."""
    return clocked(lambda: run(*values), waiting_for(values))


def instead(run: PartitionRun) -> Callable[[PartitionRun, tuple[Any, ...]], tuple[Any, ...]]:
    """Return what `around_runs` takes to run a partition otherwise."""
    return lambda _inner, values: run(*values)
