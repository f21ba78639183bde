"""`explain(dry_run=True)`: the figures of a real run, without memory for weights and without running anything."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import ortlens
from ortlens import Lens, UsageError, _torch
from tests.integration.small_models import SMALL_MODELS

executed: list[str] = []


@torch.library.custom_op("ortlens_dry::witness", mutates_args=())
def witness(x: torch.Tensor) -> torch.Tensor:
    """Stays in PyTorch, and tells whenever it runs."""
    executed.append("witness")
    return x.clone()


witness.register_fake(torch.empty_like)
witness.register_autograd(lambda _context, gradient: witness(gradient))


@pytest.fixture(autouse=True)
def _nothing_executed_before() -> Iterator[None]:
    executed.clear()
    yield
    executed.clear()


class Tied(nn.Module):
    """Two names for one weight, a buffer that is saved and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.embed.weight
        self.scale = nn.Buffer(torch.ones(8))
        self.shift = nn.Buffer(torch.ones(8), persistent=False)

    def forward(self, ids: torch.Tensor) -> Any:
        return self.head(witness(self.norm(self.embed(ids) * self.scale)) + self.shift)


IDS = torch.arange(6).reshape(2, 3)


def on_meta() -> Tied:
    with torch.device("meta"):
        return Tied()


def under_fakes() -> Tied:
    with FakeTensorMode():
        return Tied()


BUILDERS: dict[str, Callable[[], Tied]] = {"real": Tied, "meta": on_meta, "fake": under_fakes}


def fake_twin(tensor: torch.Tensor) -> torch.Tensor:
    with FakeTensorMode() as mode:
        made: torch.Tensor = mode.from_tensor(tensor)
        return made


ARGUMENTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "real": lambda tensor: tensor,
    "meta": lambda tensor: tensor.to("meta"),
    "fake": fake_twin,
}


def state(module: nn.Module) -> list[tuple[str, int]]:
    named = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    return [(name, id(tensor)) for name, tensor in named]


