"""Advice that somebody can follow: by the user's names, on the user's line, and none where nothing can be changed."""

import pytest
import torch
from torch import nn

import ortlens

pytestmark = pytest.mark.filterwarnings("ignore")  # of Dynamo about what it cannot trace

X = torch.linspace(0.1, 1, 64).reshape(8, 8)


class Spectral(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        _, s, _ = torch.linalg.svd(x)
        b = torch.special.bessel_j0(x.sin())
        return s.sin(), b.cos(), torch.histc(x, bins=4)


def test_an_operator_without_an_onnx_form_is_kept_under_the_users_name() -> None:
    with torch.no_grad():
        actions = ortlens.explain(Spectral())(X).actions
    advised = "\n".join(actions[actions.kind == "fallback"].do)
    assert "Keep `torch.linalg.svd`: it has no ONNX form for this call" in advised
    assert "Keep `torch.special.bessel_j0`" in advised
    assert "Pass `min=` and `max=` to `torch.histc`" in advised
    assert "the split behind it costs" in advised
    assert "aten." not in advised


class Layer(nn.Module):
    def __init__(self, act: nn.Module | None) -> None:
        super().__init__()
        self.act = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        return x if self.act is None else self.act(x)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(None), Layer(nn.ReLU())])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if x.sum() > 0 and x.mean() > 0:
                x = x / 2
            x = layer(x)  # called
        return x


def test_a_recompile_at_no_line_is_at_the_call_by_the_name_that_is_passed() -> None:
    lens = ortlens.Lens()
    fast = torch.compile(nn.Sequential(nn.Linear(8, 8)), backend=lens)
    for batch in (X, X[:4]):
        fast(batch)
    row = lens.recompiles.iloc[0]
    assert (row.file, "torch._dynamo.mark_dynamic(batch, 0)" in row.advice) == (__file__, True)
    assert "fast(batch)" in open(__file__).read().splitlines()[row.line - 1]  # noqa: SIM115, PTH123 - a line of this file


def test_a_check_that_raises_is_at_the_line_that_calls_what_differs() -> None:
    with torch.no_grad():
        row = ortlens.explain(Layers(), calls=1)(X).recompiles.iloc[0]
    assert row.line == Layers.forward.__code__.co_firstlineno + 4
    assert row.advice == "Keep the same kind of object in `self.act` every time"
