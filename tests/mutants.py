"""Plant each mutant into a copy of the tree, and note which tests fail: `python -m tests.mutants FOLDER`.

Tried are the tests that run the line, by the coverage of each test; FOLDER keeps that, and the results.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from coverage import CoverageData

from tests.sweep import ROOT, say

_FIRST = 3
"""How many failing tests are noted per mutant; the others are not run."""
_SOON, _MOST = 60, 400
"""How many tests are run per mutant: these first, and all where none of them fails."""

_COPIED = (
    "ortlens",
    "tests",
    "benchmarks",
    "notebooks",
    "docs",
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
    "Makefile",
    "constraints.txt",
)


def plant_each(folder: Path) -> int:
    """Plant the mutants that have no result in `kills.json`. The result is 1 if a mutant does not fit the tree any more, else 0.

    The file is JSON: mutant -> tests that fail. A mutant without any survives.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "kills.json"
    lines = _lines_by_test(file.with_name("coverage"))
    known: dict[str, list[str]] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    lost = 0
    for room, old, new in json.loads((ROOT / "tests" / "data" / "mutants.json").read_text("utf-8")):
        name = f"{old} -> {new}"
        if name in known:
            continue
        found = [path for path in (ROOT / "ortlens").rglob("*.py") if old in path.read_text("utf-8")]
        if len(found) != 1:
            say(f"in {len(found)} files: {name}")
            lost += 1
            continue
        tests = _tests_of(lines, found[0], old) or [f"tests/unit/{room}"]
        shares = (tests[:_SOON], tests[_SOON:])
        known[name] = next((failed for share in shares if share and (failed := _killers(found[0].relative_to(ROOT), old, new, share))), [])
        file.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        say(f"{'killed' if known[name] else 'SURVIVES'}: {found[0].relative_to(ROOT)}: {name}")
    return int(lost > 0)


def _lines_by_test(file: Path) -> CoverageData:
    """Read which test runs which lines; all tests run once for it, in a quarter of an hour, unless that is known."""
    if not file.is_file():
        options = ["-q", "-n", "2", "-m", "not slow and not serial and not soak", "--cov", "--cov-context=test", "--cov-report="]
        environment = {**_environment(ROOT), "COVERAGE_FILE": str(file.resolve())}
        subprocess.run([sys.executable, "-m", "pytest", *options], cwd=ROOT, check=False, env=environment, stdout=subprocess.DEVNULL)
    data = CoverageData(str(file))
    data.read()
    return data


def _tests_of(data: CoverageData, path: Path, old: str) -> list[str]:
    """List the tests that run a line, unit tests first; none for what runs when the module is imported."""
    text = path.read_text("utf-8")
    line = text[: text.index(old)].count("\n") + 1
    contexts = data.contexts_by_lineno(str(path.relative_to(ROOT))).get(line, [])
    return sorted({context.partition("|")[0] for context in contexts if context}, key=lambda test: ("/unit/" not in test, test))[:_MOST]


def _killers(path: Path, old: str, new: str, tests: list[str]) -> list[str]:
    """Plant a mutant, run tests, and return the first that fail."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        for name in _COPIED:
            source = ROOT / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, tree / name)
        text = (tree / path).read_text("utf-8")
        (tree / path).write_text(text.replace(old, new, 1), encoding="utf-8")
        options = ["-q", "-n", "2", f"--maxfail={_FIRST}", "-p", "no:cacheprovider"]
        command = [sys.executable, "-m", "pytest", *options, *tests]
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False, env=_environment(tree))
        killers = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
        return sorted(set(killers)) if killers or done.returncode == 0 else [f"exit status {done.returncode}"]


def _environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}


if __name__ == "__main__":
    sys.exit(plant_each(Path(sys.argv[1])))
