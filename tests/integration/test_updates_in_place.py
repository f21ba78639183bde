"""Programs that update tensors in place: the session writes over the old values, and nothing is copied back."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ortlens import Lens
from ortlens.backend.observed import ObservedPartition
from ortlens.backend.runtime import call
from ortlens.backend.runtime.binding import Binding
from ortlens.errors import SessionError


def stepped(compiled: Callable[..., Any]) -> tuple[nn.Module, Callable[[], Any]]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3))
    optimiser = torch.optim.Adam(net.parameters(), lr=0.1, foreach=True)
    for weight in net.parameters():
        weight.grad = torch.randn(weight.shape)
    optimiser.step()  # makes the state
    return net, compiled(optimiser.step)


def reused(partition: ObservedPartition, call: Callable[[], object]) -> int:
    """How many outputs of a run lie where an input does."""
    found: list[int] = []

    def around(inner: Callable[..., tuple[Any, ...]], args: tuple[Any, ...]) -> tuple[Any, ...]:
        outputs = inner(*args)
        found.append(len({output.data_ptr() for output in outputs} & {arg.data_ptr() for arg in args}))
        return outputs

    with partition.around(around):
        call()
    (count,) = found
    return count


@pytest.mark.slow
def test_an_optimiser_updates_weights_and_state_in_place() -> None:
    lens = Lens()
    plain, plain_step = stepped(lambda step: step)
    net, step = stepped(lambda step: torch.compile(step, backend=lens))
    for _ in range(4):
        plain_step()
        step()
        torch.testing.assert_close(list(net.parameters()), list(plain.parameters()))
    (partition,) = (partition for graph in lens._targets.graphs() for partition in graph.partitions())
    assert reused(partition, step) == len(partition.part.outputs) == 4 * 4


class Counter(nn.Module):
    """Keeps a running sum."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))
        self.total: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.mul_(0.5).add_(x)
        return self.total * 3


class Before(Counter):
    """Reads the sum before it changes, too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.total * 7
        self.total.add_(x)
        return before


class Returned(Counter):
    """Returns the sum itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.mul_(0.5).add_(x.sin())
        return self.total


@pytest.mark.parametrize(("kind", "in_place"), [(Counter, 1), (Before, 0), (Returned, None)])
def test_a_buffer_is_updated_where_it_lies_if_nothing_reads_the_old_value(kind: type[Counter], in_place: int | None) -> None:
    lens, plain, module = Lens(), kind(), kind()
    fast = torch.compile(module, backend=lens)
    kept = []
    for number in range(3):
        x = torch.full((4,), float(number))
        expected, made = plain(x), fast(x)
        torch.testing.assert_close((made, module.total), (expected, plain.total))
        kept.append((made, made.clone()))
    assert all(torch.equal(*pair) for pair in kept) == (in_place is not None)  # what is the buffer changes with it
    (partition,) = (partition for graph in lens._targets.graphs() for partition in graph.partitions())
    if in_place is not None:
        assert reused(partition, lambda: fast(torch.ones(4))) == in_place


def test_a_frozen_weight_that_a_session_updates_in_place_is_noticed() -> None:
    layer = nn.Linear(4, 4, bias=False).eval().requires_grad_(False)  # noqa: FBT003 - torch's name
    fast = torch.compile(layer, backend="ortlens")
    update = torch.compile(lambda weight: weight.mul_(2).add_(weight.abs()), backend="ortlens")
    x = torch.rand(2, 4)
    for _ in range(2):
        torch.testing.assert_close(fast(x), layer(x))
        update(layer.weight)


