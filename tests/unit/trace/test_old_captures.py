"""Captures of each schema version that there has been: every one loads, with all that it holds."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

import ortlens
from ortlens.trace import store
from ortlens.trace.records import SCHEMA_VERSION

SCHEMAS = Path(__file__).resolve().parents[2] / "data" / "captures" / "schemas"
LEFT_OUT = {"arena_held_bytes", "distortion", "host_ns"}
"""Columns that are gone without a new version, because nothing read them: older readers take them for missing."""


def members(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        return {name: json.loads(archive.read(name)) for name in archive.namelist() if name.endswith(".json")}


def test_each_schema_version_has_a_capture() -> None:
    found = {int(path.stem): members(path)["manifest.json"]["schema_version"] for path in SCHEMAS.glob("*.ortlens")}
    assert found == {version: version for version in range(1, SCHEMA_VERSION + 1)}


def test_the_figures_of_the_first_version_are_read_from_its_facts() -> None:
    first, second = (store.load(SCHEMAS / f"{version}.ortlens") for version in (1, 2))
    assert (first.figures, first.environment) == (second.figures, second.environment)
    assert first.figures.torch_threads == int(members(SCHEMAS / "1.ortlens")["manifest.json"]["environment"]["torch_threads"])
    assert "torch_threads" not in first.environment


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION + 1))
def test_a_capture_of_each_version_loads_with_all_that_it_holds(version: int, tmp_path: Path) -> None:
    """A column that is renamed, of another type, or removed although something reads it, needs a new version, and a capture of it here."""
    path = SCHEMAS / f"{version}.ortlens"
    capture = ortlens.load(path)
    assert "graph break" in capture.summary()
    if version < SCHEMA_VERSION:
        return
    store.save(store.load(path), tmp_path / "again.ortlens")  # advice that is missing is computed where it is read
    then, now = members(path), members(tmp_path / "again.ortlens")
    tables = [name for name in then if name != "manifest.json"]
    assert len(tables) > 10
    for name in tables:
        for column, values in then[name]["columns"].items():
            assert column in LEFT_OUT or now[name]["columns"][column] == values, f"{name}: {column}"
