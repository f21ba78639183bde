"""Run the suite and write its table into the documentation: `python -m tests.conformance.report`."""

from __future__ import annotations

import argparse
import collections
import datetime as dt
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from tests.conformance.lines import LINES, Line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "conformance.md"
_FIXED_COLUMNS = 2
_HEADER = """# Conformance

Each line is a behaviour of the removed backend or of the exporter's own ONNX Runtime checks, with the result here. `make conformance`
writes this page. It runs `tests/conformance` with every operator case static, dynamic and exported, and keeps one column per version of
torch. "works (12)" means that all 12 tests pass, "**11 of 12**" that one fails. All columns are from CPU machines. Nothing here was run on
a CUDA device; choosing providers and naming devices is tested without one.

"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """What one run of the suite found.

    Attributes:
        title: Versions and date.
        results: Line -> result in words.
    """

    title: str
    results: dict[str, str] = field(default_factory=dict)

    def torch(self) -> str:
        """The version of torch that the column is for."""
        return self.title.partition(",")[0]


def run_suite() -> Column:
    """Run every test of the suite, every case on every road."""
    with tempfile.TemporaryDirectory() as folder:
        xml = Path(folder) / "results.xml"
        options = ["-q", "-m", "", "--tb=line", "--show-capture=no", f"--junit-xml={xml}"]
        command = [sys.executable, "-m", "pytest", *options, str(Path(__file__).parent)]
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, "ORTLENS_EVERY_ROAD": "1"}, check=False)
        if done.returncode not in (0, 1):
            raise RuntimeError(f"pytest ended with {done.returncode}")
        counts = _counts(ET.parse(xml).iter("testcase"))  # noqa: S314 - as above
    today = dt.datetime.now(tz=dt.timezone.utc).date()
    title = f"torch {version('torch').partition('+')[0]}, onnxruntime {version('onnxruntime')}, {today}"
    return Column(title=title, results={line.name: _result(line, counts) for line in LINES})


def _counts(cases: Iterable[ET.Element]) -> dict[str, collections.Counter[str]]:
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for case in cases:
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        counts[case.get("name", "").partition("[")[0]][outcome] += 1
    return counts


def _result(line: Line, counts: dict[str, collections.Counter[str]]) -> str:
    if not line.tests:
        return "later"
    found: collections.Counter[str] = collections.Counter()
    for name, outcomes in counts.items():
        if line.holds(name):
            found.update(outcomes)
    skipped = f", {found['skipped']} skipped" if found["skipped"] else ""
    ran = found["passed"] + found["failed"]
    return (f"works ({ran})" if ran and not found["failed"] else f"**{found['passed']} of {ran}**") + skipped


def page(columns: Sequence[Column], newest: Column | None = None) -> str:
    """The page."""
    kept = [column for column in columns if newest is None or column.torch() != newest.torch()]
    shown = kept if newest is None else [newest, *kept]
    titles = ["Line", "What is promised", *(column.title for column in shown)]
    rows = [[line.name, line.claim, *(column.results.get(line.name, "") for column in shown)] for line in LINES]
    table = [titles, ["---"] * len(titles), *rows]
    return _HEADER + "\n".join(f"| {' | '.join(row)} |" for row in table) + "\n"


def columns_in(text: str) -> tuple[Column, ...]:
    """Read the columns back from the page."""
    rows = [re.split(r" *\| *", line.strip("| ")) for line in text.splitlines() if line.startswith("| ")]
    if not rows:
        return ()
    titles, body = rows[0], rows[2:]
    return tuple(
        Column(title=title, results={row[0]: row[place] for row in body if len(row) > place})
        for place, title in enumerate(titles)
        if place >= _FIXED_COLUMNS
    )


def main() -> None:
    """Run the suite and write the page."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--output", type=Path, default=PAGE)
    output: Path = parser.parse_args().output
    before = output.read_text(encoding="utf-8") if output.exists() else ""
    output.write_text(page(columns_in(before), run_suite()), encoding="utf-8")


if __name__ == "__main__":
    main()
