"""Damage captures, journals and ONNX models at random and load them: `python -m tests.hostile [--files N] [--models N]`.

A load gives a `CaptureError` or a right capture, whose summary has no control character, in bounded time. The seed of each file is its
number: `--only N` repeats one. A model is explained, in a process of its own: ONNX Runtime may end it.
"""

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.hostile import models
from tests.hostile.material import originals
from tests.hostile.mutations import verdict_of
from tests.sweep import figures, say


def main() -> int:
    """Print figures; 1 if there was a defect."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--files", type=int, default=100_000, metavar="N", help="how many")
    parser.add_argument("--only", type=int, metavar="N", help="the file of this number alone")
    parser.add_argument("--models", type=int, default=2_000, metavar="N", help="how many ONNX models")
    parser.add_argument("--judge", nargs=3, metavar=("BEGIN", "END", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.judge:
        begin, end, folder = options.judge
        models.judge_each(range(int(begin), int(end)), Path(folder))
        return 0
    return _captures(options.files, options.only) | (_models(options.models) if options.only is None else 0)


def _models(count: int) -> int:
    counts, defects = models.hunt(count)
    for line in defects:
        say(f"  model {line}")
    say(f"{sum(counts.values()):,} models: {figures(counts)}; {len(defects)} defects")
    return 1 if defects else 0


def _captures(files: int, only: int | None) -> int:
    known, counts, defects = originals(), Counter[str](), 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(files) if only is None else [only]:
            verdict = verdict_of(number, known, Path(folder) / "run.ortlens")
            counts[verdict.kind] += 1
            if verdict.is_defect:
                defects += 1
                say(f"  {number}: {verdict.kind} {verdict.detail}")
    say(f"{sum(counts.values()):,} files: {figures(counts)}; {defects} defects")
    return 1 if defects else 0


if __name__ == "__main__":
    sys.exit(main())
