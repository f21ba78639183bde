"""Show programs with a planted cause to the lens, and do what it says first: `python -m tests.strangers`.

A row per program: is the cause first, is its line right, is its figure within 1.5 times of that of tight loops, does the first advice work
when it is followed, does the screen contradict itself. What times make wrong is measured up to three times. `--no-times` leaves out what
needs an idle machine; `--only TEXT` chooses programs.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.strangers.observe import BAD, observed
from tests.strangers.programs import BY_NAME
from tests.sweep import result_of_each, say

_LINE = "{:32} {:4} {:4} {:13} {:34} {:40} {}"


def rows_of(names: Sequence[str], *, with_times: bool, jobs: int = 1) -> Iterator[dict[str, Any]]:
    """Give the row of each program."""
    for name, ended in result_of_each(observed, names, with_times, seconds=300, jobs=jobs):
        program = BY_NAME[name]
        yield {"name": name, "group": program.group, "expected": program.first, **(ended.value or {"error": ended.reason})}


def problems(row: dict[str, Any]) -> list[str]:
    """List what a row shows to be wrong."""
    if "error" in row:
        return [f"error: {row['error']}"]
    found = [f"{way['way']} {way['outcome']} {way.get('detail', '')}".strip() for way in row["followed"] if way["outcome"] in BAD]
    is_helpful = bool(row["followed"]) and not found and all(way.get("ratio", 0) < 1 for way in row["followed"])
    if not row["is_first"] and (row["expected"] or not is_helpful):
        found.append(f"cause no. {row['rank']}" if row["rank"] else "cause absent" if row["expected"] else "alarm")
    found += [name for name in ("place", "size") if row.get(name) is False]
    found += ["no form"] if row["shown"] and row["expected"] and not row["followed"] else []
    return [*found, *row["contradictions"]]


def line_of(row: dict[str, Any]) -> str:
    """A row as text."""
    if "error" in row:
        return f"{row['name']:32} {row['error']}"
    signs = {True: "yes", False: "NO", None: "-"}
    said, true = (f"{row[name] / 1e3:.0f}" if row.get(name) is not None else "-" for name in ("said_ns", "true_ns"))
    ways = "; ".join(f"{way['way']} {way['outcome']}" + (f" {way['ratio']}x" if "ratio" in way else "") for way in row["followed"]) or "-"
    shown = row["shown"][0] if row["shown"] else "nothing"
    wrong = "; ".join([*problems(row), *([f"({row['tries']} tries)"] if row["tries"] > 1 else [])])
    return _LINE.format(row["name"], signs[row["is_first"]], signs[row["place"]], f"{said}/{true} us", shown, ways, wrong)


def main() -> int:
    """Print the table; 1 if a row shows something wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.strangers", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="programs whose name contains this")
    parser.add_argument("--no-times", action="store_true", help="only what a busy machine can show")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="so many at a time; with times, one")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the rows as JSON")
    options = parser.parse_args()
    rows = []
    say(_LINE.format("program", "1st", "line", "said/true", "first", "followed", "wrong"))
    for row in rows_of([name for name in BY_NAME if options.only in name], with_times=not options.no_times, jobs=options.jobs):
        rows.append(row)
        say(line_of(row))
    if options.output:
        options.output.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    wrong = sum(bool(problems(row)) for row in rows)
    failed = sum(way["outcome"] in BAD for row in rows for way in row.get("followed", ()))
    against = sum(len(row.get("contradictions", ())) for row in rows)
    say(f"{len(rows)} programs, {len(rows) - wrong} right; {failed} advices fail when followed, {against} contradictions")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
