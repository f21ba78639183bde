"""Outputs that are views: their values, their place in memory, and what they share it with are PyTorch's, whatever the sizes."""

# ruff: noqa: ANN401 - results of functions under test are Any in torch itself

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import ortlens

if TYPE_CHECKING:
    from collections.abc import Callable


def relu_and_views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = torch.relu(x)
    return y, y[:, 1 : x.shape[1] - 1], y.t()


def views_of_a_view(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    half = torch.sin(x)[:, x.shape[1] // 2 :]
    return half.t()[1:], (half * 2).sum(), torch.cos(half)


VIEWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "chunk": lambda x: x.chunk(2, -1),
    "result and views of it": relu_and_views,
    "view of a view of a result": views_of_a_view,
    "unflatten, transpose, slice": lambda x: x.unflatten(1, (2, -1)).transpose(1, 2)[:, 1:],
    "diagonal": lambda x: x.diagonal(),
    "expand": lambda x: x.expand(4, *x.shape)[:, :, 2:],
    "unfold": lambda x: x.unfold(1, 4, 2),
    "transposed product": lambda x: (x.mm(x.t()).t(), x[1:]),
    "select at the end": lambda x: x.select(1, x.shape[1] - 1),
}


def as_tuple(value: Any) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else tuple(value) if isinstance(value, list) else (value,)


def loss_of(values: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """A number to which each value contributes differently."""
    return torch.stack([(place + 1) * value.square().sum() for place, value in enumerate(values)]).sum()


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", VIEWS)
def test_views_under_changing_sizes(name: str, *, training: bool) -> None:
    function, lens = VIEWS[name], ortlens.Lens()
    compiled = torch.compile(function, backend=lens)
    for width in (8, 10, 12):
        ours, theirs = (torch.linspace(-3, 3, 3 * width).reshape(3, width).requires_grad_(training) for _ in range(2))
        got, want = as_tuple(compiled(ours)), as_tuple(function(theirs))
        for first, second in zip(got, want, strict=True):
            torch.testing.assert_close(first, second)
            assert first.stride() == second.stride()
        if training:
            loss_of(got).backward()
            loss_of(want).backward()
            torch.testing.assert_close(ours.grad, theirs.grad)
        elif name not in {"expand", "unfold"}:  # a write into an output reaches what it shares memory with
            for place in range(len(got)):
                got[place].fill_(place + 7)
                want[place].fill_(place + 7)
            torch.testing.assert_close((*got, ours), (*want, theirs))
    assert lens.fallbacks.empty


def test_pieces_of_a_value_made_here_share_its_memory() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (*torch.full((4,), 7).chunk(2, 0), *(x * 2).split([1, 2], 1), *torch.sin(x).unbind(1))

    compiled = torch.compile(function, backend="ortlens", dynamic=False)
    with torch.no_grad():
        got, wanted = compiled(torch.ones(4, 3)), function(torch.ones(4, 3))
    for first, second in ((0, 1), (2, 3), (4, 6)):
        assert got[first].untyped_storage().data_ptr() == got[second].untyped_storage().data_ptr()
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, theirs)
        assert (mine.stride(), mine.storage_offset()) == (theirs.stride(), theirs.storage_offset())


PARTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "the first columns": lambda x: (x > 0)[..., :3],
    "columns of a transposed value": lambda x: (x * 2).t()[1:3],
    "the diagonal": lambda x: (x * 2).diagonal(),
    "columns with another row": lambda x: torch.slice_scatter(x.detach()[:, ::2], x.detach()[:1, ::2] * 2, 0, 0, 1),
    "a view of a written window": lambda x: torch.as_strided_scatter(x.detach()[..., 1], x[0, :2].detach(), (2,), (1,)).view(5, 1),
    "a written window, broadcast": lambda x: torch.as_strided_scatter(x.detach()[..., 1], x[0, :2].detach(), (2,), (1,)).broadcast_to(3, 5),
}


@pytest.mark.parametrize("kind", ["training", "dynamic", "frozen"])
@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_a_value_lies_in_its_memory(name: str, kind: str) -> None:
    function = PARTS[name]
    x = torch.linspace(-3, 3, 40).reshape(5, 8).requires_grad_(kind == "training")
    fast = ortlens.freeze(function, x) if kind == "frozen" else torch.compile(function, backend="ortlens", dynamic=kind == "dynamic")
    made, wanted = fast(x).detach(), function(x).detach()
    assert made.stride() == wanted.stride()
    if kind == "frozen" and wanted.is_contiguous():
        return  # the session returns it, without a copy
    assert made.storage_offset() == wanted.storage_offset()
    storages = [value.untyped_storage() for value in (made, wanted)]
    assert storages[0].tolist() == storages[1].tolist()


