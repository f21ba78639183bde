"""What ONNX Runtime makes of our models: the operators it knows whole, and not those that are slower than their parts."""

from __future__ import annotations

import collections
import math
from typing import TYPE_CHECKING, Any

import onnx
import pytest
import torch
from torch.nn.functional import gelu

import ortlens
from ortlens.backend.runtime import session
from tests.integration.against_eager import assert_same

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Kernels = Callable[..., collections.Counter[str]]


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernels:
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


def test_what_onnx_runtime_knows_whole_is_one_operator_and_an_addition_before_a_normalisation_stays_apart(kernels: Kernels) -> None:
    scale, norm = RootMeanSquare(), torch.nn.LayerNorm(16)
    found = kernels(
        lambda x, y, z: (scale(x), gelu(y), gelu(y, approximate="tanh") * 2, norm(z[0] + z[1])),
        torch.rand(3, 16),
        torch.linspace(-6, 6, 50),
        torch.rand(2, 1, 3, 16),
    )
    assert found["SimplifiedLayerNormalization"] == found["Gelu"] == found["FastGelu"] == found["LayerNormalization"] == found["Add"] == 1


def gelu_by_hand(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def test_a_tanh_is_limited_except_inside_of_gelu(kernels: Kernels) -> None:
    found = kernels(lambda x: (gelu_by_hand(x) * 2, x.tanh().relu()), torch.linspace(-12, 12, 50))
    assert (found["FastGelu"], found["Tanh"], found["Clip"]) == (1, 1, 1)
    found = kernels(lambda x: ((1 + x.tanh()) * 0.5, (1 + x.sin().tanh()) * x), torch.linspace(-12, 12, 50))
    assert found["Tanh"] == found["Clip"] == 2


MASKS = (
    torch.tensor([[True, False, True], [False, False, False], [True, True, True]]),
    torch.zeros(3, 3, dtype=torch.bool),
    torch.tensor([[[[False, False, False]]], [[[True, True, False]]]]),
    torch.tensor([[0.0, -torch.inf, 1.0], [-torch.inf] * 3, [-1e30, 0.0, 0.0]]),
    torch.tensor([[0.0], [-torch.inf], [1.0]]),
)


def test_rows_with_nothing_to_look_at_give_zeros_and_nan_in_a_query_is_not_taken_for_such_a_row(kernels: Kernels) -> None:
    query, key, value = torch.rand(3, 2, 4, 3, 8).unbind(0)
    spoilt = query.clone()
    spoilt[0, 0, 0, 2] = torch.nan
    attend = torch.nn.functional.scaled_dot_product_attention
    found = kernels(
        lambda q, s, k, v, *masks: [attend(q, k, v, attn_mask=mask) for mask in masks] + [attend(s, k, v, attn_mask=masks[0])],
        query,
        spoilt,
        key,
        value,
        *MASKS,
    )
    assert found["Softmax"] == len(MASKS) + 1


def test_a_factor_of_one_is_dropped_and_one_next_to_it_and_adding_zero_are_kept(kernels: Kernels) -> None:
    found = kernels(lambda x, y: ((x + 0.0) * 1.0 + 2.0, y * 1.000005), torch.rand(4), torch.rand(4, dtype=torch.float64))
    assert found == {"Add": 2, "Mul": 1}  # -0.0 + 0.0 is 0.0, so adding zero is not nothing
