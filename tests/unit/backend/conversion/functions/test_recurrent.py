"""Layers of an LSTM, which Dynamo compiles when `allow_rnn` is set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import ortlens
from ortlens import Lens
from tests.unit.backend.conversion.functions.one_graph import as_pytorch

if TYPE_CHECKING:
    from collections.abc import Iterator

SHAPES: dict[str, dict[str, Any]] = {
    "batch first": {"batch_first": True},
    "three layers in both directions": {"num_layers": 3, "bidirectional": True},
    "without biases": {"bias": False, "num_layers": 2},
}
LAYER = "aten.mkldnn_rnn_layer.default"
X = torch.linspace(-2, 2, 5 * 3 * 6).reshape(5, 3, 6)


@pytest.mark.parametrize(
    ("layer", "gradients", "advised"), [(nn.LSTM, False, True), (nn.LSTM, True, False), (nn.GRU, False, True), (nn.GRU, True, False)]
)
def test_the_setting_is_advised_where_it_brings_the_layer_to_onnxruntime(
    layer: type[nn.LSTM | nn.GRU], *, gradients: bool, advised: bool
) -> None:
    """For training, Dynamo fails to compile an LSTM, and makes a graph of all steps of a GRU."""
    lens, model = Lens(), layer(6, 4)
    with torch.set_grad_enabled(gradients), torch._dynamo.config.patch(allow_rnn=False):
        torch.compile(lambda x: model(x.sin())[0].cos(), backend=lens)(X)
    (advice,) = {item.advice or "" for item in lens.captured().breaks}
    assert "recurrent layer outside" in advice
    assert ("torch._dynamo.config.allow_rnn = True" in advice and "torch.no_grad()" not in advice) is advised


@pytest.fixture(autouse=True)
def _compiled() -> Iterator[None]:
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


def lstm(**options: bool | int) -> nn.LSTM:
    torch.manual_seed(0)
    return nn.LSTM(6, 4, **options).eval()


ONE, BOTH = lstm(), lstm(bidirectional=True)


@pytest.mark.parametrize("dynamic", [False, True])
def test_as_pytorch(*, dynamic: bool) -> None:
    cases: dict[str, Any] = {"plain": ONE, "both directions": BOTH} if dynamic else {name: lstm(**SHAPES[name]) for name in SHAPES}
    given = lstm(num_layers=2)
    cases["its own first state"] = lambda x: given(x, (x[:2, :, :4].cos(), x[:2, :, 2:].sin()))
    cases["without a batch"] = lambda x: ONE(x[:, 0])
    if not dynamic:
        for name, layer in (("one direction", ONE), ("two directions", BOTH)):
            cases[f"{name}, one step of one"] = lambda x, layer=layer: layer(x[:1, :1])
            cases[f"{name}, no batch"] = lambda x, layer=layer: layer(x[:, :0])
            cases[f"{name}, many steps"] = lambda x, layer=layer: layer(x.repeat(60, 1, 1))
    capture = as_pytorch(cases, X, dynamic=dynamic, stays=())
    assert LAYER in {node.target for node in capture.nodes}


NAN, INF = float("nan"), float("inf")
ODD: dict[str, tuple[str, Any, Any]] = {
    "NaN": ("x", (2, 1, 3), NAN),
    "infinity": ("x", (2, 1, 3), INF),
    "two infinities": ("x", (2, 1, [3, 0]), torch.tensor([INF, -INF])),
    "a large number": ("x", (2, 1, 3), 1e30),
    "a hidden state of NaN": ("hidden", (0, 1, 2), NAN),
    "a hidden state of infinity": ("hidden", (0, 1, 2), -INF),
    "a cell state of NaN": ("cell", (slice(None), 1), NAN),
    "a cell state of infinity": ("cell", (0, 1, 2), INF),
}


def test_numbers_that_are_not_finite_spread_as_in_pytorch() -> None:
    """ONNX Runtime's LSTM makes finite numbers of NaN."""

    def both(x: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor) -> tuple[Any, Any]:
        return ONE(x, (hidden[:1], cell[:1])), BOTH(x, (hidden, cell))

    compiled = torch.compile(both, backend="ortlens")
    for name, (where, place, number) in ODD.items():
        given = {"x": X.clone(), "hidden": X[:2, :, :4].clone(), "cell": X[:2, :, 2:].clone()}
        given[where][place] = number
        with torch.no_grad():
            got, wanted = compiled(**given), both(**given)
        torch.testing.assert_close(got, wanted, equal_nan=True, msg=name, atol=1e-4, rtol=1e-4)


