"""What runs for minutes, only when asked for: `-m soak`, which is what `make soak` says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known here: pytest reads this file too late for options, and early enough for markers."""
    config.addinivalue_line("markers", "soak: runs for minutes; deselected unless -m names it")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect everything in this folder, unless `-m` speaks of it."""
    if "soak" in config.option.markexpr:
        return
    left_out = [item for item in items if HERE in item.path.parents]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
