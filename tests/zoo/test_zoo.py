"""Real architectures run and match eager, no worse than docs/data/zoo.json says."""

import warnings

import pytest
import torch

import ortlens
from ortlens.analysis.problems.stream import findings_of
from tests.figures import read
from tests.zoo.measure import is_ours, measure
from tests.zoo.table import ARCHITECTURES

RECORDED = read("zoo")["architectures"]

WHOLE = [name for name, row in RECORDED.items() if row["graphs"] == row["partitions"] == 1 and row["coverage"] == 1.0]
ALWAYS = (
    "BitModel",  # a padded max pooling, which ONNX Runtime's own fusion gets wrong
    "Gemma3ForCausalLM",
    "Wav2Vec2Model",
)
# Most share their code with others: what is not whole, and each fourth of the rest. `make sweep-zoo` measures all.
SAMPLE = [name for place, name in enumerate(ARCHITECTURES) if name in ALWAYS or name not in WHOLE or place % 4 == 0]


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_matches_eager_and_is_no_worse_than_recorded(name: str) -> None:
    measurement, row = measure(ARCHITECTURES[name]), RECORDED[name]
    assert not measurement.failed, measurement.problems
    assert measurement.graphs <= row["graphs"]
    assert measurement.partitions <= row["partitions"], measurement.fallbacks
    assert measurement.coverage >= row["coverage"] - 0.0005, measurement.fallbacks  # what is recorded is rounded


def test_every_architecture_is_recorded_and_none_fails() -> None:
    assert set(RECORDED) == set(ARCHITECTURES)
    assert [name for name, row in RECORDED.items() if row["problems"]] == []


def test_the_zoo_is_large_and_most_of_it_runs_whole() -> None:
    assert len(WHOLE) >= 30
    assert {architecture.family for architecture in ARCHITECTURES.values()} == {ARCHITECTURES[name].family for name in WHOLE}


def test_a_warning_is_a_complaint_when_it_is_ours() -> None:
    def heard(message: str, file: str) -> warnings.WarningMessage:
        return warnings.WarningMessage(message, UserWarning, file, 1)

    quoted = "Dynamo detected a call to a cached function at '/home/ada/ortlens/.venv/lib/fsdp.py:60'"
    assert not is_ours(heard(quoted, "/home/ada/ortlens/.venv/lib/torch/_dynamo/functions.py"))
    assert is_ours(heard("ortlens: a graph went back to PyTorch", "model.py"))
    assert is_ours(heard("invalid value", ortlens.__file__))


HEALTHY = ("ASTModel", "BambaForCausalLM", "BartModel", "BertModel", "BioGptForCausalLM", "BitModel", "BlipModel", "Data2VecAudioModel")


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.timed  # reads times
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_architecture_gets_no_warning(name: str) -> None:
    model, inputs = ARCHITECTURES[name].build(), ARCHITECTURES[name].inputs()
    with torch.no_grad():
        lens = ortlens.explain(model)(**inputs)
    assert [(finding.rule, finding.title) for finding in findings_of(lens.captured()) if finding.severity != "info"] == []
