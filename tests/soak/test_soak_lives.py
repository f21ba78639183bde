"""Long lives with seeds that nobody tried, for as many seconds as `ORTLENS_SOAK_SECONDS` says; the seed is in every failure.

`ORTLENS_SOAK_SEED` says where to begin; `ORTLENS_LIFE` holds the line that a failure printed, to live that life alone.
"""

from __future__ import annotations

import itertools
import os
import time
from typing import TYPE_CHECKING

import pytest
import torch

from tests.integration.life_steps import COUNTED, UNCOUNTED
from tests.integration.lives import KINDS, failure_of, life_from_text, live, random_life

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

pytestmark = pytest.mark.soak

SECONDS = float(os.environ.get("ORTLENS_SOAK_SECONDS", "180"))
SEED = int(os.environ.get("ORTLENS_SOAK_SEED", "1000"))
STEPS = {**COUNTED, **UNCOUNTED}


@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_long_lives(kind: str, dynamic: bool | None) -> None:  # noqa: FBT001 - a parameter of the test, named as torch names it
    def compile_module(module: nn.Module) -> Callable[..., object]:
        compiled: Callable[..., object] = torch.compile(module, backend="ortlens", dynamic=dynamic)
        return compiled

    end = time.monotonic() + SECONDS / 9
    for seed in itertools.count(SEED):
        live(kind, random_life(seed, list(STEPS), 20), STEPS, compile_module)
        if time.monotonic() > end:
            break


@pytest.mark.skipif("ORTLENS_LIFE" not in os.environ, reason="ORTLENS_LIFE names no life")
def test_one_life_again() -> None:
    kind, steps = life_from_text(os.environ["ORTLENS_LIFE"])
    error = failure_of(kind, steps, STEPS, lambda module: torch.compile(module, backend="ortlens"))
    if error is not None:
        raise error
