"""Operators of lists of tensors against eager, and that ONNX Runtime runs them."""

from __future__ import annotations

from typing import Any

import torch

from tests.unit.backend.conversion.functions.one_graph import as_pytorch

X, Y = torch.linspace(0.1, 0.9, 6), torch.linspace(2.0, 3.0, 4)
CASES: dict[str, Any] = {
    "unary": lambda x, y: [getattr(torch, f"_foreach_{name}")([x, y]) for name in ("sqrt", "neg", "exp", "reciprocal", "sigmoid", "trunc")],
    "add": lambda x, y: (
        torch._foreach_add([x, y], 2),
        torch._foreach_add([x, y], [x * 2, y * 3], alpha=0.5),
        torch._foreach_add([x, y], [1.5, 2.5]),
        torch._foreach_add([x, y], x[0], alpha=2),
    ),
    "sub": lambda x, y: torch._foreach_sub([x, y], [x * 2, y * 3], alpha=0.5),
    "mul": lambda x, y: (torch._foreach_mul([x, y], 0.9), torch._foreach_mul([x, y], [3.0, 0.1])),
    "div": lambda x, y: torch._foreach_div([x, y], [y[:1], x[:1]]),
    "lerp": lambda x, y: (torch._foreach_lerp([x, y], [x * 2, y * 3], 0.1), torch._foreach_lerp([x, y], [x * 2, y * 3], [x, y / 4])),
    "pow": lambda x, y: (torch._foreach_pow(0.9, [x, y]), torch._foreach_pow([x, y], 2), torch._foreach_pow([x, y], [2.0, 3.0])),
    "bounds": lambda x, y: (
        torch._foreach_maximum([x, y], 0.5),
        torch._foreach_maximum([x, y], [x * 2 - 0.5, y - 0.1]),
        torch._foreach_clamp_max([x, y], [0.3, 2.2]),
        torch._foreach_minimum([x, y], 2.5),
    ),
    "scaled": lambda x, y: (
        torch._foreach_addcmul([x, y], [x, y], [x * 2, y * 3], 0.1),
        torch._foreach_addcmul([x, y], [x, y], [x * 2, y * 3]),
        torch._foreach_addcdiv([x, y], [x, y], [x * 2, y * 3], [-0.1, 0.2]),
        torch._foreach_addcdiv([x, y], [x, y], [x + 1, y + 1], value=1),
    ),
    "norm": lambda x, y: (torch._foreach_norm([x, y]), torch._foreach_norm([x, y], 1)),
}


def _written(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = x.clone(), y.clone()
    torch._foreach_mul_([x, y], 0.9)
    torch._foreach_copy_([x], [x / 2])
    torch._foreach_zero_([y])
    return x, y


def test_lists_become_one_operator_per_tensor() -> None:
    as_pytorch({**CASES, "in place": _written}, X, Y, stays=())


def test_sizes_that_vary() -> None:
    as_pytorch({name: CASES[name] for name in ("mul", "lerp", "scaled")}, X, Y, dynamic=True, stays=())
