"""The outcomes of a run that is stopped and goes on later: a file of rows, one for each version of the code."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from tests.seams.faults import PACKAGE
from tests.seams.programs import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FOLDER = Path(__file__).resolve().parents[2] / "build" / "seams"
_REACHED = "reached"


def _sources() -> Iterator[Path]:
    yield from sorted(PACKAGE.rglob("*.py"))
    yield from sorted(Path(__file__).parent.glob("*.py"))


def file_of_this_code() -> Path:
    """Where outcomes are kept: an outcome says nothing about other code."""
    digest = hashlib.sha256()
    for path in _sources():
        digest.update(path.read_bytes())
    return FOLDER / f"{digest.hexdigest()[:12]}.jsonl"


class Kept:
    """Outcomes by way and function, in a file that grows by a line each."""

    def __init__(self, file: Path) -> None:
        """Read what is there; a last line that was not written to its end is no outcome."""
        self._file = file
        self._outcomes: dict[tuple[str, str], Outcome] = {}
        self._reached: dict[str, list[str]] = {}
        for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
            try:
                way, name, kind, detail = json.loads(line)
            except ValueError:
                continue
            if kind == _REACHED:
                self._reached[way] = detail
            else:
                self._outcomes[way, name] = Outcome(kind, detail)

    def __getitem__(self, key: tuple[str, str]) -> Outcome:
        """The outcome of a function under a way."""
        return self._outcomes[key]

    def __contains__(self, key: tuple[str, str]) -> bool:
        """Whether the function failed under that way already."""
        return key in self._outcomes

    def add(self, way: str, name: str, found: Outcome) -> None:
        """Keep an outcome."""
        self._outcomes[way, name] = found
        self._append(way, name, found.kind, found.detail)

    def reached(self, way: str, find: Callable[[], list[str]]) -> list[str]:
        """The functions that the program reaches under a way; found once, so that a run that is stopped often comes to its end."""
        if way not in self._reached:
            self._reached[way] = find()
            self._append(way, "", _REACHED, self._reached[way])
        return self._reached[way]

    def _append(self, *row: object) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8") as stream:
            stream.write(f"\n{json.dumps(row)}")
