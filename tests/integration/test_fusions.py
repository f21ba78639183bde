"""What ONNX Runtime makes of our models: the operators it knows whole, and not those that are slower than their parts."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

import onnx
import pytest
import torch

import ortlens
from ortlens.backend.runtime import session
from tests.integration.against_eager import assert_same

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., collections.Counter[str]]:
    """Compiles a function, compares it with eager, and counts the operators that ONNX Runtime was left with."""
    optimized = tmp_path / "optimized.onnx"
    plain = session.default_session_options

    def that_writes(choice: Any) -> Any:  # noqa: ANN401
        options = plain(choice)
        options.optimized_model_filepath = str(optimized)
        return options

    monkeypatch.setattr(session, "default_session_options", that_writes)

    def count(function: Callable[..., Any], *args: torch.Tensor) -> collections.Counter[str]:
        torch.compiler.reset()
        lens = ortlens.Lens()
        with torch.no_grad():
            assert_same(torch.compile(function, backend=lens)(*args), function(*args))
        assert lens.fallbacks.empty
        return collections.Counter(node.op_type for node in onnx.load(str(optimized), load_external_data=False).graph.node)

    return count


class RootMeanSquare(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def test_root_mean_square_normalisation_is_one_operator(kernels: Callable[..., collections.Counter[str]]) -> None:
    assert kernels(RootMeanSquare(), torch.rand(3, 16))["SimplifiedLayerNormalization"] == 1


def test_gelu(kernels: Callable[..., collections.Counter[str]]) -> None:
    assert kernels(torch.nn.functional.gelu, torch.linspace(-6, 6, 50))["Gelu"] == 1


def test_an_addition_before_a_normalisation_stays_apart(kernels: Callable[..., collections.Counter[str]]) -> None:
    norm = torch.nn.LayerNorm(16)
    found = kernels(lambda x, y: norm(x + y), torch.rand(1, 3, 16), torch.rand(1, 3, 16))
    assert found["LayerNormalization"] == found["Add"] == 1


MASKS = {
    "some_rows_empty": torch.tensor([[True, False, True], [False, False, False], [True, True, True]]),
    "all_rows_empty": torch.zeros(3, 3, dtype=torch.bool),
    "per_batch": torch.tensor([[[[False, False, False]]], [[[True, True, False]]]]),
    "numbers": torch.tensor([[0.0, -torch.inf, 1.0], [-torch.inf] * 3, [-1e30, 0.0, 0.0]]),
    "one_column": torch.tensor([[0.0], [-torch.inf], [1.0]]),
}


@pytest.mark.parametrize("name", MASKS)
def test_rows_with_nothing_to_look_at_give_zeros(kernels: Callable[..., collections.Counter[str]], name: str) -> None:
    torch.manual_seed(0)
    query, key, value = torch.rand(3, 2, 4, 3, 8).unbind(0)
    attend = torch.nn.functional.scaled_dot_product_attention
    found = kernels(lambda q, k, v, mask: attend(q, k, v, attn_mask=mask), query, key, value, MASKS[name])
    assert found["Softmax"] == 1


def test_nan_in_a_query_is_not_taken_for_an_empty_row(kernels: Callable[..., collections.Counter[str]]) -> None:
    query, key, value = torch.rand(3, 1, 2, 3, 4).unbind(0)
    query[0, 0, 1, 2] = torch.nan
    mask = torch.tensor([[True, False, True], [False, True, True], [False, False, False]])
    attend = torch.nn.functional.scaled_dot_product_attention
    kernels(lambda q, k, v, m: attend(q, k, v, attn_mask=m), query, key, value, mask)


def test_an_epsilon_that_is_no_constant_is_not_taken_for_the_usual_one(kernels: Callable[..., collections.Counter[str]]) -> None:
    def root_mean_square(x: torch.Tensor, epsilon: torch.Tensor) -> torch.Tensor:
        return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + epsilon) * 2

    def normalised(x: torch.Tensor, epsilon: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + epsilon) * torch.arange(16.0) + 1

    for function in (root_mean_square, normalised):
        kernels(function, torch.rand(3, 16) * 1e-3, torch.tensor(1e-2))


def test_a_small_epsilon_stays(kernels: Callable[..., collections.Counter[str]]) -> None:
    def normalised(x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-8)

    kernels(normalised, torch.zeros(2, 4))  # nothing over the root of nothing would be NaN
    kernels(normalised, torch.full((2, 4), 1e-4))


def test_a_factor_next_to_one_stays(kernels: Callable[..., collections.Counter[str]]) -> None:
    assert kernels(lambda x: x * 1.000005, torch.rand(4, dtype=torch.float64))["Mul"] == 1


def test_a_factor_of_one_is_dropped_and_adding_zero_is_kept(kernels: Callable[..., collections.Counter[str]]) -> None:
    found = kernels(lambda x: (x + 0.0) * 1.0 + 2.0, torch.rand(4))
    assert found == {"Add": 2}  # -0.0 + 0.0 is 0.0, so adding zero is not nothing
