"""Sizes of tensors as expressions: what they are made of, and their text over names that are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from ortlens import _torch

if TYPE_CHECKING:
    from collections.abc import Callable


def symbolic(*sizes: int) -> torch.Tensor:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    return mode.from_tensor(torch.rand(sizes), symbolic_context=StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * len(sizes)))


SIZES: dict[str, Callable[[torch.SymInt], torch.SymInt]] = {
    "itself": lambda n: n,
    "a multiple": lambda n: 3 * n,
    "a sum": lambda n: 2 * n + 5,
    "a half": lambda n: n // 2 + 1,
    "less than something": lambda n: 30 - n,
}


@pytest.mark.parametrize("name", SIZES)
def test_a_size_is_known_from_its_term(name: str) -> None:
    n = symbolic(7, 3).shape[0]
    assert isinstance(n, torch.SymInt)
    size = SIZES[name](n)
    scaled = _torch.scaled_term(size)
    assert scaled is not None
    term, offset, factor = scaled
    known, rest = divmod(_torch.size_hint(size) - offset, factor)
    assert rest == 0
    text = _torch.expression_over(4 * size + 1, {term: "known"})
    assert text is not None
    assert eval(text, {"known": known}) == 4 * _torch.size_hint(size) + 1  # noqa: S307 - our own text


def test_what_has_no_single_term() -> None:
    first, second = symbolic(7, 3).shape
    assert _torch.scaled_term(first + second) is None
    assert _torch.scaled_term(5) is None
    assert _torch.scaled_term(first > second) is None
    assert _torch.expression_over(first + second, {_torch.scaled_term(first)[0]: "known"}) is None  # type: ignore[index]  # it has a term
    assert _torch.expression_over(5, {}) == "5"


def test_a_product_is_known_from_a_multiple_of_it() -> None:
    first, second = symbolic(7, 3).shape
    term, *_ = _torch.scaled_term(3 * first * second)  # type: ignore[misc]  # it has a term
    text = _torch.expression_over(2 * first * second, {term: "known"})
    assert text is not None
    assert eval(text, {"known": 21}) == 42  # noqa: S307 - our own text
