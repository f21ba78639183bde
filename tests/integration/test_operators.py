"""Results, arguments and layouts of every sort: what stays in PyTorch has a stated reason. Operators are in tests/conformance."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows
from torch import nn

import ortlens
from tests.integration.against_eager import same_as_eager, sessions_tried

if TYPE_CHECKING:
    from collections.abc import Callable

    from ortlens.trace.records import Capture


class Case(NamedTuple):
    """A function, the arguments of its calls, and what must stay in PyTorch: operator -> reason code."""

    function: Callable[..., Any]
    calls: tuple[tuple[Any, ...], ...]
    stays: dict[str, str]


def case(function: Callable[..., Any], *args: Any, stays: dict[str, str] | None = None, more: tuple[tuple[Any, ...], ...] = ()) -> Case:
    return Case(function, (args, *more), stays or {})


def r(*shape: int) -> torch.Tensor:
    """Numbers that do not depend on what other tests drew."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape) + 7))


def thrice(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 2
    return y, y, y + 0


RANDOM = "side_effect"

CASES = {
    # results: several, none, numbers, aliases, the same one twice
    "mixed_results": case(lambda x: (None, x + 1, 3, {"a": [x * 2, ()]}), r(3)),
    "input_and_its_view": case(lambda x: (x, x.view(-1), x + 1), r(3, 4)),
    "one_value_twice": case(thrice, r(3)),
    # numbers as arguments
    "int_argument": case(lambda x, n: x * n + n, r(3), 3, more=((r(3), 4), (r(3), -5))),
    "float_argument": case(lambda x, n: x * n + n, r(3), 3.5, more=((r(3), 4.25), (r(3), 1e-3))),
    "bool_argument": case(lambda x, flag: x * 2 if flag else x + 1, r(3), bool(1), more=((r(3), bool(0)),)),
    # layouts of results and inputs that conformance does not have
    "permuted_result": case(lambda x: (x * 2).permute(2, 0, 1), r(3, 4, 5)),
    "expanded_result": case(lambda x: (x * 2).expand(4, 3), r(3)),
    "as_strided_result": case(lambda x: (x * 2).as_strided((2, 2), (1, 2)), r(6)),
    "expanded_input": case(lambda x: x.sin() + 1, r(1, 6).expand(4, 6)),
    "offset_input": case(lambda x: x.sin() + 1, r(4, 6)[1:]),
    # dtypes
    "complex": case(lambda x: (x * x).abs(), torch.complex(r(4), r(4)), stays={"aten.mul.Tensor": "dtype", "aten.abs.default": "dtype"}),
    # random numbers come from PyTorch's generator, or the seed would not hold
    "dropout": case(lambda x: F.dropout(x.sin(), 0.5).cos(), r(30), stays={"aten.native_dropout.default": RANDOM}),
    "rand": case(
        lambda x: x + torch.rand(3) + torch.randn_like(x), r(3), stays={"aten.rand.default": RANDOM, "aten.randn_like.default": RANDOM}
    ),
    # data-dependent
    "nonzero": case(lambda x: x.nonzero(), r(6), more=((r(6),),)),
}


def _stays(capture: Capture) -> dict[str, str]:
    return {fallback.target: fallback.reason_code for fallback in capture.fallbacks}


@pytest.mark.parametrize("name", CASES)
def test_same_as_eager_and_only_the_stated_operators_stay_in_pytorch(name: str) -> None:
    function, calls, stays = CASES[name]
    capture = same_as_eager(function, *calls)
    assert _stays(capture) == stays
    assert all(fallback.reason for fallback in capture.fallbacks)
    assert not capture.findings
    if name == "nonzero":  # Dynamo does not trace it
        assert not capture.graphs
        assert len(capture.breaks) == 1
    fallbacks = {graph.graph_id: [f for f in capture.fallbacks if f.graph_id == graph.graph_id] for graph in capture.graphs}
    for graph in capture.graphs:
        assert graph.fallback_count == len(fallbacks[graph.graph_id])
        assert graph.node_count
        assert graph.coverage == pytest.approx(1 - len(fallbacks[graph.graph_id]) / graph.node_count)


@pytest.mark.parametrize("train", [False, True])
def test_no_session_is_tried_for_bfloat16(monkeypatch: pytest.MonkeyPatch, *, train: bool) -> None:
    tried = sessions_tried(monkeypatch)
    model, lens = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)), ortlens.Lens()
    compiled = torch.compile(model, backend=lens)
    with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(train):
        got, want = compiled(r(3, 8)), model(r(3, 8))
    torch.testing.assert_close(got, want, atol=2e-2, rtol=2e-2)
    if train:
        got.float().sum().backward()
    capture = lens.captured()
    assert len(tried) == len(capture.sessions)
    assert {fallback.reason_code for fallback in capture.fallbacks} == {"dtype"}
    assert "no arithmetic in bfloat16" in capture.fallbacks[0].reason


