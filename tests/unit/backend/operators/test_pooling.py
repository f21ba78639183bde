"""Pools: how many windows there are, what they average, where the largest value is, and their gradients."""

import itertools
import math
import pathlib
from collections.abc import Callable
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch import nn
from torch._dynamo.exc import TorchRuntimeError
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from ortlens.backend.operators.pooling import rounds_down
from tests.unit.backend.operators.one_graph import as_pytorch

_aten = torch.ops.aten
X = torch.sin(torch.arange(2 * 3 * 6 * 7 * 9.0)).reshape(2, 3, 6, 7, 9)
AVERAGE, LARGEST = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d), (F.max_pool1d, F.max_pool2d, F.max_pool3d)
WINDOWS = {2: ((3, 2, 1), (2, 3, 0), (3, 1, 1)), 1: ((2, 2, 1), (2, 3, 0)), 3: ((3, 2, 1), (3, 1, 0))}
"""Dimensions -> size, step and padding."""
_UNBLOCKED = ["Add", "Conv", "Conv", "Conv", "MaxPool"]  # on processors for which ONNX Runtime has no such order

ADAPTIVE: dict[str, Any] = {
    "average to 4": lambda x: F.adaptive_avg_pool1d(x[0, 0], 4),
    "average to (3, 5)": lambda x: F.adaptive_avg_pool2d(x[0], (3, 5)),
    "average to (None, 11)": lambda x: F.adaptive_avg_pool2d(x[0], (None, 11)),
    "average to (4, 3, 2)": lambda x: F.adaptive_avg_pool3d(x, (4, 3, 2)),
    "average to (3, 7, 3)": lambda x: F.adaptive_avg_pool3d(x, (3, 7, 3)),
    "average of one": lambda x: F.adaptive_avg_pool3d(x[0], (4, 3, 2)) + F.adaptive_avg_pool3d(x[0], 2)[0, 0, 0, 0],
    "area": lambda x: F.interpolate(x[0], size=(4, 4), mode="area"),
    "largest to 4": lambda x: F.adaptive_max_pool1d(x[0, 0], 4, return_indices=True),
    "largest to (3, 5)": lambda x: F.adaptive_max_pool2d(x[0], (3, 5), return_indices=True),
    "largest to (11, None)": lambda x: F.adaptive_max_pool2d(x[0, 0], (11, 9), return_indices=True),
    "largest to (4, 3, 2)": lambda x: F.adaptive_max_pool3d(x, (4, 3, 2), return_indices=True),
    "largest to (3, 7, 3)": lambda x: F.adaptive_max_pool3d(x, (3, 7, 3), return_indices=True),
    "largest to (2, 2, 2), values": lambda x: F.adaptive_max_pool3d(x, 2),
    "largest to (3, 2), values": lambda x: F.adaptive_max_pool2d(x[0], (3, 2)),
    "largest to 2, values": lambda x: F.adaptive_max_pool1d(x[0, 0], 2),
}


def cases() -> dict[str, Any]:
    made: dict[str, Any] = {}
    for dims, (size, step, pad) in ((dims, window) for dims, windows in WINDOWS.items() for window in windows):
        for ceil, whole in itertools.product((False, True), (False, True)):
            name = f"{dims} dimensions, size {size}, step {step}, padding {pad}, ceil {ceil}, {whole}"
            made[f"average, {name}"] = lambda x, d=dims, a=(size, step, pad, ceil, whole): AVERAGE[d - 1](x[(0,) * (3 - d)], *a)
        for ceil, gap in itertools.product((False, True), (1, 2)):
            name = f"{dims} dimensions, size {size}, step {step}, padding {pad}, gap {gap}, ceil {ceil}"
            made[f"largest, {name}"] = lambda x, d=dims, a=(size, step, pad, gap, ceil, True): LARGEST[d - 1](x[(0,) * (3 - d)], *a)
    for dims in (1, 2, 3):
        made[f"largest, {dims} dimensions, lists of one"] = lambda x, d=dims: LARGEST[d - 1](x[(0,) * (3 - d)], [2], [2], [1], [1])
        made[f"average, {dims} dimensions, lists of one"] = lambda x, d=dims: AVERAGE[d - 1](x[(0,) * (3 - d)], [2], [2], [1])
    made["average, given divisor"] = lambda x: F.avg_pool2d(x[0], 2, 1, 1, divisor_override=3)
    made["average, given divisor, ceil"] = lambda x: F.avg_pool3d(x, 2, 2, 1, ceil_mode=True, divisor_override=5)
    made["unbatched"] = lambda x: F.max_pool2d(x[0, 0], 2) + F.avg_pool2d(x[0, 0], 2)
    made["adaptive to 1"] = lambda x: F.adaptive_avg_pool2d(x[0], 1)
    return made


