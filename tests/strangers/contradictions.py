"""What contradicts itself on one screen, whatever the program."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from ortlens import Lens
from tests.same_figures import contradicting_figures

_TABLE = re.compile(r"(?:see (?:the )?table |lens\.)(breaks|fallbacks|recompiles|kernels|sessions|partitions|nodes|numerics)\b")


def contradictions(lens: Lens) -> list[str]:
    """List what one screen says in two ways, and what it refers to that is not there."""
    return [*_settings(lens), *_absent(lens), *contradicting_figures(lens)]


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
