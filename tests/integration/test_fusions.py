"""What ONNX Runtime makes of our models and inputs: operators it knows whole, not those slower than their parts, and copies it needs."""

import collections
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch.nn.functional import gelu

import ortlens
from ortlens.backend.runtime import session
from tests.integration.against_eager import assert_same

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


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


LAYOUTS = {
    "transposed": torch.rand(256, 128).t(),
    "channels_last": torch.rand(4, 8, 64, 64).to(memory_format=torch.channels_last),
    "expanded": torch.rand(1, 256, 64).expand(4, 256, 64),
    "strided": torch.rand(256, 512)[:, ::4],
    "contiguous": torch.rand(256, 128),
    "one_row": torch.rand(1, 256, 128).transpose(0, 1),
    "small": torch.rand(8, 4).t(),
}


def all_doubled(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [x * 2 for x in tensors]


def test_copies_that_cost_something_are_told() -> None:
    lens = ortlens.Lens()
    assert_same(torch.compile(all_doubled, backend=lens)(*LAYOUTS.values()), all_doubled(*LAYOUTS.values()))
    findings = lens.captured().findings
    assert len(findings) == 2
    for x, finding in zip((LAYOUTS["expanded"], LAYOUTS["strided"]), findings, strict=True):
        assert (finding.rule, finding.severity) == ("layout_copy", "info")
        assert f"{x.numel() * 4:,} bytes" in finding.title
        assert str(tuple(x.stride())) in finding.evidence
        assert (finding.file, finding.line) == (__file__, all_doubled.__code__.co_firstlineno + 1)  # where the input is read


def test_weights_are_laid_out_once_and_not_told() -> None:
    layer = torch.nn.Linear(256, 256)
    layer.weight = torch.nn.Parameter(torch.rand(256, 256).t())
    lens = ortlens.Lens()
    with torch.no_grad():
        torch.compile(layer, backend=lens)(torch.rand(3, 256))
    assert not lens.captured().findings


def test_no_turn_is_left_where_an_output_lies_as_its_input_does() -> None:
    lens = ortlens.Lens()
    x = torch.rand(4, 8, 64, 64).to(memory_format=torch.channels_last)
    result = torch.compile(doubled, backend=lens)(x)
    assert result.is_contiguous(memory_format=torch.channels_last)
    runner = lens._targets.graphs()[0].of.runners[0]
    assert [value.name for value in runner.sessions[0].session.get_inputs()] == ["arg0_1.as_it_lies"]
    assert [value.shape for value in runner.sessions[0].session.get_inputs()] == [[4, 64, 64, 8]]


def reshaped_last(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    product = x @ w
    return product.view(2, 3, 4), (product + 1).unsqueeze(0), product.flatten()


def test_an_output_that_is_reshaped_last_is_written_in_place() -> None:
    lens, x, w = ortlens.Lens(), torch.rand(6, 5), torch.rand(5, 4)
    fast = torch.compile(reshaped_last, backend=lens)
    for made, expected in zip(fast(x, w), reshaped_last(x, w), strict=True):
        assert_same(made, expected)
    (runner,) = lens._targets.graphs()[0].of.runners
    assert [value.shape for value in runner.sessions[0].session.get_outputs()][:2] == [[6, 4], [6, 4]]
    assert_same(fast(x + 1, w)[2], reshaped_last(x + 1, w)[2])
