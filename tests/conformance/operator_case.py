"""How an operator case is written down, and the three roads it is sent down."""

# ruff: noqa: ANN401 - arguments and results of operators are Any in torch itself

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.fx.experimental import _config as shape_config
from torch.utils import _pytree as pytree

import ortlens
from ortlens import Lens
from ortlens.trace.records import Capture
from tests.integration.against_eager import assert_same_call, twin

_CHECKS = "aten._assert_"  # of values and sizes that depend on data

Stays = dict[str, str]
"""What must stay in PyTorch: operator -> reason code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCase:
    """A function, its arguments, and what must stay in PyTorch on each road: operator -> reason code, where empty means nothing.

    `then` are arguments of a second call with other sizes, where sizes are symbolic. `graphs` are those that Dynamo makes of it, None where
    that is not the point. `not_exported` is what `torch.export` says when it does not take the function.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    then: tuple[Any, ...] | None = None
    stays: Stays = field(default_factory=dict)
    dynamic_stays: Stays | None = None
    exported_stays: Stays | None = None
    graphs: int | None = 1
    not_exported: str = ""
    atol: float = 1e-5
    config: dict[str, Any] = field(default_factory=dict)

    def expected_stays(self, road: str) -> Stays:
        """What stays in PyTorch with the installed torch."""
        special = {"dynamic": self.dynamic_stays, "exported": self.exported_stays}.get(road)
        return self.stays if special is None else special

    def is_plain(self, road: str) -> bool:
        """Whether all of it goes to ONNX Runtime as one graph, with the settings that most cases have."""
        usual: Any = (1, "", 1e-5, {})
        return not self.expected_stays(road) and usual == (self.graphs, self.not_exported, self.atol, self.config)


def case(function: Callable[..., Any], *args: Any, **columns: Any) -> OpCase:
    """A case with the columns that it does not have in common with most."""
    return OpCase(function=function, args=args, **columns)


def r(*shape: int) -> torch.Tensor:
    """Normal numbers that do not depend on what other tests drew."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape) + 7))


def whole(low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Whole numbers, likewise."""
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(3)).to(dtype)


def steady(module: nn.Module) -> nn.Module:
    """A module in evaluation mode whose weights do not depend on what other tests drew."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return module.eval()


class Calls(nn.Module):
    """Functions as a module, which `torch.export` wants: each is called with its own arguments."""

    def __init__(self, *functions: Callable[..., Any]) -> None:
        super().__init__()
        self.functions = functions
        self.parts = nn.ModuleList(function for function in functions if isinstance(function, nn.Module))

    def forward(self, *args: Any) -> Any:
        if len(self.functions) == 1:
            return self.functions[0](*args)
        return [function(*own) for function, own in zip(self.functions, args, strict=True)]


def together(cases: Sequence[OpCase]) -> OpCase:
    """Put cases without anything special into one, so that they are compiled together."""
    if len(cases) == 1:
        return cases[0]
    calls = Calls(*(given.function for given in cases))
    return OpCase(function=calls, args=tuple(given.args for given in cases), then=tuple(given.then or given.args for given in cases))


def compiled_like_eager(given: OpCase, *, dynamic: bool) -> Capture:
    """Send a case through `torch.compile` and compare results and arguments with eager."""
    lens = Lens()
    compiled = torch.compile(given.function, backend=lens, dynamic=dynamic)
    calls = [given.args] + ([given.then] if dynamic and given.then is not None else [])
    # Sizes that are equal by chance stay sizes of their own.
    with torch.no_grad(), torch._dynamo.config.patch(**given.config), shape_config.patch(use_duck_shape=False):  # type: ignore[attr-defined]  # torch adds it when it is imported
        for args in calls:
            assert_same_call(compiled, given.function, args, atol=given.atol)
    return lens.captured()


def exported_like_eager(given: OpCase) -> Capture:
    """Send a case through `torch.export` and `explain`, and compare results and arguments with eager."""
    function = given.function
    module = function if isinstance(function, nn.Module) else Calls(function)
    with torch.no_grad():
        program = torch.export.export(module, pytree.tree_map(twin, given.args))
        lenses: list[Lens] = []

        def call(*args: Any) -> Any:
            lenses.append(ortlens.explain(program, calls=1)(*args))
            return lenses[-1].result

        assert_same_call(call, function, given.args, atol=given.atol)
    return lenses[0].captured()


def stays_of(capture: Capture) -> Stays:
    """What stayed in PyTorch, as the tables say it; the checks that PyTorch makes while running are no operators of a case."""
    return {fallback.target: fallback.reason_code for fallback in capture.fallbacks if not fallback.target.startswith(_CHECKS)}
