"""The page of figures names commands and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")


def test_each_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)`", PAGE))
    assert named == {"seams", "fuzz", "soak"}
    assert named <= targets


def test_each_module_and_file_that_is_named_exists() -> None:
    modules = re.findall(r"python -m (tests[\w.]+)", PAGE)
    files = re.findall(r"tests/[\w/]+\.py", PAGE)
    assert modules
    assert files
    places = [ROOT.joinpath(*name.split(".")) for name in modules]
    assert [place for place in places if not place.with_suffix(".py").exists() and not (place / "__main__.py").exists()] == []
    assert [name for name in files if not (ROOT / name).exists()] == []


def test_a_row_of_seams_adds_up() -> None:
    cells = r" \| (\d+)" * 6
    rows = [[int(cell) for cell in row] for row in re.findall(rf"^\| .*{cells} \|$", PAGE, re.MULTILINE)]
    assert rows
    assert [row for row in rows if row[0] != sum(row[1:])] == []
