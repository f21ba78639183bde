"""`explain(dry_run=True, device="cuda")`: what the CUDA provider would run, planned on a machine without a GPU."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental import proxy_tensor

import ortlens
from ortlens import UsageError, _torch, cli
from tests.integration.small_models import SMALL_MODELS

HAS_GPU = torch.cuda.is_available()
with _torch.tracing_cuda() as _is_possible:
    pass
pytestmark = pytest.mark.skipif(not (_is_possible or HAS_GPU), reason="this torch cannot trace CUDA tensors without a GPU")

X = torch.randn(3, 8)


class Mlp(nn.Module):
    """Two layers, one weight under two names, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.again = nn.Buffer(torch.ones(8))
        self.shift = self.again

    def forward(self, x: torch.Tensor) -> Any:
        return self.second(self.first(x).relu()) + self.shift


def on_cuda(tensor: torch.Tensor) -> torch.Tensor:
    with _torch.fake_mode_of([]):
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")


def state(module: nn.Module) -> list[tuple[str, int, torch.device, torch.dtype]]:
    named = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    return [(name, id(tensor), tensor.device, tensor.dtype) for name, tensor in named]


def planned(target: Any, *args: Any, device: Any = "cuda", dynamic: bool | None = None, **kwargs: Any) -> ortlens.Lens:
    with torch.no_grad():
        return ortlens.explain(target, dry_run=True, device=device, dynamic=dynamic)(*args, **kwargs)


