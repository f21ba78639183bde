"""Advice that somebody can follow: by the user's names, on the user's line, and none where nothing can be changed."""

import torch
from torch import nn

import ortlens

X = torch.linspace(0.1, 1, 64).reshape(8, 8)


def spectral(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    _, s, _ = torch.linalg.svd(x)
    return s.sin(), torch.special.bessel_j0(x.sin()).cos(), torch.histc(x, bins=4)


def test_an_operator_without_an_onnx_form_is_kept_under_the_users_name() -> None:
    actions = ortlens.explain(spectral)(X).actions
    advised = "\n".join(actions[actions.kind == "fallback"].do)
    assert "Keep `torch.linalg.svd`: it has no ONNX form for this call, and the split behind it costs" in advised
    assert "Keep `torch.special.bessel_j0`" in advised
    assert "Pass `min=` and `max=` to `torch.histc`" in advised
    assert "aten." not in advised


class Layer(nn.Module):
    def __init__(self, act: nn.Module | None) -> None:
        super().__init__()
        self.act = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin() if self.act is None else self.act(x)


LAYERS = nn.ModuleList([Layer(None), Layer(nn.ReLU())])


def layered(x: torch.Tensor) -> torch.Tensor:
    for layer in LAYERS:
        if x.sum() > 0 and x.mean() > 0:
            x = x / 2
        x = layer(x)
    return x


def test_a_recompile_at_no_line_is_at_the_call_by_the_name_that_is_passed() -> None:
    lens = ortlens.Lens()
    fast = torch.compile(nn.Sequential(nn.Linear(8, 8)), backend=lens)
    for batch in (X, X[:4]):
        fast(batch)
    row = lens.recompiles.iloc[0]
    assert (row.file, "torch._dynamo.mark_dynamic(batch, 0)" in row.advice) == (__file__, True)


def test_a_check_that_raises_is_at_the_line_that_calls_what_differs() -> None:
    row = ortlens.explain(layered, calls=1)(X).recompiles.iloc[0]
    assert (row.line, row.advice) == (layered.__code__.co_firstlineno + 4, "Keep the same kind of object in `self.act` every time")
