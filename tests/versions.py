"""Run a part of the suite with other versions of what ortlens needs: `python -m tests.versions [PACKAGE==VERSION ...]`.

Each is installed below `build/versions`, in front of the tested environment, where the output of the tests is kept, too. Prints a
table; what cannot be installed is a row of it, with pip's reason. Torch comes with its libraries, 5 GB per version: it is deleted after
its run, but for `--keep`. `--page` runs nothing and writes docs/versions.md from the output that is kept; what has none was not run.
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
from collections import Counter
from pathlib import Path

from ortlens._versions import SUPPORTED
from ortlens.backend.faults.register import MEASURED

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "versions"
PAGE = ROOT / "docs" / "versions.md"
TORCH = ("2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
# What needs another one comes with it: pandas 2 needs pytz, and pandas 3 no longer takes numpy 1.
PANDAS = "pandas==2.2.* pytz"
OLDEST = ("onnx==1.19.*", "onnx-ir==0.1.16", "onnxscript==0.6.*", PANDAS, f"numpy==1.26.* {PANDAS}", "matplotlib==3.8.*")
REQUIREMENTS = (
    *(f"torch=={version}" for version in TORCH),
    *(f"onnxruntime=={version}" for version in MEASURED),
    *OLDEST,
    *("numpy==2.*", "pandas==3.*", "onnx==1.*"),
)
PART = ("tests/unit/trace/test_frames.py", "tests/hostile/test_onnx_models.py", "tests/integration/test_capture.py")
PART_OF_TORCH = (
    "tests/conformance",
    "tests/unit/lens",
    *(f"tests/integration/test_{name}.py" for name in ("breaks", "break_kinds", "recompile_kinds", "freeze", "capture")),
)
_REFUSED = "cannot be installed"
_COUNT = re.compile(r"(\d+) (failed|passed|skipped|errors?)\b")
_HEAD = """# Versions

Which versions of other packages ortlens runs with, measured by a part of its tests: for torch {part_of_torch}; for the others
{part}. Each package is replaced alone, or with those beside it in the table; the rest is
what `constraints.txt` has. ortlens accepts torch {torch} and onnxruntime {onnxruntime}. Python {python}, {machine}, without a GPU.

"not run" is a version that nobody measured for this page, and no verdict about it.

`make versions` runs all of it, `python -m tests.versions torch==2.14.1` one version, and `python -m tests.versions --page` writes this
page. Torch comes with 5 GB of libraries per version; its part takes two to three minutes on an idle core.

Where tests fail with an older or newer torch, ortlens says less, or other words, because torch does:

- torch 2.9 leaves a function to Python without a word where it is told to skip it, marks a tensor dirty, or lists the values of a
  tensor; those breaks are not recorded. Breaks inside of `with` and `try` are, with the line of the statement, which may differ by one
  or two lines from that of newer versions. It calls autocast one guard, whatever of it changed.
- torch 2.11 fails some of the same tests of breaks and recompiles as torch 2.9, none of the conformance tests.
- onnxruntime 1.24.1 refuses weights of an ONNX model that lie behind a link, as in Hugging Face's cache.
- matplotlib 3.8 calls a newer pyparsing by names that warn, and the tests take each warning for an error.

