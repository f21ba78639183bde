"""The functions for operators that only change shapes: one constant for known sizes, and PyTorch's answers."""

import itertools
from collections.abc import Callable

import pytest
import torch

import ortlens
from tests.unit.backend.operators.one_graph import as_pytorch

CASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "view": lambda x: x.view(-1, 3, 4) + 1,
    "view_of_nothing": lambda x: x[:, :0].view(0, 7) + 1,
    "view_of_no_dimensions": lambda x: x[:1, :1].reshape(()) + 1,
    "expand": lambda x: x[None].expand(3, -1, -1) + 1,
    "slice_open": lambda x: x[1:] + 1,
    "slice_negative": lambda x: x[:, -5:-1] + 1,
    "slice_step": lambda x: x[:, 1:11:3] + 1,
    "slice_beyond": lambda x: x[:, 3:1000] + 1,
    "slice_empty": lambda x: x[3:1] + 1,
    "cat_of_nothing": lambda x: torch.cat([x[:0].view(-1), x[:, :0].reshape(-1)], -1) + 1,
    "cat_beside_nothing": lambda x: torch.cat([x[0, :0] * 2, x * 2], 1),
    "diagonal_beside_infinity": lambda x: torch.where(x % 5 == 0, x, torch.inf).diagonal() + 1,
    "sizes_of_inputs": lambda x: x[: x.shape[1] - 10].reshape(x.shape[1] - 10, 2, -1).expand(2, x.shape[1] - 10, 2, 6) + x.shape[0],
}


def all_of_them(x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {name: case(x) for name, case in CASES.items()}


@pytest.mark.parametrize("dynamic", [False, True])
def test_as_pytorch(*, dynamic: bool) -> None:
    lens = ortlens.Lens()
    fast = torch.compile(all_of_them, backend=lens, dynamic=dynamic)
    for rows in (4, 5):
        x = torch.arange(12.0 * rows).reshape(rows, 12)
        torch.testing.assert_close(fast(x), all_of_them(x))
    assert lens.fallbacks.empty
    assert len(lens.graphs) == (1 if dynamic else 2)
    assert (lens.graphs.coverage == 1).all()


@pytest.mark.parametrize(
    ("dtype", "offsets"), [(torch.float32, (-4, -1, 0, 1, 3, 5)), (torch.int16, (-2, 1)), (torch.bool, (-2, 1))], ids=str
)
def test_every_diagonal(dtype: torch.dtype, offsets: tuple[int, ...]) -> None:
    x = torch.rand(3, 5, 2).mul(9).to(dtype)
    cases = {
        f"{offset} {dims}": lambda x, n=offset, dims=dims: torch.diagonal(x, n, *dims).flip(-1)
        for offset, dims in itertools.product(offsets, itertools.permutations((0, 1, -1), 2))
    }
    as_pytorch(cases, x, stays=())


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16, torch.bool], ids=str)
def test_a_part_at_a_known_place_takes_no_scatter(dtype: torch.dtype) -> None:
    x, row, column = (torch.rand(size).mul(9).to(dtype) for size in ((3, 4, 2), (3, 2), (4, 2)))
    cases: dict[str, Callable[..., torch.Tensor]] = {
        f"select {place}": lambda x, row, _, n=place: torch.select_scatter(x, row, 1, n).flip(0) for place in (0, 2, -1, -4)
    }

    def written(first: int | None, last: int | None) -> Callable[..., torch.Tensor]:
        return lambda x, _, column: torch.slice_scatter(x, column[None].expand(x[first:last].shape), 0, first, last).flip(0)

    cases |= {f"slice {bounds}": written(*bounds) for bounds in ((0, 1), (1, 3), (-1, None), (2, 99), (None, None))}
    capture = as_pytorch(cases, x, row, column, stays=())
    assert not {kind for node in capture.nodes for kind in node.onnx_ops or () if kind.startswith("Scatter")}