def network(kind: type[nn.LSTM | nn.GRU | nn.RNN], **options: Any) -> Any:  # noqa: ANN401 - those of the layer
    torch.manual_seed(0)
    return kind(6, 4, **options).eval()


def frozen_ops(frozen: Any) -> list[str]:  # noqa: ANN401 - a frozen callable
    return [node.op_type for runner in frozen.graph.runners for node in runner.model.graph.node]


NETWORKS: dict[str, tuple[type[nn.LSTM | nn.GRU | nn.RNN], dict[str, Any], int]] = {
    "LSTM of both directions": (nn.LSTM, {"bidirectional": True, "batch_first": True}, 2),
    "GRU": (nn.GRU, {}, 1),
    "GRU of both directions": (nn.GRU, {"num_layers": 2, "bidirectional": True, "batch_first": True}, 4),
    "GRU without biases": (nn.GRU, {"num_layers": 3, "bias": False}, 3),
    "RNN": (nn.RNN, {"num_layers": 2, "bidirectional": True}, 4),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_frozen_one_has_an_operator_per_layer_and_direction_whatever_its_steps(name: str) -> None:
    kind, options, count = NETWORKS[name]
    layer, operator = network(kind, **options), name.partition(" ")[0]
    counts = []
    for steps in (3, 20):
        x = torch.randn(steps, 2, 6).transpose(0, 1) if options.get("batch_first") else torch.randn(steps, 2, 6)
        with torch.no_grad():
            frozen = ortlens.freeze(layer, x, dynamic=steps == 3)
            for given in (x, x.neg(), spoilt(x)) if steps == 3 else (x,):
                torch.testing.assert_close(frozen(given), layer(given), atol=1e-5, rtol=1e-4, equal_nan=True)
        ops = frozen_ops(frozen)
        assert ops.count(operator) == count
        counts.append(len(ops))
        assert frozen.graph.left_in_torch() == {}
    assert counts[1] <= counts[0]


def spoilt(x: torch.Tensor) -> torch.Tensor:
    made = x.clone()
    made[1, 1, 0] = torch.nan
    made[-1, 0, 2] = torch.inf
    return made


def test_the_first_state_of_a_frozen_one_is_an_argument() -> None:
    layer = network(nn.GRU, num_layers=2, bidirectional=True)
    x, state = torch.randn(5, 3, 6), torch.randn(4, 3, 4)
    with torch.no_grad():
        frozen = ortlens.freeze(layer, x, state)
        torch.testing.assert_close(frozen(x, state), layer(x, state), atol=1e-5, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize(
    ("kind", "options", "dtype"),
    [(nn.RNN, {"nonlinearity": "relu"}, torch.float32), (nn.LSTM, {"proj_size": 2}, torch.float32), (nn.GRU, {}, torch.float64)],
    ids=["relu", "projections", "float64"],
)
def test_what_onnx_runtime_does_not_take_is_unrolled_if_it_is_short_and_else_stays_in_pytorch(
    kind: type[nn.LSTM | nn.GRU | nn.RNN], options: dict[str, Any], dtype: torch.dtype
) -> None:
    layer = network(kind, **options).to(dtype)
    for steps, left in ((4, 0), (66, 1)):
        x = torch.randn(steps, 2, 6, dtype=dtype)
        with torch.no_grad():
            frozen = ortlens.freeze(lambda x: layer(x.sin())[0].cos(), x)
            torch.testing.assert_close(frozen(x), layer(x.sin())[0].cos(), atol=1e-5, rtol=1e-4)
        assert len(frozen.graph.left_in_torch()) == left
