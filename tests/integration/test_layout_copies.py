"""Inputs that ONNX Runtime cannot take as they lie: copied, answered right, and said when it costs something."""

from __future__ import annotations

import pytest
import torch

import ortlens
from tests.integration.against_eager import assert_same


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.mark.parametrize(
    ("x", "told"),
    [
        (torch.rand(256, 128).t(), False),
        (torch.rand(4, 8, 64, 64).to(memory_format=torch.channels_last), False),
        (torch.rand(1, 256, 64).expand(4, 256, 64), True),
        (torch.rand(256, 512)[:, ::4], True),
        (torch.rand(256, 128), False),
        (torch.rand(1, 256, 128).transpose(0, 1), False),
        (torch.rand(8, 4).t(), False),
    ],
    ids=["transposed", "channels_last", "expanded", "strided", "contiguous", "one_row", "small"],
)
def test_copies_that_cost_something_are_told(x: torch.Tensor, told: bool) -> None:  # noqa: FBT001
    lens = ortlens.Lens()
    assert_same(torch.compile(doubled, backend=lens)(x), doubled(x))
    assert (lens.findings.rule == "layout_copy").sum() == told
    if told:
        (finding,) = lens.captured().findings
        assert f"{x.numel() * 4:,} bytes" in finding.title
        assert str(tuple(x.stride())) in finding.evidence
        assert finding.severity == "info"
        assert (finding.file, finding.line) == (__file__, doubled.__code__.co_firstlineno + 1)  # where the input is read


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
    runner = lens.live_graphs()[0].runners[0]
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
    (runner,) = lens.live_graphs()[0].runners
    assert [value.shape for value in runner.sessions[0].session.get_outputs()][:2] == [[6, 4], [6, 4]]
    assert_same(fast(x + 1, w)[2], reshaped_last(x + 1, w)[2])
