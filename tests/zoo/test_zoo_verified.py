"""`verify` calls nothing wrong in small programs without faults; all of them, and architectures, by `python -m tests.zoo.verified`."""

from __future__ import annotations

import pytest

from tests.zoo.programs import PROGRAMS
from tests.zoo.verified import verified

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

# These run in every test run, the others carry the marker `slow`.
ALWAYS = ("perceptron, training", "rounding decides", "writes to a buffer", "long sum")
OTHERS = ("perceptron, float16", "convolutions, training", "attention, training", "dropout", "graph break", "long variance")


@pytest.mark.parametrize("name", [*ALWAYS, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_nothing_in_a_program_without_faults_is_called_wrong(name: str) -> None:
    assert name in PROGRAMS
    found = verified(name)
    assert not found.wrong
    assert found.compared > 0
