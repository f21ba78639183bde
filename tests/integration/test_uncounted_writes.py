"""Writes that torch does not count: to `param.data`, and through numpy. Only the bytes tell, and a whole tensor of them does."""

from __future__ import annotations

import pytest

from tests.integration.life_steps import COUNTED, UNCOUNTED
from tests.integration.lives import KINDS, Step, live
from tests.integration.test_random_lives import compile_module


@pytest.mark.parametrize("name", UNCOUNTED)
@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_tensor_written_past_the_counter(kind: str, name: str) -> None:
    steps = [step for number in range(6) for step in (Step("call_on_odd_memory", 1), Step(name, number))]
    live(kind, [*steps, Step("call_on_odd_memory", 1)], {**COUNTED, **UNCOUNTED}, compile_module)
