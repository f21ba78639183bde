"""Have every function of the package fail once, under each way of observing a program: `python -m tests.seams`.

For each function that the program reaches: the program's answers are those of PyTorch, the failure is in the capture with its cause, and
the next call works. `--way NAME` and `--only TEXT` choose; `--sample N` takes every Nth.
"""

import argparse
import logging
import sys
from collections import Counter

from ortlens import _torch
from tests.seams.faults import reached, seams
from tests.seams.programs import BROKEN, WAYS, Kind, again, answers, outcome, tidy
from tests.sweep import figures, say


def reached_by(way: str) -> list[str]:
    """The functions of the package that the program reaches."""
    tidy()
    with reached() as codes:
        with WAYS[way]() as watched:
            answers(watched.net, watched.train)
        again(watched.net)
    known = seams()
    return sorted({known[code].name for code in codes if code in known})


def main() -> int:
    """Print functions x outcomes; 1 if something broke."""
    parser = argparse.ArgumentParser(prog="python -m tests.seams", description=__doc__)
    parser.add_argument("--way", action="append", choices=tuple(WAYS), help="only this way of observing")
    parser.add_argument("--only", default="", help="only functions whose name contains this")
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="every Nth function only")
    options = parser.parse_args()
    logging.getLogger(_torch.TRACE_LOGGER).addHandler(logging.NullHandler())  # as with TORCH_TRACE: what writes that trace can fail too
    by_name = {seam.name: seam for seam in seams().values()}
    totals, names = Counter[Kind](), set[str]()
    for way in options.way or WAYS:
        hit = reached_by(way)
        chosen = [name for name in hit if options.only in name][:: options.sample]
        found = {name: outcome(way, by_name[name]) for name in chosen}
        for name, one in found.items():
            if one.kind in BROKEN:
                say(f"  {way}: {name}: {one.kind} {one.detail}")
        counts = Counter(one.kind for one in found.values())
        totals, names = totals + counts, names | set(chosen)
        say(f"{way}: {len(hit)} reached, {len(chosen)} failed on purpose: {figures(counts)}")
    broken = sum(count for kind, count in totals.items() if kind in BROKEN)
    injected = f"{sum(totals.values()):,} faults injected into {len(names):,} of {len(by_name):,} functions"
    say(f"{injected}: {figures(totals)}; {broken} not survived")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
