"""Quantised weights, numbers as in PyTorch and as few bytes in the session; and weights that stay in torch's memory."""

# ruff: noqa: ANN401 - buffers and operators are Any in torch itself

import contextlib
import copy
import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import ortlens
from ortlens import Lens, _process
from ortlens.backend.runtime.session import SessionConfig, SessionInfo
from tests.integration.against_eager import sessions_tried

with contextlib.suppress(ImportError):
    import torch.ao.quantization.fx._decomposed  # registers the operators of PT2E

WIDE = 2048


def integers(low: int, high: int, *shape: int, dtype: torch.dtype = torch.int8) -> torch.Tensor:
    made = torch.randint(low, high, shape, generator=torch.Generator().manual_seed(0), dtype=torch.int16).to(dtype)
    made.view(-1)[0], made.view(-1)[1] = low, high - 1
    return made


def floats(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1)) + 0.5


class Quantised(torch.nn.Module):
    """A layer that holds its weight as integers; the subclasses are what libraries make of it."""

    q: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, q: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, *, bias: bool = False) -> None:
        super().__init__()
        self.register_buffer("q", q)
        self.register_buffer("scale", scale)
        self.register_buffer("zero", zero)
        self.register_buffer("bias", floats(q.shape[0]) if bias else None)

    def dequantised(self) -> Any:
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.dequantised(), self.bias)


class ScaledAfterwards(Quantised):
    """torchao's Int8Tensor."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = torch.mm(x, self.q.t().to(torch.float32)) * self.scale.view(-1)
        return made if self.bias is None else made + self.bias


class Affine(Quantised):
    """torchao's IntxUnpackedToInt8Tensor, in groups or for whole rows."""

    def dequantised(self) -> Any:
        out, width = self.q.shape
        groups = self.scale
        shape = (out, groups.shape[1], -1) if groups.dim() == 2 and groups.shape[1] > 1 else (out, width)
        factors = groups.view(out, -1, 1) if len(shape) == 3 else groups.view(out, 1)
        zeros = self.zero.view(factors.shape)
        return ((self.q.view(shape).float() - zeros.float()) * factors).view(out, width)


class PerChannel(Quantised):
    """PT2E, a weight with its scales and int64 zero points along its first dimension."""

    def dequantised(self) -> Any:
        low, high = (0, 255) if self.q.dtype == torch.uint8 else (-128, 127)
        operator = torch.ops.quantized_decomposed.dequantize_per_channel
        return operator(self.q, self.scale, self.zero, 0, low, high, self.q.dtype)


class PerTensor(Quantised):
    """PT2E, one scale for all."""

    def dequantised(self) -> Any:
        return torch.ops.quantized_decomposed.dequantize_per_tensor(self.q, 0.02, 3, -128, 127, torch.int8)


NO_ZERO = torch.zeros(1, dtype=torch.int8)
EIGHT, FOUR, POSITIVE = integers(-128, 128, 64, 512), integers(-8, 8, 64, 512), integers(0, 16, 64, 512)
BYTES = integers(0, 256, 64, 512, dtype=torch.uint8)
LAYERS = {
    "8 bits, scaled afterwards, bias": ScaledAfterwards(EIGHT, floats(64, 1), NO_ZERO, bias=True),
    "4 bits per row": Affine(FOUR, floats(64, 1), torch.zeros(64, 1, dtype=torch.int8), bias=True),
    "4 bits in groups of 32": Affine(FOUR, floats(64, 16), torch.zeros(64, 16, dtype=torch.int8)),
    "4 bits in groups of 32 with zero points": Affine(FOUR, floats(64, 16), integers(-8, 8, 64, 16), bias=True),
    "4 bits in one block per row, with zero points": Affine(FOUR[:, :256].clone(), floats(64, 1), integers(-8, 8, 64, 1)),
    "0 to 15 in groups of 128": Affine(POSITIVE, floats(64, 4), integers(0, 16, 64, 4)),
    "8 bits in groups of 64 with zero points": Affine(EIGHT, floats(64, 8), integers(-128, 128, 64, 8), bias=True),
    "zero points beyond 4 bits": Affine(FOUR, floats(64, 1), integers(-128, 128, 64, 1)),
    "width of 48 x 16": Affine(EIGHT[:48, :].clone(), floats(48, 32), integers(-9, 9, 48, 32)),
    "per channel with zero points": PerChannel(EIGHT, floats(64), integers(-9, 90, 64).to(torch.int64)),
    "uint8 per channel": PerChannel(BYTES, floats(64), integers(0, 255, 64, dtype=torch.uint8).to(torch.int64)),
    "per tensor": PerTensor(EIGHT, floats(1), NO_ZERO, bias=True),
}


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[SessionConfig]:
    return sessions_tried(monkeypatch)


