"""Every kind of graph break: counted as Dynamo counts it, placed at its line, and gone once the advice is followed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from tests.integration.break_kinds import KINDS, followed, graphs_without_ortlens, watched

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.filterwarnings("ignore")  # of Dynamo about what it cannot trace, and of a program that warns

CHANGES = [(name, how) for name, kind in KINDS.items() for how in kind.changes]


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.mark.parametrize("name", KINDS)
def test_a_break_has_its_count_its_line_and_its_advice(name: str) -> None:
    kind = KINDS[name]
    lens = watched(kind)
    breaks = lens.captured().breaks
    assert breaks
    assert {item.line for item in breaks} == {kind.line}
    graphs = graphs_without_ortlens(kind)
    assert lens.output().graph_count == graphs
    assert lens.output().graph_break_count == max(graphs - 1, len(breaks)), "one per boundary, and those that no graph follows"
    assert breaks[0].advice is None if kind.advice is None else (breaks[0].advice or "").startswith(kind.advice)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "how"), CHANGES)
def test_following_the_advice_removes_the_break_and_keeps_the_result(name: str, how: str) -> None:
    lens, _ = followed(KINDS[name], how)
    assert [(item.line, item.reason) for item in lens.captured().breaks] == []


def test_advice_that_is_given_has_a_change_that_proves_it() -> None:
    assert [name for name, kind in KINDS.items() if (kind.advice is None) != (not kind.changes)] == []
