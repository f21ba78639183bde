"""Adds up the closing lines of several runs of pytest, for CI, which reads one: `python tests/closing_line.py LOG...`."""

import re
import sys
from collections import Counter
from pathlib import Path

ORDER = ("failed", "passed", "skipped", "xfailed", "xpassed", "errors")
_COUNT = re.compile(r"(\d+) (failed|passed|skipped|xfailed|xpassed|errors?)\b")
_CLOSING = re.compile(rf"^=* ?(?=.*{_COUNT.pattern}).* in (?P<seconds>[\d.]+)s\b.*$", flags=re.MULTILINE)


def closing_line(logs: list[str]) -> str:
    """Add up what the runs counted."""
    counts: Counter[str] = Counter()
    seconds = 0.0
    for log in logs:
        ends = list(_CLOSING.finditer(log))
        if not ends:
            counts["errors"] += 1
            continue
        seconds += float(ends[-1]["seconds"])
        for number, word in _COUNT.findall(ends[-1][0]):
            counts["errors" if word == "error" else word] += int(number)
    counted = ", ".join(f"{counts[word]} {word}" for word in ORDER if counts[word] or word == "passed")
    return f"{counted} in {seconds:.2f}s"


if __name__ == "__main__":
    print(closing_line([Path(name).read_text(encoding="utf-8") for name in sys.argv[1:]]))  # noqa: T201 - a command prints
