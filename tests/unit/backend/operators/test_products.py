"""Sums of products: factors, nothing to add up, NaN that is ignored, vectors of size 1, and heads that several query heads share."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from ortlens import Lens
from tests.unit.backend.operators.one_graph import as_pytorch

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

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


HEADS, SHARED, WIDTH = 6, 2, 8


def heads(x: torch.Tensor, count: int) -> torch.Tensor:
    """(batch, row, feature) -> (batch, head, row, feature)."""
    return x.view(x.shape[0], x.shape[1], count, WIDTH).transpose(1, 2)


def repeat(x: torch.Tensor) -> torch.Tensor:
    """As `repeat_kv` of transformers."""
    batch, count, rows, width = x.shape
    copies = HEADS // count
    return x[:, :, None].expand(batch, count, copies, rows, width).reshape(batch, count * copies, rows, width)


def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The first row of every head sees nothing."""
    mask = torch.arange(k.shape[2]) < torch.arange(q.shape[2])[:, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


def with_copies(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, repeat(k), repeat(v))


def by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.matmul(q, repeat(k).transpose(2, 3)) / 3, -1) @ repeat(v)


def in_another_order(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Neighbouring queries have different heads."""
    return F.scaled_dot_product_attention(q, k.repeat(1, HEADS // SHARED, 1, 1), v.repeat(1, HEADS // SHARED, 1, 1))


def of_rows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Repeats rows, not heads."""
    rows = k[:, :, :, None].expand(-1, -1, -1, 3, -1).reshape(k.shape[0], SHARED, -1, WIDTH)
    return q[:, :SHARED] @ rows.transpose(2, 3) + v.sum()


def attended(attention: Attention) -> Callable[..., torch.Tensor]:
    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attention(heads(q, HEADS), heads(k, SHARED), heads(v, SHARED)).transpose(1, 2).flatten(2)

    return call


def inputs(batch: int, rows: int, length: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    made = (torch.randn(batch, size, count * WIDTH) for size, count in ((rows, HEADS), (length, SHARED), (length, SHARED)))
    return [value.to(dtype) for value in made]


ATTENTIONS = (grouped, causal, masked, with_copies, by_hand)


@pytest.mark.parametrize(("attentions", "varying"), [(ATTENTIONS, False), ((grouped, by_hand), True)])
def test_no_head_is_copied(attentions: tuple[Attention, ...], *, varying: bool) -> None:
    def function(*given: torch.Tensor) -> list[torch.Tensor]:
        return [attended(attention)(*given) for attention in attentions]

    lens = Lens()
    compiled = torch.compile(function, backend=lens, dynamic=varying)
    with torch.no_grad():
        for batch, rows, length in ((2, 5, 7), (3, 4, 6))[: 1 + varying]:
            given = inputs(batch, rows, length)
            torch.testing.assert_close(compiled(*given), function(*given))
    capture = lens.captured()
    assert [node.target for node in capture.nodes if len(node.shape or ()) == 5] == []
    assert varying or all((node.flops or 0) > 0 for node in capture.nodes if "bmm" in node.target)
    assert capture.fallbacks == ()
    assert len(capture.graphs) == 1


@pytest.mark.parametrize("varying", [False, True])
def test_a_matrix_is_not_expanded_for_a_batch(*, varying: bool) -> None:
    layer = torch.nn.Linear(5, 6).requires_grad_(requires_grad=False)  # else PyTorch itself makes one product
    cases: dict[str, Any] = {
        "linear": lambda a, *_: layer(a.transpose(0, 1)),
        "more batches": lambda a, b, *_: layer(torch.stack([a, -a]).transpose(0, 2)) @ b[0].t(),
        "of each": lambda a, b, *_: (a.transpose(0, 1) @ b[0]).sum() + (a @ b),
    }
    capture = as_pytorch(cases, A, B, dynamic=varying, stays=())
    assert sum("bmm" in node.target for node in capture.nodes) == 1


@pytest.mark.parametrize("marked", [(1, 2), (0,)])
def test_some_sizes_vary(marked: tuple[int, ...]) -> None:
    """Marked are the batch, the rows of queries, and those of keys and values."""
    function, lens = attended(by_hand), Lens()
    compiled = torch.compile(function, backend=lens, dynamic=False)
    with torch.no_grad():
        for add in (0, 1, 5):
            batch, rows, length = (size + add * (place in marked) for place, size in enumerate((3, 4, 6)))
            given = inputs(batch, rows, length)
            for place, tensor in enumerate(given):
                for dim in {0} & set(marked) | ({1} if (1 if place == 0 else 2) in marked else set()):
                    torch._dynamo.mark_dynamic(tensor, dim)
            torch.testing.assert_close(compiled(*given), function(*given))
    assert len(lens.captured().graphs) == 1
    assert all(len(node.shape or ()) < 5 for node in lens.captured().nodes)


def test_nothing_to_multiply() -> None:
    function = attended(by_hand)
    compiled = torch.compile(function, backend="ortlens", dynamic=True)
    with torch.no_grad():
        for shape in ((3, 4, 6), (0, 3, 5), (2, 3, 0)):
            given = inputs(*shape)
            torch.testing.assert_close(compiled(*given), function(*given))


def test_other_types_copies_products_of_pytorch_and_gradients_are_as_in_eager() -> None:
    def cases(*attentions: Attention) -> dict[str, Callable[..., torch.Tensor]]:
        return {attention.__name__: attended(attention) for attention in attentions}

    for dtype in (torch.float64, torch.float16):
        as_pytorch(cases(grouped), *inputs(2, 3, 5, dtype), atol=4 * torch.finfo(dtype).eps)
    as_pytorch(cases(in_another_order, of_rows), *inputs(2, 3, 5))
    as_pytorch(cases(by_hand), *inputs(2, 3, 5), options={"min_partition_nodes": 999})
    as_pytorch(cases(grouped, by_hand), *inputs(2, 3, 5), grad=True)
