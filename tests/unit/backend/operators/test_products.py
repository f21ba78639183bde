"""Sums of products: factors, nothing to add up, NaN that is ignored, and vectors of size 1."""

import itertools
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from tests.unit.backend.operators.one_graph import as_pytorch

A, B = torch.linspace(-1, 1, 2 * 4 * 5).reshape(2, 4, 5), torch.linspace(-2, 1, 2 * 5 * 6).reshape(2, 5, 6)
C = torch.linspace(1, 2, 2 * 4 * 6).reshape(2, 4, 6)


def cases() -> dict[str, Any]:
    made: dict[str, Any] = {}
    for (beta, alpha), scale, size in itertools.product(((1, 1), (0, 0.3), (0.2, 0.3)), (1.0, torch.nan), (5, 0)):
        name = f"beta {beta}, alpha {alpha}, times {scale}, sums of {size}"
        factors = {"beta": beta, "alpha": alpha}
        if scale == 1 or beta == 0:
            made[f"addmm, {name}"] = lambda c, a, b, s=scale, n=size, k=factors: torch.addmm(c[0] * s, a[0, :, :n], b[0, :n], **k)
            made[f"baddbmm, {name}"] = lambda c, a, b, s=scale, n=size, k=factors: torch.baddbmm(c * s, a[:, :, :n], b[:, :n], **k)
            made[f"addbmm, {name}"] = lambda c, a, b, s=scale, n=size, k=factors: torch.addbmm(c[0] * s, a[:, :, :n], b[:, :n], **k)
            made[f"addmv, {name}"] = lambda c, a, b, s=scale, n=size, k=factors: torch.addmv(c[0, :, 0] * s, a[0, :, :n], b[0, :n, 0], **k)
            made[f"addr, {name}"] = lambda c, a, b, s=scale, k=factors: torch.addr(c[0] * s, a[0, :, 0], b[0, 0], **k)
    return {
        **made,
        "addmm of a row": lambda c, a, b: torch.addmm(c[0, 0], a[0], b[0]),
        "addmm of a row and of nothing": lambda c, a, b: torch.addmm(c[0, 0], a[0, :, :0], b[0, :0], beta=0.5),
        "linear of nothing": lambda c, a, b: F.linear(a[0, :, :0], b[0].t()[:, :0], c[0, 0]),
        "tensordot of size 1": lambda c, a, b: torch.tensordot(a[0, :, :1], b[0, :1], 1) + c[0],
        "tensordot over all": lambda c, a, b: torch.tensordot(a[:1, :1, :1], b[:1, :1, :1], ([0, 1, 2], [0, 1, 2])) + c,
        "dot of size 1": lambda c, a, b: torch.dot(a[0, 0, :1], b[0, :1, 0]) + c[0, 0, 0],
        "dot of nothing": lambda c, a, b: torch.dot(a[0, 0, :0], b[0, :0, 0]) + c[0, 0, 0],
        "power 0": lambda c, a, b: torch.linalg.matrix_power(a[:, :, :4] @ b[:, :4, :4], 0) + c[..., :4],
        "bilinear": lambda c, a, b: F.bilinear(a, c, b[:, :, None, :].expand(2, 5, 5, 6)[0]),
        "bilinear of rows": lambda c, a, b: F.bilinear(a[0], c[0], b[:, :, None, :].expand(2, 5, 5, 6)[0], c[0, 0, :5]),
        "einsum of a diagonal": lambda c, a, b: torch.einsum("bii->bi", c[..., :4]) + a[:, :, 0] + b[:, :4, 0],
    }


@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_as_pytorch(*, dynamic: bool) -> None:
    capture = as_pytorch(cases(), C, A, B, dynamic=dynamic)
    assert {row.reason.rpartition("may have ")[2].partition(",")[0] for row in capture.fallbacks} <= {"nothing to multiply"}


def test_gradients() -> None:
    """All factors with sums of nothing, and one pair with sums of something."""
    few = {name: case for name, case in cases().items() if "nan" not in name and ("sums of 5" not in name or "beta 0.2, alpha 0.3" in name)}
    as_pytorch(few, C, A, B, grad=True)
    as_pytorch({"bilinear": few["bilinear"]}, C, A, B, grad=True, stays=())


def test_factors_of_float64_and_products_of_integers_are_exact() -> None:
    cases: dict[str, Any] = {
        "addmm": lambda x, y, *_: torch.addmm(x, y, y, beta=0.1),
        "baddbmm": lambda x, y, *_: torch.baddbmm(x[None], y[None], y[None], beta=0.1),
        "int8": lambda *given: torch._int_mm(given[2], given[3]),
        "addbmm wraps": lambda *given: torch.addbmm(given[4][0], given[4], given[4], beta=2, alpha=3),
    }
    small = (torch.randint(-128, 128, size, dtype=torch.int8, generator=torch.Generator().manual_seed(4)) for size in ((32, 16), (16, 24)))
    x, y = torch.full((2, 2), 3.0, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    as_pytorch(cases, x, y, *small, torch.full((2, 2, 2), 2**31 + 1), atol=0, stays=())
