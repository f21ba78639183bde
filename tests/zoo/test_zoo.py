"""Real architectures run and match eager, and the page tells of all of them."""

from __future__ import annotations

import warnings

import pytest

import ortlens
from tests.sample import sampled
from tests.zoo.__main__ import PAGE
from tests.zoo.measure import Measurement, is_ours, measure
from tests.zoo.page import FAILS, page_from_measurements, rows_from_page
from tests.zoo.table import ARCHITECTURES

# One per way of failing, each a few seconds; the others carry the marker `slow`.
REPRESENTATIVE = (
    "BitModel",  # a padded max pooling, which ONNX Runtime's own fusion gets wrong
    "Gemma3ForCausalLM",
    "Wav2Vec2Model",
)


@pytest.mark.parametrize("name", sampled(ARCHITECTURES, REPRESENTATIVE))
def test_matches_eager_and_is_no_worse_than_the_page_says(name: str) -> None:
    measurement, row = measure(ARCHITECTURES[name]), rows_from_page(PAGE.read_text(encoding="utf-8"))[name]
    assert not measurement.failed, measurement.problems
    assert measurement.graphs <= row.graphs
    assert measurement.partitions <= row.partitions, measurement.fallbacks
    assert measurement.coverage >= row.coverage - 0.0005, measurement.fallbacks  # the page rounds


def test_the_page_lists_every_architecture_and_none_fails() -> None:
    rows = rows_from_page(PAGE.read_text(encoding="utf-8"))
    assert set(rows) == set(ARCHITECTURES)
    assert [name for name, row in rows.items() if row.failed] == []


def test_the_zoo_is_large_and_most_of_it_runs_whole() -> None:
    rows = rows_from_page(PAGE.read_text(encoding="utf-8"))
    whole = [name for name, row in rows.items() if row.graphs == row.partitions == 1 and row.coverage == 1.0]
    assert len(rows) >= 45
    assert len(whole) >= 30
    assert {architecture.family for architecture in ARCHITECTURES.values()} == {ARCHITECTURES[name].family for name in whole}


def test_a_warning_is_a_complaint_when_it_is_ours() -> None:
    def heard(message: str, file: str) -> warnings.WarningMessage:
        return warnings.WarningMessage(message, UserWarning, file, 1)

    quoted = "Dynamo detected a call to a cached function at '/home/ada/ortlens/.venv/lib/fsdp.py:60'"
    assert not is_ours(heard(quoted, "/home/ada/ortlens/.venv/lib/torch/_dynamo/functions.py"))
    assert is_ours(heard("ortlens: a graph went back to PyTorch", "model.py"))
    assert is_ours(heard("invalid value", ortlens.__file__))


def test_a_failure_shows_on_the_page() -> None:
    crashed = Measurement(model="A", family="vision", error="exit status -11: a | b <c>")
    wrong = Measurement(model="B", family="audio", nodes=2, graphs=1, partitions=1, coverage=0.5, mismatches=["[2]: not close"])
    text = page_from_measurements([crashed, wrong])
    assert {name: row.failed for name, row in rows_from_page(text).items()} == {"A": True, "B": True}
    assert text.index("`B`") < text.index("`A`")
    assert f"{FAILS}: exit status -11: a \\| b &lt;c>" in text
    assert "**0 of 2 run whole" in text
