"""How large each part of the project is: `python tests/packaging/budgets.py` writes the numbers that went down into `budgets.toml`.

Code is every line that is not blank, a comment or a docstring; of a page of the documentation, every line that is not blank. The package is
counted as a whole, by folder, and by folder within that; the tests by folder.
"""

import ast
import re
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
BUDGETS = ROOT / "tests" / "packaging" / "budgets.toml"
PARTS = {"ortlens": ("py", 2), "tests": ("py", 1), "frontend/src": ("js css", 0), "docs": ("md py", 0)}
"""Part -> the suffixes that count, and how deep its folders have rows of their own."""


class Size(NamedTuple):
    """The size of a folder with all that it holds.

    Attributes:
        lines: Lines of code.
        files: Files with code.
    """

    lines: int
    files: int


def measured(root: Path = ROOT) -> dict[str, Size]:
    """Measure each part, and its folders, by their paths."""
    rows: dict[str, list[int]] = {}
    for part, (suffixes, depth) in PARTS.items():
        for path in sorted((root / part).rglob("*")):
            if path.suffix[1:] in suffixes.split():
                lines = code_lines(path.read_text(encoding="utf-8"), path.suffix)
                folders = path.relative_to(root / part).parent.parts[:depth]
                for length in range(len(folders) + 1):
                    row = rows.setdefault("/".join((part, *folders[:length])), [0, 0])
                    row[0] += lines
                    row[1] += 1
    return {name: Size(*row) for name, row in sorted(rows.items())}


def code_lines(text: str, suffix: str) -> int:
    """Count the lines of code in a source text."""
    if suffix in {".js", ".css"}:
        text = re.sub(r"^[ \t]*(//.*|/\*(?s:.*?)\*/[ \t]*)$", "", text, flags=re.MULTILINE)
    lines = [line.strip() for line in text.splitlines()]
    if suffix != ".py":
        return sum(map(bool, lines))
    alone = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    docstrings = {number for node in alone if isinstance(node.value, str) for number in range(node.lineno, (node.end_lineno or 0) + 1)}
    return sum(bool(line) and not line.startswith("#") and number not in docstrings for number, line in enumerate(lines, 1))


def read(text: str) -> tuple[dict[str, Size], dict[str, dict[str, list[int]]]]:
    """Read the budgets, and what was granted: title of a piece of work -> part -> lines and files."""
    content = tomllib.loads(text)
    return {name: Size(*row) for name, row in content["rooms"].items()}, content.get("granted", {})


def own(rows: dict[str, Size]) -> dict[str, Size]:
    """Take from each folder what its folders with rows of their own hold."""
    made = {name: [*row] for name, row in rows.items()}
    for name, row in rows.items():
        parent = name.rpartition("/")[0]
        if parent in made:
            made[parent] = [whole - part for whole, part in zip(made[parent], row, strict=True)]
    return {name: Size(*row) for name, row in made.items()}


def exceeded(sizes: dict[str, Size], budgets: dict[str, Size]) -> list[str]:
    """List what is larger than its budget, or has none."""
    found = [f"{name}: has no budget" for name in sizes if name not in budgets]
    most = own(budgets)
    for name, size in own(sizes).items():
        pairs = zip(Size._fields, size, most.get(name, size), strict=True)
        over = [f"{now:,} {what} for {least:,}" for what, now, least in pairs if now > least]
        found += [f"{name}: {', '.join(over)}"] if over else []
    return found


def raised(before: str, after: str) -> list[str]:
    """List what went up by more than went down elsewhere in the same part, or was granted in the same change."""
    (old, granted), (new, granting) = read(before), read(after)
    fresh = [grant for title, grant in granting.items() if title not in granted]
    found = [f"{name}: its folders have more than it has itself" for name, size in own(new).items() if min(size) < 0]
    for part in PARTS:
        for place, what in enumerate(Size._fields):
            grown = new.get(part, (0, 0))[place] - old.get(part, (0, 0))[place]
            allowed = sum(grant.get(part, (0, 0))[place] for grant in fresh)
            found += [f"{part}: {grown:,} {what} more, {allowed:,} granted"] if grown > allowed else []
    return found


def lowered(text: str, sizes: dict[str, Size]) -> str:
    """Write the sizes that are below their budgets into the text of the budgets."""
    for name, budget in read(text)[0].items():
        size = sizes.get(name)
        least = f'"{name}" = [{min(budget.lines, size.lines)}, {min(budget.files, size.files)}]\n' if size else ""
        text = re.sub(rf'^"{re.escape(name)}" = .*\n', least, text, flags=re.MULTILINE)
    return text


if __name__ == "__main__":
    BUDGETS.write_text(lowered(BUDGETS.read_text(encoding="utf-8"), measured()), encoding="utf-8")
