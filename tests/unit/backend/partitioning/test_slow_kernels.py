"""Operators that stay in PyTorch where they are large enough for its faster kernel to be worth a partition more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

import ortlens

if TYPE_CHECKING:
    from collections.abc import Callable

LARGE, SMALL = (512, 1024), (8, 16)
CASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "amax": lambda x: x.amax(-1),
    "argmax": lambda x: x.argmax(0),
    "cumsum": lambda x: x.cumsum(-1),
    "flip": lambda x: x.flip(-1),
    "mish": functional.mish,
    "norm": lambda x: x.norm(dim=-1),
    "prelu": lambda x: functional.prelu(x, torch.full((1,), 0.25)),
    "remainder": lambda x: x % 3.0,
    "selu": functional.selu,
    "sign": torch.sign,
    "softplus": functional.softplus,
    "sort": lambda x: x.sort(-1).values,
}
STAYS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cumsum of columns": lambda x: x.cumsum(0),
    "norm of columns": lambda x: x.norm(dim=0),
    "square, which is fused with its neighbours": lambda x: x**2,
    "tanh": torch.tanh,
}


def left(function: Callable[[torch.Tensor], Any], *sizes: int, dtype: torch.dtype = torch.float32, **options: Any) -> list[str]:  # noqa: ANN401 - those of `explain`
    capture = ortlens.explain(function, dry_run=True, calls=1, **options)(torch.rand(sizes, dtype=dtype)).captured()
    assert all(row.reason_code == "policy" for row in capture.fallbacks)
    return [row.reason for row in capture.fallbacks]


def all_of(functions: dict[str, Callable[[torch.Tensor], torch.Tensor]]) -> Callable[[torch.Tensor], Any]:
    """One graph of all: it is compiled once."""
    return lambda x: [function(x) for function in functions.values()]


def test_large_ones_stay_in_pytorch_and_say_what_they_would_lose() -> None:
    assert left(all_of(CASES), *SMALL) == []
    reasons = left(all_of(CASES), *LARGE)
    assert len(reasons) == len(CASES)
    assert all("longer than PyTorch, by about" in reason for reason in reasons)


def test_what_onnx_runtime_computes_as_fast_goes_there() -> None:
    assert left(all_of(STAYS), *LARGE) == []


def test_figures_of_float32_on_the_cpu_are_for_nothing_else() -> None:
    assert left(torch.sign, *LARGE, dtype=torch.float64) == []
    assert left(torch.sign, *LARGE, device="cuda") == []


def test_sizes_that_vary_count_as_in_the_first_call() -> None:
    assert len(left(torch.sign, *LARGE, dynamic=True)) == 1
    assert left(torch.sign, *SMALL, dynamic=True) == []


def test_a_model_to_deploy_has_them() -> None:
    frozen = ortlens.freeze(torch.nn.Mish(), torch.rand(LARGE))
    assert list(frozen.graph.left_in_torch()) == ["mish"]
    deployed = frozen.graph.for_deployment()
    assert deployed.left_in_torch() == {}


def test_what_is_made_of_weights_is_computed_once_by_the_session() -> None:
    layer = torch.nn.Linear(512, 1024).eval()
    with torch.no_grad():
        assert left(lambda x: x @ layer.weight.sign(), 2, 1024) == []
