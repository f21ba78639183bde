"""What the product does today, as data that a rewrite is held against.

`python -m tests.baseline record FOLDER` writes it, one file per part; `compare FOLDER` makes it again on the changed tree and prints
what differs, with exit status 1; `kills FOLDER` plants each mutant of `mutants.json` into a copy of the tree and notes which tests fail.
`--part` chooses. Ratios of times are printed beside each other, never judged.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.baseline import kills, parts
from tests.sweep import say

_SHOWN = 40
"""Differences printed per part."""


def main() -> int:
    """Record, compare or plant."""
    parser = argparse.ArgumentParser(prog="python -m tests.baseline", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", choices=("record", "compare", "kills"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--part", action="append", choices=tuple(parts.PARTS), help="only this part")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.what == "kills":
        return kills.plant_each(given.folder / "kills.json")
    differing = 0
    for name in given.part or parts.PARTS:
        began = time.monotonic()
        file = given.folder / f"{name}.json"
        if given.what == "record":
            made = parts.PARTS[name](given.folder, fresh=True)
            file.write_text(json.dumps(made, indent=1, sort_keys=True, default=str) + "\n", encoding="utf-8")
            say(f"{name}: {len(made)} entries, {time.monotonic() - began:.0f} s")
            continue
        before = json.loads(file.read_text("utf-8"))
        after = json.loads(json.dumps(parts.PARTS[name](given.folder, fresh=False), default=str))
        found = list(differences(before, after))
        say(f"{name}: {len(before)} entries, {len(found)} differences, {time.monotonic() - began:.0f} s")
        for line in found[:_SHOWN]:
            say(f"  {line}")
        differing += len(found) if name != "ratios" else 0
    return int(differing > 0)


def differences(before: Any, after: Any, path: str = "") -> Iterator[str]:  # noqa: ANN401 - any JSON
    """Compare two pieces of JSON."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            yield from differences(before.get(key, "(nothing)"), after.get(key, "(nothing)"), f"{path}/{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for place, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from differences(one, other, f"{path}[{place}]")
    elif before != after:
        yield f"{path}: {str(before)[:200]!r} -> {str(after)[:200]!r}"


if __name__ == "__main__":
    sys.exit(main())
