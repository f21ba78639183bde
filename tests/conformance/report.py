"""Run the suite and write its counts into docs/data/conformance.json: `python -m tests.conformance.report`."""

import collections
import datetime as dt
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from tests.conformance.lines import LINES
from tests.figures import read, write

ROOT = Path(__file__).resolve().parents[2]


def run_suite() -> dict[str, collections.Counter[str]]:
    """Count the outcomes of each test of the suite, with every case on every road."""
    with tempfile.TemporaryDirectory() as folder:
        xml = Path(folder) / "results.xml"
        options = ["-q", "-m", "", "--tb=line", "--show-capture=no", f"--junit-xml={xml}"]
        command = [sys.executable, "-m", "pytest", *options, str(Path(__file__).parent)]
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, "ORTLENS_EVERY_ROAD": "1"}, check=False)
        if done.returncode not in (0, 1):
            raise RuntimeError(f"pytest ended with {done.returncode}")
        return _counts(ET.parse(xml).iter("testcase"))  # noqa: S314 - pytest wrote it


def _counts(cases: Iterable[ET.Element]) -> dict[str, collections.Counter[str]]:
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for case in cases:
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        counts[case.get("name", "").partition("[")[0]][outcome] += 1
    return counts


def main() -> None:
    """Run the suite and keep its counts in place of those of the same torch, beside those of others."""
    counts, before, torch = run_suite(), read("conformance"), version("torch").partition("+")[0]
    run = {"onnxruntime": version("onnxruntime"), "date": dt.datetime.now(tz=dt.UTC).date().isoformat()}
    others = {name: other for name, other in before["runs"].items() if name != torch}
    results = {}
    for line in LINES:
        of_line = sum((found for test, found in counts.items() if line.holds(test)), collections.Counter[str]())
        results[line.name] = {**before["results"].get(line.name, {}), torch: of_line}
    write("conformance", {"runs": {torch: run, **others}, "results": results})


if __name__ == "__main__":
    main()