def test_data_dependent_values_inside_one_graph() -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        capture = same_as_eager(lambda x: (x[x > 0] * 2, x.nonzero() + 1, x * x.sum().item()), (r(9),), (r(9) * -1,), (-torch.ones(9),))
    assert len(capture.graphs) == 1
    assert all(fallback.reason for fallback in capture.fallbacks)


# Products of a matrix and a vector are PyTorch's, forward and backward, also where the matrix is transposed.
PRODUCTS: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]] = {
    "W @ v": (lambda w, v: w @ v, ((7, 5), (5,))),
    "W.t() @ v": (lambda w, v: w.t() @ v, ((5, 7), (5,))),
    "v @ W": (lambda w, v: v @ w, ((5, 7), (5,))),
    "mv": (lambda w, v: torch.mv(w.t(), v), ((5, 5), (5,))),
    "addmv": (lambda x, w, v: torch.addmv(x, w.t(), v, beta=0.5, alpha=2), ((7,), (5, 7), (5,))),
    "addr": (torch.addr, ((5, 7), (5,), (7,))),
    "a @ B": (lambda a, b: a @ b, ((10,), (5, 10, 5))),
    "B.mT @ a": (lambda a, b: b.mT @ a, ((10,), (5, 10, 5))),
}


SYMBOLIC = ("W.t() @ v", "addmv", "addr", "B.mT @ a")


@pytest.mark.parametrize(("name", "dynamic"), [*((name, False) for name in PRODUCTS), *((name, True) for name in SYMBOLIC)])
def test_products_and_their_gradients_match(*, name: str, dynamic: bool) -> None:
    function, shapes = PRODUCTS[name]
    expected_args, args = (
        [torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape).requires_grad_() for shape in shapes] for _ in "ab"
    )
    compiled = torch.compile(function, backend="ortlens", dynamic=dynamic)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected, result = function(*expected_args), compiled(*args)
        weight = torch.linspace(-2, 3, expected.numel()).reshape(expected.shape)
        expected.backward(weight)
        result.backward(weight)
    torch.testing.assert_close(result, expected)
    for mine, theirs in zip(args, expected_args, strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_beta_zero_ignores_nan() -> None:
    args = torch.full((7,), float("nan")), torch.rand(7, 5), torch.rand(5)
    compiled = torch.compile(lambda x, w, v: torch.addmv(x, w, v, beta=0), backend="ortlens")
    torch.testing.assert_close(compiled(*args), torch.addmv(*args, beta=0))


# Operators whose decompositions in torch's table differ from their kernels stay in PyTorch, and give its results.
SQUARE = torch.arange(1.0, 17.0).reshape(4, 4)


def diagonal_written(x: torch.Tensor) -> torch.Tensor:
    x = x @ x.T
    x.diagonal().add_(0.1)
    x.diagonal(1).zero_()
    return x


DRAWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exponential": lambda x: x.clone().exponential_() + 1,
    "uniform, twice": lambda x: x.clone().uniform_().uniform_(-1, 3) + 1,
    "all after another": lambda x: x.clone().normal_().uniform_().normal_().exponential_().uniform_().bernoulli_(0.3).uniform_() + 1,
    "gumbel_softmax": torch.nn.functional.gumbel_softmax,
}


@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_and_the_state_after_them_are_pytorchs(name: str) -> None:
    torch.manual_seed(0)
    expected = DRAWS[name](SQUARE)
    state = torch.get_rng_state()
    torch.manual_seed(0)
    torch.testing.assert_close(torch.compile(DRAWS[name], backend="ortlens")(SQUARE), expected)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("function", [diagonal_written, lambda x: x.cumprod(0) + 1], ids=["diagonal", "cumprod"])
def test_the_others_give_pytorchs_result(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(torch.compile(function, backend="ortlens")(SQUARE), function(SQUARE))
