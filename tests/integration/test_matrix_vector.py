"""Products of a matrix and a vector are PyTorch's, forward and backward, also where the matrix is transposed."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Callable

PRODUCTS: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]] = {
    "W @ v": (lambda w, v: w @ v, ((7, 5), (5,))),
    "W.t() @ v": (lambda w, v: w.t() @ v, ((5, 7), (5,))),
    "v @ W": (lambda w, v: v @ w, ((5, 7), (5,))),
    "mv": (lambda w, v: torch.mv(w.t(), v), ((5, 5), (5,))),
    "addmv": (lambda x, w, v: torch.addmv(x, w.t(), v, beta=0.5, alpha=2), ((7,), (5, 7), (5,))),
    "addr": (torch.addr, ((5, 7), (5,), (7,))),
    "a @ B": (lambda a, b: a @ b, ((10,), (5, 10, 5))),
    "B.mT @ a": (lambda a, b: b.mT @ a, ((10,), (5, 10, 5))),
}


SYMBOLIC = ("W.t() @ v", "addmv", "addr", "B.mT @ a")


@pytest.mark.parametrize(("name", "dynamic"), [*((name, False) for name in PRODUCTS), *((name, True) for name in SYMBOLIC)])
def test_products_and_their_gradients_match(*, name: str, dynamic: bool) -> None:
    function, shapes = PRODUCTS[name]
    expected_args, args = (
        [torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape).requires_grad_() for shape in shapes] for _ in "ab"
    )
    compiled = torch.compile(function, backend="ortlens", dynamic=dynamic)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected, result = function(*expected_args), compiled(*args)
        weight = torch.linspace(-2, 3, expected.numel()).reshape(expected.shape)
        expected.backward(weight)
        result.backward(weight)
    torch.testing.assert_close(result, expected)
    for mine, theirs in zip(args, expected_args, strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_beta_zero_ignores_nan() -> None:
    args = torch.full((7,), float("nan")), torch.rand(7, 5), torch.rand(5)
    compiled = torch.compile(lambda x, w, v: torch.addmv(x, w, v, beta=0), backend="ortlens")
    torch.testing.assert_close(compiled(*args), torch.addmv(*args, beta=0))