@pytest.mark.parametrize(
    ("built", "given", "grad"),
    [
        ("real", "fake", True),
        ("meta", "meta", False),
        ("meta", "real", False),
        ("fake", "fake", False),
    ],
)
def test_nothing_is_executed_and_the_model_is_as_it_was(built: str, given: str, grad: bool) -> None:  # noqa: FBT001 - a parameter
    model = BUILDERS[built]().eval()
    before = state(model)
    with torch.set_grad_enabled(grad):
        lens = ortlens.explain(model, dry_run=True)(ARGUMENTS[given](IDS))
    assert not executed
    assert state(model) == before
    assert model.head.weight is model.embed.weight
    assert lens.graphs.phase.tolist() == ["forward" if grad else "inference"]
    assert len(lens.partitions) == 2
    assert [(row.target, row.reason_code) for row in lens.fallbacks.itertuples()] == [("ortlens_dry.witness.default", "no_converter")]
    assert lens.sessions.empty
    assert lens.runs.empty
    assert not lens.captured().findings
    assert isinstance(lens.result, FakeTensor)
    assert (tuple(lens.result.shape), lens.result.dtype, lens.result.device.type) == ((2, 3, 10), torch.float32, "cpu")


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.calls = nn.Buffer(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> Any:
        self.calls.add_(1)
        return self.norm(x.mul_(2)) + self.calls


@pytest.mark.parametrize(("road", "grad"), [("compiled", True), ("compiled", False), ("exported", False)])
def test_what_the_model_would_change_stays_as_it_is(road: str, grad: bool) -> None:  # noqa: FBT001 - a parameter of the test
    model, x = Counting().train(), torch.ones(4, 3)
    target: Any = model if road == "compiled" else torch.export.export(model, (torch.ones(4, 3),))
    state_dict = model.state_dict() if road == "compiled" else target.state_dict
    before = {name: (tensor, tensor.clone()) for name, tensor in state_dict.items()}
    with torch.set_grad_enabled(grad):
        lens = ortlens.explain(target, dry_run=True)(x)
    assert not lens.captured().findings
    assert tuple(lens.result.shape) == (4, 3)
    torch.testing.assert_close(x, torch.ones(4, 3))
    after = model.state_dict() if road == "compiled" else target.state_dict
    for name, (tensor, values) in before.items():
        assert after[name].data_ptr() == tensor.data_ptr()
        torch.testing.assert_close(after[name], values, atol=0, rtol=0)


@pytest.mark.parametrize("given", ["real", "fake"])
def test_dynamic_sizes_are_dynamos(given: str) -> None:
    """Two inputs with one size that Dynamo takes for one symbol, and one that it takes for another."""
    with torch.no_grad():
        lens = ortlens.explain(lambda x, y, z: (x + y) @ z, dry_run=True, dynamic=True)(
            *(ARGUMENTS[given](torch.ones(*shape)) for shape in ((3, 4), (3, 4), (4, 5)))
        )
    assert lens.graphs.dynamic_shapes.tolist() == [True]
    assert lens.graphs.coverage.tolist() == [1.0]
    (rows, shared), (again, columns) = lens.nodes["shape"]
    assert rows == again
    assert len({rows, shared, columns}) == 3
    assert all(isinstance(size, str) for size in (rows, shared, columns))
    assert tuple(lens.result.shape) == (3, 5)


@pytest.mark.parametrize("built", ["meta", "real"])
def test_the_model_is_as_it_was_when_it_raises(built: str) -> None:
    class Raising(Tied):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            super().forward(ids)
            raise LookupError("from the model")

    with torch.device({"meta": "meta", "real": "cpu"}[built]):
        model = Raising()
    before = state(model)
    with pytest.raises(LookupError, match="from the model"):
        ortlens.explain(model, dry_run=True)(IDS)
    assert state(model) == before
    assert model.head.weight is model.embed.weight


@pytest.mark.parametrize(("name", "grad"), [pytest.param("bert", False, marks=pytest.mark.slow), ("resnet", False), ("layers", True)])
def test_the_figures_are_those_of_the_real_run(name: str, grad: bool) -> None:  # noqa: FBT001 - a parameter of the test
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    inputs: dict[str, Any] = {"input": torch.randn(3, 4)}
    if name in SMALL_MODELS:
        model, inputs = SMALL_MODELS[name].build().eval(), SMALL_MODELS[name].inputs(2)
    with torch.set_grad_enabled(grad):
        real = ortlens.explain(model, calls=1)(**inputs)
        torch.compiler.reset()
        dry = ortlens.explain(model, dry_run=True)(**inputs)
    assert dry.graphs.phase.tolist() == ["forward" if grad else "inference"]
    columns = ["node_count", "input_count", "output_count", "input_bytes", "output_bytes", "weight_bytes", "flops"]
    assert dry.partitions[columns].values.tolist() == real.partitions[columns].values.tolist()
    assert dry.partitions.flops.sum() > 0
    leave = {
        "graphs": ["entries_per_call"],
        "nodes": ["onnx_nodes", "onnx_ops", "onnx_confidences", "provider"],
    }  # before the optimiser, which does not run
    for frame, left in leave.items():
        one, other = (getattr(lens, frame).drop(columns=[c for c in getattr(lens, frame) if c.endswith("_ns")]) for lens in (dry, real))
        assert one.drop(columns=left).equals(other.drop(columns=left))
    assert dry.sessions.empty


def test_a_function_with_nested_arguments() -> None:
    def function(given: dict[str, Any], *, scale: float, rest: tuple[Any, ...]) -> Any:
        return {"made": witness(given["x"] @ rest[0]) * scale, "none": rest[1]}

    lens = ortlens.explain(function, dry_run=True, name="mine")({"x": torch.randn(2, 3)}, scale=2.0, rest=(torch.randn(3, 4), None))
    assert not executed
    assert lens.result["none"] is None
    assert tuple(lens.result["made"].shape) == (2, 4)
    assert lens.partitions.flops.tolist() == [2 * 2 * 3 * 4, 0]
    assert lens.captured().name == "mine"


def test_strides_and_dtypes_of_the_arguments_are_kept_and_fakes_may_be_of_two_modes() -> None:
    seen = []

    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        seen.append((x.stride(), y.dtype))
        return x.t() @ x + y.sum()

    lens = ortlens.explain(function, dry_run=True)(fake_twin(torch.randn(4, 3).t()), fake_twin(torch.ones(2, dtype=torch.bfloat16)))
    assert tuple(lens.result.shape) == (4, 4)
    assert not lens.captured().findings
    assert (1, 3) in [stride for stride, _ in seen]
    assert {dtype for _, dtype in seen} == {torch.bfloat16}


def test_graph_breaks_are_recorded_and_the_run_goes_on() -> None:
    def function(x: torch.Tensor) -> Any:
        x = witness(x.sin())
        torch._dynamo.graph_break()
        return witness(x.cos()) + 1

    lens = ortlens.explain(function, dry_run=True)(torch.randn(3))
    assert not executed
    assert len(lens.graphs) == 2
    assert lens.breaks.line.tolist() == [function.__code__.co_firstlineno + 2]
    assert tuple(lens.result.shape) == (3,)


@pytest.mark.parametrize("ask", [lambda x: bool(x.sum() > 0), lambda x: x.nonzero().shape[0] > 1])
def test_where_the_model_asks_for_values_the_run_ends_and_keeps_what_came_before(ask: Callable[[torch.Tensor], bool]) -> None:
    model = on_meta()
    before = state(model)

    def forward(ids: torch.Tensor) -> Any:
        logits = Tied.forward(model, ids)
        torch._dynamo.graph_break()
        return logits * 2 if ask(logits) else logits

    model.forward = forward  # type: ignore[method-assign]  # the model of the other tests, with a decision on values
    with torch.no_grad():
        lens = ortlens.explain(model, dry_run=True)(IDS)
    assert not executed
    assert lens.findings.rule.tolist() == ["dry_run_ended"]
    assert lens.findings.severity.tolist() == ["info"]
    assert lens.result is None
    assert lens.fallbacks.target[0] == "ortlens_dry.witness.default"
    assert lens.partitions.weight_bytes[0] > 0
    assert state(model) == before


def test_another_backend_is_refused() -> None:
    for backend in ("eager", lambda module, _inputs: module):
        with pytest.raises(UsageError, match="dry run"):
            ortlens.explain(nn.Linear(4, 2), backend=backend, dry_run=True)(torch.randn(3, 4))
    with pytest.raises(UsageError, match="dry run"):
        Lens("eager", dry_run=True)


def test_a_meta_model_runs_for_real_after_a_dry_run() -> None:
    model = on_meta()
    with torch.no_grad():
        assert _torch.is_fake(ortlens.explain(model, dry_run=True)(IDS).result)
        real = model.to_empty(device="cpu")
        for tensor in (*real.parameters(), *real.buffers()):
            tensor.fill_(0.5)
        lens = ortlens.explain(real, calls=1)(IDS)
        assert executed == ["witness"]
        torch.testing.assert_close(lens.result, real(IDS))
    assert lens.sessions.calls.tolist() == [1, 1]
