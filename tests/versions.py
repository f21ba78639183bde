"""Run a short part of the suite with other versions of onnxruntime, numpy and pandas: `python -m tests.versions [PACKAGE==VERSION ...]`.

Each is installed alone below `build/versions`, in front of the tested environment. Prints a table; what cannot be installed is a row of it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ortlens.backend.faults.register import MEASURED

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "versions"
REQUIREMENTS = (*(f"onnxruntime=={version}" for version in MEASURED), "numpy==1.26.*", "numpy==2.*", "pandas==2.*", "pandas==3.*")
PART = ("tests/unit/trace/test_frames.py", "tests/hostile/test_onnx_models.py", "tests/integration/test_capture.py")


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
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--only-binary=:all:"]
        fresh = tempfile.mkdtemp(dir=FOLDER)  # a download that fails halfway is not taken for the package
        if subprocess.run([*pip, "--target", fresh, requirement], check=False, capture_output=True).returncode:
            shutil.rmtree(fresh)
            return None
        Path(fresh).rename(target)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(target), str(ROOT)])}


def outcome(requirement: str) -> tuple[str, bool]:
    """Run the part with a version in place of the tested one.

    Args:
        requirement: As pip takes it.

    Returns:
        What became of it, and whether it passed.
    """
    environment = environment_with(requirement)
    if environment is None:
        return "cannot be installed here", False
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow and not serial", *PART]
    done = subprocess.run(command, env=environment, cwd=ROOT, check=False, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    said = (done.stdout.splitlines() or done.stderr.splitlines()[-1:] or ["no output"])[-1]
    return "; ".join([said, *lines])[:600], not done.returncode


def main() -> int:
    """Print a row per version; 1 if one failed."""
    results = []
    for requirement in sys.argv[1:] or REQUIREMENTS:
        said, passed = outcome(requirement)
        results.append(passed)
        sys.stdout.write(f"| {requirement} | {'passes' if passed else 'fails'} | {said} |\n")
        sys.stdout.flush()
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())