class Rows(nn.Module):
    """Writes rows into a cache behind its first dimensions, and reads it, beside layers with weights."""

    def __init__(self, length: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(64, 64)
        self.register_buffer("rows", torch.rand(2, 4, length, 64, dtype=dtype))
        self.rows: torch.Tensor

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.rows.index_copy_(2, at, self.layer(x).to(self.rows.dtype))
        made: torch.Tensor = self.rows.float() @ self.layer(x).transpose(2, 3)
        return made


class Assigning(Rows):
    def written(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)  # type: ignore[no-any-return]  # of a module

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.rows[:, :, at] = self.written(x).to(self.rows.dtype)
        made: torch.Tensor = self.rows.float() @ self.layer(x).transpose(2, 3)
        return made


class OfOneValue(Assigning):
    def written(self, x: torch.Tensor) -> torch.Tensor:
        return super().written(x)[0, 0, 0]


class ReturningAPart(Rows):
    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = super().forward(x, at)[:, 1:]
        return made


class ReadInTorch(Rows):
    """Reads the cache with an operator that stays in PyTorch."""

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.rows.index_copy_(2, at, self.layer(x))
        made: torch.Tensor = torch.fft.rfft(self.rows).real[..., :8] @ self.layer(x).transpose(2, 3)[..., :8, :]
        return made


class Overlapping(Rows):
    """Its cache lies where a weight does."""

    def __init__(self) -> None:
        super().__init__(512)
        memory = torch.rand(2 * 4 * 512 * 64)
        self.rows = memory.view(2, 4, 512, 64)
        self.register_buffer("weight", memory[64 : 65 * 64].view(64, 64))
        self.weight: torch.Tensor

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.rows.index_copy_(2, at, x * 2)
        made: torch.Tensor = (self.rows / 8) @ (x @ self.weight / 64).transpose(2, 3)
        return made


def steps_of(module: Rows, plain: Rows, count: int = 1) -> Lens:
    """Three calls that go on with the same cache; results and caches are those of eager."""
    lens = Lens()
    fast = torch.compile(module, backend=lens)
    with torch.no_grad():
        for step in range(3):
            x, at = torch.rand(2, 4, count, 64), torch.arange(count) + step
            torch.testing.assert_close(fast(x, at), plain(x, at))
            torch.testing.assert_close(module.rows, plain.rows)
    return lens


ROWS = [
    *((Rows, 1, 32, torch.float32), (Rows, 3, 1024, torch.float64)),
    *((Assigning, 1, 1024, torch.float64), (OfOneValue, 3, 32, torch.float32), (ReturningAPart, 1, 1024, torch.float64)),
]


@pytest.mark.parametrize(("kind", "count", "length", "dtype"), ROWS)
def test_a_session_writes_rows_of_a_cache_where_they_lie(kind: type[Rows], count: int, length: int, dtype: torch.dtype) -> None:
    module, plain = kind(length, dtype), kind(length, dtype)
    lay, lens = module.rows.data_ptr(), steps_of(module, plain, count)
    (partition,) = (partition for graph in lens._targets.graphs() for partition in graph.partitions())
    assert lens.captured().fallbacks == ()
    assert [node.node for node in lens.captured().nodes if node.in_place] == ["index_put"]
    fast = torch.compile(module, backend=lens)
    with torch.no_grad():
        assert reused(partition, lambda: fast(torch.rand(2, 4, count, 64), torch.arange(count))) == 1
    assert module.rows.data_ptr() == lay


def test_a_cache_that_another_partition_or_pytorch_reads_is_written_by_pytorch() -> None:
    lens = steps_of(ReadInTorch(512), ReadInTorch(512))
    assert "aten.index_put_.default" in {row.target for row in lens.captured().fallbacks}
    assert not any(node.in_place for node in lens.captured().nodes)


def test_a_cache_that_shares_memory_with_a_weight_is_as_in_eager() -> None:
    torch.manual_seed(0)
    module = Overlapping()
    torch.manual_seed(0)
    steps_of(module, Overlapping())


def test_a_row_out_of_range_raises_as_in_eager_and_writes_nothing() -> None:
    module = Rows(512)
    fast = torch.compile(module, backend="ortlens")
    with torch.no_grad():
        fast(torch.rand(2, 4, 1, 64), torch.tensor([3]))
        before = module.rows.clone()
        for at in (512, -1):
            with pytest.raises((IndexError, RuntimeError)):
                fast(torch.rand(2, 4, 1, 64), torch.tensor([at]))
        torch.testing.assert_close(module.rows, before)


def test_profiling_and_checking_write_no_row_and_take_no_step() -> None:
    lens, plain, counter = Lens(), Counter(), Counter()
    fast, x = torch.compile(counter, backend=lens), torch.ones(4)
    for _ in range(8):
        torch.testing.assert_close(fast(x), plain(x))
    lens.verify(x)
    torch.testing.assert_close(counter.total, plain.total)
    assert lens.numerics.ok.all()

    module = Rows(512)
    with torch.no_grad():
        lens = Lens()
        fast = torch.compile(module, backend=lens)
        x = torch.rand(2, 4, 1, 64)
        for step in range(8):
            fast(x, torch.tensor([step]))
        lens.measure(x, torch.tensor([9]))
        before = module.rows.clone()
        lens.verify(x + 1, torch.tensor([20]))
        torch.testing.assert_close(module.rows, before)
        lens.profile(x, torch.tensor([9]))
        torch.testing.assert_close(module.rows, before)
    assert lens.numerics.ok.all()


def _in_one_session(c: torch.Tensor, e: torch.Tensor, i: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, ...]:
    made, row = (e[i] * 2).sum(), x @ e[:256]
    c[:, at] = row
    return c @ row.t() + made, row @ row.t()


def _in_two_caches(c: torch.Tensor, e: torch.Tensor, i: torch.Tensor, x: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, ...]:
    row = x @ x.t() @ x
    e[i] = row
    c[:, i] = row * 2
    return e @ row.t(), c @ row.t()


def _divided(c: torch.Tensor, _: torch.Tensor, i: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    made = (i * 2) // (i - 399)
    c[:, at] = x
    return made.sum() + c.mean()


def _drawn(c: torch.Tensor, e: torch.Tensor, i: torch.Tensor, _: torch.Tensor, __: torch.Tensor) -> torch.Tensor:
    return (e[i] * 2).mean() + torch.rand(4) + c[0, 0, 0]


def _written_between(c: torch.Tensor, e: torch.Tensor, i: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    c[:, at] = x
    c[:, at] = torch.cummax(e[at] * 2, 0)[0]
    return (e[i] * 2).sum() + torch.cummax(c.mean(0), 0)[0].sum()


def _written_over(c: torch.Tensor, e: torch.Tensor, i: torch.Tensor, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    made, other = e[i] * 2, e[i] + 1
    made.copy_(x)
    return made + c.mean() + torch.zeros_like(other)


RAISING = [_in_one_session, _in_two_caches, _divided, _drawn, _written_over]
"""Functions that raise in eager before they have changed anything, where `i` is 399."""


@pytest.mark.parametrize("function", [*RAISING, _written_between])
def test_a_call_that_raises_changes_what_eager_changes(function: Callable[..., Any]) -> None:
    fast = torch.compile(function, backend="ortlens")
    torch.manual_seed(0)
    before, rest = (torch.rand(2, 600, 256), torch.rand(300, 256)), (torch.rand(2, 256), torch.tensor([3, 4]))
    fast(*(value.clone() for value in before), torch.tensor([1, 2]), *rest)
    states = []
    for run in (function, fast):
        args = [value.clone() for value in before]
        torch.manual_seed(1)
        with pytest.raises((IndexError, RuntimeError)):
            run(*args, torch.tensor([399, 399]), *rest)
        states.append((*args, torch.get_rng_state()))
    for mine, theirs, old in zip(*states, (*before, states[0][2]), strict=True):
        assert torch.equal(mine, theirs)
        assert torch.equal(mine, old) or function is _written_between
    assert torch.equal(states[0][0], before[0]) == (function is not _written_between)


@pytest.mark.parametrize(("kind", "repeatable"), [(Counter, False), (Rows, True)])
def test_a_run_that_failed_after_it_had_written_is_repeated_or_raises(
    kind: Callable[..., nn.Module],
    repeatable: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing: list[bool] = []

    class Failing(Binding):
        __slots__ = ()

        def __init__(self, *args: object) -> None:
            super().__init__(*args)  # type: ignore[arg-type]  # as given
            run = self.run

            def runs_and_fails(*given: object) -> None:
                run(*given)
                if failing:
                    raise RuntimeError("out of memory")

            self.run = runs_and_fails

    monkeypatch.setattr(call, "Binding", Failing)
    size = (512,) if repeatable else ()
    module, plain = kind(*size), kind(*size)
    args = (torch.rand(2, 4, 1, 64), torch.tensor([3])) if repeatable else (torch.ones(4),)
    fast = torch.compile(module, backend="ortlens")
    with torch.no_grad():
        torch.testing.assert_close(fast(*args), plain(*args))
        failing.append(True)
        if repeatable:
            with pytest.warns(RuntimeWarning, match="out of memory"):
                torch.testing.assert_close(fast(*args), plain(*args))
            torch.testing.assert_close(module.rows, plain.rows)
        else:
            with pytest.raises(SessionError, match="in place"):
                fast(*args)
