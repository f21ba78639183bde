"""What contradicts itself on one screen, whatever the program."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from ortlens import Lens
from ortlens.analysis.answers.overview import break_occurrences
from ortlens.views.tiles import tile_sentence, tiles_of

_TABLE = re.compile(r"(?:see (?:the )?table |lens\.)(breaks|fallbacks|recompiles|kernels|sessions|partitions|nodes|numerics)\b")
_COUNTS = {"Graph breaks": re.compile(r"(\d+|no) graph breaks?"), "Recompiles": re.compile(r"(\d+|no) recompiles?\b")}
_OPERATORS = re.compile(r"(\d+) of (\d+) (?:compute nodes|operators)")
_TIME = re.compile(r"(\d[\d.,]*) (ns|µs|ms|s)\b")


def contradictions(lens: Lens) -> list[str]:
    """List what one screen says in two ways, and what it refers to that is not there."""
    return [*_settings(lens), *_absent(lens), *_counts(lens), *_times(lens.summary())]


def _settings(lens: Lens) -> Iterator[str]:
    """Settings that are to have two values, and advice that is given twice."""
    values: dict[str, set[str]] = defaultdict(set)
    for line in (line for settings in lens.actions.settings for line in settings):
        for node in ast.walk(ast.parse(line)):
            if isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name):
                values[ast.unparse(node.targets[0])].add(ast.unparse(node.value))
            if isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    values[ast.unparse(key) if key else ""].add(ast.unparse(value))
    yield from (f"{name} is to be {' and '.join(sorted(held))}" for name, held in values.items() if len(held) > 1)
    said = [do for do in lens.actions.do if do]
    yield from (f"{said.count(do)} actions say {do[:60]!r}" for do in dict.fromkeys(said) if said.count(do) > 1)


def _absent(lens: Lens) -> Iterator[str]:
    """References to frames without rows, to breaks where there are none, and to lines beyond the end of a file."""
    for row in lens.actions.to_dict("records"):
        do, file, line = str(row["do"]), row["file"], row["line"]
        yield from (f"refers to the empty table {name}" for name in set(_TABLE.findall(do)) if getattr(lens, name).empty)
        if "graph break" in do and lens.breaks.empty:
            yield "refers to a graph break, and there is none"
        if isinstance(file, str) and not 0 < line <= len(Path(file).read_text(encoding="utf-8").splitlines()):
            yield f"there is no line {line} in {file}"


def _counts(lens: Lens) -> Iterator[str]:
    """Counts of the summary and the tiles against those of the frames."""
    capture, whole = lens.captured(), lens.summary()
    text = " ".join(tile_sentence(tile) for tile in tiles_of(capture))
    rows = {"Graph breaks": {len(lens.breaks), break_occurrences(capture)}, "Recompiles": {len(lens.recompiles)}}
    for name, form in _COUNTS.items():
        said = {0 if count == "no" else int(count) for count in form.findall(text)}
        if said - rows[name]:
            yield f"{name}: {sorted(said)} in the tiles, {sorted(rows[name])} rows"
        if name in whole and (f"{name:18}none" in whole) != (0 in rows[name]):
            yield f"{name}: other in the summary than {sorted(rows[name])} rows"
    pairs = sorted(set(_OPERATORS.findall(" ".join(whole.split()))))
    if len(pairs) > 1:
        yield f"operators: {' and '.join(map(' of '.join, pairs))}"


def _times(summary: str) -> Iterator[str]:
    """The time of a call in tile and summary."""
    lines = (next((line for line in summary.splitlines() if line.startswith(label)), "") for label in ("Speed", "Time per call"))
    tile, call = map(_TIME.search, lines)
    if tile and call and tile[0] != call[0]:
        yield f"a call takes {tile[0]} in the tile, {call[0]} in the summary"