def operators_of(tried: Sequence[SessionConfig]) -> list[str]:
    return [node.op_type for config in tried for node in config.model.graph.node]


def close(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=float(other.abs().max()) * 1e-5 if other.numel() else 0.0)


class Together(torch.nn.Module):
    """All layers with weights of their own, each with as much of the input as it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(copy.deepcopy(layer) for layer in LAYERS.values())

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [layer(x[:, : layer.q.shape[1]]) for layer in self.layers]  # type: ignore[index]  # of a module


def test_products_keep_their_integers_and_their_numbers(tried: list[SessionConfig]) -> None:
    together = Together()
    compiled = torch.compile(together, backend=Lens(options={"on_error": "raise"}), dynamic=True)
    with torch.no_grad():
        for rows in (5, 1, 0):
            x = torch.randn(rows, 512)
            for made, expected in zip(compiled(x), together(x), strict=True):
                close(made, expected)
    assert operators_of(tried).count("MatMulNBits") == 2 * len(LAYERS)  # of many rows and of one; no rows need no product
    assert not {"MatMul", "Gemm"}.intersection(operators_of(tried))


def test_changed_weights_are_packed_again(tried: list[SessionConfig]) -> None:
    layer = Affine(FOUR.clone(), floats(64, 16), torch.zeros(64, 16, dtype=torch.int8))
    compiled, x = torch.compile(layer, backend=Lens(options={"on_error": "raise"})), torch.randn(3, 512)
    with torch.no_grad():
        compiled(x)
        layer.q.copy_(EIGHT)
        close(compiled(x), layer(x))
    assert operators_of(tried).count("MatMulNBits") == 2


class Product(torch.nn.Module):
    """Products whose second operand is no quantised weight that MatMulNBits could keep."""

    q: torch.Tensor

    def __init__(self, q: torch.Tensor, *, turned: bool = False) -> None:
        super().__init__()
        self.register_buffer("q", q)
        self.turned = turned

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.q.float()
        return x @ (weight if self.turned else weight.t())


OTHERS = {
    "width without blocks": Product(integers(-128, 128, 200, 500)),
    "in the other order": Product(integers(-128, 128, 512, 64), turned=True),
    "small": Product(integers(-128, 128, 16, 64)),
}


def test_other_products_stay_as_they_are(tried: list[SessionConfig]) -> None:
    for layer, options in (*((layer, {}) for layer in OTHERS.values()), (Product(EIGHT), {"freeze_weights": False})):
        tried.clear()
        x = torch.randn(4, layer.q.shape[0 if layer.turned else 1])
        with torch.no_grad():
            close(torch.compile(layer, backend=Lens(options={"on_error": "raise", **options}))(x), layer(x))
        assert {"MatMul", "Gemm"}.intersection(operators_of(tried))
        assert "MatMulNBits" not in operators_of(tried)


@pytest.mark.parametrize(
    ("weight", "most"), [(integers(-128, 128, WIDE, 1024), 1.12), (integers(-8, 8, WIDE, 1024), 0.6)], ids=["8 bits", "4 bits"]
)
def test_the_session_holds_no_more_than_the_packed_weights(weight: torch.Tensor, most: float) -> None:
    layer = Affine(weight, floats(WIDE, 8), torch.zeros(WIDE, 8, dtype=torch.int8))
    with torch.no_grad():
        torch.compile(torch.nn.Linear(8, 8), backend="ortlens")(torch.randn(1, 8))  # what the first session of a process loads
        lens = Lens()
        torch.compile(layer, backend=lens)(torch.randn(4, 1024))
    packed = weight.nbytes + 5 * WIDE * 8
    assert lens.sessions.held_bytes.sum() < most * packed


class Convolution(torch.nn.Module):
    """PT2E: integers along the output channels, activations of 8 bits, rounded again behind it or not."""

    q: torch.Tensor
    scale: torch.Tensor

    def __init__(self, *, rounded: bool) -> None:
        super().__init__()
        self.register_buffer("q", integers(-127, 128, 512, 448, 3, 3))
        self.register_buffer("scale", floats(512) / 1000)
        self.rounded = rounded

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        through = torch.ops.quantized_decomposed
        dequantised = through.dequantize_per_tensor(
            through.quantize_per_tensor(x, 0.02, 128, 0, 255, torch.uint8), 0.02, 128, 0, 255, torch.uint8
        )
        weight = through.dequantize_per_channel(self.q, self.scale, torch.zeros(512, dtype=torch.int64), 0, -128, 127, torch.int8)
        made = torch.conv2d(dequantised, weight, padding=1).relu()
        if self.rounded:
            made = through.dequantize_per_tensor(
                through.quantize_per_tensor(made, 0.5, 0, 0, 255, torch.uint8), 0.5, 0, 0, 255, torch.uint8
            )
        return made


@pytest.mark.parametrize(("rounded", "kernel"), [(True, "QLinearConv"), (False, "FusedConv")])
def test_a_quantised_convolution_keeps_its_integers(rounded: bool, kernel: str) -> None:  # noqa: FBT001
    """2 MB of integers: the allocator of ONNX Runtime takes memory in powers of two, so that others may hold more."""
    net, lens, x = Convolution(rounded=rounded).eval(), Lens(), torch.randn(1, 448, 7, 7)
    with torch.no_grad():
        torch.compile(torch.nn.Linear(8, 8), backend="ortlens")(torch.randn(1, 8))
        made = torch.compile(net, backend=lens)(x)
        torch.testing.assert_close(made, net(x), atol=0.5 if rounded else 1e-3, rtol=0)
        lens.profile(x)
    assert kernel in lens.kernels.op_type.tolist()
    assert lens.sessions.held_bytes.sum() < 1.15 * net.q.nbytes


@pytest.mark.parametrize(("width", "rules"), [(1028, {"unpacked_weights"}), (1024, set())], ids=["without blocks", "in blocks"])
def test_integers_that_became_floats_are_a_finding(width: int, rules: set[str]) -> None:
    lens, layer = Lens(), Product(integers(-128, 128, 4200, width))
    with torch.no_grad():
        torch.compile(layer, backend=lens)(torch.randn(1, width))
    assert {"unpacked_weights"}.intersection(lens.findings.rule) == rules


def test_quantised_activations_are_multiplied_as_integers(tried: list[SessionConfig]) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = PerChannel(EIGHT, floats(64) / 100, torch.zeros(64, dtype=torch.int64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            quantised = torch.ops.quantized_decomposed.quantize_per_tensor(x, 0.05, 128, 0, 255, torch.uint8)
            made: torch.Tensor = self.layer(torch.ops.quantized_decomposed.dequantize_per_tensor(quantised, 0.05, 128, 0, 255, torch.uint8))
            return made

    net, x = Net(), torch.randn(4, 512)
    with torch.no_grad():
        close(torch.compile(net, backend=Lens(options={"on_error": "raise"}))(x), net(x))
    assert "QuantizeLinear" in operators_of(tried)
    assert "MatMulNBits" not in operators_of(tried)


@pytest.mark.parametrize("freezes", [True, False])
def test_a_product_of_int8_by_a_weight_has_an_unsigned_operand(tried: list[SessionConfig], *, freezes: bool) -> None:
    """ONNX Runtime has no fast kernel for a first operand of int8; where the weight varies, the sums of one could overflow."""

    class Layer(Product):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch._int_mm(x, self.q.t())

    layer, x = Layer(integers(-128, 128, 64, 512)), integers(-128, 128, 32, 512)
    compiled = torch.compile(layer, backend=Lens(options={"on_error": "raise", "freeze_weights": freezes}))
    torch.testing.assert_close(compiled(x), layer(x), rtol=0, atol=0)
    operators = operators_of(tried)
    assert operators[operators.index("MatMulInteger") - 1] == ("BitwiseXor" if freezes else "Transpose")


def test_weights_that_only_pytorch_can_read_stay_packed_in_pytorch() -> None:
    """The prototype of torchao for 4 bits on CPUs packs them for the processor at hand."""
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(integers(0, 16, 64, 128, dtype=torch.int32), 1)
    scale_and_zero = torch.stack((floats(4, 64) / 8, floats(4, 64) - 1), dim=-1)

    def layer(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.ops.aten._weight_int4pack_mm_for_cpu(x.sin(), packed, 32, scale_and_zero))

    x, lens = floats(3, 128), Lens()
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(layer, backend=lens)(x), layer(x))
    (left,) = lens.captured().fallbacks
    assert (left.target, left.reason_code) == ("aten._weight_int4pack_mm_for_cpu.default", "policy")
    assert "IntxWeightOnlyConfig" in left.reason
    assert "IntxWeightOnlyConfig" in lens.summary()


SIDE = 512
SIZE = 2 * SIDE * SIDE * 4
BOTH = pytest.mark.parametrize("prepack", [True, False], ids=["packed", "shared"])


def two_layers() -> torch.nn.Sequential:
    model = torch.nn.Sequential(torch.nn.Linear(SIDE, SIDE, bias=False), torch.nn.ReLU(), torch.nn.Linear(SIDE, SIDE, bias=False))
    return model.eval()


def compiled(model: Callable[..., Any], *, prepack: bool) -> tuple[Callable[..., Any], ortlens.OrtBackend]:
    backend = ortlens.OrtBackend({"prepack_weights": prepack, "on_error": "raise"})
    return torch.compile(model, backend=backend), backend


def only_session(backend: ortlens.OrtBackend) -> SessionInfo:
    ((info,),) = backend.sessions_by_graph.values()
    return info


def test_the_memory_of_shared_weights_lives_as_long_as_the_session() -> None:
    model, x = two_layers(), torch.randn(3, SIDE)
    with torch.no_grad():
        expected = model(x)
        fast, backend = compiled(model, prepack=False)
        fast(x)
        session = only_session(backend).session
        del fast, backend, model
        torch.compiler.reset()
        gc.collect()
        noise = [torch.full((SIDE, SIDE), float("nan")) for _ in range(8)]  # would take the memory, were it free
    (result,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(result), expected)
    assert len(noise) == 8


@BOTH
def test_a_frozen_callable_and_a_lens_take_the_option(prepack: bool) -> None:  # noqa: FBT001 - a parameter
    model, x, options = two_layers(), torch.randn(3, SIDE), {"prepack_weights": prepack}
    with torch.no_grad():
        torch.testing.assert_close(ortlens.freeze(model, x, options=options)(x), model(x))
        lens = ortlens.explain(model, calls=1, options=options)(x)
        lens.profile(x)
        lens.verify(x)
    assert lens.numerics.ok.all()
    assert list(lens.sessions.shareable_bytes) == [SIZE]
    assert list(lens.sessions.copied_bytes) == [SIZE if prepack else 0]
    if _process.heap_bytes() is not None:
        (held,) = lens.sessions.held_bytes
        assert (held > 0.9 * SIZE) if prepack else (held < 0.2 * SIZE)


PEAK = """
import pathlib, torch, ortlens
def memory(which):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(which)) * 1024
with torch.no_grad():
    torch.compile(torch.nn.Linear(4, 4).eval(), backend="ortlens")(torch.randn(1, 4))
    model, x = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048, bias=False) for _ in range(6))).eval(), torch.randn(1, 2048)
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    torch.compile(model, backend="ortlens")(x)
    print(memory("VmHWM") - memory("VmRSS"))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux alone reports a peak that can be reset")
