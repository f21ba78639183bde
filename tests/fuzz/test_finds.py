"""What random programs found stays mended."""

from __future__ import annotations

import pytest

from tests.fuzz.finds import FINDS, GRAPH_FINDS
from tests.fuzz.oracle import judge, judge_graph


@pytest.mark.parametrize("name", FINDS)
def test_a_program_that_was_wrong(name: str) -> None:
    verdict = judge(FINDS[name])
    assert verdict.word == "right", verdict.text()


@pytest.mark.parametrize("name", GRAPH_FINDS)
def test_a_graph_that_was_wrong(name: str) -> None:
    verdict = judge_graph(GRAPH_FINDS[name])
    assert verdict.word == "right", verdict.text()
