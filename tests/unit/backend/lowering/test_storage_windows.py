"""`as_strided` runs in ONNX Runtime where the storage that it reads is known, and in PyTorch where it is not."""

import math
from collections.abc import Callable

import pytest
import torch

from ortlens import Lens
from ortlens.trace.records import Capture
from tests.integration.against_eager import same_as_eager, twin

X = torch.arange(24.0).reshape(4, 6)

EXPRESSED: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda x: x.as_strided((3, 2), (2, 5)) + 1,  # overlapping
    lambda x: x.as_strided((2, 2, 6), (6, 12, 1)) + 1,  # rows
    lambda x: x.as_strided((4, 6), (1, 4)) + 1,  # a permuted result
    lambda x: x[1:3].as_strided((2, 3), (3, 1)) + 1,  # no offset means that of the view
    lambda x: x[1:3].as_strided((3, 6), (6, 1)) + 1,  # past the view's elements, in those of its owner
    lambda x: (x + 1).as_strided((2, 2), (2, 2), 5) + 1,
    lambda x: (x + 1)[1:3].as_strided((4, 6), (6, 1), 0) + 1,  # reaches past the view, not past its owner
    lambda x: (x + 1)[2:].as_strided((2, 6), (6, 1)) + 1,
    lambda x: (x.t() + 1).as_strided((3, 4), (1, 3)) + 1,  # values that fill the storage in another order
    lambda x: (x + 1).split(2)[1].as_strided((2, 3), (1, 2)) + 1,
    lambda x: (x + 1).as_strided((), (), 7) + 1,
    lambda x: (x + 1).as_strided((2, 3), (0, 0), 7) + 1,
)
LEFT: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda x: x.as_strided((2, 2), (1, 2), 3) + 1,  # the offset of an input is not known
    lambda x: x.split(2)[1].as_strided((2, 2), (1, 2), 3) + 1,
    lambda x: x[1:].as_strided((4, 6), (6, 1)) + 1,  # past the elements of the input, in those of the caller's tensor
)


def together(functions: tuple[Callable[[torch.Tensor], torch.Tensor], ...]) -> Callable[[torch.Tensor], list[torch.Tensor]]:
    return lambda x: [function(x) for function in functions]


def left(capture: Capture) -> int:
    """Count the windows that stay in PyTorch."""
    return sum(row.target == "aten.as_strided.default" for row in capture.fallbacks)


@pytest.mark.parametrize("grad", [False, True])
def test_windows_over_known_storage_run_in_onnx_runtime(*, grad: bool) -> None:
    capture = same_as_eager(together(EXPRESSED), (X.clone().requires_grad_(grad),), grad=grad)
    assert not left(capture)


def test_windows_over_unknown_storage_stay_in_pytorch() -> None:
    assert left(same_as_eager(together(LEFT), (torch.arange(30.0).reshape(5, 6)[:4],))) == len(LEFT)


def test_windows_of_symbolic_sizes_stay_in_pytorch_and_keep_their_memory() -> None:
    def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        doubled = x * 2
        return doubled, doubled.as_strided((x.shape[0], 2), (x.shape[1], 1))

    same_as_eager(halves, (X,), (torch.rand(5, 7),), dynamic=True)
    whole, part = torch.compile(halves, backend="ortlens", dynamic=True)(X)
    part.zero_()
    assert whole[0].tolist() == [0.0, 0.0, 4.0, 6.0, 8.0, 10.0]


@pytest.mark.parametrize("cached", [False, True])
def test_the_offset_of_an_input_may_change(*, cached: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Dynamo guards sizes and strides of an input, but not where it begins in its storage."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.as_strided((2, 2), (2, 1), 4) + 1, x.as_strided((2, 2), (2, 1)) * 2

    inputs = [torch.arange(12.0)[offset : offset + 6] for offset in (0, 3, 6)]
    options = {"cache_dir": tmp_path_factory.mktemp("cache")} if cached else None
    for first in (0, 1, 2):
        torch.compiler.reset()
        compiled = torch.compile(function, backend=Lens(options=options))
        for x in (inputs[first], *inputs):
            torch.testing.assert_close(compiled(twin(x)), function(x))


def _window_then_row(x: torch.Tensor) -> torch.Tensor:
    window = x.as_strided((2, 2), (2, 1), 4)
    x[2].mul_(2)
    return window * 1


def _window_then_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    window = x.as_strided((x.shape[0] - 1,), (1,), 4)
    x[1:].mul_(2)
    return window, window + 1


def _row_then_window(x: torch.Tensor) -> torch.Tensor:
    rows = x[1:]
    rows.mul_(2)
    return rows.as_strided((2,), (1,), 4) + 1


def _copy_then_window(x: torch.Tensor) -> torch.Tensor:
    x.copy_(x.flip(0))
    return x.as_strided((2,), (1,), 5) + 0


def _written_window(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    window = x.as_strided((2, 2), (2, 1))
    window.add_(1)
    return window, x * 1


def _write_over_written(x: torch.Tensor) -> torch.Tensor:
    x[1:].add_(1)
    return torch.as_strided_scatter(x, x.flatten()[:2] * 2, (2,), (1,), 4)


def _part_of_an_overlapping_window(x: torch.Tensor) -> torch.Tensor:
    window = x.as_strided((2, 2), (1, 1))
    window.select(1, 1).sub_(5)
    return window


WRITTEN = (
    *(_window_then_row, _window_then_rows, _row_then_window, _copy_then_window, _written_window, _write_over_written),
    _part_of_an_overlapping_window,
)


@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_windows_of_an_input_that_is_written_to(*, dynamic: bool) -> None:
    """The copy of an input that a write makes has the input's storage, with its offset, and what lies around it."""

    def all_of_them(given: list[torch.Tensor]) -> list[object]:
        return [write(own) for write, own in zip(WRITTEN, given, strict=True)]

    whole = torch.arange(1.0, 60.0) ** 2
    compiled = torch.compile(all_of_them, backend="ortlens", dynamic=dynamic)
    for rows, offset in ((6, 4), (6, 2), (7, 4), (6, 1)):
        for sizes in ((rows, 4), (rows,)):
            mine, theirs = ([whole.clone()[offset : offset + math.prod(sizes)].view(sizes) for _ in WRITTEN] for _ in range(2))
            torch.testing.assert_close((compiled(mine), mine), (all_of_them(theirs), theirs), rtol=0, atol=0)


def test_rows_are_gathered_whole() -> None:
    """The index of Longformer's overlapping chunks has an element per row, not per value."""
    lens = Lens()
    x = torch.randn(2, 8, 64)
    torch.compile(lambda x: (x + 1).as_strided((2, 3, 4, 64), (512, 128, 64, 1)) * 2, backend=lens)(x)
    (model,) = lens.captured().models
    assert model.initializer_bytes < 8 * 2 * 3 * 4 + 200
