"""Values that guards saw are looked up in plain steps; nothing of the user's runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ortlens.lens.observing.break_texts import value_text


class Watched:
    """Every way in which asking it for something would be noticed."""

    __slots__ = ("kept",)

    def __init__(self) -> None:
        self.kept = 3

    @property
    def asked(self) -> int:
        raise AssertionError("a property ran")

    def __getattr__(self, name: str) -> int:
        raise AssertionError(f"asked for {name}")

    def __len__(self) -> int:
        raise AssertionError("asked for its length")


class Keyed(dict[str, int]):
    def __getitem__(self, key: str) -> int:
        raise AssertionError("asked for an item")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = 7
        self.drop = nn.Dropout()


SCOPE: dict[str, Any] = {
    "n": 3,
    "scale": 2.5,
    "mode": "a" * 100,
    "x": torch.ones(4, 5),
    "items": [1, {"a": (True, None)}],
    "watched": Watched(),
    "keyed": Keyed(a=1),
    "self": Model(),
    "f": lambda x: x,
    "dtype": torch.float32,
    "G": {"factor": 9},
}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("n", "3"),
        (" scale ", "2.5"),
        ("items[1]['a'][0]", "True"),
        ("items[1]['a'][1]", "None"),
        ("len(items)", "2"),
        ("list(dict.keys(items[1]))[0]", "'a'"),
        ("x.size()[1]", "5"),
        ("G['factor']", "9"),
        ("self.steps", "7"),
        ("self._modules['drop'].training", "True"),
        ("self._modules['drop']", "<class 'Dropout'>"),
        ("watched.kept", "3"),
        ("dtype", "torch.float32"),
        ("f.__code__", "<class 'code'>"),
        ("x", "<class 'Tensor'>"),
    ],
)
def test_values_that_can_be_looked_up(expression: str, value: str) -> None:
    assert value_text(expression, SCOPE) == value


@pytest.mark.parametrize(
    "expression",
    [
        *("absent", "n.absent", "items[9]", "watched.asked", "watched.absent", "len(watched)", "keyed['a']", "len(keyed)"),
        *("n +", "n + 1", "f(1)", "__import__('os')", "x.sum()", "(x.size()[0] % 2)", "", "items[n]", "n\x00"),
        "tensor 'x' size mismatch at index 0",
    ],
)
def test_what_would_run_code_or_is_not_there_is_left_alone(expression: str) -> None:
    assert value_text(expression, SCOPE) is None


def test_long_values_are_cut_and_classes_named() -> None:
    assert len(value_text("mode", SCOPE) or "") == 60
    assert value_text("self", SCOPE, kind=True) == "<class 'Model'>"
    assert value_text("absent", SCOPE, kind=True) is None
