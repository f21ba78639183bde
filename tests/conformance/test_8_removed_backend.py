"""CONTRACT 8.1 to 8.6: what the removed backend did and must hold again."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

import copy
import operator
from collections.abc import Callable
from typing import Any

import onnx
import pytest
import torch
import transformers
from torch import nn

from ortlens import Lens
from ortlens.backend.runtime import devices
from tests.conformance.operator_case import r
from tests.integration.against_eager import same_as_eager, sessions_per_partition
from tests.integration.test_breaks import outermost

BATCHES = (3, 5, 8, 2)


def train_both(model: nn.Module, batches: list[tuple[Any, ...]], loss_of: Callable[[Any], torch.Tensor]) -> Lens:
    """Forward and backward both ways, batch by batch; outputs, losses and gradients agree."""
    ours, lens = copy.deepcopy(model), Lens()
    compiled = torch.compile(ours, backend=lens, dynamic=True)
    for args in batches:
        mine, theirs = loss_of(compiled(*args)), loss_of(model(*args))
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)
        mine.backward()
        theirs.backward()
        gradients = [{name: value.grad for name, value in m.named_parameters()} for m in (ours, model)]
        torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-3)
    return lens


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4), nn.Sigmoid())


def llama_block() -> nn.Module:
    """One decoder layer, rotary positions and norm included, on embeddings that are given."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=32,
        vocab_size=20,
        use_cache=False,
    )
    model: nn.Module = transformers.LlamaModel(config)
    return model


def test_8_1_elementwise_dynamic() -> None:
    lens = Lens()
    compiled = torch.compile(lambda x: (x.sin() + x.cos()) * x.sigmoid(), backend=lens, dynamic=True)
    for batch in BATCHES:
        mine, theirs = r(batch, 4).requires_grad_(), r(batch, 4).requires_grad_()
        result, wanted = compiled(mine), (theirs.sin() + theirs.cos()) * theirs.sigmoid()
        torch.testing.assert_close(result, wanted)
        result.sum().backward()
        wanted.sum().backward()
        torch.testing.assert_close(mine.grad, theirs.grad)
    assert lens.graphs.coverage.tolist() == [1.0, 1.0]
    assert lens.sessions.calls.tolist() == [len(BATCHES)] * 2
    assert lens.recompiles.empty


def test_8_1_mlp_dynamic() -> None:
    lens = train_both(mlp(), [(r(batch, 6),) for batch in BATCHES], lambda out: out.square().mean())
    assert sorted(lens.graphs.phase) == ["backward", "forward"]
    assert lens.graphs.coverage.tolist() == [1.0, 1.0]
    assert set(lens.sessions.calls) == {len(BATCHES)}


@pytest.mark.slow
def test_8_1_llama_block_dynamic() -> None:
    lens = train_both(
        llama_block(), [(torch.randint(0, 20, (batch, 7)),) for batch in BATCHES], lambda out: out.last_hidden_state.square().mean()
    )
    assert sorted(lens.graphs.phase) == ["backward", "forward"]
    assert all(coverage > 0.9 for coverage in lens.graphs.coverage), lens.fallbacks[["target", "reason"]].to_string()
    assert lens.breaks.empty
    assert lens.recompiles.empty
    assert set(lens.sessions.calls) == {len(BATCHES)}


def test_8_1_batch_size_one_adds_at_most_one_graph() -> None:
    capture = same_as_eager(mlp().eval(), *[(r(batch, 6),) for batch in (3, 1, 5, 1, 2)], dynamic=True)
    assert 1 <= len(capture.graphs) <= 2
    assert sum(session.calls for session in capture.sessions) == 5
    assert sessions_per_partition(capture) == [1] * len(capture.graphs)


def test_8_2_several_outputs() -> None:
    capture = same_as_eager(lambda x: (x + 1, x.sum(), [x * 2, x.argmax(1)]), (r(4, 6),))
    assert [graph.coverage for graph in capture.graphs] == [1.0]


def test_8_2_no_inputs() -> None:
    capture = same_as_eager(lambda: (torch.ones(3) * 2, torch.arange(4) + 1), ())
    assert [(session.input_signature, session.providers) for session in capture.sessions] == [("", ("CPUExecutionProvider",))]


@pytest.mark.parametrize("dynamic", [False, True])
def test_8_2_scalar_inputs(*, dynamic: bool) -> None:
    calls = ((r(4), 3, 2.5, True), (r(4), 5, -1.5, False))
    same_as_eager(lambda x, *numbers: [x * number + number for number in numbers], *calls, dynamic=dynamic)


def test_8_2_scalar_outputs() -> None:
    def function(x: torch.Tensor, n: int) -> Any:
        return x.shape[0], x.shape[0] * n, n, x.shape[0] / 2, x.shape[0] > 2, x + n, None

    capture = same_as_eager(function, (r(4), 3), (r(6), 5), (r(9), 7), dynamic=True)
    assert len(capture.graphs) == 1


def test_8_2_scalar_results_of_data() -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        capture = same_as_eager(
            lambda x, i, b: (x.sum().item(), i.sum().item() + 1, b.any().item(), x + 1), (r(4), torch.tensor([1, 2]), r(4) > 0)
        )
    assert len(capture.graphs) == 1


ARITHMETIC = ("add", "sub", "mul", "floordiv")


