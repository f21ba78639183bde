"""Which cases of a sweep `make test` runs; `make test-slow` runs the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from _pytest.mark.structures import ParameterSet


def sampled(names: Iterable[str], default: Collection[str]) -> list[ParameterSet]:
    """Mark all cases but a few as slow."""
    every = list(names)
    if missing := sorted(set(default) - set(every)):
        raise ValueError(f"{', '.join(missing)}: no case of the sweep, which has {', '.join(every)}")
    return [pytest.param(name, marks=() if name in default else pytest.mark.slow) for name in every]
