"""Pools with windows of different sizes, and gradients of pools, against eager."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from tests.unit.backend.conversion.functions.one_graph import differing, left

_aten = torch.ops.aten
X = torch.sin(torch.arange(2 * 3 * 6 * 7 * 9.0)).reshape(2, 3, 6, 7, 9)
POOLS = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
ADAPTIVE: dict[str, Any] = {
    "average to 4": lambda x: F.adaptive_avg_pool1d(x[0, 0], 4),
    "average to (3, 5)": lambda x: F.adaptive_avg_pool2d(x[0], (3, 5)),
    "average to (None, 11)": lambda x: F.adaptive_avg_pool2d(x[0], (None, 11)),
    "average to (4, 3, 2)": lambda x: F.adaptive_avg_pool3d(x, (4, 3, 2)),
    "average to (3, 7, 3)": lambda x: F.adaptive_avg_pool3d(x, (3, 7, 3)),
    "average of one": lambda x: F.adaptive_avg_pool3d(x[0], (4, 3, 2)) + F.adaptive_avg_pool3d(x[0], 2)[0, 0, 0, 0],
    "area": lambda x: F.interpolate(x[0], size=(4, 4), mode="area"),
    "largest to 4": lambda x: F.adaptive_max_pool1d(x[0, 0], 4, return_indices=True),
    "largest to (3, 5)": lambda x: F.adaptive_max_pool2d(x[0], (3, 5), return_indices=True),
    "largest to (11, None)": lambda x: F.adaptive_max_pool2d(x[0, 0], (11, 9), return_indices=True),
    "largest to (4, 3, 2)": lambda x: F.adaptive_max_pool3d(x, (4, 3, 2), return_indices=True),
    "largest to (3, 7, 3)": lambda x: F.adaptive_max_pool3d(x, (3, 7, 3), return_indices=True),
    "largest to (2, 2, 2), values": lambda x: F.adaptive_max_pool3d(x, 2),
    "largest to (3, 2), values": lambda x: F.adaptive_max_pool2d(x[0], (3, 2)),
    "largest to 2, values": lambda x: F.adaptive_max_pool1d(x[0, 0], 2),
}


def average_cases() -> dict[str, Any]:
    made: dict[str, Any] = {}
    for dims, (size, step, pad) in itertools.product((1, 2, 3), ((2, 2, 0), (2, 2, 1), (3, 2, 1), (2, 3, 0), (3, 1, 0), (3, 1, 1))):
        for ceil, whole in itertools.product((False, True), (False, True)):
            name = f"{dims} dimensions, size {size}, step {step}, padding {pad}, ceil {ceil}, {whole}"
            made[name] = lambda x, d=dims, a=(size, step, pad, ceil, whole): POOLS[d - 1](x[(0,) * (3 - d)], *a)
    made["given divisor"] = lambda x: F.avg_pool2d(x[0], 3, 2, 1, divisor_override=5)
    made["no batch"] = lambda x: F.avg_pool2d(x[0, 0], (2, 3)) + F.adaptive_avg_pool2d(x[0, 0], (1, 3))
    made["adaptive"] = lambda x: F.adaptive_avg_pool3d(x, (3, 7, 3)).sum() + F.adaptive_avg_pool2d(x[0], (7, 3))
    return made


def test_windows_of_different_sizes() -> None:
    found, capture = differing(ADAPTIVE, X)
    assert found == {}
    targets = {row.target for row in capture.fallbacks}
    assert targets == {"aten.adaptive_max_pool2d.default", "aten.adaptive_max_pool3d.default"}  # whose indices are read
    assert not left(differing({name: case for name, case in ADAPTIVE.items() if "largest to" not in name or "values" in name}, X)[1])


@pytest.mark.parametrize("size", [1, 2, 4])
def test_adaptive_pools_refuse_integers_as_pytorch_does(size: int) -> None:
    images = torch.arange(2 * 6 * 6 * 6).reshape(2, 6, 6, 6)
    for dims, (pool, name) in itertools.product((1, 2, 3), ((F.adaptive_max_pool1d, "max"), (F.adaptive_avg_pool1d, "avg"))):
        function = getattr(F, pool.__name__.replace("1d", f"{dims}d"))
        given = images[(0,) * (3 - dims)]
        try:
            wanted = function(given, size)
        except (RuntimeError, NotImplementedError) as error:
            with pytest.raises(type(error)):
                torch.compile(function, backend="ortlens")(given, size)
        else:
            assert torch.equal(torch.compile(function, backend="ortlens")(given, size), wanted), (name, dims)


def test_gradients_of_windows_of_different_sizes() -> None:
    assert differing(ADAPTIVE, X, grad=True)[0] == {}


@pytest.mark.slow
def test_sizes_that_are_known_at_run_time_only() -> None:
    assert differing(ADAPTIVE, X, dynamic=True)[0] == {}


@pytest.mark.parametrize("extreme", [math.nan, math.inf, -math.inf])
def test_extreme_values_stay_in_their_windows(extreme: float) -> None:
    x = X.clone()
    x[:, :, ::2, ::3, ::4] = extreme
    x[0, 0] = extreme
    assert differing(ADAPTIVE, x)[0] == {}


@pytest.mark.slow
def test_gradients_of_average_pools() -> None:
    found, capture = differing(average_cases(), X, grad=True)
    assert found == {}
    assert not [row for row in capture.fallbacks if "backward" in row.target]


@pytest.mark.parametrize("extreme", [math.nan, math.inf])
def test_extreme_gradients_stay_in_their_windows(extreme: float) -> None:
    grad, x = torch.ones(1, 2, 3, 3), torch.zeros(1, 2, 6, 6)
    grad[0, 0, 1, 1] = extreme
    cases: dict[str, Any] = {
        "average": lambda g, x: _aten.avg_pool2d_backward(g, x, [3, 3], [2, 2], [1, 1], False, True, None),  # noqa: FBT003 - the schema
        "adaptive": _aten._adaptive_avg_pool2d_backward,
    }
    found, capture = differing(cases, grad, x)
    assert found == {}
    assert not left(capture)


def test_gradients_of_float64() -> None:
    few = {name: case for place, (name, case) in enumerate(average_cases().items()) if place % 5 == 0}
    assert differing(few, X.double(), grad=True)[0] == {}


def test_gradients_of_pools_of_nothing() -> None:
    cases = {"average": lambda x: F.avg_pool2d(x, 2), "adaptive": lambda x: F.adaptive_avg_pool2d(x, 2)}
    assert differing(cases, torch.zeros(0, 3, 4, 4), grad=True)[0] == {}


@pytest.mark.parametrize("dynamic", [False, True])
def test_pools_to_nothing(*, dynamic: bool) -> None:
    cases = {"lines": lambda x: F.adaptive_avg_pool1d(x[0, 0], 0), "images": lambda x: F.adaptive_avg_pool2d(x[0], (3, 0))}
    found, capture = differing(cases, X, dynamic=dynamic)
    assert found == {}
    assert not capture.findings
