"""Architectures that run whole get no warning: what a report complains of is worth a look."""

from __future__ import annotations

import pytest
import torch

import ortlens
from ortlens.analysis.findings.registry import findings_of
from tests.zoo.table import ARCHITECTURES

HEALTHY = ("ASTModel", "BambaForCausalLM", "BartModel", "BertModel", "BioGptForCausalLM", "BitModel", "BlipModel", "Data2VecAudioModel")

# Reads times.
pytestmark = [pytest.mark.slow, pytest.mark.serial, pytest.mark.timed]


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_architecture_gets_no_warning(name: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, inputs = ARCHITECTURES[name].build(), ARCHITECTURES[name].inputs()
    with torch.no_grad():
        lens = ortlens.explain(model)(**inputs)
    assert [(finding.rule, finding.title) for finding in findings_of(lens.captured()) if finding.severity != "info"] == []
