"""Python numbers beside 16-bit floats: rounded where PyTorch's kernels round them, and only there."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the usual name

import ortlens

if TYPE_CHECKING:
    from pathlib import Path

HALF, BRAIN = torch.float16, torch.bfloat16
MODES = {"float16": (HALF, ()), "bfloat16 in float32": (BRAIN, ("bfloat16",)), "float16 in float32": (HALF, ("float16",))}

Case = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Callable[[Any], Any]], Any]
Given = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

KEPT: dict[str, Case] = {
    "mul": lambda x, _y, _w, n: x * n(0.123),
    "beyond the range": lambda x, _y, _w, n: x * n(1e5),
    "below the range": lambda x, _y, _w, n: x * n(1e-9),
    "int": lambda x, _y, _w, n: x * n(2049),
    "infinity": lambda x, _y, _w, n: x * n(float("inf")),
    "reciprocal": lambda x, _y, _w, n: x * n(1 / 0.877),
    "div": lambda x, _y, _w, n: x / n(0.123),
    "div small": lambda x, _y, _w, n: x / n(1e-9),
    "trunc": lambda x, _y, _w, n: torch.div(x, n(0.123), rounding_mode="trunc"),
    "floor": lambda x, _y, _w, n: torch.div(x, n(0.123), rounding_mode="floor"),
    "floor_divide": lambda x, _y, _w, n: x // n(0.123),
    "foreach": lambda x, y, _w, n: torch._foreach_mul([x, y], n(0.123))[0],
    "lerp": lambda x, y, _w, n: torch.lerp(x, y, n(0.123)),
    "lerp from the end": lambda x, y, _w, n: torch.lerp(x, y, n(0.823)),
    "leaky_relu": lambda x, _y, _w, n: F.leaky_relu(x, n(0.123)),
    "elu": lambda x, _y, _w, n: F.elu(x, n(0.123)),
    "celu": lambda x, _y, _w, n: F.celu(x, n(0.777)),
    "selu": lambda x, _y, _w, _n: F.selu(x),
    "softplus": lambda x, _y, _w, n: F.softplus(x, n(0.777), n(2.3)),
    "threshold": lambda x, _y, _w, n: F.threshold(x, n(0.123), n(0.777)),
    "hardswish": lambda x, _y, _w, _n: F.hardswish(x),
    "hardsigmoid": lambda x, _y, _w, _n: F.hardsigmoid(x),
    "round": lambda x, _y, _w, _n: torch.round(x, decimals=2),
    "deg2rad": lambda x, _y, _w, _n: torch.deg2rad(x),
    "layer_norm": lambda x, _y, _w, n: F.layer_norm(x.view(20, 100), (100,), eps=n(0.123)),
    "group_norm": lambda x, _y, _w, n: F.group_norm(x.view(20, 10, 10), 2, eps=n(0.123)),
    "rms_norm": lambda x, _y, _w, n: F.rms_norm(x.view(20, 100), (100,), eps=n(0.123)),
    "vector_norm": lambda x, _y, _w, n: torch.linalg.vector_norm(x.view(20, 100), n(2.3), 1),
    "std": lambda x, _y, _w, _n: x.view(20, 100).std(1, correction=2.5),
    "clamp": lambda x, _y, _w, n: x.clamp(n(-0.123), n(0.777)),
    "hardtanh": lambda x, _y, _w, n: F.hardtanh(x, n(-0.123), n(0.777)),
    "masked_fill": lambda x, _y, _w, n: x.masked_fill(x > 0, n(0.123)),
    "where": lambda x, _y, _w, n: torch.where(x > 0, x, n(0.123)),
    "nan_to_num": lambda x, _y, _w, n: torch.nan_to_num(x / 0, n(0.123)),
    "full": lambda x, _y, _w, n: torch.full_like(x, n(0.123)),
    "tensor of float32": lambda x, _y, _w, n: x * torch.tensor(n(0.123)),
    "tensor of float64": lambda x, _y, _w, n: x / torch.tensor(n(0.123), dtype=torch.float64),
    "floor by a tensor": lambda x, _y, _w, n: x // torch.tensor(n(0.123)),
}
"""Operators that compute with the number in float32."""

ROUNDED: dict[str, Case] = {
    "add": lambda x, _y, _w, n: x + n(0.123),
    "add beyond the range": lambda x, _y, _w, n: x + n(1e5),
    "add int": lambda x, _y, _w, n: x + n(2049),
    "sub": lambda x, _y, _w, n: x - n(0.123),
    "rsub": lambda x, _y, _w, n: n(0.123) - x,
    "alpha of a number": lambda x, _y, _w, n: torch.add(x, n(0.7), alpha=n(0.123)),
    "pow": lambda _x, _y, w, n: w ** n(-2.3),
    "number ** x": lambda x, _y, _w, n: n(0.123) ** x,
    "remainder": lambda x, _y, _w, n: x % n(0.123),
    "remainder of a number": lambda x, _y, _w, n: n(0.777) % x,
    "fmod": lambda x, _y, _w, n: torch.fmod(x, n(0.123)),
    "floor_divide of a number": lambda x, _y, _w, n: n(0.777) // x,
    "number first": lambda x, _y, _w, n: torch.mul(n(0.123), x),
    "number divided": lambda x, _y, _w, n: torch.div(n(0.123), x),
    "eq": lambda x, _y, _w, n: x == n(0.123),
    "ne": lambda x, _y, _w, n: x != n(0.123),
    "lt": lambda x, _y, _w, n: x < n(0.123),
    "le": lambda x, _y, _w, n: x <= n(0.123),
    "gt": lambda x, _y, _w, n: x > n(0.123),
    "ge": lambda x, _y, _w, n: x >= n(0.123),
    "gt beyond the range": lambda x, _y, _w, n: x > n(1e5),
    "add tensor": lambda x, _y, _w, n: x + torch.tensor(n(0.123)),
    "tensor first": lambda x, _y, _w, n: torch.tensor(n(0.123)) * x,
    "tensor divided": lambda x, _y, _w, n: torch.tensor(n(0.123)) / x,
    "eq tensor": lambda x, _y, _w, n: x == torch.tensor(n(0.123)),
    "tensor lt": lambda x, _y, _w, n: torch.tensor(n(0.123)) < x,
    "hypot": lambda x, _y, _w, n: torch.hypot(x, torch.tensor(n(0.123))),
    "logaddexp": lambda x, _y, _w, n: torch.logaddexp(x, torch.tensor(n(0.123))),
}
"""Operators that round the number to the element type, and compute in float32 after that."""

STEPWISE: dict[str, Case] = {
    "xlogy": lambda x, _y, _w, n: torch.xlogy(x, n(0.123)),
    "xlogy of a number": lambda _x, _y, w, n: torch.xlogy(n(0.123), w),
    "logit": lambda _x, _y, w, n: torch.logit(w, n(0.123)),
    # AOTAutograd itself decomposes it, to a comparison that rounds; the kernel does not.
    "softshrink": lambda x, _y, _w, n: F.softshrink(x, n(0.123)),
    "logit, tiny": lambda _x, _y, w, n: torch.logit(w, n(1e-9)),
    "xlog1py": lambda x, _y, _w, n: torch.special.xlog1py(x, n(0.123)),
    "xlog1py of a number": lambda _x, _y, w, n: torch.special.xlog1py(n(0.123), w),
    "addr": lambda x, y, w, n: torch.addr(x[:25].view(5, 5), y[:5], w[:5], beta=n(0.123), alpha=n(0.777)),
    "mse": lambda x, y, _w, _n: F.mse_loss(x, y, reduction="none"),
    "int / x": lambda x, _y, _w, n: n(3) / x,
}
"""Operators that round the number and each step; only float16 is computed so here."""

EXACT: dict[str, Case] = {
    "number / x": lambda x, _y, _w, n: n(0.123) / x,  # two operators: a reciprocal and a product
    "smooth_l1": lambda x, y, _w, n: F.smooth_l1_loss(x, y, beta=n(0.777), reduction="none"),
}
"""Operators that PyTorch rounds at each step in float16; computed in float32, they are rounded once."""

ONCE: dict[str, Case] = {
    "huber": lambda x, y, _w, n: F.huber_loss(x, y, delta=n(0.777), reduction="none"),
    "baddbmm": lambda x, y, w, n: torch.baddbmm(
        x[:50].view(2, 5, 5), y[:100].view(2, 5, 10), w[:100].view(2, 10, 5), beta=n(0.123), alpha=n(0.777)
    ),
    "addbmm": lambda x, y, w, n: torch.addbmm(
        x[:25].view(5, 5), y[:100].view(2, 5, 10), w[:100].view(2, 10, 5), beta=n(0.123), alpha=n(0.777)
    ),
}
"""Operators that PyTorch rounds between their steps, for one of the types: here they are rounded once."""


FUSED: dict[str, Case] = {
    "addcmul": lambda x, y, w, n: torch.addcmul(x, y, w, value=n(0.123)),
    "addcdiv": lambda x, y, w, n: torch.addcdiv(x, y, w, value=n(0.123)),
}
"""Operators whose last product and sum PyTorch computes with one rounding."""


def tensors(dtype: torch.dtype) -> Given:
    """2,000 numbers of either sign, as many more, and as many between 0 and 1; the numbers of the cases and their neighbours among them."""
    generator = torch.Generator().manual_seed(0)
    x, y = ((torch.randn(2000, generator=generator) * 3).to(dtype) for _ in range(2))
    bits = torch.tensor([0.123, -0.123, 0.777, -0.777]).to(dtype).view(torch.int16)
    x[:12] = torch.cat([bits - 1, bits, bits + 1]).view(dtype)
    return x, y, torch.rand(2000, generator=generator).clamp(0.01).to(dtype)


def results(cases: dict[str, Case], given: Given, number: Callable[[Any], Any] = lambda value: value) -> dict[str, torch.Tensor]:
    return {name: case(*given, number) for name, case in cases.items()}


def differing(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> dict[str, int]:
    counts = {}
    for name, value in want.items():
        assert got[name].dtype is value.dtype, name
        counts[name] = int((~((got[name] == value) | (got[name].isnan() & value.isnan()))).sum())
    return {name: count for name, count in counts.items() if count}


def compiled(cases: dict[str, Case], mode: str) -> tuple[dict[str, torch.Tensor], Given]:
    dtype, upcast = MODES[mode]
    given, lens = tensors(dtype), ortlens.Lens(options={"upcast": upcast})
    got = torch.compile(lambda *given: results(cases, given), backend=lens)(*given)
    assert lens.fallbacks.empty
    return got, given


@pytest.mark.parametrize("mode", MODES)
def test_numbers_are_kept_or_rounded_as_by_pytorch(mode: str) -> None:
    cases = {**KEPT, **ROUNDED, **({**STEPWISE, **EXACT} if mode == "float16" else {})}
    got, given = compiled(cases, mode)
    assert differing(got, results(cases, given)) == {}


@pytest.mark.parametrize("mode", MODES)
def test_what_pytorch_rounds_in_between_is_rounded_once(mode: str) -> None:
    cases = ONCE if mode == "float16" else {**ONCE, **EXACT}
    got, given = compiled(cases, mode)
    x, y, w = (tensor.float() for tensor in given)
    wide = results(cases, (x, y, w))
    assert differing(got, {name: value.to(given[0].dtype) for name, value in wide.items()}) == {}


def test_bfloat16_left_to_pytorch_is_not_decomposed_to_steps_that_it_rounds_otherwise() -> None:
    names = ("huber", "smooth_l1", "mse", "xlog1py", "xlog1py of a number", "number / x")
    cases, given = {name: {**ONCE, **STEPWISE, **EXACT}[name] for name in names}, tensors(BRAIN)
    got = torch.compile(lambda *given: results(cases, given), backend="ortlens")(*given)
    assert differing(got, results(cases, given)) == {}


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
def test_numbers_beside_a_tensor_without_dimensions_do_not_widen_it(dtype: torch.dtype) -> None:
    def step(x: torch.Tensor, first: torch.Tensor) -> list[torch.Tensor]:
        count, size = (x > 0).sum(), x.shape[0]
        quotients = [first / count, first / size, first / (size / 7), first // size, torch.div(first, count, rounding_mode="trunc")]
        return [*quotients, first * count, first * size, first * (size / 7), first * (first > 0), x[:1] / count]

    x = tensors(dtype)[0]
    for dynamic in (False, True):
        torch.compiler.reset()
        pairs = zip(torch.compile(step, backend="ortlens", dynamic=dynamic)(x, x[40]), step(x, x[40]), strict=True)
        assert [differing({"": got}, {"": want}) for got, want in pairs] == [{}] * 10


@pytest.mark.parametrize("mode", MODES)
def test_a_rounding_more_than_in_pytorch_changes_next_to_nothing(mode: str) -> None:
    got, given = compiled(FUSED, mode)
    assert all(count <= 2 for count in differing(got, results(FUSED, given)).values())


def test_the_sweep_would_notice_numbers_rounded_wrongly() -> None:
    given = tensors(HALF)
    x, y, w = (tensor.float() for tensor in given)
    alike = ("infinity", "selu", "hardswish", "hardsigmoid", "round", "deg2rad", "std", "clamp", "hardtanh", "masked_fill", "where", "full")
    kept = {name: case for name, case in KEPT.items() if name not in (*alike, "nan_to_num", "threshold")}
    rounded = results(kept, (x, y, w), lambda value: torch.tensor(float(value)).half().item())
    found = differing({name: value.half() for name, value in rounded.items()}, results(kept, given))
    assert found.keys() == kept.keys() - {"below the range", "div small"}  # 0 and infinity either way


@pytest.mark.parametrize("mode", MODES)
def test_numbers_known_at_run_time_only(mode: str) -> None:
    def step(x: torch.Tensor, number: Any, tensor: torch.Tensor) -> list[torch.Tensor]:  # noqa: ANN401 - int or float
        size = x.shape[0]
        sized = [x * size, x / size, x + size, x // size, x * (size / 7), x + size * 1.1]
        given = [x * number, x / number, x + number, x // number, x > number, x % number]
        return [*sized, *given, x * tensor, x / tensor, x + tensor, x // tensor, tensor * x, tensor / x, x > tensor]

    dtype, upcast = MODES[mode]
    call = torch.compile(step, backend=ortlens.Lens(options={"upcast": upcast}), dynamic=True)
    long = torch.cat(tensors(dtype))
    for x, number, tensor in [(long[2:], 0.123, torch.tensor(0.7)), (long[:4099], 0.456, torch.tensor(2051))]:
        pairs = zip(call(x, number, tensor), step(x, number, tensor), strict=True)
        assert [differing({"": got}, {"": want}) for got, want in pairs] == [{}] * 19


@pytest.mark.parametrize("mode", MODES)
def test_gradients_of_operators_with_numbers(mode: str) -> None:
    dtype, upcast = MODES[mode]
    names = ("mul", "div", "lerp", "leaky_relu", "elu", "celu", "softplus", "hardtanh", "hardswish")
    (x, y, w), cases = tensors(dtype), {name: KEPT[name] for name in names}

    def gradients(function: Callable[..., Any]) -> dict[str, torch.Tensor]:
        leaves = {name: x.clone().requires_grad_() for name in cases}
        made = function(leaves)
        return dict(zip(cases, torch.autograd.grad(list(made.values()), list(leaves.values()), [y] * len(cases)), strict=True))

    def forward(leaves: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: case(leaves[name], y, w, lambda value: value) for name, case in cases.items()}

    lens = ortlens.Lens(options={"upcast": upcast})
    got, want = gradients(torch.compile(forward, backend=lens)), gradients(forward)
    if mode == "float16":
        assert differing(got, want) == {}
    assert differing({"mul": got["mul"], "div": got["div"]}, {"mul": want["mul"], "div": want["div"]}) == {}


def scaled(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return x * 0.123, torch.div(x, 0.123, rounding_mode="trunc"), x + 0.123


def same(got: Any, want: Any) -> list[bool]:  # noqa: ANN401 - tuples of tensors
    return [torch.equal(torch.as_tensor(one), other) for one, other in zip(got, want, strict=True)]


def test_frozen_and_exported_programs_keep_numbers(tmp_path: Path) -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            return scaled(x)

    x, _, _ = tensors(HALF)
    want = scaled(x)
    frozen = ortlens.freeze(scaled, x)
    assert same(frozen(x), want) == [True] * 3
    frozen.save(tmp_path / "saved")
    assert same(ortlens.load_frozen(tmp_path / "saved")(x.numpy()), want) == [True] * 3
    lens = ortlens.explain(torch.export.export(Scaled(), (x,)))(x)
    session = onnxruntime.InferenceSession(lens.export_onnx(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    assert same(session.run(None, {session.get_inputs()[0].name: x.numpy()}), want) == [True] * 3


def test_autocast_to_float16_keeps_numbers() -> None:
    a, b = torch.randn(2, 8, 8, generator=torch.Generator().manual_seed(1))

    def step() -> torch.Tensor:
        with torch.autocast("cpu", HALF):
            return torch.mm(a, b)

    product = step()
    with torch.autocast("cpu", HALF):
        assert torch.equal(torch.compile(lambda x: x * 0.123, backend="ortlens")(product), product * 0.123)


REFUSED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "clamp": lambda x: x.clamp(max=1e5),
    "clamp, both": lambda x: x.clamp(-1e5, 1e5),
    "hardtanh": lambda x: F.hardtanh(x, -1e5, 1e5),
    "pow": lambda x: x**1e5,
    "masked_fill": lambda x: x.masked_fill(x > 0, 1e5),
    "full": lambda x: torch.full_like(x, 1e5),
    "pad": lambda x: F.pad(x, (1, 1), value=1e5),
    "alpha": lambda x: torch.add(x, x, alpha=1e5),
    "threshold": lambda x: F.threshold(x, 0.0, 1e5),
}


@pytest.mark.parametrize("name", REFUSED)
def test_numbers_that_float16_cannot_hold_raise_as_in_pytorch(name: str) -> None:
    x, _, _ = tensors(HALF)
    for function in (REFUSED[name], torch.compile(REFUSED[name], backend="ortlens")):
        with pytest.raises(RuntimeError, match="without overflow"):
            function(x)


def kernels(function: Callable[[torch.Tensor], torch.Tensor], folder: Path) -> dict[str, int]:
    """What ONNX Runtime makes of the model of a function of float16."""
    options: dict[str, Any] = {"dump_path": f"{folder}/dumped"}
    torch.compile(function, backend="ortlens", options=options)(torch.randn(8, 8).half())
    settings = onnxruntime.SessionOptions()
    settings.optimized_model_filepath = f"{folder}/optimised.onnx"
    onnxruntime.InferenceSession(f"{folder}/dumped0.onnx", settings, providers=["CPUExecutionProvider"])
    return dict(collections.Counter(node.op_type for node in onnx.load(folder / "optimised.onnx").graph.node))


CHEAP: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], dict[str, int]]] = {
    "held": (lambda x: x * 0.5 + 0.25, {"Cast": 2, "Mul": 1, "Add": 1}),
    "kept": (lambda x: x * 0.123 / 0.7 + 0.3, {"Cast": 2, "Mul": 1, "Div": 1, "Add": 1}),
    "gelu": (F.gelu, {"Cast": 2, "Gelu": 1}),
}


@pytest.mark.parametrize("name", CHEAP)
def test_numbers_cost_no_further_kernels(name: str, tmp_path: Path) -> None:
    function, expected = CHEAP[name]
    assert kernels(function, tmp_path) == expected
