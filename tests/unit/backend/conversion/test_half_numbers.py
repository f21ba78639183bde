"""Python numbers beside 16-bit floats: rounded where PyTorch's kernels round them, and only there."""

import collections
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the usual name

import ortlens

HALF, BRAIN = torch.float16, torch.bfloat16
MODES = {"float16": (HALF, ()), "bfloat16 in float32": (BRAIN, ("bfloat16",)), "float16 in float32": (HALF, ("float16",))}

Case = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]
Given = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

KEPT: dict[str, Case] = {
    "mul": lambda x, _y, _w: x * 0.123,
    "beyond the range": lambda x, _y, _w: x * 1e5,
    "div": lambda x, _y, _w: x / 0.123,
    "trunc": lambda x, _y, _w: torch.div(x, 0.123, rounding_mode="trunc"),
    "floor": lambda x, _y, _w: torch.div(x, 0.123, rounding_mode="floor"),
    "floor_divide": lambda x, _y, _w: x // 0.123,
    "foreach": lambda x, y, _w: torch._foreach_mul([x, y], 0.123)[0],
    "lerp": lambda x, y, _w: torch.lerp(x, y, 0.123),
    "leaky_relu": lambda x, _y, _w: F.leaky_relu(x, 0.123),
    "elu": lambda x, _y, _w: F.elu(x, 0.123),
    "celu": lambda x, _y, _w: F.celu(x, 0.777),
    "selu": lambda x, _y, _w: F.selu(x),
    "softplus": lambda x, _y, _w: F.softplus(x, 0.777, 2.3),
    "threshold": lambda x, _y, _w: F.threshold(x, 0.123, 0.777),
    "hardswish": lambda x, _y, _w: F.hardswish(x),
    "hardsigmoid": lambda x, _y, _w: F.hardsigmoid(x),
    "round": lambda x, _y, _w: torch.round(x, decimals=2),
    "deg2rad": lambda x, _y, _w: torch.deg2rad(x),
    "layer_norm": lambda x, _y, _w: F.layer_norm(x.view(20, 100), (100,), eps=0.123),
    "group_norm": lambda x, _y, _w: F.group_norm(x.view(20, 10, 10), 2, eps=0.123),
    "rms_norm": lambda x, _y, _w: F.rms_norm(x.view(20, 100), (100,), eps=0.123),
    "vector_norm": lambda x, _y, _w: torch.linalg.vector_norm(x.view(20, 100), 2.3, 1),
    "std": lambda x, _y, _w: x.view(20, 100).std(1, correction=2.5),
    "clamp": lambda x, _y, _w: x.clamp(-0.123, 0.777),
    "hardtanh": lambda x, _y, _w: F.hardtanh(x, -0.123, 0.777),
    "masked_fill": lambda x, _y, _w: x.masked_fill(x > 0, 0.123),
    "where": lambda x, _y, _w: torch.where(x > 0, x, 0.123),
    "nan_to_num": lambda x, _y, _w: torch.nan_to_num(x / 0, 0.123),
    "full": lambda x, _y, _w: torch.full_like(x, 0.123),
    "tensor of float32": lambda x, _y, _w: x * torch.tensor(0.123),
    "tensor of float64": lambda x, _y, _w: x / torch.tensor(0.123, dtype=torch.float64),
    "floor by a tensor": lambda x, _y, _w: x // torch.tensor(0.123),
}
"""Operators that compute with the number in float32."""

