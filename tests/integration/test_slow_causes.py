"""What makes a program slow on purpose is among the first things that a report names, with its line. Costs are not asserted."""

from __future__ import annotations

import pytest
import torch

from tests.integration.slow_causes import CAUSES, Planted, explained, place_of

# Each compiles, measures and perhaps profiles a program, which takes a second or more.
pytestmark = [pytest.mark.slow, pytest.mark.serial, pytest.mark.timed]


@pytest.mark.parametrize("planted", CAUSES, ids=[planted.name for planted in CAUSES])
def test_a_planted_cause_is_named_with_its_line(planted: Planted) -> None:
    torch._dynamo.reset()
    _, looks = explained(planted)
    place, has_line = place_of(planted, looks)
    shown = [(look.what, look.line) for look in looks]
    assert place > 0, shown
    assert has_line, (planted.line, shown)


def test_every_planted_line_is_marked_once() -> None:
    lines = [planted.line for planted in CAUSES if planted.has_line]
    assert None not in lines
    assert len(set(lines)) == len(lines)