class Sized(nn.Module):
    """Takes its sizes from its inputs; nobody hands them in beside."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [torch.full((2,), 1.5) * getattr(operator, name)(x.shape[0], y.shape[0]) + x.sum() + y.shape[0] for name in ARITHMETIC]


@pytest.mark.parametrize("road", ["compiled", "exported"])
def test_8_2_symint_arithmetic_inside_a_partition(road: str) -> None:
    lens = Lens()
    if road == "compiled":
        fast = torch.compile(Sized(), backend=lens, dynamic=True)
    else:
        rows = ({0: torch.export.Dim("a", min=2)}, {0: torch.export.Dim("b", min=2)})
        fast = lens.compile_exported(torch.export.export(Sized(), (r(11), r(4)), dynamic_shapes=rows))
    for first, second in ((11, 4), (14, 5), (16, 6)):
        torch.testing.assert_close(fast(r(first), r(second)), Sized()(r(first), r(second)))
    assert lens.graphs.coverage.tolist() == [1.0]
    assert lens.graphs.partition_count.tolist() == [1]
    assert lens.sessions.calls.tolist() == [3]
    inside = set(lens.nodes.target[lens.nodes.partition_id.notna()])
    assert inside >= {f"operator.{name}" for name in ARITHMETIC}


def test_8_2_getitem_inside_a_partition() -> None:
    capture = same_as_eager(lambda x: x.split([2, 4])[1].max(0)[0] + x.shape[0], (r(6, 3),))
    assert [graph.coverage for graph in capture.graphs] == [1.0]
    assert [graph.partition_count for graph in capture.graphs] == [1]


def test_8_2_mixed_devices() -> None:
    """Two devices that every machine has: what is on the meta device is refused by name, the rest runs."""

    def function(x: torch.Tensor, nowhere: torch.Tensor) -> Any:
        return x.sin() + 1, nowhere * 2

    lens = Lens()
    with torch.no_grad():
        mine, shape_only = torch.compile(function, backend=lens)(r(4), torch.empty(3, device="meta"))
    torch.testing.assert_close(mine, r(4).sin() + 1)
    assert (shape_only.device.type, shape_only.shape) == ("meta", (3,))
    assert set(lens.fallbacks.reason_code) == {"device"}
    assert all("meta" in reason for reason in lens.fallbacks.reason)
    assert sum(lens.sessions.calls) == 1


def test_8_2_devices_and_their_names() -> None:
    kinds = [devices.ort_device(torch.device(name)).device_type() for name in ("cpu", "cuda:1", "maia", "mps", "xpu:1")]
    assert kinds == [0, 1, 3, 0, 0], "OrtDevice::CPU, GPU, NPU, and where tensors are copied to"
    assert [devices.ort_device(torch.device(name)).device_id() for name in ("cuda:1", "xpu:1")] == [1, 0]
    for name in ("hpu", "mtia", "meta"):
        assert name in (devices.reason_against(name) or "")


def test_8_2_nvtx_ranges_where_cuda_is_present(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch has a CUDA device, bind, run and output of each call lie in ranges of their own. No device is needed to see the calls."""
    open_ranges: list[str] = []
    seen: list[str] = []

    def push(name: str) -> None:
        open_ranges.append(name)
        seen.append(name)

    class Sine(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sin()

    model = Lens().compile_exported(torch.export.export(Sine(), (r(4),)))  # Dynamo would ask the device for its generator
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "is_available", lambda: True)
        patched.setattr(torch.cuda.nvtx, "range_push", push)
        patched.setattr(torch.cuda.nvtx, "range_pop", open_ranges.pop)
        torch.testing.assert_close(model(r(4)), r(4).sin())
    assert not open_ranges
    for part in ("bind", "run", "output"):
        assert any(part in name for name in seen), seen


def test_8_3_transforms_see_every_model_once_in_order() -> None:
    seen: list[tuple[str, tuple[str, ...]]] = []

    def first(model: onnx.ModelProto) -> None:
        seen.append(("first", tuple(node.op_type for node in model.graph.node)))
        for node in model.graph.node:
            node.op_type = {"Exp": "Neg"}.get(node.op_type, node.op_type)

    def second(model: onnx.ModelProto) -> onnx.ModelProto:
        seen.append(("second", tuple(node.op_type for node in model.graph.node)))
        return model

    lens = Lens(options={"pre_ort_model_transforms": [first, second]})
    compiled = torch.compile(lambda x: torch.special.bessel_j0(x.exp()).exp(), backend=lens)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(r(4)), -torch.special.bessel_j0(-r(4)))
    assert seen == [("first", ("Exp",)), ("second", ("Neg",))] * 2


BACKENDS = pytest.mark.parametrize("backend", [pytest.param("inductor", marks=[pytest.mark.inductor, pytest.mark.slow]), "ortlens"])


@BACKENDS
def test_8_6_one_break_three_calls_deep(backend: str) -> None:
    lens = Lens(backend)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(outermost, backend=lens)(r(4)), outermost(r(4)))
    output = lens.output()
    assert (output.graph_count, output.graph_break_count, output.op_count) == (8, 7, 8)
    assert len(lens.breaks) == 1
    assert lens.recompiles.empty


@BACKENDS
def test_8_6_three_static_shapes(backend: str) -> None:
    lens = Lens(backend)
    compiled = torch.compile(torch.sin, backend=lens, dynamic=False)
    with torch.no_grad():
        for size in (3, 4, 5):
            torch.testing.assert_close(compiled(r(size)), r(size).sin())
    assert lens.breaks.empty
    assert len(lens.recompiles) == 2
