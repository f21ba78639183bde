"""Judge the decompositions of the backend by themselves: `python -m tests.opinfo.decomposition_table [NAME ...]`.

Each operator of the database is lowered with the backend's table and run by PyTorch, in inference and in training. What differs from
eager, leaves the random generator in another state, or computes a value that is much larger than all inputs and outputs is printed.
"""

from __future__ import annotations

import math
import sys
import warnings
from typing import TYPE_CHECKING, Any

import torch

from ortlens import _torch
from ortlens.backend.compiler import GraphCompiler
from ortlens.backend.options import OrtBackendOptions
from tests.opinfo import sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_SAMPLES = 3
_LARGER = 4.0
"""A value this many times as large as the largest input or output is worth a look: samples are small, so that n * n is 5 to 20 times n."""


class Undivided:
    """A backend that lowers a graph with a table and lets PyTorch run what comes out.

    Attributes:
        growth: The size of the largest value of a graph over that of its largest input or output.
    """

    def __init__(self, decompositions: Mapping[Any, Callable[..., Any]]) -> None:
        """Lower with this table."""
        self.growth = 0.0
        self._decompositions = decompositions

    def __call__(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile a graph of Dynamo."""
        lower = _torch.aot_backend(forward=self._run, backward=self._run, inference=self._run, decompositions=self._decompositions)
        compiled: Callable[..., Any] = lower(module, inputs)
        return compiled

    def _run(self, module: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Callable[[list[Any]], list[Any]]:
        (output,) = module.graph.find_nodes(op="output")
        ends = {*module.graph.find_nodes(op="placeholder"), *output.all_input_nodes}
        sizes = {node: max((value.numel() for value in _torch.tensors_of(node.meta.get("val"))), default=0) for node in module.graph.nodes}
        largest = max((size for node, size in sizes.items() if node in ends), default=0)
        self.growth = max(self.growth, max(sizes.values()) / max(largest, 16))

        def run(args: list[Any]) -> list[Any]:
            given = list(args)
            args.clear()
            return list(module(*given))

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


def complaints(name: str, table: Mapping[Any, Callable[..., Any]]) -> Iterator[str]:
    """What the decompositions of one operator do wrong."""
    op = sweep.operators()[name]
    for road in ("static", "backward"):
        if torch.float32 not in op.supported_dtypes("cpu") or (road == "backward" and not op.supports_autograd):
            continue
        for number, sample in sweep.samples(op, torch.float32, _SAMPLES, grad=road == "backward"):
            torch.compiler.reset()
            backend = Undivided(table)
            blank = sweep.Outcome(operator=name, dtype="float32", road=road, sample=number, verdict="")
            outcome = sweep.outcome_with(backend, op, sample, blank)
            if outcome.verdict in ("wrong", "crash"):
                yield f"{road} {number}: {outcome.verdict} {outcome.detail}"
            if backend.growth > _LARGER and math.isfinite(backend.growth):
                yield f"{road} {number}: a value of {backend.growth:.1f} times the size of all inputs and outputs"


def main(names: Sequence[str]) -> int:
    """Print the complaints about some operators, or about all; 1 when there are any."""
    warnings.simplefilter("ignore")
    table, found = GraphCompiler(OrtBackendOptions()).tables()[1], 0
    for name in names or sweep.operators():
        for complaint in complaints(name, table):
            found += 1
            print(name, complaint, flush=True)  # noqa: T201 - the findings
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
