"""Graphs of an earlier process, without AOTAutograd: only where nothing is left to do around them, and never a stale answer."""

import pathlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ortlens
from ortlens import _torch
from ortlens.backend.runtime import runner
from tests.integration.against_eager import assert_same


class Watched:
    """Counts how often AOTAutograd was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        real = _torch.aot_backend

        def counted(**compilers: Any) -> Any:  # noqa: ANN401
            self.count += 1
            return real(**compilers)

        monkeypatch.setattr(_torch, "aot_backend", counted)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def compiled(function: Callable[..., Any], folder: pathlib.Path, *, dynamic: bool | None = None, **options: object) -> Callable[..., Any]:
    torch.compiler.reset()
    ortlens.OrtBackend.clear_cached_instances()
    given: dict[str, Any] = {"cache_dir": folder, **options}
    fast: Callable[..., Any] = torch.compile(function, backend="ortlens", options=given, dynamic=dynamic)
    return fast


def refuse(*_: object) -> None:
    raise RuntimeError("no session today")


def model() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)).eval()


@torch.no_grad()
def test_the_second_process_asks_no_aot_autograd(tmp_path: pathlib.Path, asked: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    layers, x = model(), torch.rand(3, 8)
    for _ in range(2):
        fast = compiled(layers, tmp_path / "cache")
        for _ in range(3):
            assert_same(fast(x), layers(x))
        assert asked.count == 1
        (backend,) = ortlens.OrtBackend.get_cached_instances()
        assert backend.execution_count == 3
        ((info,),) = backend.sessions_by_graph.values()
        assert len(info.frozen) == 6
    seen: list[int] = []
    for _ in range(2):
        transforms = [lambda proto: seen.append(len(proto.graph.node))]
        assert_same(compiled(layers, tmp_path / "cache", pre_ort_model_transforms=transforms)(x), layers(x))
    assert len(seen) == 2
    assert seen[0] == seen[1]
    monkeypatch.setenv("ONNXRT_DUMP_PATH", str(tmp_path / "dumped"))
    assert_same(compiled(layers, tmp_path / "cache")(x), layers(x))
    assert {path.name for path in tmp_path.glob("dumped*")} == {"dumped0.onnx", "dumped0.txt"}
    torch.compiler.reset()
    torch.compile(layers, backend=(lens := ortlens.Lens(options={"cache_dir": tmp_path / "cache"})))(x)
    assert lens.models.cached.all()
    assert len(lens.nodes), "a lens sees the nodes all the same"
    largest = max((tmp_path / "cache").iterdir(), key=lambda path: path.stat().st_size)
    largest.unlink()
    before = asked.count
    assert_same(compiled(layers, tmp_path / "cache")(x), layers(x))
    assert asked.count == before + 1, "a model that is gone takes the long way"
    assert largest.exists()


@torch.no_grad()
def test_weights_are_those_of_now(tmp_path: pathlib.Path, asked: Watched) -> None:
    x = torch.rand(3, 8)
    compiled(model(), tmp_path)(x)
    layers = model()
    fast = compiled(layers, tmp_path)
    assert_same(fast(x), layers(x))
    next(layers.parameters()).add_(1)
    assert_same(fast(x), layers(x))
    layers.load_state_dict(model().state_dict())
    assert_same(fast(x), layers(x))
    next(layers.parameters()).data = torch.rand(16, 8)
    assert_same(fast(x), layers(x))
    assert asked.count == 1


def parts(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    total = x + y
    return (x > y)[:, 1:3], total.sum(), (x * y).t()[1], total.t().contiguous(), total.t()


@pytest.mark.parametrize("fails", [False, True])
def test_parts_of_values_lie_in_the_whole(
    tmp_path: pathlib.Path,
    asked: Watched,
    monkeypatch: pytest.MonkeyPatch,
    fails: bool,  # noqa: FBT001 - a parameter
) -> None:
    x, y = torch.rand(3, 8), torch.rand(8)
    for turn in range(2):
        fast = compiled(parts, tmp_path)
        if fails and turn:
            monkeypatch.setattr(runner.PartitionRunner, "prepare", refuse)
        for _ in range(2):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = fast(x, y)
            assert_same(found, parts(x, y))
            whole = found[0].as_strided((3, 8), (8, 1), 0)
            assert_same(whole, x > y)
            assert [(value.stride(), value.storage_offset()) for value in found] == [
                (value.stride(), value.storage_offset()) for value in parts(x, y)
            ]
    assert asked.count == 1


def writes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(y)
    return x * 2


NOT_PLAIN: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "writes_to_an_input": (writes, (torch.rand(3), torch.rand(3))),
    "returns_a_view_of_an_input": (lambda x, y: (x.view(-1), x + y), (torch.rand(3), torch.rand(3))),
    "leaves_an_operator_to_pytorch": (lambda x, y: torch.special.bessel_j0(x + 1) + y, (torch.rand(3), torch.rand(3))),
    "has_symbolic_sizes": (lambda x, y: torch.nn.functional.gelu(x) + y * x.shape[0], (torch.rand(3), torch.rand(3))),
    "draws": (lambda x, y: torch.nn.functional.dropout(x, 0.5) * 0 + y, (torch.rand(3), torch.rand(3))),
}


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_graphs_that_need_more_take_the_long_way(tmp_path: pathlib.Path, asked: Watched, name: str) -> None:
    function, args = NOT_PLAIN[name]
    for _ in range(2):
        mine, its = [arg.clone() for arg in args], [arg.clone() for arg in args]
        assert_same(compiled(function, tmp_path, dynamic=name == "has_symbolic_sizes" or None)(*mine), function(*its))
        assert_same(mine, its)
    assert asked.count == 2


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, y) * 1.5


def plus(number: float) -> Callable[[torch.Tensor], torch.Tensor]:
    constant = torch.full((4,), number)

    def add(x: torch.Tensor) -> torch.Tensor:
        return x + constant + torch.tensor([number] * 4)

    return add


def test_the_switches_of_the_process_gradients_and_constants_of_the_program_count(tmp_path: pathlib.Path, asked: Watched) -> None:
    x, y = torch.rand(3, 8), torch.rand(4, 8)
    assert_same(compiled(product, tmp_path)(x, y), product(x, y))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = compiled(product, tmp_path)(x, y)
        assert found.dtype is torch.bfloat16
    with torch.no_grad():
        compiled(product, tmp_path)(x, y)
    assert asked.count == 3
    weight = torch.rand(4, 8, requires_grad=True)
    compiled(product, tmp_path)(x, weight).sum().backward()
    assert_same(weight.grad, (torch.ones(3, 4) * 1.5).t() @ x)
    assert asked.count == 4
    for number in (1.0, 2.0):
        assert_same(compiled(plus(number), tmp_path)(x[0, :4]), plus(number)(x[0, :4]))
    assert asked.count == 6


class Idle(torch.nn.Module):
    """Holds a layer whose result nobody takes, and so an input that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = torch.nn.Linear(8, 4), torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.used(x)
        return (made, self.idle(made + y))[0]


@torch.no_grad()
def test_a_session_that_cannot_be_made_leaves_it_to_pytorch(
    tmp_path: pathlib.Path, asked: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers, x, y = Idle().eval(), torch.rand(3, 8), torch.rand(3, 4)
    for _ in range(2):
        assert_same(compiled(layers, tmp_path)(x, y), layers(x, y))
    assert asked.count == 1
    monkeypatch.setattr(runner.PartitionRunner, "prepare", refuse)
    fast = compiled(layers, tmp_path)
    with pytest.warns(RuntimeWarning, match="no session today"):
        assert_same(fast(x, y), layers(x, y))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(fast(x, y), layers(x, y))
