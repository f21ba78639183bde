"""Reductions against eager: NaN, infinity, nothing, no dimensions, integers that wrap; long ones are exact to the last digits."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils import _pytree as pytree

from ortlens import Lens
from ortlens.backend import planner
from ortlens.backend.operators.basics import LONG, LONG_IN_ROW, is_long
from tests.unit.backend.operators.one_graph import as_pytorch, extremes

REDUCTIONS: dict[str, Callable[..., Any]] = {
    name: getattr(torch, name) for name in ("sum", "prod", "amax", "amin", "any", "all", "argmax", "argmin")
}
OF_FLOATS = REDUCTIONS | {
    "mean": torch.mean,
    "var": torch.var,
    "std": torch.std,
    "logsumexp": lambda x, dim=(0, 1), **k: torch.logsumexp(x, dim, **k),
}


def forms(name: str, reduce: Callable[..., Any], *, nothing: bool) -> dict[str, Callable[..., Any]]:
    made: dict[str, Callable[..., Any]] = {
        f"{name} of all": reduce,
        f"{name} of rows": lambda x: reduce(x, dim=-1),
        f"{name} of columns, kept": lambda x: reduce(x, dim=0, keepdim=True),
        f"{name} of no rows": lambda x: reduce(x[:0], dim=-1),
    }
    if name != "prod":
        made[f"{name} of all, kept"] = lambda x: reduce(x, dim=None if name.startswith("arg") else (0, 1), keepdim=True)
    if name != "logsumexp":
        made[f"{name} of no dimension"] = lambda x: reduce(x[0, 0])
    if nothing:
        made[f"{name} of nothing"] = lambda x: reduce(x[:0], dim=0)
    return made


def all_forms(reductions: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    with_nothing = ("sum", "prod", "any", "all", "mean", "var", "std", "logsumexp")
    return {key: case for name, reduce in reductions.items() for key, case in forms(name, reduce, nothing=name in with_nothing).items()}


def numbers(dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    if dtype is torch.bool:
        return torch.rand(5, 6, generator=generator) > 0.4
    if not dtype.is_floating_point:
        edges = extremes(dtype)
        return edges[torch.randint(0, len(edges), (5, 6), generator=generator)]
    made = torch.randn(5, 6, generator=generator).to(dtype)
    made[1, 2], made[2, 2:4], made[3, 0] = math.nan, math.inf, -math.inf
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_of_floats(dtype: torch.dtype) -> None:
    as_pytorch(all_forms(OF_FLOATS), numbers(dtype), atol=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool], ids=str)
def test_of_integers(dtype: torch.dtype) -> None:
    cases = all_forms(REDUCTIONS)
    if dtype is torch.bool:
        cases = {name: case for name, case in cases.items() if not name.startswith("arg")}
    cases["sum of int32"] = lambda x: x.sum(dtype=torch.int32)
    cases["max"], cases["min"] = lambda x: x.max(dim=0)[0], lambda x: x.min(dim=0)[0]
    as_pytorch(cases, numbers(dtype), atol=0)


def test_gradients() -> None:
    # Without the cases of nothing, whose gradients are NaN: in a compiled function they meet the zeros of all other cases.
    cases = {name: case for name, case in all_forms(OF_FLOATS).items() if not name.startswith(("any", "all", "arg")) and "no" not in name}
    plain = torch.randn(5, 6, generator=torch.Generator().manual_seed(3))
    as_pytorch(cases, plain, grad=True, atol=1e-5)
    few = {name: case for name, case in cases.items() if "rows" in name}
    as_pytorch(few, plain, dynamic=True, grad=True, atol=1e-5)


def test_an_empty_slice_under_symbolic_sizes() -> None:
    compiled = torch.compile(lambda x: (x[2:].mean(), x[2:].sum(), x[2:].any(), x[2:].std()), backend="ortlens", dynamic=True)
    for size in (5, 4, 2):
        x = torch.arange(1.0, size + 1)
        expected = (x[2:].mean(), x[2:].sum(), x[2:].any(), x[2:].std() if size > 3 else torch.tensor(math.nan))
        torch.testing.assert_close(compiled(x), expected, equal_nan=True)


def test_norms() -> None:
    norm, cases = torch.linalg.vector_norm, dict[str, Any]()
    for order in (0, 1, 2, 3, 0.5, math.inf, -math.inf):
        cases |= {
            f"{order}, all": lambda x, n=order: norm(x, n),
            f"{order}, all, kept": lambda x, n=order: norm(x, n, keepdim=True),
            f"{order}, rows": lambda x, n=order: norm(x, n, dim=-1),
            f"{order}, both": lambda x, n=order: norm(x, n, dim=(0, 1), keepdim=True),
            f"{order}, number": lambda x, n=order: norm(x[0, 0], n),
            f"{order}, float64": lambda x, n=order: norm(x, n, dtype=torch.float64),
        }
    as_pytorch(cases, numbers(torch.float32), atol=0)


def test_corrections_that_leave_nothing() -> None:
    cases: dict[str, Any] = {
        f"{spread.__name__} less {correction}": lambda x, f=spread, c=correction: f(x[:1], dim=0, correction=c, keepdim=True)
        for spread in (torch.var, torch.std, torch.var_mean)
        for correction in (0, 1, 2)
    }
    as_pytorch(cases, torch.ones(3, 4), atol=0)


SPREADS: dict[str, Any] = {
    f"{spread.__name__} {dim} less {correction}": lambda x, f=spread, d=dim, c=correction: f(x, dim=d, correction=c, keepdim=not c)
    for spread in (torch.var, torch.std, torch.var_mean, torch.std_mean)
    for dim, correction in ((1, 1), (-1, 0), ((1, 2), 1))
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dynamic", [False, True])
def test_spreads_are_computed_in_float64(dtype: torch.dtype, *, dynamic: bool) -> None:
    x = torch.randn(30, 6, generator=torch.Generator().manual_seed(2))
    shapes = [torch.full_like(x, 0.1), x + 1e4, x * 1e-4]  # constant, or far from 0 beside their spread
    if dtype is torch.float32:
        shapes += [x.round() * 8 + 1e8, x * 1e20, x * 1e-25, torch.full_like(x, 3e38)]  # and beyond the squares that float32 holds
    as_pytorch(SPREADS, torch.stack(shapes).to(dtype), atol=0, dynamic=dynamic, stays=() if dtype is not torch.bfloat16 else None)


def test_the_spread_of_all_numbers_is_pytorchs() -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(2)) + 1e8  # of which PyTorch rounds the mean to float32
    spreads: dict[str, Any] = {"var": torch.var, "std": torch.std, "of one row": lambda x: x[None].std(1)}
    as_pytorch(spreads, x, atol=0, stays=("aten.var.correction", "aten.std.correction"))


def test_the_spread_of_a_constant_is_exactly_nothing() -> None:
    x = torch.full((100, 3), 0.1)
    for spread in (lambda x: x.std(0), lambda x: torch.var_mean(x, 0)[0]):
        torch.compiler.reset()
        assert torch.compile(spread, backend="ortlens")(x).tolist() == [0.0] * 3


NORMALIZED: dict[str, Any] = {
    "no columns": lambda x: functional.layer_norm(x[:, :0], (0,)),
    "no columns, weights": lambda x: functional.layer_norm(x[:, :0], (0,), x[0, :0], x[1, :0]),
    "no rows": lambda x: functional.layer_norm(x[:0], (3,), x[0], x[1]),
    "statistics": lambda x: torch.native_layer_norm(x[None, :, :0], (2, 0), None, None, 1e-5),
    "something": lambda x: functional.layer_norm(x, (3,), x[0], x[1]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_normalizations_of_nothing(dtype: torch.dtype) -> None:
    as_pytorch(NORMALIZED, torch.tensor([[1.0, 2.0, 4.0], [0.5, 3.0, -1.0]], dtype=dtype), atol=0, stays=())


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
def test_many_numbers_add_up_as_in_pytorch(monkeypatch: pytest.MonkeyPatch, *, dynamic: bool) -> None:
    monkeypatch.setattr(planner, "slower_in_parts", lambda *_: None)  # the norms would stay in PyTorch
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
