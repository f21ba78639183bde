"""The functions for operators that only change shapes: one constant for known sizes, and PyTorch's answers."""

from __future__ import annotations

import collections
import functools
import itertools
from typing import TYPE_CHECKING, Any

import pytest
import torch

import ortlens
from tests.unit.backend.conversion.functions.one_graph import differing

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx_ir as ir

X = torch.arange(48.0).reshape(4, 12)

CASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "view": lambda x: x.view(-1, 3, 4) + 1,
    "view_of_nothing": lambda x: x[:, :0].view(0, 7) + 1,
    "view_of_no_dimensions": lambda x: x[:1, :1].reshape(()) + 1,
    "expand": lambda x: x[None].expand(3, -1, -1) + 1,
    "slice_open": lambda x: x[1:] + 1,
    "slice_negative": lambda x: x[:, -5:-1] + 1,
    "slice_step": lambda x: x[:, 1:11:3] + 1,
    "slice_beyond": lambda x: x[:, 3:1000] + 1,
    "slice_empty": lambda x: x[3:1] + 1,
    "cat_of_nothing": lambda x: torch.cat([x[:0].view(-1), x[:, :0].reshape(-1)], -1) + 1,
    "cat_beside_nothing": lambda x: torch.cat([x[0, :0] * 2, x * 2], 1),
    "diagonal_beside_infinity": lambda x: torch.where(x % 5 == 0, x, torch.inf).diagonal() + 1,
    "sizes_of_inputs": lambda x: x[: x.shape[1] - 10].reshape(x.shape[1] - 10, 2, -1).expand(2, x.shape[1] - 10, 2, 6) + x.shape[0],
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_as_pytorch(name: str, dynamic: bool) -> None:  # noqa: FBT001
    lens = ortlens.Lens()
    fast = torch.compile(CASES[name], backend=lens, dynamic=dynamic)
    for x in (X, torch.rand(5, 12)):
        torch.testing.assert_close(fast(x), CASES[name](x))
    assert lens.fallbacks.empty
    assert (lens.graphs.coverage.dropna() == 1).all()


@pytest.mark.parametrize("function", [lambda x: x.flip(0), lambda x: x.flip(-1), lambda x: torch.nn.functional.pad(x, ())])
def test_without_dimensions(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    fast = torch.compile(function, backend="ortlens", options={"on_error": "raise"})
    torch.testing.assert_close(fast(torch.tensor(2.5)), torch.tensor(2.5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16, torch.bool])
def test_every_diagonal(dtype: torch.dtype) -> None:
    x = torch.rand(3, 5, 2).mul(9).to(dtype)
    cases = {
        f"{offset} {dims}": functools.partial(torch.diagonal, offset=offset, dim1=dims[0], dim2=dims[1])
        for offset in range(-5, 6)
        for dims in itertools.permutations((0, 1, -1), 2)
    }
    found, capture = differing({name: lambda x, case=case: case(x).flip(-1) for name, case in cases.items()}, x)
    assert found == {}
    assert not capture.fallbacks


def test_known_sizes_are_one_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def counted(model: ir.Model) -> ir.Model:
        made.append(collections.Counter(node.op_type for node in model.graph))
        return model

    monkeypatch.setattr("ortlens.backend.models.optimize_model", counted)
    torch.compile(lambda x: x.view(2, 2, 3, 4).expand(2, 2, 3, 4)[1:] + 1, backend=ortlens.Lens())(X)
    assert made[0]["Constant"] <= 7  # sizes of two shapes, four bounds of a slice, and the number
    assert not made[0]["Concat"]
