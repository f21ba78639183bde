"""Pools: how many windows there are, what they average, and where the largest value is."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from ortlens.backend.conversion.functions.pooling import rounds_down
from tests.unit.backend.conversion.functions.one_graph import differing, left

X = torch.sin(torch.arange(2 * 3 * 6 * 7 * 9.0)).reshape(2, 3, 6, 7, 9)
AVERAGE, LARGEST = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d), (F.max_pool1d, F.max_pool2d, F.max_pool3d)


def cases() -> dict[str, Any]:
    made: dict[str, Any] = {}
    for dims, (size, step, pad) in itertools.product((1, 2, 3), ((2, 2, 1), (3, 2, 1), (2, 3, 0), (3, 1, 0))):
        for ceil, whole in itertools.product((False, True), (False, True)):
            name = f"{dims} dimensions, size {size}, step {step}, padding {pad}, ceil {ceil}, {whole}"
            made[f"average, {name}"] = lambda x, d=dims, a=(size, step, pad, ceil, whole): AVERAGE[d - 1](x[(0,) * (3 - d)], *a)
        for ceil, gap in itertools.product((False, True), (1, 2)):
            name = f"{dims} dimensions, size {size}, step {step}, padding {pad}, gap {gap}, ceil {ceil}"
            made[f"largest, {name}"] = lambda x, d=dims, a=(size, step, pad, gap, ceil, True): LARGEST[d - 1](x[(0,) * (3 - d)], *a)
    for dims in (1, 2, 3):
        made[f"largest, {dims} dimensions, lists of one"] = lambda x, d=dims: LARGEST[d - 1](x[(0,) * (3 - d)], [2], [2], [1], [1])
        made[f"average, {dims} dimensions, lists of one"] = lambda x, d=dims: AVERAGE[d - 1](x[(0,) * (3 - d)], [2], [2], [1])
    made["average, given divisor"] = lambda x: F.avg_pool2d(x[0], 2, 1, 1, divisor_override=3)
    made["average, given divisor, ceil"] = lambda x: F.avg_pool3d(x, 2, 2, 1, ceil_mode=True, divisor_override=5)
    made["unbatched"] = lambda x: F.max_pool2d(x[0, 0], 2) + F.avg_pool2d(x[0, 0], 2)
    made["adaptive to 1"] = lambda x: F.adaptive_avg_pool2d(x[0], 1)
    return made


@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_as_pytorch(*, dynamic: bool) -> None:
    found, capture = differing(cases(), X, dynamic=dynamic)
    assert found == {}
    assert all("begin in the padding" in row.reason or "divisor_override" in row.reason for row in capture.fallbacks)


def test_gradients() -> None:
    few = {name: case for place, (name, case) in enumerate(cases().items()) if place % 4 == 0}
    assert differing(few, X, grad=True)[0] == {}


def test_a_dynamic_adaptive_pool() -> None:
    found, capture = differing({"to 1": lambda x: F.adaptive_avg_pool2d(x[0], 1)}, X, dynamic=True)
    assert found == {}
    assert not left(capture)


@pytest.mark.parametrize(("sizes", "window", "down"), [
    ((9,), (2, 2, 1, 1), True),  # the window that rounding up adds begins in the padding
    ((8,), (2, 2, 1, 1), True),  # there is none to add
    ((8,), (3, 2, 1, 1), False),
    ((9, 8), (2, 2, 1, 1), True),
    ((10, 9), (3, 2, 1, 1), False),  # nothing to round in one, up in the other
    ((9, 8), ((2, 3), (2, 2), (1, 1), 1), None),  # down in one, up in the other
])  # fmt: skip
def test_rounding(sizes: tuple[int, ...], window: tuple[Any, Any, Any, Any], *, down: bool | None) -> None:
    assert rounds_down(sizes, *window) is down
