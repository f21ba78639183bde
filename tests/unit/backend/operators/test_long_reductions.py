"""Long reductions: exact to the last digits, in ONNX Runtime, and with usual sizes as they were."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils import _pytree as pytree

from ortlens import Lens
from ortlens.backend.operators.basics import LONG, LONG_IN_ROW, is_long
from tests.unit.backend.operators.one_graph import as_pytorch

COUNT = 1 << 20
CASES: dict[str, Any] = {
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(),
    "sum of columns": lambda x: x.reshape(-1, 4).sum(0),
    "mean of a map": lambda x: x.reshape(1, 4, 512, 512).mean((2, 3)),
    "std": lambda x: x.reshape(2, -1).std(1),
    "var_mean": lambda x: torch.var_mean(x.reshape(512, -1), 0),
    "cumsum": lambda x: x.cumsum(0)[-1],
    "norm 1": lambda x: torch.linalg.vector_norm(x, 1),
    "norm 3": lambda x: torch.linalg.vector_norm(x, 3),
    "group_norm": lambda x: functional.group_norm(x.reshape(1, 4, 512, 512), 2, x[:4], x[:4]),
    "instance_norm": lambda x: functional.instance_norm(x.reshape(1, 4, 512, 512)),
    "layer_norm": lambda x: functional.layer_norm(x.reshape(2, -1), (COUNT // 2,)),
    "half": lambda x: x.half().mean(),
}


@pytest.mark.parametrize("dynamic", [False, True])
def test_many_numbers_add_up_as_in_pytorch(*, dynamic: bool) -> None:
    # Equal numbers are the worst case: each rounding goes the same way.
    x = torch.where(torch.arange(COUNT) % 97 == 0, torch.tensor(101.7), torch.tensor(100.1))
    lens = Lens()
    compiled = torch.compile(lambda x: {name: case(x) for name, case in CASES.items()}, backend=lens, dynamic=dynamic)
    got = compiled(x)
    exact = {name: case(x.double()) for name, case in CASES.items() if name != "half"}
    exact["half"] = x.half().double().mean()
    for name, wanted in exact.items():
        for ours, theirs in zip(pytree.tree_leaves(got[name]), pytree.tree_leaves(wanted), strict=True):
            tolerance = 1e-3 if name == "half" or name.endswith("_norm") else 3e-5
            torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=tolerance, msg=name)
    captured = lens.captured()
    assert not captured.fallbacks
    assert not captured.findings


def test_usual_sizes_are_left_alone() -> None:
    assert not is_long(torch.empty(8, 512, 768), [2])
    assert not is_long(torch.empty(8, 64, 56, 56), [2, 3])
    assert not is_long(torch.empty(LONG, 4), [0])
    assert is_long(torch.empty(LONG + 1, 4), [0])
    assert is_long(torch.empty(2, LONG_IN_ROW + 1), [1])
    assert not is_long(torch.empty(2, LONG_IN_ROW + 1, dtype=torch.float64), [1])


def test_a_symbolic_size_that_becomes_long_makes_a_new_graph() -> None:
    compiled = torch.compile(lambda x: x.sum(0), backend="ortlens", dynamic=True)
    for size in (100, 200, COUNT // 4):
        x = torch.full((size, 4), 100.1)
        torch.testing.assert_close(compiled(x), x.double().sum(0).float(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (2, 3)])
def test_nothing_is_left_to_divide_by(shape: tuple[int, int]) -> None:
    spreads: dict[str, Any] = {"var": torch.var, "var_mean": lambda x: torch.var_mean(x)[0], "std": lambda x: x.std(correction=7)}
    as_pytorch(spreads | {"both": lambda x: x.var((0, 1), correction=6.5)}, torch.rand(shape), dynamic=True)
