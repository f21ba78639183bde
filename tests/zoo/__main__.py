"""Measure the zoo and write docs/data/zoo.json: `python -m tests.zoo [MODEL ...]`; with names, only those are measured anew.

Each architecture runs in a process of its own, so that one that crashes is a row and not the end.
"""

import os
import sys

from ortlens._shell import progress
from tests.figures import measured_with, read, write
from tests.sweep import result_of_each
from tests.zoo.measure import Measurement, measured
from tests.zoo.table import ARCHITECTURES

_PACKAGES = ("torch", "transformers", "onnxruntime", "onnxscript", "ortlens")
_LIMIT_S = 900
_JOBS = os.cpu_count() or 1


def _report(measurement: Measurement) -> None:
    """Print on stderr how it went."""
    how = "FAILS" if measurement.failed else "whole" if measurement.whole else f"{measurement.coverage:.1%} in {measurement.partitions}"
    over = "\r\x1b[K" if sys.stderr.isatty() else ""  # the line of the progress bar
    print(f"{over}{measurement.model:36} {how:16} {measurement.compile_s:6.1f} s", *measurement.problems, file=sys.stderr, sep="  ")  # noqa: T201


def main(names: list[str]) -> int:
    """Measure, and write the figures."""
    rows = read("zoo")["architectures"] if names else {}
    wanted = [name for name in ARCHITECTURES if name in names or name not in rows]
    with progress("model zoo", len(wanted), "architecture") as step:
        for name, ended in result_of_each(measured, wanted, seconds=_LIMIT_S, jobs=_JOBS):
            failure = {"model": name, "family": ARCHITECTURES[name].family, "error": ended.reason}
            measurement = Measurement(**(ended.value if ended.status == "ok" else failure))
            rows[name] = measurement.row()
            _report(measurement)
            step(1)
    ordered = sorted(ARCHITECTURES, key=lambda name: (rows[name]["family"], name.lower()))
    write("zoo", {"measured": measured_with(*_PACKAGES), "architectures": {name: rows[name] for name in ordered}})
    failing = [name for name in ordered if rows[name]["problems"]]
    print(f"wrote docs/data/zoo.json: {len(ordered)} architectures, failing: {', '.join(failing) or 'none'}", file=sys.stderr)  # noqa: T201
    return 1 if failing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
