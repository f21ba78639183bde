"""Layers of an LSTM, which Dynamo compiles when `allow_rnn` is set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from ortlens import Lens
from tests.unit.backend.conversion.functions.one_graph import differing, left

if TYPE_CHECKING:
    from collections.abc import Iterator

SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch first": {"batch_first": True},
    "both directions": {"bidirectional": True},
    "three layers in both directions": {"num_layers": 3, "bidirectional": True},
    "without biases": {"bias": False, "num_layers": 2},
}
LAYER = "aten.mkldnn_rnn_layer.default"
X = torch.linspace(-2, 2, 5 * 3 * 6).reshape(5, 3, 6)


@pytest.mark.parametrize(("layer", "gradients", "advised"), [(nn.LSTM, False, True), (nn.LSTM, True, False), (nn.GRU, False, False)])
def test_the_setting_is_advised_where_it_brings_the_layer_to_onnxruntime(
    layer: type[nn.LSTM | nn.GRU], *, gradients: bool, advised: bool
) -> None:
    """Dynamo fails to compile an LSTM for training, and makes a graph of all steps of other layers."""
    lens, model = Lens(), layer(6, 4)
    with torch.set_grad_enabled(gradients), torch._dynamo.config.patch(allow_rnn=False):
        torch.compile(lambda x: model(x.sin())[0].cos(), backend=lens)(X)
    (advice,) = {item.advice or "" for item in lens.captured().breaks}
    assert "recurrent layer outside" in advice
    assert ("torch._dynamo.config.allow_rnn = True" in advice) is advised


@pytest.fixture(autouse=True)
def _compiled() -> Iterator[None]:
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


def lstm(**options: bool | int) -> nn.LSTM:
    torch.manual_seed(0)
    return nn.LSTM(6, 4, **options).eval()


ONE = lstm()


@pytest.mark.parametrize("dynamic", [False, True])
def test_as_pytorch(*, dynamic: bool) -> None:
    cases: dict[str, Any] = {name: lstm(**options) for name, options in SHAPES.items()}
    given = lstm(num_layers=2)
    cases["its own first state"] = lambda x: given(x, (x[:2, :, :4].cos(), x[:2, :, 2:].sin()))
    cases["without a batch"] = lambda x: cases["plain"](x[:, 0])
    found, capture = differing(cases, X, dynamic=dynamic)
    assert found == {}
    assert not left(capture)
    assert sum(node.target == LAYER for node in capture.nodes) == 1 + 1 + 2 + 6 + 2 + 2 + 1


NAN, INF = float("nan"), float("inf")
ODD: dict[str, tuple[str, Any, float]] = {
    "NaN": ("x", (2, 1, 3), NAN),
    "infinity": ("x", (2, 1, 3), INF),
    "a large number": ("x", (2, 1, 3), 1e30),
    "a hidden state of NaN": ("hidden", (0, 1, 2), NAN),
    "a hidden state of infinity": ("hidden", (0, 1, 2), -INF),
    "a cell state of NaN": ("cell", (slice(None), 1), NAN),
    "a cell state of infinity": ("cell", (0, 1, 2), INF),
}


@pytest.mark.parametrize("name", ODD)
def test_numbers_that_are_not_finite_spread_as_in_pytorch(name: str) -> None:
    """ONNX Runtime's LSTM makes finite numbers of NaN."""
    where, place, number = ODD[name]
    given = {"x": X.clone(), "hidden": X[:2, :, :4].clone(), "cell": X[:2, :, 2:].clone()}
    given[where][place] = number
    both = lstm(bidirectional=True)
    cases = {"one direction": lambda x, h, c: ONE(x, (h[:1], c[:1])), "both": lambda x, h, c: both(x, (h, c))}
    assert differing(cases, *given.values())[0] == {}


def test_two_infinities_make_nan_at_every_later_step() -> None:
    x = X.clone()
    x[2, 1, 3], x[2, 1, 0] = INF, -INF
    with torch.no_grad():
        got, want = torch.compile(ONE, backend="ortlens")(x)[0], ONE(x)[0]
    assert torch.equal(got[3:].isnan(), want[3:].isnan())
    assert want[3:, 1].isnan().all()


@pytest.mark.parametrize("shape", [(1, 1, 6), (5, 0, 6), (300, 2, 6)])
def test_other_sizes(shape: tuple[int, ...]) -> None:
    assert differing({"plain": lstm(), "both directions": lstm(bidirectional=True)}, torch.rand(shape))[0] == {}