ROUNDED: dict[str, Case] = {
    "add": lambda x, _y, _w: x + 0.123,
    "add beyond the range": lambda x, _y, _w: x + 1e5,
    "sub": lambda x, _y, _w: x - 0.123,
    "rsub": lambda x, _y, _w: 0.123 - x,
    "alpha of a number": lambda x, _y, _w: torch.add(x, 0.7, alpha=0.123),
    "pow": lambda _x, _y, w: w**-2.3,
    "number ** x": lambda x, _y, _w: 0.123**x,
    "remainder": lambda x, _y, _w: x % 0.123,
    "remainder of a number": lambda x, _y, _w: 0.777 % x,
    "fmod": lambda x, _y, _w: torch.fmod(x, 0.123),
    "floor_divide of a number": lambda x, _y, _w: 0.777 // x,
    "number first": lambda x, _y, _w: torch.mul(0.123, x),
    "number divided": lambda x, _y, _w: torch.div(0.123, x),
    "eq": lambda x, _y, _w: x == 0.123,
    "lt": lambda x, _y, _w: x < 0.123,
    "ge": lambda x, _y, _w: x >= 0.123,
    "gt beyond the range": lambda x, _y, _w: x > 1e5,
    "full of a type": lambda x, _y, _w: x * torch.full((1,), 0.123, dtype=x.dtype),
    "add tensor": lambda x, _y, _w: x + torch.tensor(0.123),
    "tensor first": lambda x, _y, _w: torch.tensor(0.123) * x,
    "tensor divided": lambda x, _y, _w: torch.tensor(0.123) / x,
    "eq tensor": lambda x, _y, _w: x == torch.tensor(0.123),
    "tensor lt": lambda x, _y, _w: torch.tensor(0.123) < x,
    "hypot": lambda x, _y, _w: torch.hypot(x, torch.tensor(0.123)),
    "logaddexp": lambda x, _y, _w: torch.logaddexp(x, torch.tensor(0.123)),
}
"""Operators that round the number to the element type, and compute in float32 after that."""

STEPWISE: dict[str, Case] = {
    "xlogy": lambda x, _y, _w: torch.xlogy(x, 0.123),
    "xlogy of a number": lambda _x, _y, w: torch.xlogy(0.123, w),
    "logit": lambda _x, _y, w: torch.logit(w, 0.123),
    # AOTAutograd itself decomposes it, to a comparison that rounds; the kernel does not.
    "softshrink": lambda x, _y, _w: F.softshrink(x, 0.123),
    "logit, tiny": lambda _x, _y, w: torch.logit(w, 1e-9),
    "xlog1py": lambda x, _y, _w: torch.special.xlog1py(x, 0.123),
    "xlog1py of a number": lambda _x, _y, w: torch.special.xlog1py(0.123, w),
    "addr": lambda x, y, w: torch.addr(x[:25].view(5, 5), y[:5], w[:5], beta=0.123, alpha=0.777),
    "mse": lambda x, y, _w: F.mse_loss(x, y, reduction="none"),
    "int / x": lambda x, _y, _w: 3 / x,
}
"""Operators that round the number and each step; only float16 is computed so here."""

EXACT: dict[str, Case] = {
    "number / x": lambda x, _y, _w: 0.123 / x,  # two operators: a reciprocal and a product
    "smooth_l1": lambda x, y, _w: F.smooth_l1_loss(x, y, beta=0.777, reduction="none"),
}
"""Operators that PyTorch rounds at each step in float16; computed in float32, they are rounded once."""

ONCE: dict[str, Case] = {
    "huber": lambda x, y, _w: F.huber_loss(x, y, delta=0.777, reduction="none"),
    "baddbmm": lambda x, y, w: torch.baddbmm(x[:50].view(2, 5, 5), y[:100].view(2, 5, 10), w[:100].view(2, 10, 5), beta=0.123, alpha=0.777),
    "addbmm": lambda x, y, w: torch.addbmm(x[:25].view(5, 5), y[:100].view(2, 5, 10), w[:100].view(2, 10, 5), beta=0.123, alpha=0.777),
}
"""Operators that PyTorch rounds between their steps, for one of the types: here they are rounded once."""


FUSED: dict[str, Case] = {
    "addcmul": lambda x, y, w: torch.addcmul(x, y, w, value=0.123),
    "addcdiv": lambda x, y, w: torch.addcdiv(x, y, w, value=0.123),
}
"""Operators whose last product and sum PyTorch computes with one rounding."""


def tensors(dtype: torch.dtype) -> Given:
    """2,000 numbers of either sign, as many more, and as many between 0 and 1; the numbers of the cases and their neighbours among them."""
    generator = torch.Generator().manual_seed(0)
    x, y = ((torch.randn(2000, generator=generator) * 3).to(dtype) for _ in range(2))
    bits = torch.tensor([0.123, -0.123, 0.777, -0.777]).to(dtype).view(torch.int16)
    x[:12] = torch.cat([bits - 1, bits, bits + 1]).view(dtype)
    return x, y, torch.rand(2000, generator=generator).clamp(0.01).to(dtype)


