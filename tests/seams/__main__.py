"""Have every function of the package fail once, under each way of observing a program: `python -m tests.seams`.

For each function that the program reaches: the program's answers are those of PyTorch, the failure is in the capture with its cause, and
the next call works. `--way NAME` and `--only TEXT` choose; `--sample N` takes every Nth. Outcomes are kept in `build/seams` for as long as
the code is the same: a run that was stopped goes on where it was. `--seconds N` stops it, with exit status 3; `--again` begins anew.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import logging
import sys
import time
from collections import Counter
from pathlib import Path

from ortlens import _torch
from tests.seams.faults import PACKAGE, reached, seams
from tests.seams.programs import BROKEN, WAYS, Kind, Outcome, again, answers, outcome, tidy

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


def file_of_this_code() -> Path:
    """Where outcomes are kept: an outcome says nothing about other code."""
    digest = hashlib.sha256()
    for path in (*sorted(PACKAGE.rglob("*.py")), *sorted(Path(__file__).parent.glob("*.py"))):
        digest.update(path.read_bytes())
    return Path(__file__).resolve().parents[2] / "build" / "seams" / f"{digest.hexdigest()[:12]}.jsonl"


def kept_in(file: Path) -> dict[tuple[str, str], Outcome]:
    """Outcomes by way and function; a last line that was not written to its end is no outcome."""
    kept = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        with contextlib.suppress(ValueError):
            way, name, kind, detail = json.loads(line)
            kept[way, name] = Outcome(kind, detail)
    return kept


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
    file.parent.mkdir(parents=True, exist_ok=True)
    by_name = {seam.name: seam for seam in seams().values()}
    kept, totals, names = kept_in(file), Counter[Kind](), set[str]()
    for way in options.way or WAYS:
        hit = reached_by(way)
        chosen = [name for name in hit if options.only in name][:: options.sample]
        for name in chosen:
            if (way, name) in kept:
                continue
            if time.monotonic() > end:
                say(f"{way}: {sum((way, each) in kept for each in chosen)} of {len(chosen)} so far; the next run goes on from here")
                return STOPPED
            one = kept[way, name] = outcome(way, by_name[name])
            with file.open("a", encoding="utf-8") as stream:
                stream.write(f"\n{json.dumps([way, name, one.kind, one.detail])}")
        found = {name: kept[way, name] for name in chosen}
        for name, one in found.items():
            if one.kind in BROKEN:
                say(f"  {way}: {name}: {one.kind} {one.detail}")
        counts = Counter(one.kind for one in found.values())
        totals, names = totals + counts, names | set(chosen)
        say(f"{way}: {len(hit)} reached, {len(chosen)} failed on purpose: {_figures(counts)}")
    broken = sum(count for kind, count in totals.items() if kind in BROKEN)
    injected = f"{sum(totals.values()):,} faults injected into {len(names):,} of {len(by_name):,} functions"
    say(f"{injected}: {_figures(totals)}; {broken} not survived")
    return 1 if broken else 0


def _figures(counts: Counter[Kind]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.most_common())


if __name__ == "__main__":
    sys.exit(main())
