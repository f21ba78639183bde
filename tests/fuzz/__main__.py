"""Judge random programs: `python -m tests.fuzz [--graphs] [--reshapes] [--functions N] [--seed S] [--again FILE] [--plants [NAME ...]]`.

They run in a process of its own that is started again after a crash or when nothing comes for a while. Verdicts are kept in
build/fuzz, one line each, so that a run that was stopped goes on with the next seed. Programs that differ are made smaller and
printed as Python programs that judge them again. With `--graphs`, programs are judged without Dynamo and AOTAutograd: some 600
per minute of CPU instead of 60; see `graphs`.
"""

import argparse
import collections
import json
import time
from pathlib import Path
from typing import Any

from tests.sweep import ROOT, figures, rows_of_each, say

FOLDER = ROOT / "build" / "fuzz"
_LIMIT_S = 300
"""Longest silence of a process: to make a program smaller takes a minute, and one statement a second at most."""


def main() -> int:
    """Judge programs until their number is reached."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Judge random programs against PyTorch.")
    parser.add_argument(
        "--graphs", action="store_true", help="judge graphs, without Dynamo and AOTAutograd: further operators, no gradients"
    )
    parser.add_argument("--reshapes", action="store_true", help="judge programs that write into what is reshaped")
    parser.add_argument(
        "--functions", type=int, default=1000, help="number of functions; most hold eight programs, with --graphs 16 (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=None, help="the first seed (default: the first that was not judged yet)")
    parser.add_argument("--again", type=Path, metavar="FILE", help="judge the program in a file of JSON, such as a line of the verdicts")
    parser.add_argument(
        "--plants",
        nargs="*",
        metavar="NAME",
        help="plant defects instead, all or those whose names begin so, and say how soon each is found",
    )
    given = parser.parse_args()
    if given.again is not None:
        return _again(given.again, graphs=given.graphs)
    if given.plants is not None:
        from tests.fuzz.hunt import hunt_all

        return hunt_all(given.plants, given.functions, given.seed or 0, graphs=given.graphs)
    FOLDER.mkdir(parents=True, exist_ok=True)
    kept = FOLDER / f"{'reshapes_' if given.reshapes else ''}{'graphs' if given.graphs else 'verdicts'}.jsonl"
    first = given.seed if given.seed is not None else _next_seed(kept)
    flags = [f"--{name}" for name in ("graphs", "reshapes") if getattr(given, name)]
    return _sweep(first, first + given.functions, kept, flags)


def _next_seed(kept: Path) -> int:
    if not kept.is_file():
        return 0
    return 1 + max((json.loads(line)["seed"] for line in kept.read_text("utf-8").splitlines()), default=-1)


def _again(path: Path, *, graphs: bool) -> int:
    from tests.fuzz.oracle import judge, judge_graph
    from tests.fuzz.program import Program, script

    given = json.loads(path.read_text("utf-8"))
    program = Program.from_json(json.dumps(given.get("program", given)))
    verdict = judge_graph(program) if graphs else judge(program)
    say(f"{script(program, graph=graphs)}\n{verdict.word}\n{verdict.text()}")
    return int(verdict.word == "wrong")


def _sweep(first: int, end: int, kept: Path, flags: list[str]) -> int:
    """Judge seeds, over as many processes as it takes."""
    counts: collections.Counter[str] = collections.Counter()
    unprepared: collections.Counter[str] = collections.Counter()
    started = time.monotonic()
    seeds = range(first, end)
    for seed, rows, ended in rows_of_each(seeds, lambda left: ("tests.fuzz.sweep", str(left[0]), str(len(left)), *flags), limit_s=_LIMIT_S):
        for row in [*rows, {"seed": seed, "verdict": "crash", "count": 1, "text": ended}] if ended else rows:
            with kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            counts[row["verdict"]] += row["count"]
            if row["verdict"] == "unprepared":
                unprepared[row["differences"][0][3]] += row["count"]
            _report(row)
    minutes = (time.monotonic() - started) / 60
    total = counts.total()
    say(f"{total:,} programs, {total / max(minutes, 1e-9):.0f} per minute: {figures(counts)}")
    for text, count in unprepared.most_common():
        say(f"{count:,} unprepared: {text}")
    return int(bool(counts["wrong"] or counts["crash"]))


def _report(row: dict[str, Any]) -> None:
    if row["verdict"] == "crash":
        say(f"seed {row['seed']}: {row['text']}")
    if row["verdict"] in ("wrong", "road"):
        say(f"\n# {row['verdict']}: " + "\n# ".join(str(item) for item in row["differences"]) + f"\n{row['script']}")


if __name__ == "__main__":
    raise SystemExit(main())