@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_as_pytorch(*, dynamic: bool) -> None:
    capture = as_pytorch(cases(), X, dynamic=dynamic)
    assert all("begin in the padding" in row.reason or "divisor_override" in row.reason for row in capture.fallbacks)


def test_gradients() -> None:
    few = dict(list(cases().items())[::4])
    as_pytorch(few, X, grad=True)
    as_pytorch({name: case for name, case in few.items() if "average" in name}, X.double(), grad=True)


@pytest.mark.slow
def test_gradients_of_all_average_pools_run_in_onnx_runtime() -> None:
    average = {name: case for name, case in cases().items() if "largest" not in name}
    capture = as_pytorch(average, X, grad=True)
    assert not [row for row in capture.fallbacks if "backward" in row.target and "max_pool" not in row.target]


@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_windows_of_different_sizes(*, dynamic: bool) -> None:
    as_pytorch({"to 1": lambda x: F.adaptive_avg_pool2d(x[0], 1)}, X, dynamic=True, stays=())
    if dynamic:
        as_pytorch(ADAPTIVE, X, dynamic=True)
        return
    as_pytorch(ADAPTIVE, X, stays={"aten.adaptive_max_pool2d.default", "aten.adaptive_max_pool3d.default"})  # whose indices are read
    as_pytorch({name: case for name, case in ADAPTIVE.items() if "largest to" not in name or "values" in name}, X, stays=())


@pytest.mark.parametrize(("kind", "size"), [("max", 2), ("avg", 2), ("max", 1), ("avg", 1)])
def test_adaptive_pools_refuse_integers_as_pytorch_does(kind: str, size: int) -> None:
    for dims in (1, 2, 3):
        function, given = getattr(F, f"adaptive_{kind}_pool{dims}d"), torch.arange(216).reshape(1, *[6] * dims, -1)[..., 0]
        try:
            wanted = function(given, size)
        except (RuntimeError, NotImplementedError) as error:
            with pytest.raises((type(error), TorchRuntimeError)):  # Dynamo's own, since torch 2.15
                torch.compile(function, backend="ortlens")(given, size)
        else:
            assert torch.equal(torch.compile(function, backend="ortlens")(given, size), wanted), dims


def test_gradients_of_windows_of_different_sizes() -> None:
    as_pytorch(ADAPTIVE, X, grad=True)


def test_extreme_values_stay_in_their_windows() -> None:
    compiled = torch.compile(lambda x: {name: case(x) for name, case in ADAPTIVE.items()}, backend="ortlens")
    for extreme in (math.nan, math.inf, -math.inf):
        x = X.clone()
        x[:, :, ::2, ::3, ::4] = x[0, 0] = extreme
        wanted = {name: case(x) for name, case in ADAPTIVE.items()}
        torch.testing.assert_close(compiled(x), wanted, atol=1e-4, rtol=1e-4, equal_nan=True)


def test_extreme_gradients_stay_in_their_windows() -> None:
    grad, x = torch.ones(1, 2, 3, 3), torch.zeros(1, 2, 6, 6)
    grad[0, 0, 1, 1], grad[0, 1, 1, 1] = math.nan, math.inf
    cases: dict[str, Any] = {
        "average": lambda g, x: _aten.avg_pool2d_backward(g, x, [3, 3], [2, 2], [1, 1], False, True, None),  # noqa: FBT003 - the schema
        "adaptive": _aten._adaptive_avg_pool2d_backward,
    }
    as_pytorch(cases, grad, x, stays=())


