"""Have every function of the package fail once, under each way of observing a program: `python -m tests.seams`.

For each function that the program reaches: the program's answers are those of PyTorch, the failure is in the capture with its cause, and
the next call works. `--way NAME` and `--only TEXT` choose; `--sample N` takes every Nth. Outcomes are kept in `build/seams` for as long as
the code is the same: a run that was stopped goes on where it was. `--seconds N` stops it, with exit status 3; `--again` begins anew.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from functools import partial

from ortlens import _torch
from tests.seams.faults import Seam, reached, seams
from tests.seams.kept import Kept, file_of_this_code
from tests.seams.programs import BROKEN, WAYS, Kind, again, answers, outcome, tidy

STOPPED = 3


def say(line: str) -> None:
    """Write a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def reached_by(way: str) -> list[str]:
    """The functions of the package that the program reaches."""
    tidy()
    with reached() as codes:
        with WAYS[way]() as watched:
            answers(watched.net, watched.train)
        again(watched.net)
    known = seams()
    return sorted({known[code].name for code in codes if code in known})


def fail_each(way: str, chosen: list[Seam], kept: Kept, end: float) -> bool:
    """Have each function fail that has not failed yet."""
    for seam in chosen:
        if (way, seam.name) in kept:
            continue
        if time.monotonic() > end:
            return False
        kept.add(way, seam.name, outcome(way, seam))
    return True


def main() -> int:
    """Print functions x outcomes; 1 if something broke."""
    parser = argparse.ArgumentParser(prog="python -m tests.seams", description=__doc__)
    parser.add_argument("--way", action="append", choices=tuple(WAYS), help="only this way of observing")
    parser.add_argument("--only", default="", help="only functions whose name contains this")
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="every Nth function only")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), metavar="N", help="stop after that long, and go on with the next run"
    )
    parser.add_argument("--again", action="store_true", help="forget the outcomes that are kept")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    logging.getLogger(_torch.TRACE_LOGGER).addHandler(logging.NullHandler())  # as with TORCH_TRACE: what writes that trace can fail too
    file = file_of_this_code()
    if options.again:
        file.unlink(missing_ok=True)
    by_name = {seam.name: seam for seam in seams().values()}
    kept, totals, names = Kept(file), Counter[Kind](), set[str]()
    for way in options.way or WAYS:
        hit = [by_name[name] for name in kept.reached(way, partial(reached_by, way))]
        chosen = [seam for seam in hit if options.only in seam.name][:: options.sample]
        if not fail_each(way, chosen, kept, end):
            failed = sum((way, seam.name) in kept for seam in chosen)
            say(f"{way}: {failed} of {len(chosen)} so far; the next run goes on from here")
            return STOPPED
        found = {seam.name: kept[way, seam.name] for seam in chosen}
        for name, one in found.items():
            if one.kind in BROKEN:
                say(f"  {way}: {name}: {one.kind} {one.detail}")
        counts = Counter(one.kind for one in found.values())
        totals, names = totals + counts, names | {seam.name for seam in chosen}
        say(f"{way}: {len(hit)} reached, {len(chosen)} failed on purpose: {_figures(counts)}")
    broken = sum(count for kind, count in totals.items() if kind in BROKEN)
    injected = f"{sum(totals.values()):,} faults injected into {len(names):,} of {len(by_name):,} functions"
    say(f"{injected}: {_figures(totals)}; {broken} not survived")
    return 1 if broken else 0


def _figures(counts: Counter[Kind]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.most_common())


if __name__ == "__main__":
    sys.exit(main())
