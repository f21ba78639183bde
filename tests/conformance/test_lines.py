"""The table of lines, the tests and the recorded results are about the same promises."""

from tests.conformance.lines import LINES, Line, written_tests
from tests.figures import read


def test_every_line_has_a_test() -> None:
    written = written_tests()
    claimed = [(line.name, Line(name="", claim="", tests=(own,))) for line in LINES for own in line.tests]
    assert [name for name, own in claimed if not any(own.holds(test) for test in written)] == []


def test_every_test_has_a_line() -> None:
    assert [name for name in written_tests() if not any(line.holds(name) for line in LINES)] == []


def test_names_are_given_once() -> None:
    assert len({line.name for line in LINES}) == len(LINES)
    assert len(set(written_tests())) == len(written_tests())


def test_results_are_recorded_for_every_line_and_no_other() -> None:
    assert list(read("conformance")["results"]) == [line.name for line in LINES]
