"""What a provider that is not installed would run, by the rules that ONNX Runtime ships."""

import logging
import re
from pathlib import Path
from typing import Any, Literal

import onnx
import pytest
import torch
from onnxruntime.tools.mobile_helpers import usability_checker
from torch import nn

import ortlens
from ortlens.errors import CheckFailed, UsageError
from ortlens.views.screen import capture_screen

COREML, NNAPI = "CoreMLExecutionProvider", "NnapiExecutionProvider"
RULES: dict[str, Any] = {"NNAPI": NNAPI, "CoreML NeuralNetwork": COREML, "CoreML MLProgram": (COREML, {"ModelFormat": "MLProgram"})}
SAID = re.compile(r"(\d+) partitions with a total of (\d+)/(\d+) nodes can be handled by the (.*) EP")


class Net(nn.Module):
    """Convolutions whose padding may be by reflection, which neither provider has."""

    def __init__(self, mode: Literal["zeros", "reflect"]) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1, padding_mode=mode), nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1, padding_mode=mode)

    def forward(self, x: torch.Tensor) -> Any:  # noqa: ANN401 - what modules return
        x = self.norm(self.first(x)).relu()
        return self.second(x).relu().flatten(1).softmax(-1)


def forecast(model: Any, provider: Any, *args: torch.Tensor) -> Any:  # noqa: ANN401 - a lens over a module or a file
    with torch.no_grad():
        return ortlens.explain(model, options={"preferred_execution_providers": [provider]}, dry_run=True)(*args)


def exported(model: nn.Module, path: Path, **inputs: Any) -> Path:  # noqa: ANN401 - arguments of any model
    with torch.no_grad():
        ortlens.explain(model.eval(), calls=1)(**inputs).export_onnx(path)
    return path


def counts_of(path: Path) -> dict[str, tuple[int, int, int]]:
    """Pieces, nodes that run there, and nodes by rules, as the checker of ONNX Runtime prints them."""
    said: list[str] = []
    logger = logging.Logger("checker", logging.INFO)  # noqa: LOG001 - apart from the loggers of the process
    logger.handle = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    usability_checker.analyze_model(path, logger=logger)
    found = [match for text in said if (match := SAID.match(text))]
    return {match[4]: (int(match[1]), int(match[2]), int(match[3])) for match in reversed(found)}  # the first is of the sizes as they are


def assert_counts_are_the_checkers(path: Path) -> None:
    for rules, theirs in counts_of(path).items():
        ours = forecast(path, RULES[rules]).placements
        assert (ours.pieces[0], ours.nodes[0], ours.nodes.sum()) == theirs, rules
    assert onnx.NodeProto.__hash__ is None, "the rules change onnx for good"


@pytest.mark.parametrize("model", [Net("zeros"), nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)])
def test_counts_are_those_of_the_checker(model: nn.Module, tmp_path: Path) -> None:
    x = torch.randn(1, 3, 8, 8) if isinstance(model, Net) else torch.randn(1, 4, 16)
    assert_counts_are_the_checkers(exported(model, tmp_path / "model.onnx", **{"x" if isinstance(model, Net) else "src": x}))


@pytest.mark.parametrize("provider", RULES.values(), ids=str)
def test_padding_by_reflection_is_what_cuts_a_convnet(provider: Any, tmp_path: Path) -> None:  # noqa: ANN401 - a name, or with options
    x = torch.randn(1, 3, 8, 8)
    path = exported(Net("reflect"), tmp_path / "model.onnx", x=x)
    for lens in (forecast(Net("reflect").eval(), provider, x), forecast(path, provider)):
        first = lens.placements.iloc[0]
        assert (first.pieces, first.lacking, lens.placements.nodes[1]) == (2, ("Pad",), 2)
        (problem,) = lens.findings[lens.findings.rule == "provider_declined"].itertuples()
        assert "cut by Pad (2 times)" in problem.title
        assert "there would be 1 piece" in problem.evidence
        reasons = lens.nodes.reason[lens.nodes.provider == "CPUExecutionProvider"]
        assert len(reasons) == 2
        assert all("has no rule for Pad" in reason for reason in reasons)
        assert "is by the rules" in lens.summary()
        assert not capture_screen(lens.captured()).dry_run.endswith(".")  # the report goes on behind it
    assert (
        lens.check(provider="CoreML" if provider != NNAPI else "nnapi", max_pieces=2, min_coverage=0.5).verdict.tolist() == ["passed"] * 2
    )
    with pytest.raises(CheckFailed, match=r"max_pieces: \w+: 2 pieces, 1 allowed: \S*Pad does not run there"):
        lens.check(provider=provider if isinstance(provider, str) else COREML, max_pieces=1)
    with pytest.raises(CheckFailed, match="not measured: what ggml runs is not in the capture"):
        lens.check(provider="ggml", max_pieces=1)
    for limits in ({"max_pieces": 1}, {"provider": "CoreML", "max_breaks": 0}):
        with pytest.raises(UsageError, match="max_pieces and an execution provider go together"):
            lens.check(**limits)


def test_only_a_dry_run_takes_a_provider_that_is_not_here() -> None:
    for provider, said in (("NopeExecutionProvider", "is not available"), ((COREML, {"ModelFormat": "x"}), "or MLProgram, not 'x'")):
        with pytest.raises(UsageError, match=said):
            forecast(nn.ReLU(), provider, torch.ones(2))
    with pytest.raises(UsageError, match="is not available"):
        ortlens.explain(nn.ReLU(), options={"preferred_execution_providers": [COREML]})(torch.ones(2))
    assert forecast(nn.ReLU(), "CPUExecutionProvider", torch.ones(2)).placements.empty
