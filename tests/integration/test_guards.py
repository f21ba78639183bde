"""What guards are about and take, and that PyTorch's recursive dictionary tags, which can keep an old answer, stay off."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import ortlens
from ortlens import _torch
from ortlens.lens.observing.compilations import entry_of
from tests.integration.marked_lines import line_of


class Table(nn.Module):
    """Compares the entries of a dictionary while it is traced."""

    def __init__(self) -> None:
        super().__init__()
        self.table = {place: f"v{place}" for place in range(300)}
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor, by: float = 1.0) -> torch.Tensor:
        count = sum(text == "v7" for text in self.table.values())  # reads all
        for layer in self.layers:
            x = layer(x)
        return x * count * by


def scaled_by(factors: list[float]) -> Callable[[torch.Tensor], torch.Tensor]:
    def scale(x: torch.Tensor) -> torch.Tensor:
        for factor in factors:
            x = x * factor
        return x

    return scale


class Around(nn.Module):
    """Has such a table in a submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.child = Table()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.child(x)  # type: ignore[no-any-return]  # torch has no annotation here


def timed(function: Callable[..., Any], *args: torch.Tensor, **changed: torch.Tensor) -> tuple[_torch.GuardTime, ...]:
    """Compile and call a function, and time its guards, for variables some of which may be changed."""
    fast = torch.compile(function, backend="eager")
    fast(*args)
    code, variables = entry_of(function, args, {}) or (None, {})
    assert code is not None
    return _torch.guard_times(code, {**variables, **changed}, lambda: fast(*args))


@pytest.mark.parametrize(
    ("model", "source"),
    [
        (Table(), "L['self'].table"),
        (Around(), "L['self']._modules['child'].table"),
        (nn.Sequential(Table()), "L['self']._modules['0'].table"),  # whose `forward` is the library's
    ],
)
def test_the_container_with_most_guards_is_named_with_its_line(model: nn.Module, source: str) -> None:
    whole, table = timed(model, torch.ones(2, 4))
    assert (table.source, table.file, table.line) == (source, __file__, line_of("reads all", __file__))
    assert 300 <= table.count < whole.count
    assert table.ns > 0


def test_guards_that_do_not_hold_have_no_time() -> None:
    assert timed(Table(), torch.ones(2, 4), x=torch.ones(2, 4, 4)) == ()


def test_variables_of_a_closure_are_known() -> None:
    rows = timed(scaled_by([float(place) for place in range(60)]), torch.ones(2))
    assert [row.source for row in rows][1:] == ["L['factors']"]


def test_what_is_no_function_of_python_has_no_entry() -> None:
    assert entry_of(torch.sin, (torch.ones(2),), {}) is None
    assert entry_of(Table(), (), {"unknown": 1}) is None


def test_modules_are_no_container_of_the_program() -> None:
    layers = [nn.Linear(4, 4) for _ in range(20)]
    net = nn.Sequential(*layers)

    def whole(x: torch.Tensor) -> torch.Tensor:
        return net(x)  # type: ignore[no-any-return]  # torch has no annotation here

    def one_by_one(x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = layer(x)
        return x

    for function in (whole, one_by_one):
        (every,) = timed(function, torch.ones(2, 4))
        assert every.count > 20


def test_guards_of_modules_can_be_left_out() -> None:
    drop, x = nn.Dropout(0.1), torch.ones(2, 4)
    fast = torch.compile(drop, backend="eager")
    fast(x)
    drop.eval()  # the mode tells entries apart
    plain = fast(x)
    trees = _torch.trees_without_modules()
    drop.p = 0.2
    with pytest.raises(RuntimeError, match="recompile"), torch.compiler.set_stance("fail_on_recompile"):
        fast(x)
    with _torch.checking(trees):
        torch.testing.assert_close(fast(x), plain)
        with pytest.raises(RuntimeError, match="Recompilation"):
            fast(x.double())


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.factor = nn.Linear(4, 4), 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.factor  # type: ignore[no-any-return]


class Negated(Scaled):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -self.linear(x)  # type: ignore[no-any-return]


def another_factor(model: nn.Sequential) -> None:
    model[0].factor = 3.0  # type: ignore[assignment]  # a number of ours


def another_class(model: nn.Sequential) -> None:
    model[0].__class__ = Negated


def another_submodule(model: nn.Sequential) -> None:
    model[0] = Negated()


def another_weight(model: nn.Sequential) -> None:
    model[0].linear.weight = nn.Parameter(torch.zeros(4, 4))  # type: ignore[union-attr]  # a layer of ours


def old_answers(changes: list[Callable[[nn.Sequential], None]], backend: object) -> list[str]:
    """Changes, one after the other, behind which the compiled model still gives the answer from before."""
    model, x = nn.Sequential(Scaled(), Scaled()).eval(), torch.ones(1, 4)
    fast = torch.compile(model, backend=backend)  # type: ignore[call-overload]  # a name or a backend
    old = []
    with torch.no_grad():
        for change in changes:
            for _ in range(3):
                fast(x)
            change(model)
            if not torch.allclose(fast(x), model(x), atol=1e-6):
                old.append(change.__name__)
    return old


def test_every_change_is_noticed() -> None:
    assert old_answers([another_factor, another_class, another_submodule, another_weight], ortlens.OrtBackend()) == []
    assert torch._dynamo.config.use_recursive_dict_tags_for_guards is False


def test_with_the_tags_a_change_is_missed_as_the_guide_says() -> None:
    """If this fails, PyTorch has mended it: then the tags may be switched on where they are sound."""
    missed = another_factor if sys.version_info >= (3, 13) else another_class
    with torch._dynamo.config.patch(use_recursive_dict_tags_for_guards=True):
        assert old_answers([missed], "eager") == [missed.__name__]
