"""Sizes of tensors as expressions: what they are made of, and their text over names that are known."""

from collections.abc import Callable

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from ortlens import _torch
from ortlens.backend.basis.dtypes import int_range


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


NUMBERS: dict[str, Callable[[torch.SymInt, torch.SymInt], torch.SymInt]] = {
    "sum": lambda n, m: 3 * n - m + 7,
    "product": lambda n, m: -n * m,
    "quotient": lambda n, m: -n // (m + 1),
    "remainder": lambda n, m: (-n) % (m + 2),
    "power": lambda n, m: (n - m) ** 3,
    "square": lambda n, m: (n - m) ** 2,
    "larger": lambda n, m: torch.sym_max(n - 5, m),
    "smaller": lambda n, m: torch.sym_min(4 - n, m),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_within_its_range(name: str) -> None:
    n, m = symbolic(7, 3).shape
    assert isinstance(n, torch.SymInt)
    assert isinstance(m, torch.SymInt)
    limits = int_range(NUMBERS[name](n, m))
    largest = 2**31 - 1
    found = [NUMBERS[name](one, other) for one in (2, 3, 50, largest) for other in (2, 5, 6, largest)]
    if all(-(2**63) <= number < 2**63 for number in found):
        assert limits is not None
        assert limits[0] <= min(found)
        assert max(found) <= limits[1]
    else:
        assert limits is None


def test_a_number_that_may_need_more_than_64_bits_has_no_range() -> None:
    n, m = symbolic(7, 3).shape
    assert int_range(n * m) is not None
    assert int_range(n * m * 4) is None
    assert int_range(2**63) is None