def results(cases: dict[str, Case], given: Given) -> dict[str, torch.Tensor]:
    return {name: case(*given) for name, case in cases.items()}


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
    stepwise = STEPWISE if mode == "float16" else {}
    got, given = compiled({**KEPT, **ROUNDED, **stepwise, **EXACT, **ONCE, **FUSED}, mode)
    alike = {**KEPT, **ROUNDED, **stepwise, **(EXACT if mode == "float16" else {})}
    assert differing(got, results(alike, given)) == {}
    once = ONCE if mode == "float16" else {**ONCE, **EXACT}  # what PyTorch rounds in between
    x, y, w = (tensor.float() for tensor in given)
    assert differing(got, {name: value.to(given[0].dtype) for name, value in results(once, (x, y, w)).items()}) == {}
    rounded_more = differing(got, results(FUSED, given))  # changes next to nothing
    assert all(count <= 2 for count in rounded_more.values())


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


@pytest.mark.parametrize("mode", ["float16", "bfloat16 in float32"])
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


@pytest.mark.parametrize("mode", ["float16", "bfloat16 in float32"])
def test_gradients_of_operators_with_numbers(mode: str) -> None:
    dtype, upcast = MODES[mode]
    names = ("mul", "div", "lerp", "leaky_relu", "elu", "celu", "softplus", "hardtanh", "hardswish")
    (x, y, w), cases = tensors(dtype), {name: KEPT[name] for name in names}

    def gradients(function: Callable[..., Any]) -> dict[str, torch.Tensor]:
        leaves = {name: x.clone().requires_grad_() for name in cases}
        made = function(leaves)
        return dict(zip(cases, torch.autograd.grad(list(made.values()), list(leaves.values()), [y] * len(cases)), strict=True))

    def forward(leaves: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: case(leaves[name], y, w) for name, case in cases.items()}

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


def test_numbers_that_float16_cannot_hold_raise_as_in_pytorch() -> None:
    x, _, _ = tensors(HALF)
    for case in REFUSED.values():
        for function in (case, torch.compile(case, backend="ortlens")):
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


JUMPING: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "equal": lambda a, b: (a + b) == (a + b).clone().max(),
    "less": lambda a, b: (a + b) < a,
    "floor": lambda a, b: torch.floor(a * b),
    "int": lambda a, b: (a * b).to(torch.int64),
    "bool": lambda a, b: (a * b * 2.0**-14).bool(),
    "infinite": lambda a, b: torch.isinf(a * b * 40),
    "argmax": lambda a, b: (a + b).argmax(1),
    "reshaped": lambda a, b: torch.where(a > 0, a + b, b).reshape(-1) == (a + b).reshape(-1),
    "in float32": lambda a, b: (a + b).float() == (a + b).float().max(),
}


def test_what_jumps_reads_rounded_numbers() -> None:
    torch.manual_seed(0)
    a, b = (torch.randn(64, 33) * 40).half(), torch.randn(64, 33).half()
    for name, function in JUMPING.items():  # each alone: together they would share their sums
        torch.compiler.reset()
        lens = ortlens.Lens()
        assert torch.equal(torch.compile(function, backend=lens)(a, b), function(a, b)), name
        assert lens.fallbacks.empty


def test_gradients_find_the_largest_element() -> None:
    def largest(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.stack([(a + b).max(), (a + b).min(), torch.amax(a + 1), torch.amin(b + 1)])

    def gradients(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        leaves = [torch.randn(8, 8).half().requires_grad_() for _ in range(2)]
        return list(torch.autograd.grad(function(*leaves).float().sum(), leaves))

    for made, expected in zip(gradients(torch.compile(largest, backend="ortlens")), gradients(largest), strict=True):
        assert torch.equal(made, expected)


def test_sums_that_were_made_in_float32_are_rounded_behind_the_cast() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 33).half().requires_grad_()
    function = functools.partial(torch.linalg.matrix_norm, ord=float("inf"))  # of rows whose sums are float32 inside
    expected = torch.autograd.grad(function(x), x)
    assert torch.equal(*torch.autograd.grad(torch.compile(function, backend="ortlens")(x), x), *expected)


def test_float32_has_no_further_operators() -> None:
    lens = ortlens.Lens()
    torch.compile(lambda a: torch.floor(a + 1), backend=lens)(torch.ones(3))
    assert {name for row in lens.nodes.onnx_ops for name in row} <= {"Add", "Floor"}