def fallbacks(lens: ortlens.Lens) -> list[tuple[str, str]]:
    return list(zip(lens.fallbacks.target, lens.fallbacks.reason_code, strict=True))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("mlp", torch.float32), ("mlp", torch.bfloat16), ("bert", torch.float16), ("llama", torch.bfloat16)],
    ids=["mlp", "mlp in bfloat16", "bert in float16", "llama in bfloat16"],
)
def test_models_are_whole_and_as_they_were(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model: nn.Module = Mlp()
    inputs: dict[str, Any] = {"x": X}
    if name in SMALL_MODELS:
        model, inputs = SMALL_MODELS[name].build(), SMALL_MODELS[name].inputs(2)
        inputs |= {"use_cache": True} if name == "llama" else {}
    model = model.eval().to(dtype)
    inputs = {key: value.to(dtype) if value is X else value for key, value in inputs.items()}
    before = state(model)
    lens = planned(model, **inputs)
    assert lens.graphs.coverage.tolist() == [1.0]
    assert len(lens.partitions) == 1
    assert lens.sessions.empty
    assert not lens.captured().findings
    assert state(model) == before
    figures = lens.captured().figures
    assert figures.planned_for == ("CUDAExecutionProvider",)
    assert figures.planned_without == (("attention",) if name != "mlp" and not HAS_GPU else ())
    assert {tensor.device.type for tensor in _torch.tensors_of(tuple(lens.result.values()) if name != "mlp" else lens.result)} == {"cuda"}


def test_the_models_are_those_of_the_cpu_where_the_providers_agree() -> None:
    model = Mlp()
    plans = [planned(model, X, device=device) for device in ("cpu", "cuda")]
    columns = ["node_count", "input_count", "output_count", "input_bytes", "output_bytes", "weight_bytes", "flops"]
    assert plans[0].partitions[columns].equals(plans[1].partitions[columns])
    assert plans[0].nodes[["target", "onnx_ops"]].equals(plans[1].nodes[["target", "onnx_ops"]])
    assert [plan.captured().figures.planned_for for plan in plans] == [(), ("CUDAExecutionProvider",)]


def test_a_plain_recurrent_network_is_one_operator_of_the_provider() -> None:
    """The CPU has a Scan, whose steps would be launches on a device."""
    flags = True, 1, 0.0, False, False, False  # with biases, one layer, ...
    given = [torch.randn(shape) for shape in ((5, 3, 8), (1, 3, 4), (4, 8), (4, 4), (4,), (4,))]

    def network(x: torch.Tensor, state: torch.Tensor, *weights: torch.Tensor) -> Any:
        return torch.rnn_tanh(x, state, weights, *flags)

    plans = [planned(network, *given, device=device).captured() for device in ("cpu", "cuda")]
    ops = [set(plan.models[0].ops) for plan in plans]
    assert [("Scan:1" in each, "RNN:1" in each) for each in ops] == [(True, False), (False, True)]


def test_every_view_says_what_was_planned() -> None:
    def attention(x: torch.Tensor) -> Any:
        return nn.functional.scaled_dot_product_attention(x, x, x)

    lens = ortlens.explain(attention, dry_run=True, device="cuda")(torch.randn(1, 2, 4, 8, requires_grad=True))
    assert lens.graphs.phase.tolist() == ["forward" if HAS_GPU else "inference"]
    assert lens.captured().figures.planned_without == (() if HAS_GPU else ("gradients", "attention"))
    said = " ".join(lens.summary().split())
    assert "planned for CUDAExecutionProvider: nothing was run" in said
    assert ("inference only" in said) is not HAS_GPU
    assert ("another operator for attention" in said) is not HAS_GPU


def on_the_device(x: torch.Tensor) -> Any:
    return x + torch.arange(8, device=x.device) * torch.tensor(2.0, device="cuda")


def there_and_back(x: torch.Tensor) -> Any:
    y = x.cpu() + torch.ones(8)
    return y.to("cuda") * y.cuda() - y.to(x.device)


def in_place(x: torch.Tensor) -> Any:
    y = x.clone()
    y[:, 0] = 1
    return y


def under_a_closure(model: nn.Module) -> Callable[[torch.Tensor], Any]:
    return lambda x: model(x) * 2


def of_a_method() -> Callable[[torch.Tensor], Any]:
    return Mlp().forward


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return Mlp()


@pytest.mark.parametrize(
    "target",
    [on_the_device, there_and_back, in_place, under_a_closure(Mlp()), of_a_method(), on_meta()],
    ids=["on_the_device", "there_and_back", "in_place", "closure", "method", "meta"],
)
def test_targets_of_all_kinds(target: Any) -> None:
    lens = planned(target, X)
    assert lens.graphs.coverage.tolist() == [1.0]
    assert lens.result.device.type == "cuda"
    assert lens.captured().figures.planned_for == ("CUDAExecutionProvider",)


@pytest.mark.parametrize("dynamic", [None, True])
def test_sizes_may_vary(dynamic: bool | None) -> None:  # noqa: FBT001 - a parameter of the test
    lens = planned(in_place, X, dynamic=dynamic)
    assert lens.graphs.coverage.tolist() == [1.0]
    assert lens.graphs.dynamic_shapes.tolist() == [bool(dynamic)]


def test_fake_tensors_of_cuda_are_planned_where_they_are() -> None:
    def function(x: torch.Tensor, there: torch.Tensor) -> Any:
        half = there * 2
        return (x @ x.T).relu(), half

    lens = planned(function, on_cuda(X), X.bfloat16(), device=None)
    assert lens.captured().figures.planned_for == ("CUDAExecutionProvider",)
    assert [tensor.device.type for tensor in lens.result] == ["cuda", "cpu"]
    from ortlens.backend.runtime.devices import cpu_provider_computes

    if not cpu_provider_computes("bfloat16"):
        assert fallbacks(lens) == [("aten.mul.Tensor", "dtype")]  # bfloat16 on the CPU stays there
        assert "CPU" in lens.fallbacks.reason[0]
    assert fallbacks(planned(function, on_cuda(X.bfloat16()), on_cuda(X.bfloat16()), device=None)) == []


def test_fake_weights_of_cuda_with_gradients() -> None:
    model = Mlp()
    for owner in model.modules():
        for name, tensor in owner.named_parameters(recurse=False, remove_duplicate=False):
            setattr(owner, name, nn.Parameter(on_cuda(tensor)))
    model.shift = model.again = nn.Buffer(on_cuda(model.again))
    lens = ortlens.explain(model, dry_run=True)(on_cuda(X))
    assert lens.graphs.coverage.tolist() == [1.0]
    assert lens.captured().figures.planned_without == (() if HAS_GPU else ("gradients",))


def test_without_a_device_nothing_is_planned_for_another() -> None:
    lens = planned(Mlp(), X, device=None)
    assert (lens.captured().figures.planned_for, lens.result.device.type) == ((), "cpu")
    assert "planned for" not in lens.summary()


def test_a_decision_on_values_ends_the_run() -> None:
    def function(x: torch.Tensor) -> Any:
        x = x * 2
        return x + 1 if x.sum() > 0 else x - 1

    lens = planned(function, X)
    assert lens.findings.rule.tolist() == ["dry_run_ended"]
    assert lens.result is None
    assert len(lens.breaks) == 1
    assert lens.graphs.coverage.tolist() == [1.0]


def test_what_stays_in_pytorch_says_why() -> None:
    lens = planned(lambda x: nn.functional.dropout(x.relu()), X)
    assert fallbacks(lens) == [("aten.native_dropout.default", "side_effect")]


def test_a_target_that_raises_leaves_everything_as_it_was() -> None:
    class Raising(Mlp):
        def forward(self, x: torch.Tensor) -> Any:
            super().forward(x)
            raise LookupError("from the model")

    def of_the_process() -> tuple[Any, ...]:
        with _torch.fake_mode_of([]):
            try:
                torch.empty(1, device="cuda")[:1]
                traces = True
            except RuntimeError:
                traces = False
        return FunctionalTensor.cuda, proxy_tensor.CONSTANT_NUMEL_LIMIT, traces

    model = Raising()
    before, process = state(model), of_the_process()
    with pytest.raises(LookupError, match="from the model"):
        planned(model, X)
    assert state(model) == before
    assert of_the_process() == process


def test_the_command_line_and_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "planned_net.py").write_text("from torch import nn\ndef huge():\n    return nn.Linear(10**6, 10**6)\n", encoding="utf-8")
    files = ["--save", "run.ortlens", "--report", "run.html"]
    assert cli.main(["explain", "planned_net:huge", "--input", "f32[1,1000000]", "--dry-run", "--device", "cuda", *files]) == 0
    assert "planned for CUDAExecutionProvider" in " ".join(capsys.readouterr().out.split())
    assert "planned for CUDAExecutionProvider" in (tmp_path / "run.html").read_text(encoding="utf-8")
    loaded = ortlens.load(tmp_path / "run.ortlens")
    assert loaded.captured().figures.planned_for == ("CUDAExecutionProvider",)
    assert loaded.graphs.coverage.tolist() == [1.0]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"device": "cuda"}, "add dry_run=True"),
        *(({"device": device, "dry_run": True}, "'cuda' and 'cpu'") for device in ("mps", "xpu", "meta", "cuda:7")),
        *(({"device": device, "dry_run": True}, "no device of PyTorch") for device in ("gpu", "", 1.5)),
        ({"device": "cuda", "dry_run": True, "backend": "eager"}, "dry run"),
    ],
)
def test_devices_that_are_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ortlens.explain(Mlp(), **asked)(X)


def test_targets_that_have_a_device_of_their_own_are_refused() -> None:
    with pytest.raises(UsageError, match="exported"):
        planned(torch.export.export(Mlp(), (X,)), X)
    with pytest.raises(UsageError, match="device="):
        planned("model.onnx")
