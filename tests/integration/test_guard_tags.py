"""PyTorch's recursive dictionary tags stay off, because with them a compiled model can keep its old answer: programs that show it."""

from __future__ import annotations

import torch
from torch import nn

import ortlens


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


def test_every_change_is_noticed() -> None:
    model, x = nn.Sequential(Scaled(), Scaled()).eval(), torch.ones(1, 4)
    fast = torch.compile(model, backend=ortlens.OrtBackend())
    with torch.no_grad():
        for change in (another_factor, another_class, another_submodule, another_weight):
            for _ in range(3):
                fast(x)
            change(model)
            torch.testing.assert_close(fast(x), model(x), msg=change.__name__)
    assert torch._dynamo.config.use_recursive_dict_tags_for_guards is False
