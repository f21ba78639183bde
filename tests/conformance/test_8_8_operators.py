"""CONTRACT 8.8: the classic operator cases on each road, and what is more than an operator."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows
from torch import nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import flex_attention

from ortlens import Lens
from tests.conformance.cases import CASES
from tests.conformance.operator_case import compiled_like_eager, exported_like_eager, r, stays_of, together
from tests.integration.against_eager import same_as_eager


def branches(x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda v: v.sin() + 1, lambda v: v.cos(), (x.exp() - 1,)) * 2


def loops(x: torch.Tensor) -> Any:
    return while_loop(lambda i, _: i < 3, lambda i, v: (i + 1, v * 2), (torch.tensor(0), x))[1] + 1


def scans(x: torch.Tensor) -> Any:
    carry, rows = scan(lambda c, row: (c + row, c * row), torch.zeros(x.shape[1]), x)
    return carry * 2, rows + 1


def attends_causally(x: torch.Tensor) -> Any:
    return flex_attention(x, x, x, score_mod=lambda s, _b, _h, q, k: torch.where(q >= k, s, -float("inf"))) * 2


HIGHER_ORDER: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]], str]] = {
    "cond": (branches, [(r(4, 4).abs(),), (-r(4, 4).abs(),)], "cond"),
    "while_loop": (loops, [(r(4),)], "while_loop"),
    "scan": (scans, [(r(5, 3),)], "scan"),
    "flex_attention_score_mod": (attends_causally, [(r(1, 2, 16, 8),)], "flex_attention"),
}


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@pytest.mark.parametrize("name", HIGHER_ORDER)
def test_8_8_higher_order_ops_stay_in_pytorch(name: str) -> None:
    function, calls, target = HIGHER_ORDER[name]
    capture = same_as_eager(function, *calls)
    (graph,) = capture.graphs
    left = [fallback for fallback in capture.fallbacks if fallback.target.startswith(target)]
    assert {fallback.reason_code for fallback in left} == {"no_converter"}
    assert graph.partition_count, "what is around it goes to ONNX Runtime"
    assert not capture.findings


RANDOM: dict[str, tuple[Callable[..., Any], str]] = {
    "dropout": (lambda x: F.dropout(x.sin(), 0.5) * 2, "aten.native_dropout.default"),
    "randn": (lambda x: x.sin() + torch.randn(40), "aten.randn.default"),
    "normal_in_place": (lambda x: (x * 2).normal_() + 1, "aten.normal_functional.default"),
}


@pytest.mark.parametrize("name", RANDOM)
def test_8_8_random_numbers_under_a_seed_are_pytorchs(name: str) -> None:
    function, target = RANDOM[name]
    capture = same_as_eager(function, (r(40),), (r(40) + 1,))
    assert stays_of(capture).get(target) == "side_effect", stays_of(capture)


def test_8_8_dropout_in_training_under_a_seed() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 2))
    results = []
    for forward in (torch.compile(model, backend=Lens()), model):
        torch.manual_seed(3)
        model.zero_grad(set_to_none=True)
        out = forward(r(16, 8))
        out.square().sum().backward()
        results.append((out.detach(), [parameter.grad for parameter in model.parameters()]))
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-4)


def data_dependent_branch(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return y + 1 if y.sum() > 0 else y - 1


def early_exit(x: torch.Tensor) -> torch.Tensor:
    """Stops when it has converged, as an iterative solver does."""
    for _ in range(8):
        x = x * 0.5
        if x.abs().max() < 0.4:
            break
    return x + 1


TOYS: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]], int]] = {
    "data_dependent_branch": (data_dependent_branch, [(r(5).abs(),), (-r(5).abs(),), (r(5),)], 3),
    "early_exit": (early_exit, [(r(5),), (r(5) * 9,), (r(5) * 0.1,)], 0),
}


@pytest.mark.parametrize("name", TOYS)
def test_8_8_code_that_dynamo_breaks(name: str) -> None:
    function, calls, at_least = TOYS[name]
    capture = same_as_eager(function, *calls)
    assert len(capture.graphs) >= at_least
    assert capture.breaks
    assert all(graph.coverage == 1.0 for graph in capture.graphs), capture.fallbacks
    assert not capture.findings


def test_8_8_a_module_with_a_break_in_each_layer() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> Any:
            y = self.linear(x)
            torch._dynamo.graph_break()
            return y.relu() + x

    torch.manual_seed(0)
    capture = same_as_eager(nn.Sequential(Layer(), Layer(), Layer()).eval(), (r(2, 4),), (r(2, 4) + 1,))
    assert len(capture.graphs) >= 2, "the layers share their code, and with it their graphs"
    assert sum(session.calls for session in capture.sessions) == 2 * 2 * 3


ROADS = ("static", "dynamic", "exported")
# `make sweep-conformance` sets this. Without it, each case takes one road, in turn, and `make test` runs a part of them.
EVERY_ROAD = bool(os.environ.get("ORTLENS_EVERY_ROAD"))
CHOSEN = {
    road: [name for place, name in enumerate(CASES) if EVERY_ROAD or (place + turn) % len(ROADS) == 0] for turn, road in enumerate(ROADS)
}
_TOGETHER = 9


def batches() -> list[tuple[str, list[str]]]:
    """Each road with the names of cases that are compiled together; those with something special are alone."""
    made = []
    for road, names in CHOSEN.items():
        plain = [name for name in names if CASES[name].is_plain(road)]
        made += [(road, plain[place : place + _TOGETHER]) for place in range(0, len(plain), _TOGETHER)]
        made += [(road, [name]) for name in names if name not in plain]
    return made


@pytest.mark.filterwarnings("ignore:var\\(\\):UserWarning", "ignore:The tensor attribute:UserWarning")
@pytest.mark.parametrize(
    ("road", "names"),
    [
        pytest.param(road, names, id=f"{names[0]}-{road}", marks=() if place % 5 == 0 else pytest.mark.slow)
        for place, (road, names) in enumerate(batches())
    ],
)
def test_8_8_operators(road: str, names: list[str]) -> None:
    given = together([CASES[name] for name in names])
    if road == "exported" and given.not_exported:
        with pytest.raises(Exception, match=given.not_exported), torch.no_grad():
            exported_like_eager(given)
        return
    capture = exported_like_eager(given) if road == "exported" else compiled_like_eager(given, dynamic=road == "dynamic")
    assert stays_of(capture) == given.expected_stays(road)
    assert all(fallback.reason for fallback in capture.fallbacks)
    assert not capture.findings
    graphs = 1 if road == "exported" else given.graphs
    assert graphs is None or len(capture.graphs) == graphs
    for graph in capture.graphs:
        assert graph.coverage is None or graph.fallback_count or graph.coverage == 1.0
