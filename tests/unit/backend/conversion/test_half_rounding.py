"""float16 between operators that jump: what they read is rounded as in PyTorch."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest
import torch

import ortlens

if TYPE_CHECKING:
    from collections.abc import Callable

JUMPING: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "equal": lambda a, b: (a + b) == (a + b).clone().max(),
    "less": lambda a, b: (a + b) < a,
    "floor": lambda a, b: torch.floor(a * b),
    "int": lambda a, b: (a * b).to(torch.int64),
    "bool": lambda a, b: (a * b * 2.0**-14).bool(),
    "infinite": lambda a, b: torch.isinf(a * b * 40),
    "argmax": lambda a, b: (a + b).argmax(1),
    "reshaped": lambda a, b: torch.where(a > 0, a + b, b).reshape(-1) == (a + b).reshape(-1),
    "in float32": lambda a, b: (a + b).float() == (a + b).float().max(),
}


@pytest.mark.parametrize("name", JUMPING)
def test_what_jumps_reads_rounded_numbers(name: str) -> None:
    function = JUMPING[name]
    torch.manual_seed(0)
    a, b = (torch.randn(64, 33) * 40).half(), torch.randn(64, 33).half()
    lens = ortlens.Lens()
    assert torch.equal(torch.compile(function, backend=lens)(a, b), function(a, b))
    assert lens.fallbacks.empty


def test_gradients_find_the_largest_element() -> None:
    def largest(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.stack([(a + b).max(), (a + b).min(), torch.amax(a + 1), torch.amin(b + 1)])

    def gradients(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        leaves = [torch.randn(8, 8).half().requires_grad_() for _ in range(2)]
        return list(torch.autograd.grad(function(*leaves).float().sum(), leaves))

    for made, expected in zip(gradients(torch.compile(largest, backend="ortlens")), gradients(largest), strict=True):
        assert torch.equal(made, expected)


def test_sums_that_were_made_in_float32_are_rounded_behind_the_cast() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 33).half().requires_grad_()
    function = functools.partial(torch.linalg.matrix_norm, ord=float("inf"))  # of rows whose sums are float32 inside
    expected = torch.autograd.grad(function(x), x)
    assert torch.equal(*torch.autograd.grad(torch.compile(function, backend="ortlens")(x), x), *expected)


def test_float32_has_no_further_operators() -> None:
    lens = ortlens.Lens()
    torch.compile(lambda a: torch.floor(a + 1), backend=lens)(torch.ones(3))
    assert {name for row in lens.nodes.onnx_ops for name in row} <= {"Add", "Floor"}
