"""Run a part of the suite with other versions of what ortlens needs: `python -m tests.versions [PACKAGE==VERSION ...]`.

Each is installed below `build/versions`, in front of the tested environment. Prints a table; what cannot be installed is a row of it.
Torch comes with its libraries, 5 GB per version. `--page` writes the table into docs/versions.md as well.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ortlens._versions import SUPPORTED
from ortlens.backend.faults.register import MEASURED

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "versions"
PAGE = ROOT / "docs" / "versions.md"
TORCH = ("2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
OLDEST = ("onnx==1.19.*", "onnx-ir==0.1.16", "onnxscript==0.6.*", "numpy==1.26.*", "pandas==2.2.*", "matplotlib==3.8.*")
REQUIREMENTS = (
    *(f"torch=={version}" for version in TORCH),
    *(f"onnxruntime=={version}" for version in MEASURED),
    *OLDEST,
    *("numpy==2.*", "pandas==3.*", "onnx==1.*"),
)
PART = ("tests/unit/trace/test_frames.py", "tests/hostile/test_onnx_models.py", "tests/integration/test_capture.py")
PART_OF_TORCH = (*PART, "tests/unit/lens", "tests/unit/backend", "tests/integration")
_COUNT = re.compile(r"(\d+) (failed|passed|skipped|errors?)\b")
_HEAD = """# Versions

Which versions of other packages ortlens runs with, measured by a part of its tests: for torch `tests/unit/lens`,
`tests/unit/backend` and `tests/integration`, for the others frames, captures and damaged ONNX models. Each package is replaced
alone; the rest is what `constraints.txt` has. ortlens accepts torch {torch} and onnxruntime {onnxruntime}. Python {python}, {machine}, without a GPU.

`make versions` prints this table, and `python -m tests.versions --page` writes it here; torch comes with 5 GB of libraries per version.
`python -m tests.versions torch==2.15.0` tries one.

{notes}
"""
_NOTES = """Where tests fail with an older or newer torch, ortlens says less, or other words, because torch does:

- torch 2.9 leaves a function to Python without a word where it is told to skip it, marks a tensor dirty, or lists the values of a
  tensor; those breaks are not recorded. Breaks inside of `with` and `try` are, with the line of the statement.
"""


def environment_with(requirement: str) -> dict[str, str] | None:
    """What a process needs to find another version of a package first; it is installed if it is not there.

    Args:
        requirement: As pip takes it.

    Returns:
        Variables of the environment; None where pip has nothing to install for this Python.
    """
    target = FOLDER / re.sub(r"[^\w.]+", "-", requirement)
    if not target.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--only-binary=:all:"]
        pip += [] if requirement.startswith("torch==") else ["--no-deps"]  # torch needs the libraries that it was built with
        fresh = tempfile.mkdtemp(dir=FOLDER)  # a download that fails halfway is not taken for the package
        if subprocess.run([*pip, "--target", fresh, requirement], check=False, capture_output=True).returncode:
            shutil.rmtree(fresh)
            return None
        Path(fresh).rename(target)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(target), str(ROOT)])}


def row(requirement: str) -> tuple[str, bool]:
    """Run the part with a version in place of the tested one.

    Args:
        requirement: As pip takes it.

    Returns:
        A row of the table, and whether all passed.
    """
    environment = environment_with(requirement)
    if environment is None:
        return f"| {requirement} | cannot be installed here | |\n", False
    part = PART_OF_TORCH if requirement.startswith("torch==") else PART
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow and not serial and not soak", *part]
    done = subprocess.run(command, env=environment, cwd=ROOT, check=False, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    counts = ", ".join(f"{int(count):,} {what}" for count, what in _COUNT.findall(lines[-1] if lines else ""))
    failed = [
        line.split(" - ")[0].split()[1].partition("::")[2] or line.split()[1] for line in lines if line.startswith(("FAILED", "ERROR"))
    ]
    said = ", ".join(f"`{name}`" for name in failed) or ("" if counts else (done.stderr.splitlines() or ["no output"])[-1][:200])
    return f"| {requirement} | {counts} | {said} |\n", not done.returncode


def main() -> int:
    """Print a row per version; 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.versions")
    parser.add_argument("requirements", nargs="*", default=REQUIREMENTS, metavar="PACKAGE==VERSION")
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    rows = []
    for requirement in given.requirements:
        rows.append(row(requirement))
        sys.stdout.write(rows[-1][0])
        sys.stdout.flush()
    if given.page:
        ranges = {name: str(SUPPORTED[name]) for name in ("torch", "onnxruntime")}
        head = _HEAD.format(**ranges, notes=_NOTES, python=platform.python_version(), machine=platform.machine())
        PAGE.write_text(f"{head}| package | tests | failed |\n|---|---|---|\n{''.join(text for text, _ in rows)}")
    return int(not all(passed for _, passed in rows))


if __name__ == "__main__":
    sys.exit(main())
