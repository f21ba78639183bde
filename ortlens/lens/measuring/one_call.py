"""What one call of a target runs: the graphs that it enters and the partitions in them, with their inputs and times."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from ortlens.backend.basis.ab_timing import clocked, waiting_for
from ortlens.backend.observed import ObservedGraph, ObservedPartition, in_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ortlens.backend.observed import PartitionRun

Subject = TypeVar("Subject", ObservedGraph, ObservedPartition)

_SMALL = 1024


@dataclass(slots=True, eq=False)
class Ran(Generic[Subject]):
    """A graph as a call entered it, or a partition as a call ran it."""

    subject: Subject
    values: tuple[Any, ...] = ()  # inputs of the first run
    count: int = 0
    ns: int = 0  # of all runs


def observe(graphs: Iterable[ObservedGraph], call: Callable[[], Any]) -> tuple[list[Ran[ObservedGraph]], list[Ran[ObservedPartition]], Any]:
    """Call a target, and return the graphs and partitions that ran, each the most expensive first, and the result."""
    entered = [Ran(graph) for graph in graphs if graph.graph_id is not None and graph.is_prepared]
    ran = [Ran(partition) for item in entered for partition in item.subject.partitions() if partition.is_single]
    noting = [item.subject.around(_noting(item, lambda inner, args: inner(args))) for item in entered]
    noting += [item.subject.around(_noting(item, lambda inner, values: inner(*values))) for item in ran]
    with in_all(noting):
        result = call()
    return _most_expensive(entered), _most_expensive(ran), result


def _noting(item: Ran[Any], run: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
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
    """Return what `around` takes to run a partition otherwise."""
    return lambda _inner, values: run(*values)
