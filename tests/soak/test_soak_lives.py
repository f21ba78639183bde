"""Long lives with seeds that nobody tried, for as many seconds as `ORTLENS_SOAK_SECONDS` says; `ORTLENS_SOAK_SEED` says where to begin.

A failure prints the shortest life that shows it, as a script.
"""

import itertools
import os
import time

import pytest

from tests.fuzz.lives import KINDS, failure_of, random_life

pytestmark = pytest.mark.soak

SECONDS = float(os.environ.get("ORTLENS_SOAK_SECONDS", "180"))
SEED = int(os.environ.get("ORTLENS_SOAK_SEED", "1000"))


@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_long_lives(kind: str, dynamic: bool | None) -> None:  # noqa: FBT001 - a parameter of the test, named as torch names it
    end = time.monotonic() + SECONDS / 9
    for seed in itertools.count(SEED):
        assert failure_of(random_life(seed, kind, 20).replace(dynamic=dynamic)) == "", f"seed {seed}"
        if time.monotonic() > end:
            break
