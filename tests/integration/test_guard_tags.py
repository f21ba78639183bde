"""PyTorch's recursive dictionary tags stay off, because with them a compiled model can keep its old answer: programs that show it."""

import sys
from collections.abc import Callable

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
