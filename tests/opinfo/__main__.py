"""Send the whole operator database through the backend: `python -m tests.opinfo [--jobs N] [NAME ...]`.

Operators run in processes of their own that are started again after a crash or when nothing comes for a while. Outcomes are
kept in build/opinfo, one file per operator, so that a run that was stopped goes on where it was; operators named on the command
line are measured anew. Without names, docs/data/operators.json is written; `--data` writes it without measuring. `--numbers` measures
operations on numbers alone, in a few minutes, and writes their part of it. `--corners` compares operators at their kinks, ends and
infinities, forward and backward, and prints a table; so does `--layouts` of strides, and of writes into reshaped results.
"""

import argparse
import collections
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.figures import read, write
from tests.opinfo.condensed import condensed, condensed_numbers
from tests.opinfo.exceptions import CORNERS, LAYOUTS, reason_for
from tests.sweep import ROOT, rows_of_each

KEPT = ROOT / "build" / "opinfo"
_CORNERS = ROOT / "build" / "corners"
_LAYOUTS = ROOT / "build" / "layouts"
_PART = ("4", "float32,float64,float16,int64,int32,uint8,bool", "static,dynamic,backward")
"""Samples per operator and element type; the element types of ONNX Runtime's CPU provider; roads."""

_LIMIT_S = 120
"""Longest silence of a process: one sample takes a second at most, one import of torch some ten."""


def _run(names: list[str], folder: Path, *command: str) -> None:
    """Run operators one after the other, and keep their outcomes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows, ended in rows_of_each(names, lambda left: (*command, *left), limit_s=_LIMIT_S):
        crash = {"operator": name, "dtype": "", "road": "", "sample": len(rows), "verdict": "crash", "detail": ended}
        (folder / f"{name}.json").write_text(json.dumps([*rows, crash] if ended else rows), encoding="utf-8")


def kept(folder: Path = KEPT) -> dict[str, list[dict[str, Any]]]:
    """The outcomes measured so far, by operator."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}


def _measure(wanted: list[str], jobs: int, folder: Path, *command: str) -> None:
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda place: _run(wanted[place::jobs], folder, *command), range(jobs)))


def _measured_corners(names: list[str], jobs: int) -> list[dict[str, Any]]:
    """Measure what is missing, and print operators and points by verdict; what is wrong without a stated reason."""
    from tests.opinfo import corners

    known = kept(_CORNERS)
    _measure(names or [name for name in corners.names() if name not in known], jobs, _CORNERS, "tests.opinfo.corners")
    groups = collections.defaultdict(list)
    for row in (row for name, rows in kept(_CORNERS).items() if not names or name in names for row in rows):
        excused = row["verdict"] == "wrong" and reason_for(row["operator"], row["dtype"], CORNERS) is not None
        groups["excused" if excused else row["verdict"]].append(row)
    for verdict, rows in groups.items():
        operators, points = len({row["operator"] for row in rows}), sum(row.get("points", 0) for row in rows)
        print(f"{verdict:10}{operators:5} operators {len(rows):6} calls {points:8} points")  # noqa: T201 - figures
    return [*groups["wrong"], *groups["crash"]]


def _measured_layouts(names: list[str], jobs: int) -> list[dict[str, Any]]:
    """Measure the layouts of operators, print a table, and list what is wrong."""
    from tests.opinfo.sweep import operators

    _measure(names or [name for name in operators() if name not in kept(_LAYOUTS)], jobs, _LAYOUTS, "tests.opinfo.layouts", "2")
    found = {name: rows for name, rows in kept(_LAYOUTS).items() if not names or name in names}
    counts = collections.Counter((row["road"], row["verdict"]) for rows in found.values() for row in rows)
    for road in sorted({road for road, _ in counts}):
        print(f"{road:28}", {verdict: count for (way, verdict), count in sorted(counts.items()) if way == road})  # noqa: T201 - figures
    print(f"{len(found)} operators, {counts.total()} cases")  # noqa: T201 - same
    differ = [row for rows in found.values() for row in rows if row["verdict"] in ("wrong", "crash")]
    return [row for row in differ if reason_for(row["operator"], row["dtype"], LAYOUTS, row["detail"]) is None]


def _measured_numbers() -> list[dict[str, Any]]:
    """Measure operations on numbers and write their figures; what is wrong with them."""
    from tests.opinfo.numbers import OPERATIONS, outcomes_of

    found = {name: [asdict(outcome) for outcome in outcomes_of(name)] for name in OPERATIONS}
    write("operators", {**read("operators"), **condensed_numbers(found)})
    return [row for rows in found.values() for row in rows if row["verdict"] in ("wrong", "crash")]


def main(arguments: list[str]) -> int:
    """Measure what is missing, then print the figures and everything that is wrong; 1 when something is."""
    parser = argparse.ArgumentParser(prog="python -m tests.opinfo")
    parser.add_argument("names", nargs="*", help="operators to measure anew; all that are missing when none is named")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--data", action="store_true", help="write the figures from the outcomes that are kept, and measure nothing")
    parser.add_argument("--numbers", action="store_true", help="measure operations on numbers, and nothing else")
    parser.add_argument("--corners", action="store_true", help="measure operators at their kinks, ends and infinities, and nothing else")
    parser.add_argument("--layouts", action="store_true", help="compare strides, and writes into reshaped results, and nothing else")
    chosen = parser.parse_args(arguments)
    if chosen.corners:
        return _listed(_measured_corners(chosen.names, chosen.jobs))
    if chosen.numbers:
        return _listed(_measured_numbers())
    if chosen.layouts:
        return _listed(_measured_layouts(chosen.names, chosen.jobs))
    from tests.opinfo.sweep import operators

    known = kept()
    wanted = [] if chosen.data else chosen.names or [name for name in operators() if name not in known]
    _measure(wanted, chosen.jobs, KEPT, "tests.opinfo.sweep", *_PART)
    if not chosen.names:
        write("operators", {**read("operators"), **condensed(kept(), operators())})
    of_numbers = [] if chosen.names or chosen.data else _measured_numbers()
    rows = [row for found in kept().values() for row in found]
    print(dict(collections.Counter(row["verdict"] for row in rows)))  # noqa: T201 - figures
    bad = [row for row in rows if row["verdict"] in ("wrong", "crash") and reason_for(row["operator"], row["dtype"]) is None]
    return _listed([*bad, *of_numbers])


def _listed(bad: list[dict[str, Any]]) -> int:
    for row in bad:
        print(*(row[key] for key in ("verdict", "operator", "dtype", "road", "sample", "detail")))  # noqa: T201 - same
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
