"""What keeps an operator in PyTorch: rows of the tables of slow and of wrong ONNX functions, and how they are read."""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.fx

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


class Call:
    """A node with its arguments by name: tensors and numbers as their example values, with the defaults of those that are not given."""

    def __init__(self, node: torch.fx.Node) -> None:
        """Read the arguments of a node when they are first asked for."""
        self.node = node

    @functools.cached_property
    def _given(self) -> dict[str, Any]:
        target: Any = self.node.target
        schema = target._schema.arguments  # noqa: SLF001 - the operator's schema
        given = dict(zip((argument.name for argument in schema), self.node.args, strict=False)) | self.node.kwargs
        values = {argument.name: given.get(argument.name, argument.default_value) for argument in schema}
        return {name: value.meta.get("val") if isinstance(value, torch.fx.Node) else value for name, value in values.items()}

    def __getitem__(self, name: str) -> Any:
        """Return an argument; KeyError if the operator has none of that name."""
        return self._given[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return an argument, or a default if the operator has none of that name."""
        return self._given.get(name, default)

    def tensor(self, place: int) -> torch.Tensor | None:
        """Return the example of a positional argument; None if it is no tensor."""
        return tensor_of(self.node.args[place]) if place < len(self.node.args) else None

    @property
    def result(self) -> torch.Tensor | None:
        """The example of the result; None if it is no tensor."""
        return tensor_of(self.node)


class Rule(NamedTuple):
    """Why some operators stay in PyTorch."""

    targets: Sequence[Any]  # the operators
    reason: str  # the text that users read, after the name of the operator; empty where `when` returns it
    when: Callable[[Call], Any] = lambda _: True  # tells for which calls it holds; a text that it returns is the reason
    figure: str = ""  # what was measured


def by_target(rules: Iterable[Rule]) -> Mapping[Any, Sequence[Rule]]:
    """Index a table by operator."""
    found: dict[Any, list[Rule]] = defaultdict(list)
    for rule in rules:
        for target in rule.targets:
            found[target].append(rule)
    return found


def first_reason(rules: Mapping[Any, Sequence[Rule]], node: torch.fx.Node) -> str | None:
    """Find the reason of the first rule that holds for a node; None if none does."""
    call = Call(node)
    for rule in rules.get(node.target, ()):
        if found := rule.when(call):
            return found if isinstance(found, str) else rule.reason
    return None


def tensor_of(value: Any) -> torch.Tensor | None:
    """Return the example of a node; None if it is no tensor."""
    held = value.meta.get("val") if isinstance(value, torch.fx.Node) else None
    return held if isinstance(held, torch.Tensor) else None
