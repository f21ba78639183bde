"""The zoo whole takes a quarter of an hour: all but a few of each family run only when asked for, with `-m zoo`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known here: pytest reads this file too late for options, and early enough for markers."""
    config.addinivalue_line("markers", "zoo: one of the many architectures; deselected unless -m names it")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what is marked, unless `-m` speaks of it."""
    if "zoo" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("zoo")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
