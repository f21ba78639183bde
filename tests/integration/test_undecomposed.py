"""Operators whose decompositions in torch's table differ from their kernels stay in PyTorch, and give its results."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Callable

X = torch.arange(1.0, 17.0).reshape(4, 4)


def diagonal_written(x: torch.Tensor) -> torch.Tensor:
    x = x @ x.T
    x.diagonal().add_(0.1)
    x.diagonal(1).zero_()
    return x


RANDOM: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exponential": lambda x: x.clone().exponential_() + 1,
    "uniform, twice": lambda x: x.clone().uniform_().uniform_(-1, 3) + 1,
    "all after another": lambda x: x.clone().normal_().uniform_().normal_().exponential_().uniform_().bernoulli_(0.3).uniform_() + 1,
    "gumbel_softmax": torch.nn.functional.gumbel_softmax,
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_and_the_state_after_them_are_pytorchs(name: str) -> None:
    torch.manual_seed(0)
    expected = RANDOM[name](X)
    state = torch.get_rng_state()
    torch.manual_seed(0)
    torch.testing.assert_close(torch.compile(RANDOM[name], backend="ortlens")(X), expected)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("function", [diagonal_written, lambda x: x.cumprod(0) + 1], ids=["diagonal", "cumprod"])
def test_the_others_give_pytorchs_result(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(torch.compile(function, backend="ortlens")(X), function(X))
