"""Results, arguments and layouts of every sort: what stays in PyTorch has a stated reason. Operators are in tests/conformance."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows
from torch import nn

import ortlens
from ortlens.trace.records import Capture
from tests.integration.against_eager import same_as_eager, sessions_tried


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


def views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Views of an argument and of results; one value is returned twice, and the argument itself."""
    y = x * 2
    of_both = [view for of in (x, y) for view in (of.view(-1), *of.chunk(2, 1), of.t()[1:], of.diagonal(), of.unfold(1, 2, 1))]
    return (
        x,
        y,
        y,
        *of_both,
        y.expand(2, *y.shape)[:, 1:],
        y.as_strided((2, 2), (1, 2)),
        y.unflatten(1, (2, 3)).transpose(1, 2).select(1, 2),
    )


RANDOM = "side_effect"

CASES = {
    "mixed_results": case(lambda x: (None, x + 1, 3, {"a": [x * 2, ()]}), r(3)),
    "views": case(views, r(4, 6), more=((r(5, 6),),)),
    "expanded_input_and_offset": case(lambda x, y: (x.sin() + 1, y.sin() + 1), r(1, 6).expand(4, 6), r(4, 6)[1:]),
    # numbers as arguments
    "int_argument": case(lambda x, n: x * n + n, r(3), 3, more=((r(3), 4), (r(3), -5))),
    "float_argument": case(lambda x, n: x * n + n, r(3), 3.5, more=((r(3), 4.25), (r(3), 1e-3))),
    "bool_argument": case(lambda x, flag: x * 2 if flag else x + 1, r(3), bool(1), more=((r(3), bool(0)),)),
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
