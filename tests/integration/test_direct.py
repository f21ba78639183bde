"""Which graphs are called without AOTAutograd's code around them: those around which it would do nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import ortlens
from tests.integration.against_eager import assert_same

if TYPE_CHECKING:
    from collections.abc import Callable


def entered(function: Callable[..., Any], *args: torch.Tensor) -> str:
    """Where the callable comes from that Dynamo got for a function; its answers are compared with eager twice."""
    torch.compiler.reset()
    given: list[Any] = []

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:  # noqa: ANN401
        given.append(ortlens.OrtBackend()(module, inputs))
        return given[-1]

    fast = torch.compile(function, backend=backend)
    for _ in range(2):
        mine, its = [arg.clone() for arg in args], [arg.clone() for arg in args]
        assert_same(fast(*mine), function(*its))
        assert_same(mine, its)
    return str(given[0].__module__)


def adds(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x @ y + 1


def writes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return x @ y


def views(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.t(), x @ y


def partly(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = torch.special.bessel_j0(x @ y) + 1
    return made


@pytest.mark.parametrize(("function", "direct"), [(adds, True), (partly, True), (writes, False), (views, False)])
def test_only_where_nothing_is_left_to_do(function: Callable[..., Any], direct: bool) -> None:  # noqa: FBT001
    assert entered(function, torch.rand(3, 3), torch.rand(3, 3)).startswith("ortlens") == direct


def test_not_under_autocast_which_pytorchs_nodes_would_obey_twice() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not entered(adds, torch.rand(3, 3), torch.rand(3, 3)).startswith("ortlens")


def test_results_need_no_gradient_and_parameters_may() -> None:
    layer = torch.nn.Linear(4, 2)
    with torch.no_grad():
        found = torch.compile(layer, backend="ortlens")(torch.rand(3, 4))
    assert not found.requires_grad
    assert torch.compile(layer, backend="ortlens")(torch.rand(3, 4)).requires_grad
