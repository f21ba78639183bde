"""Operators that stay in PyTorch where they are large enough for its faster kernel to be worth a partition more."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch.nn import functional

import ortlens
from ortlens.trace.records import Capture

LARGE, SMALL = (512, 1024), (8, 16)
CASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "amax": lambda x: x.amax(-1),
    "argmax": lambda x: x.argmax(0),
    "cumsum": lambda x: x.cumsum(-1),
    "exp2": torch.exp2,
    "flip": lambda x: x.flip(-1),
    "hardshrink": functional.hardshrink,
    "huber": lambda x: functional.huber_loss(x, x * 0.5),
    "log_sigmoid": functional.logsigmoid,
    "log_softmax of columns": lambda x: x.log_softmax(0),
    "mish": functional.mish,
    "nan_to_num": torch.nan_to_num,
    "norm of all": torch.linalg.vector_norm,
    "norm": lambda x: x.norm(dim=-1),
    "prelu": lambda x: functional.prelu(x, torch.full((1,), 0.25)),
    "remainder": lambda x: x % 3.0,
    "selu": functional.selu,
    "sign": torch.sign,
    "softplus": functional.softplus,
    "sort": lambda x: x.sort(-1).values,
    "sums of whole numbers": lambda x: x.to(torch.int64).sum(-1),
}
STAYS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cumsum of columns": lambda x: x.cumsum(0),
    "norm of columns": lambda x: x.norm(dim=0),
    "square, which is fused with its neighbours": lambda x: x**2,
    "tanh": torch.tanh,
}


def planned(function: Callable[[torch.Tensor], Any], *sizes: int, dtype: torch.dtype = torch.float32, **options: Any) -> Capture:  # noqa: ANN401 - those of `explain`
    with torch.no_grad():
        return ortlens.explain(function, dry_run=True, calls=1, **options)(torch.rand(sizes, dtype=dtype)).captured()


def left(function: Callable[[torch.Tensor], Any], *sizes: int, **options: Any) -> list[str]:  # noqa: ANN401 - likewise
    rows = planned(function, *sizes, **options).fallbacks
    assert all(row.reason_code == "policy" for row in rows)
    return [row.reason for row in rows]


TOGETHER: dict[str, tuple[Callable[[torch.Tensor], Any], bool]] = {  # whether all stays in PyTorch
    "arithmetic": (lambda x: (x * 2 + x).relu(), True),
    "sums": (lambda x: (x * x).sum(-1), True),
    "a copy": (lambda x: x.T.contiguous(), True),
    "ones": (torch.ones_like, True),
    "views alone": (lambda x: x.reshape(-1, 4)[1:], True),
    "with one of few numbers that the table lacks": (lambda x: (x * 2 + x).relu() * x[0, :8].cumprod(-1).sum(), True),
    "a faster function among it": (lambda x: (x * 2).tanh() + 1, False),
    "with a product": (lambda x: (x @ x.T).relu(), False),
    "with an operator that the table lacks": (lambda x: functional.avg_pool1d(x.relu(), 2), False),
}


def all_of(functions: Mapping[str, Callable[[torch.Tensor], torch.Tensor]]) -> Callable[[torch.Tensor], Any]:
    """One graph of all: it is compiled once."""
    return lambda x: [function(x) for function in functions.values()]


def test_large_ones_stay_in_pytorch_and_say_what_they_would_lose() -> None:
    assert left(all_of(CASES), *SMALL) == []
    reasons = left(all_of(CASES), *LARGE)
    assert sum("longer than PyTorch, by about" in reason for reason in reasons) == len(CASES)
    assert all("on one thread" in reason for reason in reasons)


@pytest.mark.parametrize("name", TOGETHER)
def test_partitions_that_would_lose_are_not_made(name: str) -> None:
    function, stays = TOGETHER[name]
    capture = planned(function, *LARGE)
    assert all("its partition would take about" in row.reason and "in PyTorch, on one thread" in row.reason for row in capture.fallbacks)
    assert (not capture.partitions) is stays
    assert left(function, *SMALL) == []
    assert left(function, *LARGE, device="cuda") == []


def test_a_session_before_or_after_what_stays_for_its_time_counts_as_one_more_to_enter() -> None:
    assert not planned(lambda x: (x * 2).cumsum(1) + 1, 256, 1024).partitions
    assert len(planned(lambda x: (x * 2).view(torch.int32).view(torch.float32) + 1, 256, 1024).partitions) == 2


class Shifted(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


@pytest.mark.parametrize(("module", "operator"), [(torch.nn.Mish(), "mish"), (Shifted(), "add")])
def test_what_stays_in_pytorch_is_part_of_a_model_to_deploy(module: torch.nn.Module, operator: str) -> None:
    frozen = ortlens.freeze(module, torch.rand(LARGE))
    assert list(frozen.graph.left_in_torch()) == [operator]
    assert frozen.graph.for_deployment().left_in_torch() == {}


def test_what_onnx_runtime_computes_as_fast_goes_there() -> None:
    assert left(all_of(STAYS), *LARGE) == []


def test_figures_of_float32_on_the_cpu_are_for_nothing_else() -> None:
    assert left(torch.sign, *LARGE, dtype=torch.float64) == []
    assert left(torch.sign, *LARGE, device="cuda") == []


def test_sizes_that_vary_count_as_in_the_first_call() -> None:
    assert len(left(torch.sign, *LARGE, dynamic=True)) == 1
    assert left(torch.sign, *SMALL, dynamic=True) == []


def test_what_is_made_of_weights_is_computed_once_by_the_session() -> None:
    layer = torch.nn.Linear(512, 1024).eval()
    with torch.no_grad():
        assert left(lambda x: x @ layer.weight.sign(), 2, 1024) == []


CONVOLUTIONS: dict[int, dict[str, tuple[torch.nn.Module, bool]]] = {  # number of volumes -> layers of four channels, and whether they stay
    1: {
        "plain": (torch.nn.Conv3d(4, 8, 3), False),
        "of a large kernel": (torch.nn.Conv3d(4, 8, (3, 5, 5)), True),
        "of each channel": (torch.nn.Conv3d(4, 8, 3, groups=4), True),
        "transposed": (torch.nn.ConvTranspose3d(4, 8, 3), False),
    },
    2: {
        "plain": (torch.nn.Conv3d(4, 8, 3), True),
        "transposed": (torch.nn.ConvTranspose3d(4, 8, 3), True),
        "transposed with stride": (torch.nn.ConvTranspose3d(4, 8, 2, stride=2), False),
        "transposed with stride and a large kernel": (torch.nn.ConvTranspose3d(4, 8, 4, stride=2), True),
    },
}


@pytest.mark.parametrize("count", CONVOLUTIONS)
def test_convolutions_in_three_dimensions_stay_where_pytorch_has_a_library_for_them(count: int) -> None:
    layers = {name: layer for name, (layer, _) in CONVOLUTIONS[count].items()}
    for dynamic in (False, True):
        capture = planned(all_of(layers), count, 4, 20, 20, 20, dynamic=dynamic)
        nodes = [node.node for node in capture.nodes if "convolution" in node.target]
        kept = {row.node for row in capture.fallbacks if "oneDNN" in row.reason}
        assert {name: node in kept for name, node in zip(layers, nodes, strict=True)} == {
            name: stays for name, (_, stays) in CONVOLUTIONS[count].items()
        }
    rows = {str(step): torch.nn.Conv1d(4, 8, 5, stride=step, dilation=2) for step in (1, 3)}
    assert len(left(all_of(rows), count, 4, 20_000)) == 1
    for kind, few in ((torch.nn.Conv3d, 5), (torch.nn.ConvTranspose3d, 2)):
        small = {name: layer for name, layer in layers.items() if isinstance(layer, kind)}
        assert not any("oneDNN" in reason for reason in left(all_of(small), count, 4, few, few, few))


@pytest.mark.parametrize(("images", "pixels", "gradient", "stays"), [(8, 4, True, 2), (2, 4, True, 0), (8, 8, True, 0), (8, 4, False, 0)])
def test_convolutions_of_few_pixels_stay_in_a_training_step(images: int, pixels: int, stays: int, *, gradient: bool) -> None:
    module = torch.nn.Sequential(*(torch.nn.Conv2d(128, 128, 3, padding=1) for _ in range(2)))
    lens, x = ortlens.Lens(), torch.rand(images, 128, pixels, pixels, requires_grad=gradient)
    with torch.set_grad_enabled(gradient):
        torch.testing.assert_close(torch.compile(module, backend=lens)(x), module(x), atol=1e-4, rtol=1e-4)
    assert sum("once for each image" in row.reason for row in lens.captured().fallbacks) == stays


def test_statistics_that_a_step_updates_are_too_few_to_keep_a_norm_and_what_follows() -> None:
    ours, theirs = (torch.nn.Sequential(torch.nn.BatchNorm2d(64), torch.nn.ReLU()) for _ in range(2))
    lens, x = ortlens.Lens(), torch.rand(8, 64, 32, 32, requires_grad=True)
    torch.testing.assert_close(torch.compile(ours, backend=lens)(x), theirs(x))
    torch.testing.assert_close(dict(ours.named_buffers()), dict(theirs.named_buffers()))
    targets = {row.target for row in lens.captured().fallbacks if row.graph_id == "g0"}
    assert targets >= {"aten._native_batch_norm_legit_functional.default", "aten.relu.default"}


def test_a_number_that_varies_has_no_row_in_a_table() -> None:
    """A graph whose plan failed over it stayed in PyTorch, with a warning."""

    def function(x: torch.Tensor, w: torch.Tensor, order: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.linalg.vector_norm(x, order), functional.conv_transpose3d(x, w, stride=step, padding=(1, step, 3))

    compiled = torch.compile(function, backend="ortlens", dynamic=True)
    x, w = torch.rand(2, 8, 6, 8, 8), torch.rand(8, 4, 4, 5, 6)
    for order, step in ((6, 3), (4, 2)):
        torch.testing.assert_close(compiled(x, w, order, step), function(x, w, order, step), atol=1e-4, rtol=1e-4)
