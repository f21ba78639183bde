"""Every test runs in `make test` or in `make test-slow`, once; CI reads one closing line."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from itertools import chain, combinations
from pathlib import Path

from _pytest.mark.expression import Expression

from tests.closing_line import closing_line

ROOT = Path(__file__).resolve().parents[2]
MARKERS = ("slow", "serial", "soak")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")

# Each selection of the Makefile: `NAME := -m '...'`.
SELECTIONS = dict(re.findall(r"^(\w+) := -m '([^']+)'", MAKEFILE, flags=re.MULTILINE))
DEFAULT = {"FAST", "FAST_ALONE"}
SLOW = {"SLOW", "SLOW_ALONE"}


def selected(markers: tuple[str, ...]) -> list[str]:
    """The selections that take a test with these markers, and no others."""

    def has(name: str, /, **_: str | int | bool | None) -> bool:
        return name in markers

    return [name for name, text in SELECTIONS.items() if Expression.compile(text).evaluate(has)]


def test_every_combination_of_markers_is_in_one_selection() -> None:
    assert set(SELECTIONS) == DEFAULT | SLOW | {"SOAK"}
    every = chain.from_iterable(combinations(MARKERS, size) for size in range(len(MARKERS) + 1))
    assert {markers: selected(markers) for markers in every if len(selected(markers)) != 1} == {}


def test_what_is_not_slow_runs_by_default() -> None:
    assert [selected(()), selected(("serial",))] == [["FAST"], ["FAST_ALONE"]]
    assert [selected(("slow",)), selected(("slow", "serial"))] == [["SLOW"], ["SLOW_ALONE"]]


def test_each_selection_is_run_over_all_tests() -> None:
    runs = re.findall(r"^\t.*-m pytest (.*?)(?: 2>&1.*)?$", MAKEFILE, flags=re.MULTILINE)
    whole = {name for run in runs for name in SELECTIONS if f"$({name})" in run and "tests/" not in run and "--ignore" not in run}
    assert whole >= DEFAULT | SLOW


def test_ci_runs_both() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert script.index("make test\n") < script.index("make test-slow ")


def test_what_would_begin_too_late_is_skipped_and_counted(root: Path) -> None:
    for until, counted in ((0, "1 skipped"), (time.time() + 600, "1 passed")):
        command = [sys.executable, "-m", "pytest", __file__, "-k", "runs_by_default", "--until", str(until)]
        done = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
        assert counted in closing_line([done.stdout])
        assert ("the time of --until was over" in done.stdout) == (until == 0)


def test_closing_lines_are_added_up() -> None:
    runs = [
        "...\n====== 12 passed, 1 skipped in 3.50s ======\n",
        "FAILED a\n1 failed, 2 passed, 3 deselected, 1 warning, 1 error in 61.25s (0:01:01)\n",
    ]
    assert closing_line(runs[:1]) == "12 passed, 1 skipped in 3.50s"
    assert closing_line(runs) == "1 failed, 14 passed, 1 skipped, 1 errors in 64.75s"


def test_a_run_that_did_not_end_is_an_error() -> None:
    assert closing_line(["collecting ...\n", "1 passed in 0.10s"]) == "1 passed, 1 errors in 0.10s"
