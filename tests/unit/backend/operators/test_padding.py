"""Padding by edges, reflections and numbers, also by negative amounts."""

import functools
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from tests.unit.backend.operators.one_graph import as_pytorch

X = torch.linspace(-1, 1, 2 * 3 * 5 * 6 * 4).reshape(2, 3, 5, 6, 4)
AMOUNTS = ((2, 1), (-1, 2), (3, -3), (2, 1, 1, 2), (-1, -1, 1, -1), (0, 2, -2, 2), (1, 1, 2, 0, 1, 2), (1, -1, 0, 2, -3, 1))
CASES: dict[str, Any] = {
    f"{mode} {amounts}": lambda x, mode=mode, amounts=amounts: F.pad(x[(0,) * (3 - len(amounts) // 2)], amounts, mode)
    for mode in ("constant", "reflect", "replicate", "circular")
    for amounts in AMOUNTS
    if (mode, amounts) != ("circular", (3, -3))  # PyTorch repeats memory that nobody has written
}


@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_as_pytorch(*, dynamic: bool) -> None:
    as_pytorch(CASES, X, dynamic=dynamic, stays=())


def test_gradients_and_more_is_removed_than_there_is() -> None:
    """The elements that replication repeats are those that are removed on the other side."""
    few = {name: case for place, (name, case) in enumerate(CASES.items()) if place % 3 == 0}
    as_pytorch(few, X, grad=True)
    as_pytorch({"replicate": functools.partial(F.pad, pad=(-4, 5, 0, 0), mode="replicate")}, torch.rand(5, 3, 4, 4))


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
@torch.no_grad()
def test_amounts_that_change(mode: str) -> None:
    def padded(x: torch.Tensor, n: int) -> list[torch.Tensor]:
        return [F.pad(x[(0,) * (3 - len(pad) // 2)], pad, mode) for pad in ((n, -1), (-1, n, n, 0), (n, n, -1, n, n, -2))]

    compiled = torch.compile(padded, backend="ortlens")
    for n in (1, 2, 3, -1, -2, 0):  # what is left of four elements may be less than what is repeated
        torch.testing.assert_close(compiled(X, n), padded(X, n), rtol=0, atol=0)


@torch.no_grad()
def test_no_more_is_cut_off_than_there_is() -> None:
    compiled = torch.compile(lambda x, n: F.pad(x, (n, -n)) + 1, backend="ortlens")
    for n in (1, 2, 4):
        torch.testing.assert_close(compiled(X, n), F.pad(X, (n, -n)) + 1)
    with pytest.raises(RuntimeError, match="length must be non-negative"):
        compiled(X, 5)
