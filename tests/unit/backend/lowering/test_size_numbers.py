"""Numbers that follow from the sizes of a graph's inputs, and that its operators take as tensors."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from ortlens import Lens


def _scaled(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    n = x.shape[0] * x.shape[1]
    return y * (n / (n - 1)) + y / (2.5 / n) - (n / 3)


def _inside(x: torch.Tensor) -> torch.Tensor:
    y = x.sin().reshape(-1)
    return y * (y.numel() / (y.numel() - 1))


def _pooled(x: torch.Tensor) -> torch.Tensor:
    y = torch.nn.functional.avg_pool2d(x[None], 2)[None]
    variance = torch.ones(1)
    return torch.nn.functional.batch_norm(y, torch.zeros(1), variance, training=True) + variance


def _integers(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.int64) * (1 / x.shape[0])


def _fallbacks(function: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype) -> list[str]:
    """What stays in PyTorch, where the function gives exactly what PyTorch gives for three sizes."""
    lens = Lens()
    compiled = torch.compile(function, backend=lens, dynamic=True)
    for rows in (4, 7, 12):
        x = torch.linspace(-2, 3, rows * 6, dtype=dtype).reshape(rows, 6)
        torch.testing.assert_close(compiled(x), function(x))
    assert len(lens.graphs) == 1
    return [row.target for row in lens.captured().fallbacks]


def _by_many_ways(x: torch.Tensor) -> torch.Tensor:
    number = x.shape[0] / 3
    for _ in range(40):  # each follows from the one before in two ways: a search that walks each way anew would not end
        number = number * 0.5 + number * 0.25
    return x.sin() * number


def test_a_number_that_follows_by_many_ways_is_found_at_once() -> None:
    assert set(_fallbacks(_by_many_ways, torch.float64)) == {"aten.scalar_tensor.default"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_operators_take_numbers_as_tensors_made_before_them(dtype: torch.dtype) -> None:
    assert set(_fallbacks(_scaled, dtype)) == {"aten.scalar_tensor.default"}
    assert _fallbacks(_inside, dtype) == ["aten.scalar_tensor.default"]


@pytest.mark.parametrize(
    ("function", "stays"),
    [
        (_pooled, "aten.mul.Tensor"),  # half of a size is no input
        (_integers, "aten.mul.Scalar"),
    ],
)
def test_numbers_that_inputs_do_not_tell_and_other_types_stay_where_they_are(
    function: Callable[[torch.Tensor], torch.Tensor], stays: str
) -> None:
    assert stays in _fallbacks(function, torch.float32)


def test_a_batch_norm_of_any_batch_is_one_partition() -> None:
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(32, 4)) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    lens = Lens()
    compiled = torch.compile(nets[1], backend=lens, dynamic=True)
    for batch in (4, 9):
        x = torch.randn(batch, 3, 4, 4)
        results = [nets[0](x), compiled(x)]
        torch.testing.assert_close(results[1], results[0])
        for result in results:
            result.square().mean().backward()
        for one, other in zip((*nets[0].parameters(), *nets[0].buffers()), (*nets[1].parameters(), *nets[1].buffers()), strict=True):
            torch.testing.assert_close(other, one)
    assert {row.partition_count for row in lens.captured().graphs} == {1}
    assert {row.target for row in lens.captured().fallbacks} == {"aten.scalar_tensor.default", "aten.convolution_backward.default"}
