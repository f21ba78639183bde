"""Values that a graph computes more than once: one node computes them, and nothing that a program can tell apart becomes one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ortlens import Lens

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


def repeated(x: torch.Tensor) -> torch.Tensor:
    first = (x.t() * 2.0).sin()
    return first @ (x.t() * 2.0).sin().t()


def of_tuples(x: torch.Tensor) -> torch.Tensor:
    return x.sort(1)[0] * x.sort(1)[1] + x.sort(1)[0]


def returned(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.sin(), x.sin(), x.cos().t(), x.cos().t()


def returned_and_read(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.sin(), x.sin() + 1


def other_numbers(x: torch.Tensor) -> torch.Tensor:
    whole = (x * 4).long()
    return (whole + 1).float() + (whole + 1.0) + (whole + True).float() + x.copysign(0.0) + x.copysign(-0.0)


def written_between(x: torch.Tensor) -> torch.Tensor:
    before = x.sin()
    x.mul_(2)
    return before - x.sin()


def compiled(function: Callable[..., Any], *args: torch.Tensor | list[torch.Tensor]) -> tuple[Any, list[str]]:
    """The result, and the operators of the graph."""
    lens = Lens()
    with torch.no_grad():
        made = torch.compile(function, backend=lens)(*args)
    return made, [node.target.split(".")[1] for node in lens.captured().nodes]


@pytest.mark.parametrize(
    ("function", "counts"),
    [
        (repeated, {"sin": 1, "mul": 1}),
        (of_tuples, {"sort": 1}),
        (returned, {"sin": 2, "cos": 2}),
        (returned_and_read, {"sin": 2}),
        (other_numbers, {"copysign": 2}),
        (written_between, {"sin": 2}),
    ],
)
def test_equal_values_are_computed_once_and_separate_ones_are_not(function: Callable[..., Any], counts: dict[str, int]) -> None:
    made, targets = compiled(function, X.clone())
    torch.testing.assert_close(made, function(X.clone()))
    assert {target: targets.count(target) for target in counts} == counts
    if isinstance(made, tuple):
        assert len({value.untyped_storage().data_ptr() for value in made}) == len(made)


def test_a_position_of_many_layers_is_checked_once() -> None:
    def layers(caches: list[torch.Tensor], at: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        for cache in caches:
            cache.index_copy_(1, at, new)
        return new + 1

    ours, theirs = ([torch.zeros(2, 8, 3) for _ in range(4)] for _ in range(2))
    at, new = torch.tensor([5]), torch.randn(2, 1, 3)
    _, targets = compiled(layers, ours, at, new)
    layers(theirs, at, new)
    torch.testing.assert_close(ours, theirs)
    assert targets.count("where") == 1
