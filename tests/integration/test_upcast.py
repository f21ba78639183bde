"""`upcast`: narrow types are computed in float32 inside a partition, and PyTorch's types come out."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

import platform
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn

import ortlens
from ortlens.backend.conversion import upcasting
from ortlens.trace.records import Capture
from tests.integration.against_eager import sessions_tried

UPCAST = {"upcast": ("bfloat16", "float16")}
BF16 = torch.bfloat16


def r(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).eval()


def ran(function: Any, *args: torch.Tensor, autocast: bool = False, **options: Any) -> tuple[Any, Any, Capture, Any]:
    """The compiled result, PyTorch's, the capture, and the rows of `verify`."""
    lens = ortlens.Lens(options={**UPCAST, **options})
    with torch.no_grad(), torch.autocast("cpu", BF16, enabled=autocast):
        got, want = torch.compile(function, backend=lens)(*args), function(*args)
        rows = lens.verify(*args)
    return got, want, lens.captured(), rows


def off(value: torch.Tensor, exact: torch.Tensor) -> float:
    return float((value.double() - exact).square().mean())


@pytest.mark.parametrize("way", ["autocast", "bfloat16", "float16"])
def test_narrow_models_run_whole_in_ort_closer_to_float64_and_return_pytorchs_type(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = sessions_tried(monkeypatch)
    net, x = model(), r(3, 8)
    if way != "autocast":
        net, x = net.to(getattr(torch, way)), x.to(getattr(torch, way))
    lens = ortlens.Lens(options=UPCAST)
    with torch.no_grad(), torch.autocast("cpu", BF16, enabled=way == "autocast"):
        got, want = torch.compile(net, backend=lens)(x), net(x)
    capture = lens.captured()
    assert got.dtype is want.dtype is (BF16 if way == "autocast" else x.dtype)
    assert ([graph.coverage for graph in capture.graphs], len(capture.sessions), len(tried)) == ([1.0], 1, 1)
    with torch.no_grad():
        exact = net.double()(x.double())
    assert 0 < off(got, exact) < off(want, exact)


def test_only_casts_at_the_border_have_the_narrow_type(tmp_path: Path) -> None:
    ran(model().bfloat16(), r(3, 8).bfloat16(), dump_path=f"{tmp_path}/dumped")
    made = onnx.load(tmp_path / "dumped0.onnx").graph
    assert {value.type.tensor_type.elem_type for value in (*made.input, *made.output)} == {onnx.TensorProto.BFLOAT16}
    borders = {value.name for value in (*made.input, *made.output)}
    casts = [node for node in made.node if node.op_type == "Cast"]
    assert all(borders.intersection((*node.input, *node.output)) for node in casts)
    assert {name for node in casts for name in (*node.input, *node.output)} >= borders


def decisions(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    made = x * 3
    largest = made == made.amax(-1, keepdim=True)
    return made.to(torch.int64), made.floor(), torch.div(made, 2, rounding_mode="floor"), largest, made.argmax(-1)


def near_wholes(dtype: torch.dtype) -> torch.Tensor:
    """Numbers whose triple is rounded across or onto a whole number by narrow types, the largest ones to the same number."""
    return (torch.arange(1.0, 513.0) / 3).to(dtype).reshape(8, 64)


@pytest.mark.parametrize("dtype", [BF16, torch.float16], ids=str)
def test_decisions_are_made_by_the_rounded_value_as_in_pytorch(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    got, want, capture, rows = ran(decisions, near_wholes(dtype))
    assert [graph.coverage for graph in capture.graphs] == [1.0]
    assert all(map(torch.equal, got, want))
    assert rows.ok.all()
    torch.compiler.reset()
    monkeypatch.setattr(upcasting, "decides", lambda _: False)
    got, want, *_ = ran(decisions, near_wholes(dtype))
    assert not torch.equal(got[1], want[1]), "without that rounding, they differ"


def test_a_round_trip_inside_a_partition_rounds_nothing_and_is_not_wrong() -> None:
    got, want, _, rows = ran(lambda x: x - x.bfloat16().float(), r(5, 7))
    assert not got.any()
    assert want.any()
    assert rows.ok.all()


def test_overflow_of_float16_reaches_the_result_as_infinity() -> None:
    got, want, _, rows = ran(lambda x: (x * x, (x * x).isinf(), (x * x) / x), torch.tensor([3.0, 300.0]).half())
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])
    assert got[2].tolist() == [3.0, 300.0]  # float32 does not overflow on the way
    assert want[2].tolist() == [3.0, float("inf")]
    assert len(rows)


def wrong_gelu(x: Any, approximate: str = "none") -> Any:
    from onnxscript import opset18 as op

    del approximate
    return op.Mul(x, op.Sigmoid(x))


def test_verify_excuses_float32_and_finds_a_wrong_function() -> None:
    table = {torch.ops.aten.gelu.default: wrong_gelu}
    *_, rows = ran(model().bfloat16(), r(3, 8).bfloat16())
    assert rows.ok.all()
    assert "ort" in set(rows.closer_to_fp64)
    *_, rows = ran(model().bfloat16(), r(3, 8).bfloat16(), custom_translation_table=table)
    assert rows[rows.first_divergence].node.tolist() == ["gelu"]


def test_training_tries_one_session_per_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = sessions_tried(monkeypatch)
    lens, net = ortlens.Lens(options=UPCAST), model().train()
    gradients = []
    for function in (net, torch.compile(net, backend=lens)):
        net.zero_grad()
        with torch.autocast("cpu", BF16):
            function(r(3, 8)).float().square().sum().backward()
        gradients.append([parameter.grad for parameter in net.parameters()])
    torch.testing.assert_close(*gradients, atol=5e-2, rtol=5e-2)
    capture = lens.captured()
    assert [(graph.phase, graph.coverage) for graph in capture.graphs] == [("forward", 1.0), ("backward", 1.0)]
    assert len(tried) == len(capture.sessions) == 2


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists() or platform.machine() != "x86_64", reason="only there both sides say it")
def test_the_capture_says_whether_the_cpu_computes_bfloat16() -> None:
    *_, capture, _ = ran(torch.relu, r(3))
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    assert capture.figures.cpu_bfloat16 == bool({"avx512_bf16", "amx_bf16"} & set(flags))


def test_models_of_both_settings_are_cached_apart(tmp_path: Path) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.to(BF16) * 3) / 3

    x, found = torch.arange(1.0, 300.0), {}
    for upcast in (("bfloat16",), ()):
        torch._dynamo.reset()
        options: Any = {"cache_dir": str(tmp_path), "upcast": upcast}
        found[upcast] = torch.compile(function, backend="ortlens", options=options)(x)
    assert torch.equal(found[()], function(x))
    assert not torch.equal(found["bfloat16",], found[()])
