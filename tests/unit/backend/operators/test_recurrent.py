"""Recurrent layers, which Dynamo compiles when `allow_rnn` is set."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import nn

import ortlens
from ortlens import Lens
from tests.unit.backend.operators.one_graph import as_pytorch

SHAPES: dict[str, dict[str, Any]] = {
    "batch first": {"batch_first": True},
    "three layers in both directions": {"num_layers": 3, "bidirectional": True},
    "without biases": {"bias": False, "num_layers": 2},
}
LAYER = "aten.mkldnn_rnn_layer.default"
X = torch.linspace(-2, 2, 5 * 3 * 6).reshape(5, 3, 6)


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("gradients", [False, True])
def test_the_setting_is_advised_where_it_brings_the_layer_to_onnxruntime(
    layer: type[nn.LSTM | nn.GRU | nn.RNN], *, gradients: bool
) -> None:
    """For training, Dynamo fails to compile an LSTM, and makes a graph of all steps of the others."""
    lens, model = Lens(), layer(6, 4)
    with torch.set_grad_enabled(gradients), torch._dynamo.config.patch(allow_rnn=False):
        torch.compile(lambda x: model(x.sin())[0].cos(), backend=lens)(X)
    (advice,) = {item.advice or "" for item in lens.captured().breaks}
    assert "recurrent layer outside" in advice
    assert ("torch._dynamo.config.allow_rnn = True" in advice and "torch.no_grad()" not in advice) is not gradients


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


DOUBLE = {"dtype": torch.float64}
NETWORKS: dict[str, tuple[type[nn.LSTM | nn.GRU | nn.RNN], dict[str, Any], int]] = {
    "LSTM": (nn.LSTM, {"num_layers": 2}, 2),
    "LSTM of both directions": (nn.LSTM, {"bidirectional": True, "batch_first": True}, 2),
    "GRU": (nn.GRU, {}, 1),
    "GRU of both directions": (nn.GRU, {"num_layers": 2, "bidirectional": True, "batch_first": True}, 4),
    "GRU without biases": (nn.GRU, {"num_layers": 3, "bias": False}, 3),
    "RNN": (nn.RNN, {"num_layers": 2, "bidirectional": True}, 4),
    "RNN of ReLU": (nn.RNN, {"nonlinearity": "relu", "bidirectional": True, "batch_first": True}, 2),
    "RNN of float64": (nn.RNN, {"num_layers": 2, "bias": False, **DOUBLE}, 2),
    "RNN of ReLU and float64": (nn.RNN, {"nonlinearity": "relu", "batch_first": True, **DOUBLE}, 1),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_frozen_one_has_an_operator_per_layer_and_direction_whatever_its_steps(name: str) -> None:
    kind, options, count = NETWORKS[name]
    layer, operator = network(kind, **options), "Scan" if kind is nn.RNN else kind.__name__
    counts = []
    for steps in (3, 20):
        x = torch.randn(steps, 2, 6, dtype=options.get("dtype"))
        batch, x = (0, x.transpose(0, 1)) if options.get("batch_first") else (1, x)
        with torch.no_grad():
            frozen = ortlens.freeze(layer, x, dynamic=steps == 3)
            others = (spoilt(x), torch.cat([x, x.sin()], batch), torch.cat([x, x.sin()], 1 - batch)) if steps == 3 else ()
            for given in (x, x.neg(), *others):
                torch.testing.assert_close(frozen(given), layer(given), atol=1e-5, rtol=1e-4, equal_nan=True, check_stride=True)
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


@pytest.mark.parametrize("kind", [nn.GRU, nn.RNN])
def test_the_first_state_of_a_frozen_one_is_an_argument(kind: type[nn.GRU | nn.RNN]) -> None:
    layer = network(kind, num_layers=2, bidirectional=True)
    x, state = torch.randn(5, 3, 6), torch.randn(4, 3, 4)
    with torch.no_grad():
        frozen = ortlens.freeze(layer, x, state)
        torch.testing.assert_close(frozen(x, state), layer(x, state), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_a_plain_network_spreads_what_is_not_finite_as_pytorch_does(nonlinearity: str) -> None:
    """Also where several infinities add up to one, which for the others counts as NaN."""
    layer, x, state = network(nn.RNN, nonlinearity=nonlinearity), torch.randn(5, 3, 6), torch.randn(1, 3, 4)
    with torch.no_grad():
        frozen = ortlens.freeze(layer, x, state)
        for place, number in ((1, NAN), ([3, 0], INF), ([3, 0], torch.tensor([INF, -INF])), (2, -INF)):
            for given in ([x.clone(), state], [x, state.clone()]):
                changed = given[0] if given[1] is state else given[1]
                changed[0, 1, place] = number
                torch.testing.assert_close(frozen(*given), layer(*given), atol=1e-5, rtol=1e-4, equal_nan=True)


LARGE, NEAR_ONE = torch.full((64,), 30.0), torch.linspace(8, 9, 64)
GATES = {
    nn.LSTM: (LARGE, LARGE, torch.linspace(1, 3, 64), LARGE),
    nn.GRU: (LARGE * 0, -LARGE, NEAR_ONE),
    nn.RNN: (NEAR_ONE,),
}
"""Kind -> what goes into each gate of 64 numbers."""


@torch.no_grad()
@pytest.mark.parametrize("kind", GATES)
def test_states_stay_within_their_range(kind: type[nn.LSTM | nn.GRU | nn.RNN]) -> None:
    layer: Any = kind(1, 64).eval()
    for parameter in layer.parameters():
        parameter.zero_()
    layer.bias_ih_l0.copy_(torch.cat(GATES[kind]))
    x, lens = torch.zeros(12, 1, 1), Lens()
    steps, _ = torch.compile(layer, backend=lens)(x)
    assert float(steps.max()) <= 1.0
    torch.testing.assert_close(steps, layer(x)[0])
    assert not lens.captured().fallbacks
    (model,) = lens.captured().models
    assert f"{'Scan' if kind is nn.RNN else kind.__name__}:1" in model.ops, "one operator, as in a frozen one"


@torch.no_grad()
def test_a_state_beyond_1_that_is_given_stays() -> None:
    layer: Any = nn.GRU(1, 4).eval()
    start = torch.tensor([[[-5.0, 0.5, 1.0, 7.0]]])
    for parameter in layer.parameters():
        parameter.zero_()
    layer.bias_ih_l0[4:8] = 30.0  # the gate that keeps what there is
    x = torch.zeros(3, 1, 1)
    torch.testing.assert_close(torch.compile(layer, backend="ortlens")(x, start), layer(x, start), equal_nan=True)


def test_a_plain_network_of_few_rows() -> None:
    layer = network(nn.RNN, num_layers=2, bidirectional=True)

    def few(x: torch.Tensor) -> list[Any]:
        return [layer(x[:, :0]), layer(x[:1, :1]), layer(x[:, 0])]  # no batch, one step of one, unbatched

    with torch.no_grad():
        for fast in (ortlens.freeze(few, X), torch.compile(few, backend="ortlens")):
            torch.testing.assert_close(fast(X), few(X))


def test_a_plain_network_is_the_same_wherever_its_model_goes(tmp_path: Path) -> None:
    layer = network(nn.RNN, num_layers=2, bidirectional=True)
    with torch.no_grad():
        expected = layer(X)
        saved = ortlens.load_frozen(ortlens.freeze(layer, X).save(tmp_path / "frozen"))(X)
        lens = ortlens.explain(layer, calls=1)(X)
        session = onnxruntime.InferenceSession(lens.export_onnx(tmp_path / "model.onnx"))
        for made in (saved, tuple(map(torch.from_numpy, session.run(None, {session.get_inputs()[0].name: X.numpy()})))):
            torch.testing.assert_close(made, expected, atol=1e-5, rtol=1e-4)
        kernels = lens.profile(X)
    assert {"Scan", "FusedGemm"} <= set(kernels.op_type)
    assert set(kernels.node) == {"rnn_tanh"}


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize(
    ("kind", "options", "dtype"),
    [(nn.RNN, {}, torch.float16), (nn.LSTM, {"proj_size": 2}, torch.float32), (nn.GRU, {}, torch.float64)],
    ids=["float16", "projections", "float64"],
)
def test_what_onnx_runtime_does_not_take_is_unrolled_if_it_is_short_and_else_stays_in_pytorch(
    kind: type[nn.LSTM | nn.GRU | nn.RNN], options: dict[str, Any], dtype: torch.dtype
) -> None:
    layer = network(kind, **options).to(dtype)
    for steps, left in ((4, 0), (66, 1)):
        x = torch.randn(steps, 2, 6, dtype=dtype)
        with torch.no_grad():
            frozen = ortlens.freeze(lambda x: layer(x.sin())[0].cos(), x)
            close = 2e-3 if dtype is torch.float16 else 1e-5
            torch.testing.assert_close(frozen(x), layer(x.sin())[0].cos(), atol=close, rtol=10 * close)
        assert len(frozen.graph.left_in_torch()) == left


@torch.no_grad()
def test_a_short_one_of_float16_without_biases_ends_no_process() -> None:
    """ONNX Runtime's rewrite for blocks of channels read foreign memory at its model, which has no channels."""
    layer, x = nn.RNN(8, 16, batch_first=True, bias=False).half().eval(), torch.randn(5, 8).half()
    torch.testing.assert_close(ortlens.freeze(layer, x)(x)[0], layer(x)[0], atol=2e-3, rtol=2e-2)
