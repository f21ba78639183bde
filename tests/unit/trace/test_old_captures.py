"""Captures of each version of their form that there has been since the third: every one loads, with all that it holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ortlens
from ortlens.trace import store
from ortlens.trace.records import SCHEMA_VERSION
from tests.unit.trace.strategies import entries_in

SCHEMAS = Path(__file__).resolve().parents[2] / "data" / "captures" / "schemas"
VERSIONS = range(3, SCHEMA_VERSION + 1)


def test_each_version_has_a_capture() -> None:
    assert {path.stem: path.read_bytes().splitlines()[0] for path in SCHEMAS.glob("*.ortlens")} == {
        str(version): b"ortlens-capture %d" % version for version in VERSIONS
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_a_capture_of_each_version_loads_with_all_that_it_holds(version: int, tmp_path: Path) -> None:
    """A column that is renamed, of another type, or removed although something reads it, needs a new version, and a capture of it here."""
    path = SCHEMAS / f"{version}.ortlens"
    assert "graph break" in ortlens.load(path).summary()
    again = store.save(store.load(path), tmp_path / "again.ortlens")  # advice that is missing is computed where it is read
    then, now = (
        {entry["table"]: json.loads(held) for entry, held in entries_in(file.read_bytes()) if "table" in entry} for file in (path, again)
    )
    assert len(then) > 10
    for name, columns in then.items():
        assert {column: now[name][column] for column in columns} == columns, name
