"""The layers hold, and the linter that holds them notices a breach: each kind is planted in a copy of the package."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LINTER = Path(sys.executable).with_name("lint-imports")
LAYERS = "Dependencies point one way BROKEN"
READERS = "Reading a capture needs neither torch nor ONNX Runtime BROKEN"

PLANTED = [
    ("analysis/coverage.py", "from ortlens.views import table", LAYERS),
    ("views/__init__.py", "import ortlens.backend", LAYERS),
    ("cli/entry.py", "import ortlens.magic", LAYERS),
    ("trace/records.py", "import torch", READERS),
    ("views/__init__.py", "def f():\n    from onnxscript import ir", READERS),
    ("stray.py", "import json", "stray"),
    ("backend/operators/facts.py", "def f():\n    from ortlens.backend.operators import basics", "No circles of imports BROKEN"),
    ("backend/basis/dtypes.py", "from ortlens.backend.runtime import threads", "The rooms of the backend are layers BROKEN"),
    ("backend/stray.py", "import json", "stray"),
    ("backend/operators/pooling.py", "from ortlens.backend.operators import reductions", "Operator families are layers BROKEN"),
    ("backend/partitioning/support.py", "from ortlens.backend.operators import pooling", "Only the registry knows families BROKEN"),
    ("lens/profiling/kernels.py", "from ortlens.lens.lens import Lens", "The rooms of the lens are layers BROKEN"),
    ("lens/profiling/kernels.py", "from ortlens.backend.runtime import runner", "The backend is observed through one door BROKEN"),
    ("views/wording.py", "from ortlens.views import rendering", "The views are layers BROKEN"),
    ("analysis/coverage.py", "from ortlens.analysis.answers import overview", "The analyses are layers BROKEN"),
    ("analysis/problems/sessions.py", "from ortlens.analysis.problems import kernels", "Rules do not know each other BROKEN"),
]


def lint(folder: Path) -> tuple[int, str]:
    """Check the package in a folder against the contracts beside it."""
    command = [str(LINTER), "--no-cache", "--no-logo", "--config", "pyproject.toml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    """A copy of the package and its contracts, free to be spoilt."""
    shutil.copytree(root / "ortlens", tmp_path / "ortlens", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(root / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_contracts_are_kept(root: Path) -> None:
    status, output = lint(root)
    assert status == 0, output
    assert "0 broken" in output


def test_every_contract_has_a_planted_violation(root: Path) -> None:
    names = re.findall(
        r'^name = "(.+)"$', (root / "pyproject.toml").read_text(encoding="utf-8").partition("[tool.importlinter]")[2], re.MULTILINE
    )
    assert {f"{name} BROKEN" for name in names} == {complaint for _, _, complaint in PLANTED} - {"stray"}


@pytest.mark.parametrize("stray", [False, True])
def test_planted_violations_are_caught(copy: Path, *, stray: bool) -> None:
    """A module without a place is planted apart from the others: what has no place, no contract can judge."""
    planted = [item for item in PLANTED if (item[2] == "stray") is stray]
    for file, line, _ in planted:
        target = copy / "ortlens" / file
        before = target.read_text(encoding="utf-8") if target.exists() else '"""A module without a place."""\n'
        target.write_text(f"{before}\n{line}\n", encoding="utf-8")
    status, output = lint(copy)
    assert status == 1, output
    assert {complaint for _, _, complaint in planted if complaint not in output} == set()
    modules = {"ortlens." + file.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for file, _, _ in planted}
    assert {module for module in modules if not re.search(rf"{module}(?![\w.])", output)} == set(), output