def test_what_lies_between_the_elements_of_a_value_that_crosses_a_break() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        part = (x > 1e9)[..., :3]
        torch._dynamo.graph_break()
        return part.as_strided((2, 2), (2, 1), 0)

    fast = torch.compile(function, backend="ortlens")
    for _ in range(20):
        used = torch.full((4, 8), fill_value=True)
        del used  # memory that is not zero
        assert not fast(torch.rand(4, 8)).any()


SILENT_VIEWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "pieces of a result": lambda x: torch.unsafe_chunk(x + 1, 2),
    "view of a part": lambda x: torch.ops.aten._unsafe_view(x[1:3], [4]),
    "window behind pieces": lambda x: torch.unsafe_chunk(x, 2)[1].as_strided((2,), (1,), 0),
    "window behind a view of a part": lambda x: torch.ops.aten._unsafe_view((x + 1)[1:3], [4]).as_strided((2,), (1,), 0),
}
"""Their operators return views of their argument, though their schemas do not say so."""


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", SILENT_VIEWS)
def test_views_that_no_schema_declares(name: str, *, dynamic: bool) -> None:
    function = SILENT_VIEWS[name]
    compiled = torch.compile(function, backend="ortlens", dynamic=dynamic)
    ours, theirs = (torch.arange(8.0).reshape(4, 2) for _ in range(2))
    with torch.no_grad():
        got, wanted = as_tuple(compiled(ours)), as_tuple(function(theirs))
    for mine, value in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, value)
        assert mine.storage_offset() == value.storage_offset()
    for place, (mine, value) in enumerate(zip(got, wanted, strict=True)):
        mine.fill_(place + 20)
        value.fill_(place + 20)
    torch.testing.assert_close((*got, ours), (*wanted, theirs))


def test_a_view_of_an_input_with_an_offset_that_was_written_to() -> None:
    def tail_of_written(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x[:, 1 : x.shape[1] - 1]

    def tail_of_its_own(x: torch.Tensor) -> torch.Tensor:
        half = x[:, 1 : x.shape[1] // 2 + 1]
        half.copy_(half)
        return half.chunk(2, 1)[1]

    def whole_written_as_one_row(x: torch.Tensor) -> torch.Tensor:
        row = x.view_as(x)
        x.view(-1)[-1] = 7
        return row

    def part_written_as_one_row(x: torch.Tensor) -> torch.Tensor:
        x.view(-1)[1:] += 1
        return x.view(-1)[2:].view(2, -1)

    for function in (tail_of_written, tail_of_its_own, whole_written_as_one_row, part_written_as_one_row):
        fast = torch.compile(function, backend="ortlens", dynamic=True)
        for width in (4, 6):
            given, wanted = (torch.arange(6.0 * width).reshape(6, width)[2:] for _ in range(2))
            made, expected = fast(given), function(wanted)
            torch.testing.assert_close((made, given), (expected, wanted))
            assert made.storage_offset() == expected.storage_offset()
            assert made.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()


class _Turned(torch.nn.Module):
    """Turns a buffer that begins in the middle of its storage, and returns it."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(24.0).reshape(6, 4)[1:5])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turned: torch.Tensor = self.table.flatten(1)  # the buffer itself
        turned.transpose_(0, -1)
        return turned + x


RELAID: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "transposed, returned": lambda x, _: x.flatten(1).transpose_(0, 1),
    "transposed, used": lambda x, y: x.flatten(1).t_() @ y,
    "transposed, its rows": lambda x, y: (x.flatten(1).transpose_(0, 1)[1:], y * 2),
    "a view from before": lambda x, y: (x[1:] * 2, x.flatten(1).swapaxes_(0, 1), y),
}
"""Without `flatten`, which returns its two-dimensional argument itself, Dynamo leaves the change to Python. With varying sizes, or where
the number of dimensions changes, its guards fail at once, whatever the backend."""


@pytest.mark.parametrize("name", RELAID)
def test_an_input_with_an_offset_whose_strides_change_stays_where_it_is(name: str) -> None:
    for training in (False, True):
        torch.compiler.reset()
        compiled = torch.compile(RELAID[name], backend="ortlens", dynamic=False)
        (ours, y), (theirs, other) = (
            (torch.arange(200.0).reshape(10, 20)[2:6, 3:7], torch.linspace(-1, 1, 16).reshape(4, 4).requires_grad_(training))
            for _ in range(2)
        )
        got, want = as_tuple(compiled(ours, y)), as_tuple(RELAID[name](theirs, other))
        for first, second in zip((*got, ours), (*want, theirs), strict=True):
            torch.testing.assert_close(first, second)
            assert first.stride() == second.stride()
        assert ours.storage_offset() == theirs.storage_offset()


def test_a_buffer_with_an_offset_that_is_transposed_in_place_stays_where_it_is() -> None:
    ours, theirs, x = _Turned(), _Turned(), torch.ones(4, 4)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(ours, backend="ortlens")(x), theirs(x))
    torch.testing.assert_close(ours.table, theirs.table)
