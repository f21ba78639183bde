"""Writes into large buffers: in place where nothing else sees the value before, and with the results and the state of eager everywhere."""

import functools
import inspect
import pathlib
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn

import ortlens
from ortlens import Lens
from ortlens.backend.lowering import buffer_writes
from ortlens.backend.operators import basics
from tests.integration.test_export_onnx import run_bare

NEW = torch.randn(2, 8, 1, 64, generator=torch.Generator().manual_seed(0))
AT = torch.tensor([5])


def buffer(length: int = 512) -> torch.Tensor:
    return torch.linspace(0, 1, 2 * 8 * length * 64).reshape(2, 8, length, 64)


def copied(x: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    x.index_copy_(2, at, new * 2)
    return x.mean(2)


def assigned(x: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    x[:, :, at] = new * 2
    return x.mean(2) + 1


def added(x: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    x.index_add_(2, at, new * 2)
    return x.mean(2)


def accumulated(x: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    x.index_put_((torch.zeros_like(at), torch.zeros_like(at), at), new[0, 0] * 2, accumulate=True)
    return x.mean(2)


def scattered(x: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    x.scatter_(2, at.expand(2, 8, 1, 64), new * 2)
    return x.mean(2)


def twice(x: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    x.index_copy_(2, at, new * 2)
    x.index_copy_(2, at + 1, new * 3)
    return x.mean(2)


def returns_it(x: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    return x.index_copy_(2, at, new * 2)


def read_before(x: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    before = x.mean(2)
    x.index_copy_(2, at, new * 2)
    return before, x.mean(2)


def shifted(x: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    x.index_copy_(2, at + 1, x[:, :, at] + new)
    return x.mean(2)


def read_between(x: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x.index_copy_(2, at, new * 2)
    between = x.mean(2)
    x.index_copy_(2, at, new * 3)
    return between, x.mean(2)


def returns_another(x: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    made = x.index_copy(2, at, new * 2)
    x.copy_(made)
    return made


def returns_a_view(x: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    x.index_copy_(2, at, new * 2)
    return x[:, :, 3:9]


def in_parts(x: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Layer by layer, as a cache of all layers is used: each writes its part, and reads what it wrote."""
    for layer in range(2):
        x[layer].index_copy_(1, at, new[layer])
        new = new + x[layer].mean(1, keepdim=True)
    return new


def sliced(x: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> torch.Tensor:  # noqa: ARG001 - as the others
    x[1, 2:4, 3:5] = new[0, :2] * 2
    return x.mean(2)


def added_to_a_part(x: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    before = x[:, 3].clone()
    x[:, 3].add_(new[0, 0])
    x[1].index_copy_(1, at, new[1])
    return before, x.mean(2)


def two_parts_read_late(x: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """As a cache of keys and values in one buffer."""
    x[0].index_copy_(1, at, new[0] * 2)
    x[1].index_copy_(1, at, new[1] * 3)
    return x[0] @ x[1].transpose(1, 2)


def flattened(x: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    x.view(-1, 64).index_copy_(0, at * 7, new[0, 0])
    return x.mean(2)


def through_a_transpose(x: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    x.transpose(0, 2)[at] = new[0, 0] * 2
    return x.mean(2)


def a_part_from_another(x: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> torch.Tensor:  # noqa: ARG001 - as the others
    x[:, :, 1:3] = x[:, :, 2:4] + new
    return x.mean(2)


def a_part_after_the_other(x: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    first = (x * 2).mean(2)
    x[0].index_copy_(1, at, new[0])
    second = (x * 2).mean(2)
    x[1].index_copy_(1, at, first[1].unsqueeze(1))
    return first + second, x.mean(2)


def returns_a_part(x: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    x[0].index_copy_(1, at, new[0])
    return x[1]


def returns_a_copy_of_a_part(x: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    part = x[0].clone()
    x[0].index_copy_(1, at, new[0])
    return part, x[0].clone()


# fmt: off
IN_PLACE = (
    copied, assigned, added, accumulated, scattered, twice, read_before, shifted, read_between, in_parts, sliced, added_to_a_part,
    a_part_from_another, a_part_after_the_other, returns_a_copy_of_a_part, two_parts_read_late,
)
# fmt: on
OF_PARTS = (in_parts, a_part_after_the_other, two_parts_read_late)
THROUGH_VIEWS = (flattened, through_a_transpose)
OTHERS = (returns_it, returns_another, returns_a_view, returns_a_part)


def compared(
    *functions: Callable[..., Any],
    make: Callable[[], torch.Tensor] = buffer,
    dynamic: bool = False,
    options: dict[str, Any] | None = None,
) -> Lens:
    """Three calls that go on with the same buffers; results, buffers and what shares memory are those of eager.

    All functions are compiled as one, each with a buffer of its own.
    """
    lens, ours, theirs = Lens(options=options), *([make() for _ in functions] for _ in range(2))

    def all_of_them(buffers: list[torch.Tensor], at: torch.Tensor, new: torch.Tensor) -> list[Any]:
        return [function(own, at, new) for function, own in zip(functions, buffers, strict=True)]

    compiled = torch.compile(all_of_them, backend=lens, dynamic=dynamic)
    with torch.no_grad():
        for step in range(3):
            got, want = compiled(ours, AT + step, NEW + step), all_of_them(theirs, AT + step, NEW + step)
            for function, *pairs in zip(functions, zip(got, ours, strict=True), zip(want, theirs, strict=True), strict=True):
                torch.testing.assert_close(*pairs, msg=functools.partial("{}: {}".format, function.__name__))
                first, other = (_shares(made[0] if isinstance(made, tuple) else made, given) for made, given in pairs)
                assert first == other, function.__name__
    return lens


def _shares(made: torch.Tensor, given: torch.Tensor) -> bool:
    return made.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()


def in_place(lens: Lens) -> set[str]:
    """Name the functions whose writes went into the buffer."""
    capture = lens.captured()
    rows = [row for row in capture.fallbacks if row.reason_code == "policy" and "in place" in row.reason]
    lines = {row.line for row in rows if row.target.split(".")[1].endswith("_")} | {node.line for node in capture.nodes if node.in_place}
    found = {}
    for function in (*IN_PLACE, *THROUGH_VIEWS, *OTHERS):
        source, first = inspect.getsourcelines(function)
        found[function.__name__] = lines & set(range(first, first + len(source)))
    return {name for name, inside in found.items() if inside}


def names(functions: Iterable[Callable[..., Any]]) -> set[str]:
    return {function.__name__ for function in functions}


@pytest.mark.parametrize(
    ("functions", "dynamic"), [((*IN_PLACE, *THROUGH_VIEWS), False), ((assigned, read_between, sliced, *OF_PARTS, *THROUGH_VIEWS), True)]
)
def test_written_in_place(functions: tuple[Callable[..., Any], ...], *, dynamic: bool) -> None:
    lens = compared(*functions, dynamic=dynamic)
    # Whether views cancel each other out is known for fixed sizes.
    assert in_place(lens) == names(functions) - (names(THROUGH_VIEWS) if dynamic else set())


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_was_written_through_a_view_is_not_written_again(*, dynamic: bool) -> None:
    lens = compared(*OF_PARTS, dynamic=dynamic)
    assert [node.target for node in lens.captured().nodes if "select_scatter" in node.target] == []


@pytest.mark.parametrize("options", [{"min_partition_nodes": 99_999}, {"on_error": "raise"}], ids=str)
def test_written_in_place_under_options(options: dict[str, Any]) -> None:
    compared(*IN_PLACE, *THROUGH_VIEWS, options=options)


def test_what_is_read_between_two_writes_is_verified_as_it_was() -> None:
    functions = (read_between, *OF_PARTS)

    def all_of_them(buffers: list[torch.Tensor], at: torch.Tensor, new: torch.Tensor) -> list[Any]:
        return [function(own, at, new) for function, own in zip(functions, buffers, strict=True)]

    with torch.no_grad():
        lens = ortlens.explain(all_of_them, calls=1)([buffer() for _ in functions], AT, NEW)
        lens.verify([buffer() for _ in functions], AT, NEW)
    rows = lens.captured().numerics
    assert rows
    assert [row for row in rows if not row.ok] == []


def test_a_part_that_a_session_reads_is_a_view_of_the_buffer_that_was_written() -> None:
    nodes = compared(two_parts_read_late).captured().nodes
    views = [node for node in nodes if "select" in node.target and node.shape == tuple(buffer().shape[1:])]
    assert {node.partition_id for node in views} == {None}
    assert {node.reason for node in views} == {buffer_writes.WRITES, buffer_writes.VIEWS}
    writes = {node.node for node in nodes if node.target.endswith("_.default")}
    assert all(writes.intersection(node.inputs) for node in nodes if node.reason == buffer_writes.VIEWS)


def test_what_is_returned_beside_the_buffer_is_as_in_eager() -> None:
    compared(*OTHERS)


@pytest.mark.parametrize(
    "make",
    [
        lambda: buffer().transpose(2, 3).contiguous().transpose(2, 3),
        lambda: torch.zeros(3, *buffer().shape)[1],
        lambda: buffer(520)[:, :, 4:-4],
    ],
    ids=["transposed", "part", "rows of a part"],
)
def test_buffers_in_any_layout(make: Callable[[], torch.Tensor]) -> None:
    compared(copied, sliced, a_part_after_the_other, make=make)


def test_a_small_buffer_and_a_function_of_the_users_go_through_onnx_runtime() -> None:
    put = torch.ops.aten.index_put.default
    assert compared(copied, make=lambda: buffer(32)).captured().fallbacks == ()
    assert compared(copied, options={"custom_translation_table": {put: basics.registered(put)}}).captured().fallbacks == ()


def test_training_is_as_before() -> None:
    ours, theirs, lens = buffer(), buffer(), Lens()
    new, wanted = NEW.clone().requires_grad_(), NEW.clone().requires_grad_()
    torch.compile(copied, backend=lens)(ours, AT, new).sin().sum().backward()
    copied(theirs, AT, wanted).sin().sum().backward()
    torch.testing.assert_close((ours.detach(), new.grad), (theirs.detach(), wanted.grad))


class Cache(nn.Module):
    keys: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", buffer())

    def forward(self, at: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        return copied(self.keys, at, new)


def test_a_deployed_model_returns_the_new_values(tmp_path: pathlib.Path) -> None:
    lens, model, wanted = Lens(), Cache(), Cache()
    with torch.no_grad():
        torch.compile(model, backend=lens)(AT, NEW)
        want = wanted(AT, NEW)
    made = run_bare(lens.export_onnx(tmp_path / "cache.onnx"), {"at": AT, "new": NEW, "keys": buffer()})
    torch.testing.assert_close(list(made.values()), [want, wanted.keys])
