"""Run a part of the suite with other versions of what ortlens needs: `python -m tests.versions [PACKAGE==VERSION ...]`.

Each is installed below `build/versions`, in front of the tested environment, where the output of the tests is kept, too. Prints a
table; what cannot be installed is a row of it. Torch comes with its libraries, 5 GB per version. `--page` runs nothing and writes
docs/versions.md from the output that is kept.
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
PART_OF_TORCH = ("tests/unit/lens", "tests/unit/backend", "tests/integration")
_COUNT = re.compile(r"(\d+) (failed|passed|skipped|errors?)\b")
_HEAD = """# Versions

Which versions of other packages ortlens runs with, measured by a part of its tests: for torch `tests/unit/lens`,
`tests/unit/backend` and `tests/integration`, for the others frames, captures and damaged ONNX models. Each package is replaced
alone; the rest is what `constraints.txt` has. ortlens accepts torch {torch} and onnxruntime {onnxruntime}. Python {python},
{machine}, without a GPU.

`make versions` runs all of it, `python -m tests.versions torch==2.15.0` one version, and `python -m tests.versions --page` writes this
page. Torch comes with 5 GB of libraries per version and takes a quarter of an hour.

Where tests fail with an older or newer torch, ortlens says less, or other words, because torch does:

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
    target = _place(requirement)
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


def _place(requirement: str) -> Path:
    return FOLDER / re.sub(r"[^\w.]+", "-", requirement)


def _log(requirement: str) -> Path:
    return _place(requirement).with_name(f"{_place(requirement).name}.log")


def run(requirement: str) -> bool:
    """Run the part with a version in place of the tested one, and keep its output.

    Args:
        requirement: As pip takes it.

    Returns:
        Whether all passed.
    """
    environment = environment_with(requirement)
    if environment is None:
        _log(requirement).unlink(missing_ok=True)
        return False
    part = PART_OF_TORCH if requirement.startswith("torch==") else PART
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow and not serial and not soak", *part]
    done = subprocess.run(command, env=environment, cwd=ROOT, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    _log(requirement).write_text(done.stdout)
    return not done.returncode


def row(requirement: str) -> str:
    """The row of a version, from the output that is kept.

    Args:
        requirement: As pip takes it.

    Returns:
        A line of Markdown.
    """
    if not _log(requirement).exists():
        return f"| {requirement} | cannot be installed here | |\n"
    lines = _log(requirement).read_text().splitlines()
    counts = ", ".join(f"{int(count):,} {what}" for count, what in _COUNT.findall(lines[-1] if lines else ""))
    names = [line.split(" - ")[0].split(maxsplit=1)[1] for line in lines if line.startswith(("FAILED ", "ERROR "))]
    failed = ", ".join(f"`{name.rpartition('::')[2] or name}`" for name in names)
    return f"| {requirement} | {counts or (lines or ['no output'])[-1][:200]} | {failed} |\n"


def main() -> int:
    """Print a row per version; 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.versions")
    parser.add_argument("requirements", nargs="*", default=REQUIREMENTS, metavar="PACKAGE==VERSION")
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    if given.page:
        ranges = {name: str(SUPPORTED[name]) for name in ("torch", "onnxruntime")}
        head = _HEAD.format(**ranges, python=platform.python_version(), machine=platform.machine())
        PAGE.write_text(f"{head}| package | tests | failed |\n|---|---|---|\n{''.join(map(row, REQUIREMENTS))}")
        return 0
    passed = []
    for requirement in given.requirements:
        passed.append(run(requirement))
        sys.stdout.write(row(requirement))
        sys.stdout.flush()
    return int(not all(passed))


if __name__ == "__main__":
    sys.exit(main())
