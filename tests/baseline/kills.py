"""Plant each mutant into a copy of the tree, and note which tests fail."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.child import ROOT

_FIRST = 3
"""How many failing tests are noted per mutant; the others are not run."""

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


def plant_each(file: Path) -> int:
    """Plant the mutants that the file has no result of.

    Args:
        file: Of JSON: mutant -> tests that fail. A mutant without any survives.

    Returns:
        1 if a mutant does not fit the tree any more, else 0.
    """
    known: dict[str, list[str]] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    lost = 0
    for room, old, new in json.loads(Path(__file__).with_name("mutants.json").read_text("utf-8")):
        name = f"{old} -> {new}"
        if name in known:
            continue
        found = [path for path in (ROOT / "ortlens").rglob("*.py") if old in path.read_text("utf-8")]
        if len(found) != 1:
            sys.stdout.write(f"in {len(found)} files: {name}\n")
            lost += 1
            continue
        known[name] = _killers(found[0].relative_to(ROOT), old, new, room)
        file.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        sys.stdout.write(f"{'killed' if known[name] else 'SURVIVES'}: {found[0].relative_to(ROOT)}: {name}\n")
        sys.stdout.flush()
    return int(lost > 0)


def _killers(path: Path, old: str, new: str, room: str) -> list[str]:
    """The first tests that fail: those of the room before all others."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        for name in _COPIED:
            source = ROOT / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, tree / name)
        text = (tree / path).read_text("utf-8")
        (tree / path).write_text(text.replace(old, new, 1), encoding="utf-8")
        for chosen in ([f"tests/unit/{room}"], ["tests/unit", "tests/integration", "tests/conformance", "tests/fuzz", "tests/hostile"]):
            options = ["-q", "-n", "2", "-m", "not slow and not serial and not soak", f"--maxfail={_FIRST}", "-p", "no:cacheprovider"]
            command = [sys.executable, "-m", "pytest", *options, *chosen]
            done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False, env=_environment(tree))
            killers = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
            if killers:
                return sorted(set(killers))
            if done.returncode not in (0, 5):  # nothing was chosen, or nothing failed
                return [f"exit status {done.returncode}"]
    return []


def _environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
