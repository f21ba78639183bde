"""Runs compiled code with one suspect replaced by PyTorch, to see whether a difference is still there."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend.graph import eager_graph
from ortlens.lens.verify.lockstep import NodeRaised, steps
from ortlens.lens.watching import wrapped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ortlens.backend.graph import CompiledGraph
    from ortlens.backend.runtime.runner import PartitionRunner


def with_pytorchs_numbers(runner: PartitionRunner, args: Sequence[Any], outputs: Sequence[Any]) -> tuple[Any, ...]:
    """Put PyTorch's values into the memory of the outputs that ONNX Runtime returned; what PyTorch raises is raised."""
    wanted = {node.name: place for place, node in enumerate(runner.partition.outputs)}
    made = list(outputs)
    try:
        with torch.no_grad():
            for step in steps(runner.partition.module, args, double=False):
                place = wanted.get(step.node.name)
                if place is not None:
                    made[place] = _overwritten(made[place], step.eager)
    except NodeRaised as raised:
        raise raised.error from None  # as the partition would in PyTorch
    return tuple(made)


def _overwritten(output: Any, value: Any) -> Any:
    if not isinstance(output, torch.Tensor) or not isinstance(value, torch.Tensor):
        return value
    if output.shape != value.shape or output.dtype is not value.dtype:
        return value
    return output.copy_(value)


@contextlib.contextmanager
def lowered_by_pytorch(graphs: Iterable[CompiledGraph]) -> Iterator[None]:
    """Let PyTorch run whole graphs as they were lowered; those that have not run yet stay as they are."""
    with contextlib.ExitStack() as stack:
        for graph in graphs:
            if graph.is_prepared:
                stack.enter_context(wrapped(graph, functools.partial(_instead, eager_graph(graph.lowered.module))))
        yield


def _instead(run: Any, _present: Any) -> Any:
    return run
