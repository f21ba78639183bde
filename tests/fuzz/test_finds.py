"""What random programs found stays mended."""

from __future__ import annotations

import pytest

from tests.fuzz.finds import FINDS
from tests.fuzz.oracle import judge


@pytest.mark.parametrize("name", FINDS)
def test_a_program_that_was_wrong(name: str) -> None:
    verdict = judge(FINDS[name])
    assert verdict.word == "right", verdict.text()
