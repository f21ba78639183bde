"""Numbers of sizes, int arguments and data are Python's, wherever they are computed; no overflow is hidden by ONNX Runtime."""

# ruff: noqa: ANN401 - arguments of functions under test are Any in torch itself

import pathlib
import warnings
from collections.abc import Callable
from typing import Any

import onnxruntime
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows
from torch import nn

from ortlens import Lens
from tests.integration.against_eager import same_as_eager
from tests.opinfo.numbers import OPERATIONS, ROADS, bad_outcomes, unknown_names

QUICK = frozenset({"operator.floordiv", "operator.mul", "operator.pow", "operator.and_", "int", "math.ceil"})
"""Operations that differed, or whose number stayed out of every model."""

OTHERS = sorted(OPERATIONS.keys() - QUICK)
ROADS_TAKEN = [
    *((name, road) for name in sorted(QUICK) for road in ("argument", "size")),
    *(pytest.param(name, road, marks=pytest.mark.slow) for name in sorted(QUICK) for road in ("data", "model", "loaded")),
    *(pytest.param(name, [*ROADS][place % len(ROADS)], marks=pytest.mark.slow) for place, name in enumerate(OTHERS)),
]
"""The others take one road each here, and all of them in `make sweep-numbers`."""


def of_sizes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        x[: -(-x.shape[0] // 2)] * 2,
        F.pad(x, (x.shape[0] // -3, -(x.shape[0] // 4))) * 2,
        x.split(-(-x.shape[0] // 2))[1] * 2,
        torch.arange(-x.shape[0] // 2, x.shape[0] // 2) * 2,
        torch.arange(-x.shape[0] // 2, x.shape[0], 3) * 2,
        x[: int(x.shape[0] * 0.7)] * 2,
        x[max(0, x.shape[0] - 5) : min(x.shape[0], 9)] * 2,
        x + (x.shape[0] & 6) + (x.shape[0] << 2),
    )


@pytest.mark.parametrize(("name", "road"), ROADS_TAKEN)
def test_an_operation_gives_what_python_gives(name: str, road: str) -> None:
    assert bad_outcomes(name, [road]) == []


def test_the_table_names_what_exists() -> None:
    assert unknown_names() == []


def test_tensors_made_with_numbers_of_sizes_are_eagers() -> None:
    capture = same_as_eager(of_sizes, *((torch.arange(1.0, size + 1),) for size in (4, 5, 7, 12, 13)))
    assert not capture.fallbacks
    assert all(graph.partition_count == 1 for graph in capture.graphs)


def test_a_number_past_64_bits_is_computed_by_python_without_another_partition() -> None:
    def hashed(x: torch.Tensor, k: int) -> torch.Tensor:
        return (x * 2 + (k * 6364136223846793005 + 1442695040888963407) % 2**64 % 1000).relu() + k**3

    x = torch.zeros(3, dtype=torch.int64)
    capture = same_as_eager(hashed, (x, 11), (x, 208067), (x, -208067), (x, 5), dynamic=True)
    assert [partition.node_count for partition in capture.partitions] == [4]
    assert not capture.fallbacks


def test_a_division_by_zero_raises_what_python_raises() -> None:
    compiled = torch.compile(lambda x, k: x + 10 // k, backend=Lens(), dynamic=True)
    assert compiled(torch.zeros(1), 5).item() == 2
    with pytest.raises(ZeroDivisionError):
        compiled(torch.zeros(1), 0)
    assert compiled(torch.zeros(1), -3).item() == -4


def test_an_exported_model_raises_where_a_number_leaves_the_64_bits(tmp_path: pathlib.Path) -> None:
    lens = Lens()
    compiled = torch.compile(lambda x, k: x + k * k % 7, backend=lens, dynamic=True)
    with torch.no_grad():
        compiled(torch.zeros(1, dtype=torch.int64), 11)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(lens.export_onnx(tmp_path / "model.onnx")), options)
    names = {len(item.shape): item.name for item in session.get_inputs()}

    def run(k: int) -> int:
        return int(session.run(None, {names[1]: torch.zeros(1, dtype=torch.int64).numpy(), names[0]: torch.tensor(k).numpy()})[0][0])

    assert [run(k) for k in (3, -208067, 3037000499)] == [k * k % 7 for k in (3, -208067, 3037000499)]
    with pytest.raises(Exception, match="Gather"):
        run(3037000500)


def _wrapping(*of_each_dtype: Any) -> list[torch.Tensor]:
    *tensors, k = of_each_dtype
    made: list[torch.Tensor] = []
    for x in tensors:
        made += (x + k, x - k, k - x, x * k, x ^ k, x & k, x > k, x == k, x <= k, x // k, x % k, torch.remainder(k, x), torch.isin(x, k))
        made.append(torch.rsub(x, x, alpha=2))
    return made


def test_a_varying_number_beyond_a_narrow_type_wraps_as_in_eager() -> None:
    tensors = [torch.tensor([1, 2, 3, 100], dtype=dtype) for dtype in (torch.uint8, torch.int16, torch.int32)]
    assert same_as_eager(_wrapping, *((*tensors, k) for k in (2, 300, 40000, -1, 2**31 + 5)), dynamic=True).partitions


def _scaled(*numbers: torch.Tensor) -> list[torch.Tensor]:
    *bases, n = numbers
    return [torch.ldexp(x, power) + 1 for x in bases for power in (n, n[4])] + [torch.ldexp(x[1], n[3]) + 1 for x in bases]


@pytest.mark.parametrize("exponents", [torch.int32, torch.int64, torch.float16, torch.float32], ids=str)
def test_ldexp_rounds_once_and_in_the_dtype_of_eager(exponents: torch.dtype) -> None:
    dtypes = (torch.float16, torch.float32, *(() if exponents is torch.float16 else (torch.int32,)))
    powers = torch.tensor([300.0, -300.0, 127.0, -149.0, 2.5]).to(exponents)
    same_as_eager(_scaled, (*(torch.tensor([0.0, 1.0, 0.7, -3.0, 0.3]).to(dtype) for dtype in dtypes), powers))


REFUSING: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "alpha": lambda x, k: torch.add(x, x, alpha=k),
    "value": lambda x, k: torch.addcmul(x, x, x, value=k),
    "scatter": lambda x, k: x.scatter(0, torch.tensor([0]), k),
    "reduce": lambda x, k: x.scatter(0, torch.tensor([0]), k, reduce="add"),
    "index_add": lambda x, k: x.index_add(0, torch.tensor([0]), x[:1], alpha=k),
    "index_fill": lambda x, k: x.index_fill(0, torch.tensor([0]), k),
    "linspace": lambda x, k: torch.linspace(0, k, 4, dtype=x.dtype) + x,
    "tensor": lambda x, k: x.masked_fill(x > 2, torch.tensor(k)),
    "threshold": lambda x, k: F.threshold(x, k, 1),
    "eps": lambda x, k: torch.logit(x / 200, k),
    "bound": lambda x, k: torch.clamp_min(x > 2, k > 1),
}


@pytest.mark.parametrize("name", REFUSING)
def test_a_number_that_pytorch_refuses_to_convert_is_refused(name: str) -> None:
    dtype, number, dynamic = ((torch.uint8, 300, None), (torch.float16, 70000, True))[[*REFUSING].index(name) % 2]
    x, compiled = torch.tensor([1, 2, 3, 100], dtype=dtype), torch.compile(REFUSING[name], backend="ortlens", dynamic=dynamic)
    assert all(_outcome(compiled, x, k) == _outcome(REFUSING[name], x, k) for k in (1, number)), dtype


def _outcome(function: Callable[..., Any], *args: torch.Tensor | int) -> str | type[Exception]:
    try:
        return repr(function(*args).tolist())  # NaN is not equal to itself
    except Exception as error:  # noqa: BLE001 - what is raised is what is compared
        return type(error)


def answers(function: Callable[[torch.Tensor], torch.Tensor], *calls: torch.Tensor) -> tuple[list[torch.Tensor], int]:
    """The compiled results, and how many runs failed."""
    torch.compiler.reset()
    lens = Lens()
    compiled = torch.compile(function, backend=lens)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = [compiled(call) for call in calls]
    return got, sum(finding.rule == "run_failed" for finding in lens.captured().findings)


def with_one(number: float, x: torch.Tensor, row: int) -> torch.Tensor:
    x = x.clone()
    x[row].view(-1)[0] = number
    return x


NORMS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], tuple[int, ...]]] = {
    **{f"layer_norm of {size}": (lambda x: F.layer_norm(x, x.shape[-1:]) * 2, (3, size)) for size in (4, 60, 768)},
    "layer_norm, two": (lambda x: F.layer_norm(F.layer_norm(x, (16,)).tanh() + x, (16,)).relu(), (3, 16)),
    "layer_norm, of two shapes": (lambda x: F.layer_norm(F.layer_norm(x, (16,)).unflatten(1, (4, 4)), (4,)), (3, 16)),
    "layer_norm, then products": (lambda x: F.layer_norm(x, (16,)).unflatten(1, (2, 8)) @ x[0].view(8, 2), (3, 16)),
    "group_norm": (lambda x: F.group_norm(x, 2), (3, 4)),
    "group_norm of images": (lambda x: F.group_norm(x, 2, x[0, :, 0, 0], x[1, :, 0, 0]), (3, 4, 4, 4)),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", NORMS)
def test_a_row_whose_squares_overflow_is_pytorchs(name: str, *, grad: bool) -> None:
    function, shape = NORMS[name]
    plain = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    calls = [plain, with_one(1e30, plain, 1), with_one(torch.nan, plain, 2), plain.mul(1e15)]
    with torch.set_grad_enabled(grad):
        got, failed = answers(function, *(call.requires_grad_(grad) for call in calls))
        for ours, call in zip(got, calls, strict=True):
            torch.testing.assert_close(ours, function(call), equal_nan=True, rtol=1e-4, atol=1e-5)
    assert failed == 1


class Integers(nn.Module):
    q: torch.Tensor
    scale: torch.Tensor

    def __init__(self, bits: int) -> None:
        super().__init__()
        high = 2 ** (bits - 1)
        self.register_buffer("q", torch.randint(-high, high, (128, 256), dtype=torch.int8, generator=torch.Generator().manual_seed(0)))
        self.register_buffer("scale", torch.full((128, 1), 1e-3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.q.float() * self.scale).relu()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("number", [torch.inf, -torch.inf, 1e37])
def test_a_product_with_integers_is_pytorchs_at_infinity(bits: int, number: float) -> None:
    layer, plain = Integers(bits), torch.randn(3, 256, generator=torch.Generator().manual_seed(1))
    calls = [plain, with_one(number, plain, 1), with_one(torch.nan, plain, 2)]
    with torch.no_grad():
        got, failed = answers(layer, *calls)
        for ours, call in zip(got, calls, strict=True):
            torch.testing.assert_close(ours, layer(call), equal_nan=True, rtol=1e-3, atol=1e-3)
    assert failed == 1
