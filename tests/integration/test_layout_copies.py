"""Inputs that ONNX Runtime cannot take as they lie: copied, answered right, and said when it costs something."""

import torch

import ortlens
from tests.integration.against_eager import assert_same


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
