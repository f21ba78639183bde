"""Have every function of the package fail once, under each way of observing a program: `python -m tests.seams`.

For each function that the program reaches: the program's answers are those of PyTorch, the failure is in the capture with its cause, and
the next call works. `--way NAME` and `--only TEXT` choose; `--sample N` takes every Nth.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter

from ortlens import _torch
from tests.seams.faults import Seam, reached, seams
from tests.seams.programs import BROKEN, WAYS, again, answers, outcome, tidy


def say(line: str) -> None:
    """Write a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def reached_by(way: str) -> list[Seam]:
    """The functions of the package that the program reaches.

    Args:
        way: How it is observed.

    Returns:
        By name.
    """
    tidy()
    with reached() as codes:
        with WAYS[way]() as watched:
            answers(watched.net, watched.train)
        again(watched.net)
    known = seams()
    return sorted((known[code] for code in codes if code in known), key=lambda seam: seam.name)


def main() -> int:
    """Print functions x outcomes; 1 if something broke."""
    parser = argparse.ArgumentParser(prog="python -m tests.seams", description=__doc__)
    parser.add_argument("--way", action="append", choices=tuple(WAYS), help="only this way of observing")
    parser.add_argument("--only", default="", help="only functions whose name contains this")
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="every Nth function only")
    options = parser.parse_args()
    logging.getLogger(_torch.TRACE_LOGGER).addHandler(logging.NullHandler())  # as with TORCH_TRACE: what writes that trace can fail too
    broken = 0
    say(f"{len(seams())} functions")
    for way in options.way or WAYS:
        hit = reached_by(way)
        chosen = [seam for seam in hit if options.only in seam.name][:: options.sample]
        counts: Counter[str] = Counter()
        started = time.monotonic()
        for seam in chosen:
            found = outcome(way, seam)
            counts[found.kind] += 1
            if found.kind in BROKEN:
                broken += 1
                say(f"  {way}: {seam.name}: {found.kind} {found.detail}")
        figures = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
        say(f"{way}: {len(hit)} reached, {len(chosen)} failed on purpose in {time.monotonic() - started:.0f} s: {figures}")
    say("every failure survived" if not broken else f"{broken} failures not survived")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
