"""What PyTorch refuses, the compiled function refuses: types, sizes, and data that only a run shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn import functional

from tests.opinfo.errors import Call, complaint, error_inputs, other_types

if TYPE_CHECKING:
    from collections.abc import Callable

T = torch.tensor
X, ROWS, IMAGES = torch.randn(4, 5), torch.randn(3, 5), torch.randn(2, 5, 3, 3)
PIXELS = torch.zeros(2, 3, 3, dtype=torch.int64)
POOLED = {dims: getattr(functional, f"max_pool{dims}d")(torch.randn(1, 2, *[4] * dims), 2, return_indices=True) for dims in (1, 2, 3)}
CHANCES = torch.rand(3)
TRUTHS, WHOLE = T([True, False]), T([7, -7, 3])


def _unpool(dims: int) -> Callable[..., Any]:
    return lambda x, index: getattr(functional, f"max_unpool{dims}d")(x * 2, index, 2) + 1


DATA: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[tuple[Any, ...], ...]]] = {
    "index_select": (lambda x, k: (x * 2).index_select(0, k) + 1, (X, T([0, 1])), ((X, T([0, 4])), (X, T([-1, 0])))),
    "gather": (lambda x, k: (x * 2).gather(1, k) + 1, (X, T([[0, 1]])), ((X, T([[0, 5]])), (X, T([[-1, 0]])))),
    "scatter": (lambda x, k: (x * 2).scatter(1, k, x) + 1, (X, T([[0, 1]])), ((X, T([[0, 5]])), (X, T([[-1, 0]])))),
    "take": (lambda x, k: (x * 2).take(k) + 1, (X, T([0, -20])), ((X, T([0, 20])), (X, T([-21, 0])))),
    "embedding": (lambda x, k: functional.embedding(k, x * 2) + 1, (X, T([0, 1])), ((X, T([0, 4])), (X, T([-1, 0])))),
    "index": (lambda x, k: (x * 2)[:, k] + 1, (X, T([0, -5])), ((X, T([0, 5])), (X, T([-6, 0])))),
    "index_copy": (lambda x, k: (x * 2).index_copy(0, k, x[:2]) + 1, (X, T([0, 1])), ((X, T([0, 4])), (X, T([-1, 0])))),
    **{f"max_unpool{dims}d": (_unpool(dims), at, ((at[0], at[1] * 0 - 1), (at[0], at[1] + 64))) for dims, at in POOLED.items()},
    **{
        f"nll_loss, {reduction}, {weighted}": (
            lambda x, t, reduction=reduction, weighted=weighted: functional.nll_loss(
                x * 2, t, reduction=reduction, weight=x[0].abs() if weighted else None
            ),
            (ROWS, T([0, -100, 4])),
            ((ROWS, T([0, 1, 5])), (ROWS, T([0, -1, 1]))),
        )
        for reduction in ("none", "mean", "sum")
        for weighted in (False, True)
    },
    "nll_loss of one row": (lambda x, t: functional.nll_loss(x * 2, t), (ROWS[0], T(1)), ((ROWS[0], T(5)), (ROWS[0], T(-1)))),
    "nll_loss of images": (lambda x, t: functional.nll_loss(x * 2, t), (IMAGES, PIXELS), ((IMAGES, PIXELS + 5), (IMAGES, PIXELS - 1))),
    "cross_entropy": (
        lambda x, t: functional.cross_entropy(x * 2, t, label_smoothing=0.1),
        (ROWS, T([0, 1, 4])),
        ((ROWS, T([0, 1, 5])), (ROWS, T([0, -1, 1]))),
    ),
    **{
        f"binary_cross_entropy, {reduction}": (
            lambda x, t, reduction=reduction: functional.binary_cross_entropy(x * 1, t, weight=t, reduction=reduction),
            (T([0.0, 1.0, 0.3]), CHANCES),
            ((CHANCES + 1, CHANCES), (CHANCES - 2, CHANCES), (CHANCES * torch.nan, CHANCES)),
        )
        for reduction in ("none", "mean", "sum")
    },
    "integer quotient": (lambda x, y: x // y + 1, (WHOLE, T([1, 2, 3])), ((WHOLE, T([1, 0, 3])),)),
    "integer remainder": (lambda x, y: x % y + 1, (WHOLE, T([1, 2, 3])), ((WHOLE, T([1, 0, 3])),)),
}
"""Name -> a function, arguments that PyTorch takes, and several that it refuses."""

TYPES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "x - True": (lambda x: (x + x) - True, (X, WHOLE, TRUTHS)),
    "True - x": (lambda x: True - (x + x), (X, WHOLE, TRUTHS)),
    "x - boolean tensor": (lambda x: (x * 2) - (x[0] > 0), (X, WHOLE)),
    "x -= True": (lambda x: x.sub_(True), (X, WHOLE, TRUTHS)),  # noqa: FBT003 - what is tested
    "boolean alpha": (lambda x: torch.add(x * 2, x, alpha=True), (X, WHOLE)),
    "argmax": (lambda x: (x | x).argmax(), (TRUTHS,)),
    "floor": (lambda x: (x | x).floor(), (TRUTHS,)),
    "relu": (lambda x: (x | x).relu(), (TRUTHS,)),
    "median": (lambda x: (x | x).median(), (TRUTHS,)),
    "clamp": (lambda x: (x | x).clamp(x, x), (TRUTHS,)),
    "std": (lambda x: (x + 0).std(), (WHOLE,)),
    "lerp": (lambda x: torch.lerp(x + 0, x, 2), (WHOLE,)),
    "huber_loss": (lambda x: functional.huber_loss(x + 0, x), (WHOLE,)),
    "smooth_l1_loss": (lambda x: functional.smooth_l1_loss(x + 0, x), (WHOLE,)),
}
"""Name -> a function, and tensors of element types that PyTorch refuses."""


@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", DATA)
def test_data_that_eager_refuses_raises_the_same(name: str, *, dynamic: bool) -> None:
    function, before, refused = DATA[name]
    torch.testing.assert_close(torch.compile(function, backend="ortlens", dynamic=dynamic)(*before), function(*before))
    assert [complaint(Call(name, function, given), before, dynamic=dynamic) for given in refused] == [""] * len(refused)


@pytest.mark.parametrize("name", TYPES)
def test_element_types_that_eager_refuses_raise_the_same(name: str) -> None:
    function, tensors = TYPES[name]
    assert [complaint(Call(name, function, (tensor,))) for tensor in tensors] == [""] * len(tensors)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["argmax", "clamp", "gather", "index_add", "masked_scatter", "take"])
def test_a_part_of_the_database_raises_the_same(name: str) -> None:
    found = {call.name: complaint(call) for call in (*error_inputs(name), *other_types(name))}
    assert {call: text for call, text in found.items() if text} == {}
