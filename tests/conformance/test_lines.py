"""The table of lines, the tests and the page speak of the same things."""

from __future__ import annotations

from pathlib import Path

from tests.conformance.lines import LINES, Line, written_tests
from tests.conformance.report import Column, columns_in, page

ROOT = Path(__file__).resolve().parents[2]


def test_every_line_has_a_test() -> None:
    written = written_tests()
    claimed = [(line.name, Line(name="", claim="", tests=(own,))) for line in LINES for own in line.tests]
    assert [name for name, own in claimed if not any(own.holds(test) for test in written)] == []


def test_every_test_has_a_line() -> None:
    assert [name for name in written_tests() if not any(line.holds(name) for line in LINES)] == []


def test_names_are_given_once() -> None:
    assert len({line.name for line in LINES}) == len(LINES)
    assert len(set(written_tests())) == len(written_tests())


def test_the_page_names_every_line_and_no_other() -> None:
    text = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
    (newest, *_) = columns_in(text)
    assert list(newest.results) == [line.name for line in LINES]
    assert all(line.claim in text for line in LINES)


def test_older_columns_stay_when_another_version_is_added() -> None:
    old = Column(title="torch 2.9.0, onnxruntime 1.23.0, 2026-01-31", results={line.name: "works (3)" for line in LINES})
    again = Column(title="torch 2.9.0, onnxruntime 1.24.0, 2026-03-31", results={line.name: "**1 of 3**" for line in LINES})
    new = Column(title="torch 2.13.0, onnxruntime 1.31.0, 2026-11-21", results={line.name: "later" for line in LINES})
    assert columns_in(page(columns_in(page([old])), new)) == (new, old)
    assert columns_in(page(columns_in(page([new, old])), again)) == (again, new)