def test_gradients_of_pools_of_nothing() -> None:
    cases = {"average": lambda x: F.avg_pool2d(x, 2), "adaptive": lambda x: F.adaptive_avg_pool2d(x, 2)}
    as_pytorch(cases, torch.zeros(0, 3, 4, 4), grad=True)


@pytest.mark.parametrize("dynamic", [False, True])
def test_pools_to_nothing(*, dynamic: bool) -> None:
    cases = {"lines": lambda x: F.adaptive_avg_pool1d(x[0, 0], 0), "images": lambda x: F.adaptive_avg_pool2d(x[0], (3, 0))}
    capture = as_pytorch(cases, X, dynamic=dynamic)
    assert not capture.findings


def odd_images() -> torch.Tensor:
    """Images of 16 channels with windows of minus infinity, of NaN, and of the lowest finite number."""
    inf, lowest = torch.inf, torch.finfo(torch.float32).min
    x = torch.sin(torch.arange(16 * 9 * 8.0)).reshape(1, 16, 9, 8)
    x[0, 0, :4, :4], x[0, 1, 2, 3], x[0, 2], x[0, 3, 1, 1], x[0, 3, 4, 4] = -inf, torch.nan, lowest, inf, -inf
    x[0, 4], x[0, 5, ::2], x[0, 6], x[0, 6, 0, 0], x[0, 7], x[0, 7, 3, 3] = -inf, torch.nan, lowest, -inf, -inf, torch.nan
    return x


INFINITE: dict[str, Any] = {
    **{f"size {size}, {more}": lambda x, size=size, more=more: F.max_pool2d(x, size, *more)
       for size, more in itertools.product((2, 3), ((), (2, 1), (1, 0, 2), (2, 1, 1, True)))},
    "1 dimension": lambda x: F.max_pool1d(x[0], 3, 2, 1),
    "3 dimensions": lambda x: F.max_pool3d(x, 3, 2, 1, return_indices=True),
    "places": lambda x: F.max_pool2d(x, 2, return_indices=True),
    "places, padded": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
    "adaptive": lambda x: (F.adaptive_max_pool2d(x, 1), F.adaptive_max_pool2d(x, (3, 4)), F.adaptive_max_pool2d(x, (2, 3))),
    "few channels": lambda x: F.max_pool2d(F.relu(x[:, :5]), 2),
}  # fmt: skip


@pytest.mark.parametrize("first", [torch.Tensor.clone, F.relu])
def test_nan_and_infinity(first: Callable[[torch.Tensor], torch.Tensor]) -> None:
    as_pytorch({name: lambda x, case=case: case(first(x)) for name, case in INFINITE.items()}, odd_images(), atol=0)


def test_a_pool_between_convolutions_keeps_their_memory_order(tmp_path: pathlib.Path) -> None:
    """ONNX Runtime keeps channels together from the first convolution to the last; any other operator would copy the image twice."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    layers = (nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(32, 16, 3))
    model = nn.Sequential(*layers).eval()
    with torch.no_grad():
        torch.compile(model, backend="ortlens", options={"ort_session_options": options})(torch.ones(1, 16, 12, 12))
    ops = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert sorted(ops) in (["Add", "Conv", "Conv", "Conv", "MaxPool", "ReorderInput", "ReorderOutput"], _UNBLOCKED)


@pytest.mark.parametrize(("sizes", "window", "down"), [
    ((9,), (2, 2, 1, 1), True),  # the window that rounding up adds begins in the padding
    ((8,), (2, 2, 1, 1), True),  # there is none to add
    ((8,), (3, 2, 1, 1), False),
    ((9, 8), (2, 2, 1, 1), True),
    ((10, 9), (3, 2, 1, 1), False),  # nothing to round in one, up in the other
    ((9, 8), ((2, 3), (2, 2), (1, 1), 1), None),  # down in one, up in the other
])  # fmt: skip
def test_rounding(sizes: tuple[int, ...], window: tuple[Any, Any, Any, Any], *, down: bool | None) -> None:
    assert rounds_down(sizes, *window) is down
