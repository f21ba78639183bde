"""Draws the operands of one statement."""

# ruff: noqa: ANN401 - a choice is whatever the choices are

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

_SCALARS = ("2", "3", "-1", "1", "0", "0.5", "1.5", "-2.0", "0.25", "True", "7")
_DTYPES = ("float32", "float32", "float64", "int64", "int32", "bool", "float16", "bfloat16", "int8", "uint8")


class Picker:
    """Draws operands from the tensors that exist, with a liking for those that came last.

    Attributes:
        used: The names that were drawn for the present statement.
    """

    def __init__(self, draw: random.Random, tensors: Mapping[str, torch.Tensor], numbers: Mapping[str, Any] | None = None) -> None:
        """Draw from some tensors."""
        self._draw = draw
        self._tensors = tensors
        self._numbers = numbers or {}
        self._names = list(tensors)
        self._last = self._names[0]
        self._dim = 0
        self.used: list[str] = []

    def choice(self, items: Sequence[Any]) -> Any:
        """One of several things."""
        return self._draw.choice(items)

    def any(self) -> str:
        """Any tensor."""
        return self._pick(self._names)

    def largest(self) -> str:
        """One of those with the most elements: writes to them are made in place."""
        most = max(value.numel() for value in self._tensors.values())
        return self._pick(self._fitting(lambda value: value.numel() == most))

    def last(self) -> str:
        """The tensor that was drawn last."""
        return self._last

    def floating(self) -> str:
        """A tensor of floats, if there is one."""
        return self._pick(self._fitting(lambda value: value.is_floating_point()))

    def boolean(self) -> str:
        """A tensor of truth values that broadcasts to the last tensor: one that exists, or a comparison."""
        shape = self.example().shape
        found = [name for name, value in self._tensors.items() if value.dtype is torch.bool and _fits(value.shape, shape)]
        if found and self._draw.random() < 0.6:
            self.used.append(self._draw.choice(found))
            return self.used[-1]
        return f"({self.like()} > {self.choice(('0', '0.5', '-1'))})"

    def like(self) -> str:
        """A tensor that broadcasts with the last one, or the last one itself."""
        last, shape = self._last, self.example().shape
        name = self._pick(self._fitting(lambda value: _fits(value.shape, shape)))
        self._last = last
        return name

    def scalar(self) -> str:
        """A Python number."""
        if self._numbers and self._draw.random() < 0.4:
            return self._number([*self._numbers])
        return self._draw.choice((*_SCALARS, f"{self._last}.shape[{self.dim()}]") if self.example().dim() else _SCALARS)

    def whole(self) -> str:
        """A whole number that is known when the function is called: one that exists, or one that follows from a size."""
        found = [name for name, value in self._numbers.items() if type(value) is int]
        if found and self._draw.random() < 0.7:
            return self._number(found)
        name = self.any()
        return f"{name}.shape[{self.dim()}]" if self.example().dim() and self._draw.random() < 0.8 else f"{name}.numel()"

    def number(self) -> str:
        """A Python number, most of them whole ones."""
        return self._number([*self._numbers]) if self._numbers and self._draw.random() < 0.4 else self.whole()

    def place(self) -> str:
        """An argument of positions."""
        return self._pick([name for name in self._tensors if name[0] == "i"] or [self._last])

    def _number(self, names: Sequence[str]) -> str:
        self.used.append(self._draw.choice(names))
        return self.used[-1]

    def size(self) -> str:
        """A number that follows from a size."""
        name, dim = self.any(), self.dim()
        return self._draw.choice(
            (f"{name}.shape[{dim}]", f"{name}.shape[{dim}] + 1", f"{name}.numel()", f"len({name})", f"{name}.shape[{dim}] * 2")
        )

    def dtype(self) -> str:
        """A dtype."""
        return f"torch.{self.choice(_DTYPES)}"

    def dim(self, *, fixed: bool = False) -> str:
        """A dimension of the last tensor."""
        count = self.example().dim()
        self._dim = self._draw.randrange(count) if count else 0
        return str(self._dim if fixed or self._draw.random() < 0.7 else self._dim - count)

    def same_dim(self) -> str:
        """The dimension that was drawn last."""
        return str(self._dim)

    def order(self) -> str:
        """A permutation of the last tensor's dimensions."""
        order = list(range(self.example().dim()))
        self._draw.shuffle(order)
        return ", ".join(map(str, order))

    def small(self) -> str:
        """A small index."""
        return self._draw.choice(("0", "0", "1", "-1", "2"))

    def bound(self) -> str:
        """A bound within the last tensor, often one that follows from a size."""
        name, dim = self._last, self.dim()
        at = f"{name}.shape[{dim}]"
        return self._draw.choice((f"{at} // 2", f"{at} - 1", "1", "2", "3", f"({at} + 1) // 2", at)) if self.example().dim() else "1"

    def slicing(self, *, step: bool = False) -> str:
        """An index in brackets for the last tensor."""
        if not self.example().dim():
            return "[...]"
        dim = int(self.dim(fixed=True))
        at = f"{self._last}.shape[{dim}]"
        low = self.choice(("", "1", "0", "-2", f"{at} // 2", f"{at} - 2"))
        high = self.choice(("", "", "-1", "3", f"{at} - 1", f"{at} // 2 + 1"))
        text = f"{low}:{high}" + (self.choice((":2", ":3")) if step else "")
        return f"[{':, ' * dim}{text}]"

    def shape(self) -> str:
        """Sizes for a reshape of the last tensor."""
        shape, name = self.example().shape, self._last
        sizes = [f"{name}.shape[{dim}]" for dim in range(len(shape))]
        choices = ["-1", "1, -1", "-1, 1", "2, -1", "-1, 2", ", ".join([*sizes, "1"]), ", ".join(["1", *sizes])]
        if len(shape) > 1:
            choices += [", ".join([f"{sizes[0]} * {sizes[1]}", *sizes[2:]]), f"{sizes[0]}, -1", f"-1, {sizes[-1]}", f"{sizes[1]}, -1"]
        return self._draw.choice(choices)

    def example(self) -> torch.Tensor:
        """The value of the last tensor."""
        return self._tensors[self._last]

    def _fitting(self, fits: Callable[[torch.Tensor], bool]) -> list[str]:
        return [name for name, value in self._tensors.items() if fits(value)] or [self._last]

    def _pick(self, names: list[str]) -> str:
        place = max(self._draw.randrange(len(names)) for _ in range(2)) if self._draw.random() < 0.6 else self._draw.randrange(len(names))
        self._last = names[place]
        self.used.append(self._last)
        return self._last


def _fits(first: Sequence[int], second: Sequence[int]) -> bool:
    """Whether the first shape broadcasts to the second."""
    if len(first) > len(second):
        return False
    return all(mine in (1, theirs) for mine, theirs in zip(reversed(first), reversed(second), strict=False))
