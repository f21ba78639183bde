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
        (torch.rand(256, 128).t(), True),
        (torch.rand(4, 8, 64, 64).to(memory_format=torch.channels_last), True),
        (torch.rand(1, 256, 64).expand(4, 256, 64), True),
        (torch.rand(256, 128), False),
        (torch.rand(1, 256, 128).transpose(0, 1), False),
        (torch.rand(8, 4).t(), False),
    ],
    ids=["transposed", "channels_last", "expanded", "contiguous", "one_row", "small"],
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


def test_weights_are_laid_out_once_and_not_told() -> None:
    layer = torch.nn.Linear(256, 256)
    layer.weight = torch.nn.Parameter(torch.rand(256, 256).t())
    lens = ortlens.Lens()
    with torch.no_grad():
        torch.compile(layer, backend=lens)(torch.rand(3, 256))
    assert lens.findings.empty