def test_creating_a_session_takes_no_memory_beyond_what_it_keeps(run_python: Callable[..., str]) -> None:
    assert int(run_python(PEAK)) < 8 << 20, "less than the copy of one weight of 16 MiB"


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: setattr(layer.weight, "data", layer.weight.data * 2),
        lambda layer: setattr(layer.weight, "data", layer.weight.data.double()),
        lambda layer: setattr(layer.weight, "data", layer.weight.data[:, :-1].clone()),
        lambda layer: setattr(layer, "weight", torch.nn.Parameter(layer.weight * 3)),
        lambda layer: setattr(layer.bias, "data", torch.ones(1)),
    ],
    ids=["values", "dtype", "shape", "parameter", "broadcast"],
)
def test_without_guards_of_modules_changed_weights_are_noticed_nevertheless(change: Callable[[torch.nn.Linear], None]) -> None:
    layer, x = torch.nn.Linear(32, 32), torch.randn(2, 32)
    unguarded: Any = {"guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe}
    with torch.no_grad():
        fast = torch.compile(torch.nn.Sequential(layer, torch.nn.ReLU()).eval(), backend="ortlens", options=unguarded)
        fast(x)
        change(layer)
        try:
            expected = layer(x).relu()
        except RuntimeError:
            with pytest.raises(RuntimeError):
                fast(x)
        else:
            torch.testing.assert_close(fast(x), expected)


def test_a_c_library_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_process, "_mallinfo2", lambda: None)
    lens = ortlens.Lens()
    torch.compile(torch.relu, backend=lens)(torch.rand(3))
    assert lens.sessions.held_bytes.isna().all()
