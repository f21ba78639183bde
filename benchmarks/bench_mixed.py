"""A graph of which a part stays in PyTorch: the whole against the sum of its parts, each run alone.

Two stacks of Linear layers with an operator between them that ONNX Runtime does not take, and that is real work: a
product of matrices behind a custom operator, and a factorisation. Alone, each stack is compiled for itself and the
operator is called in PyTorch. What the whole costs beyond the sum is the price of going back and forth: threads of
one library that are in the way of the other's, copies at the boundary, Python between the parts.

Usage: python benchmarks/bench_mixed.py [--threads 2] [--quick] [--json FILE]
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import torch
from measure import Row, Table, Turns, called_with, isolated, parser_for, report, start, take_turns

import ortlens

if TYPE_CHECKING:
    from collections.abc import Callable

_GOAL = 1.10
_TOLERANCE = 1e-4


@torch.library.custom_op("ortlens_bench::gram", mutates_args=())
def gram(x: torch.Tensor) -> torch.Tensor:
    """The product of a square matrix and its transpose, scaled: an operator that ONNX has no name for."""
    return (x @ x.T) / x.shape[0]


@gram.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def inverse(x: torch.Tensor) -> torch.Tensor:
    """The inverse of a matrix that has one."""
    found: torch.Tensor = torch.linalg.inv_ex(x).inverse
    return found


class Dominant(torch.nn.Module):
    """Adds so much to the diagonal of a square matrix that its inverse is well defined."""

    def __init__(self, size: int) -> None:
        """Make the diagonal for a square matrix of `size`."""
        super().__init__()
        self.diagonal = torch.nn.Buffer(8 * torch.eye(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum."""
        return x + self.diagonal


class Mixed(torch.nn.Module):
    """Two stacks of Linear layers with an operator between them."""

    def __init__(self, size: int, layers: int, between: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Make the stacks, each of square layers of `size`."""
        super().__init__()
        self.before, self.after = torch.nn.Sequential(_stack(size, layers), Dominant(size)), _stack(size, layers)
        self.between = between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One after the other."""
        result: torch.Tensor = self.after(self.between(self.before(x)))
        return result


def _stack(size: int, layers: int) -> torch.nn.Sequential:
    return torch.nn.Sequential(*(module for _ in range(layers) for module in (torch.nn.Linear(size, size), torch.nn.ReLU())))


def checked(model: Mixed, x: torch.Tensor) -> None:
    """See that the graph is what it is meant to be: two partitions around one fallback, and the numbers of eager."""
    lens = ortlens.Lens()
    torch.testing.assert_close(isolated(model, lens)(x), model(x), atol=_TOLERANCE, rtol=_TOLERANCE)
    assert (len(lens.graphs), len(lens.partitions), len(lens.fallbacks)) == (1, 2, 1), lens.summary()


def measured(model: Mixed, x: torch.Tensor, *, quick: bool) -> Turns:
    """Time the whole, its parts, and eager."""
    middle = model.before(x)
    last = model.between(middle)
    whole, before, after = (isolated(part, "ortlens") for part in (model, model.before, model.after))
    ways = {
        **called_with({"whole": whole, "before": before, "eager": model}, x),
        **called_with({"between": model.between}, middle),
        **called_with({"after": after}, last),
    }
    for call in ways.values():
        call()
    return take_turns(ways, quick=quick)


def row_of(name: str, turns: Turns) -> Row:
    """The whole to the sum of its parts."""
    us = turns.us
    parts = ("before", "between", "after")
    ratios = [whole / sum(us[part][turn] for part in parts) for turn, whole in enumerate(us["whole"])]
    detail = {f"us {way}": turns.median(way) for way in ("whole", *parts, "eager")}
    return Row(name=name, value=statistics.median(ratios), goal=_GOAL, detail=detail)


def main() -> None:
    """Run and print."""
    options = parser_for(__doc__, threads=2).parse_args()
    start(options)
    size, layers = (64, 1) if options.quick else (512, 3)
    x, rows = torch.randn(size, size), []
    with torch.no_grad():
        for name, between in (("custom operator, a product of matrices", gram), ("linalg.inv_ex, a factorisation", inverse)):
            torch.compiler.reset()
            model = Mixed(size, layers, between).eval()
            checked(model, x)
            rows.append(row_of(name, measured(model, x, quick=options.quick)))
    report("Mixed graphs", [Table(title="Two partitions and a fallback: the whole to the sum of its parts", rows=rows)], options)


if __name__ == "__main__":
    main()
