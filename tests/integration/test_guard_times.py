"""What guards are about, and what those of a single container take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from ortlens import _torch
from ortlens.lens.compilations import entry_of
from tests.integration.marked_lines import line_of

if TYPE_CHECKING:
    from collections.abc import Callable


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


def test_the_container_with_most_guards_is_named_with_its_line() -> None:
    model, x = Table(), torch.ones(2, 4)
    torch.compile(model, backend="eager")(x)
    code, variables = entry_of(model, (x,), {}) or (None, {})
    assert code is not None
    whole, table = _torch.guard_times(code, variables, bool)
    assert (table.source, table.line) == ("L['self'].table", line_of("reads all", __file__))
    assert 300 <= table.count < whole.count
    assert whole.ns >= table.ns > 0
    variables["x"] = torch.ones(2, 4, 4)
    assert _torch.guard_times(code, variables, bool) == ()  # they do not hold


def test_variables_of_a_closure_are_known() -> None:
    function, x = scaled_by([float(place) for place in range(60)]), torch.ones(2)
    torch.compile(function, backend="eager")(x)
    code, variables = entry_of(function, (x,), {}) or (None, {})
    assert code is not None
    assert [row.source for row in _torch.guard_times(code, variables, bool)][1:] == ["L['factors']"]


def test_what_is_no_function_of_python_has_no_entry() -> None:
    assert entry_of(torch.sin, (torch.ones(2),), {}) is None
    assert entry_of(Table(), (), {"unknown": 1}) is None


def test_a_module_is_no_container_of_the_program() -> None:
    net, x = nn.Sequential(*(nn.Linear(4, 4) for _ in range(20))), torch.ones(2, 4)

    def applied(x: torch.Tensor) -> torch.Tensor:
        return net(x)  # type: ignore[no-any-return]  # torch has no annotation here

    torch.compile(applied, backend="eager")(x)
    code, variables = entry_of(applied, (x,), {}) or (None, {})
    assert code is not None
    (whole,) = _torch.guard_times(code, variables, bool)
    assert whole.count > 20