"""


def environment_with(requirement: str) -> dict[str, str] | None:
    """What a process needs to find another version of a package first; it is installed if it is not there.

    Args:
        requirement: As pip takes it; several have blanks between them.

    Returns:
        Variables of the environment; None where pip has nothing to install for this Python.
    """
    return None if _refusal(requirement) else {**os.environ, "PYTHONPATH": os.pathsep.join([str(_place(requirement)), str(ROOT)])}


def _refusal(requirement: str) -> str:
    """Install it unless it is there. Why pip does not; nothing if it is there."""
    target = _place(requirement)
    if not target.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--only-binary=:all:"]
        pip += [] if requirement.startswith("torch==") else ["--no-deps"]  # torch needs the libraries that it was built with
        fresh = tempfile.mkdtemp(dir=FOLDER)  # a download that fails halfway is not taken for the package
        done = subprocess.run([*pip, "--target", fresh, *requirement.split()], check=False, capture_output=True, text=True)
        if done.returncode:
            shutil.rmtree(fresh)
            reasons = [line.removeprefix("ERROR: ") for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
            return (reasons or [f"pip ended with {done.returncode}"])[0]
        Path(fresh).rename(target)
    return ""


def _place(requirement: str) -> Path:
    return FOLDER / re.sub(r"[^\w.]+", "-", requirement)


def _log(requirement: str) -> Path:
    return _place(requirement).with_name(f"{_place(requirement).name}.log")


def _part(requirement: str) -> tuple[str, ...]:
    return PART_OF_TORCH if requirement.startswith("torch==") else PART


def _title(requirement: str) -> str:
    """The first line of what is kept: what other tests printed is no answer."""
    return f"tests: {' '.join(_part(requirement))}"


def run(requirement: str, *, keep: bool = False) -> bool:
    """Run the part with a version in place of the tested one, and keep its output.

    Args:
        requirement: As pip takes it.
        keep: Whether a torch stays installed.

    Returns:
        Whether all passed.
    """
    refusal = _refusal(requirement)
    if refusal:
        _log(requirement).write_text(f"{_title(requirement)}\n{_REFUSED}: {refusal}\n", encoding="utf-8")
        return False
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow and not serial and not soak", *_part(requirement)]
    environment = environment_with(requirement)
    done = subprocess.run(command, env=environment, cwd=ROOT, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    _log(requirement).write_text(f"{_title(requirement)}\n{done.stdout}", encoding="utf-8")
    if requirement.startswith("torch==") and not keep:
        shutil.rmtree(_place(requirement))
    return not done.returncode


def row(requirement: str) -> str:
    """The row of a version, from the output that is kept.

    Args:
        requirement: As pip takes it.

    Returns:
        A line of Markdown.
    """
    kept = _log(requirement).read_text(encoding="utf-8") if _log(requirement).exists() else ""
    title, *lines = kept.splitlines() or [""]
    if title != _title(requirement):
        is_pinned = requirement in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        return f"| {requirement} | {'pinned: every test runs with it' if is_pinned else 'not run'} | |\n"
    last = lines[-1] if lines else "no output"
    if last.startswith(_REFUSED):
        return f"| {requirement} | {last.replace('|', '/')[:200]} | |\n"
    counts = ", ".join(f"{int(count):,} {what}" for count, what in _COUNT.findall(last))
    names = [line.split(" - ")[0].split(maxsplit=1)[1] for line in lines if line.startswith(("FAILED ", "ERROR "))]
    functions = Counter((name.rpartition("::")[2] or name).partition("[")[0] for name in names)
    failed = ", ".join(f"`{name}`{f' ({count})' if count > 1 else ''}" for name, count in functions.items())
    return f"| {requirement} | {counts or last[:200]} | {failed} |\n"


def page() -> str:
    """The page, from the output that is kept.

    Returns:
        Markdown.
    """
    parts = {name: ", ".join(f"`{path}`" for path in part) for name, part in (("part_of_torch", PART_OF_TORCH), ("part", PART))}
    ranges = {name: str(SUPPORTED[name]) for name in ("torch", "onnxruntime")}
    head = _HEAD.format(**ranges, **parts, python=platform.python_version(), machine=platform.machine())
    return f"{head}| package | tests | failed |\n|---|---|---|\n{''.join(map(row, REQUIREMENTS))}"


def main() -> int:
    """Print a row per version; 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.versions")
    parser.add_argument("requirements", nargs="*", default=REQUIREMENTS, metavar="PACKAGE==VERSION")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--keep", action="store_true", help="leave each torch installed after its run")
    given = parser.parse_args()
    if given.page:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    passed = []
    for requirement in given.requirements:
        passed.append(run(requirement, keep=given.keep))
        sys.stdout.write(row(requirement))
        sys.stdout.flush()
    return int(not all(passed))


if __name__ == "__main__":
    sys.exit(main())
