"""Puts a function around the calls of a graph or the runs of a partition, for as long as a context lasts.

The compiled code stays as it is: only the attribute `run`, which every call looks up, is replaced and put back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ortlens.backend.graph import CompiledGraph
    from ortlens.backend.runtime.runner import PartitionRunner

PartitionRun: TypeAlias = Callable[..., tuple[Any, ...]]
GraphCall: TypeAlias = Callable[[list[Any]], list[Any]]


@contextlib.contextmanager
def wrapped(subject: PartitionRunner | CompiledGraph, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Replace the function that a graph or partition runs, as long as the context lasts.

    When the subject replaces it meanwhile, because a weight changed or a run failed, that one stays: correct results come first.
    """
    inner = subject.run
    outer = wrap(inner)
    subject.run = outer
    try:
        yield
    finally:
        if subject.run is outer:
            subject.run = inner


def around_runs(
    runner: PartitionRunner, around: Callable[[PartitionRun, tuple[Any, ...]], tuple[Any, ...]]
) -> contextlib.AbstractContextManager[None]:
    """Pass every run of a partition through `around`, which takes the function that runs it, and its inputs."""

    def wrap(inner: PartitionRun) -> PartitionRun:
        return lambda *args: around(inner, args)

    return wrapped(runner, wrap)


def around_calls(graph: CompiledGraph, around: Callable[[GraphCall, list[Any]], list[Any]]) -> contextlib.AbstractContextManager[None]:
    """Pass every call of a graph through `around`; prepare it first, for its first call replaces `run`.

    `around` takes the function that runs the graph, and the list of its inputs, which it empties; it returns the outputs.
    """

    def wrap(inner: GraphCall) -> GraphCall:
        return lambda args: around(inner, args)

    return wrapped(graph, wrap)
