"""Run a part of the suite with other versions of what ortlens needs: `python -m tests.versions [PACKAGE==VERSION ...]`.

Each is installed below `build/versions`, in front of the tested environment, where the output of the tests is kept, too. A Python gets
an environment of its own there, by its command on the PATH, and so does another distribution of ONNX Runtime, since two of them are a
mixture. Prints a table; what cannot be installed is a row of it, with the reason.
Torch comes with its libraries, 5 GB per version: it is deleted after its run, as a Python is, but for `--keep`. `--page` runs nothing
and writes docs/versions.md from the output that is kept; a row without any stays as it is on the page.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
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
    *("python==3.12", "python==3.13"),
    *(f"torch=={version}" for version in TORCH),
    *(f"onnxruntime=={version}" for version in MEASURED),
    "onnxruntime-openvino==1.24.1",
    *OLDEST,
    *("numpy==2.*", "pandas==3.*", "onnx==1.*"),
)
PART = ("tests/unit/trace/test_frames.py", "tests/hostile/test_onnx_models.py", "tests/integration/test_capture.py")
_TRACED = tuple(f"tests/integration/test_{name}.py" for name in ("breaks", "break_kinds", "recompile_kinds", "freeze", "capture"))
PART_OF_PYTHON = (*PART[:2], *_TRACED)
PART_OF_TORCH = ("tests/conformance", "tests/unit/lens", *_TRACED)
_PIP = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet")
_REFUSED = "cannot be installed"
_END = re.compile(r"^\d.* in \d+\.\d+s( \(|$)")  # of what pytest prints
_COUNT = re.compile(r"(\d+) (failed|passed|skipped|errors?)\b")
_HEAD = """# Versions

Which versions of other packages ortlens runs with, measured by a part of its tests: for torch {part_of_torch}; for Python
{part_of_python}; for the others
{part}. Each package is replaced alone, or with those beside it in the table; the rest is
what `constraints.txt` has. ortlens accepts torch {torch} and onnxruntime {onnxruntime}. Python {python} where nothing else is named,
{machine}, without a GPU.

"not run" is a version that nobody measured for this page, and no verdict about it.

`make versions` runs all of it, `python -m tests.versions torch==2.14.1` one version, and `python -m tests.versions --page` writes this
page. Torch comes with 5 GB of libraries per version; its part takes two to three minutes on an idle core. `python==3.13` makes an
environment with `python3.13` from the PATH.

Where tests fail with an older or newer torch, ortlens says less, or other words, because torch does:

- torch 2.9 leaves a function to Python without a word where it is told to skip it, marks a tensor dirty, or lists the values of a
  tensor; those breaks are not recorded. Breaks inside of `with` and `try` are, with the line of the statement, which may differ by one
  or two lines from that of newer versions. It calls autocast one guard, whatever of it changed.
- With Python 3.13.0, torch warns that guards may run slower and asks for 3.13.1. Where warnings are errors, Dynamo fails there, with any
  backend.
- torch 2.10, 2.11 and 2.12 fail some of the same tests of breaks and recompiles as torch 2.9. Of the conformance tests, torch 2.10
  fails one about conditions, for a warning of its own while it exports them. With 2.10 and 2.12, no break names the limit of recompiles.
- OpenVINO's own provider ran seven small models (dense, convolutions, attention, an embedding, integers, float16, a sort beside an
  operator that stays in PyTorch): results within 2e-7 of PyTorch's, no value outside the tolerance of `verify`. `lens.kernels`, and
  `nodes` of an ONNX model, name what ran on it and what on the CPU. Its kernel is a whole subgraph, whose nodes `lens.kernels` does not
  list. ONNX Runtime 1.24.1 refused the part with the sort there, which PyTorch computed.
- onnxruntime 1.24.1, OpenVINO's build of it included, refuses weights of an ONNX model that lie behind a link, as in Hugging Face's cache.
- matplotlib 3.8 calls a newer pyparsing by names that warn, and the tests take each warning for an error.

"""


def environment_with(requirement: str) -> dict[str, str] | None:
    """What a process needs to find another version of a package first; it is installed if it is not there."""
    if _refusal(requirement):
        return None
    in_front = [] if _has_own_environment(requirement) else [str(_place(requirement))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*in_front, str(ROOT)])}


def _refusal(requirement: str) -> str:
    """Install it unless it is there. Why that fails; nothing if it is there."""
    target = _place(requirement)
    if target.exists():
        return ""
    FOLDER.mkdir(parents=True, exist_ok=True)
    if _has_own_environment(requirement):
        refusal = _refused_python(requirement) if requirement.startswith("python==") else _refused_distribution(requirement)
        if refusal:
            shutil.rmtree(target, ignore_errors=True)
        return refusal
    pip = [sys.executable, *_PIP, "--only-binary=:all:"]
    pip += [] if requirement.startswith("torch==") else ["--no-deps"]  # torch needs the libraries that it was built with
    fresh = tempfile.mkdtemp(dir=FOLDER)  # a download that fails halfway is not taken for the package
    refusal = _reason([*pip, "--target", fresh, *requirement.split()])
    if refusal:
        shutil.rmtree(fresh)
    else:
        Path(fresh).rename(target)
    return refusal


def _refused_python(requirement: str) -> str:
    """Make an environment with another Python and everything that the tests need, torch first."""
    command = shutil.which(f"python{requirement.removeprefix('python==')}")
    if command is None:
        return "no such Python is on the PATH"
    pins = ROOT / "constraints.txt"
    torch = next(line for line in pins.read_text(encoding="utf-8").splitlines() if line.startswith("torch=="))
    pip = [_interpreter(requirement), *_PIP, "-c", str(pins)]
    steps = (
        [command, "-m", "venv", str(_place(requirement))],
        [*pip, "--upgrade", "pip"],
        [*pip, torch],
        [*pip, torch, "-e", ".[all]", "--group", "test"],
    )
    return next(filter(None, map(_reason, steps)), "")


def _refused_distribution(requirement: str) -> str:
    """Make an environment with links to everything in the tested one but ONNX Runtime, and another distribution of that."""
    venv.create(_place(requirement), with_pip=False)
    (site,) = _place(requirement).glob("lib/python*/site-packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith("onnxruntime"):
            (site / entry.name).symlink_to(entry)
    (pip, *install) = _PIP[1:]
    return _reason([sys.executable, "-m", pip, "--python", _interpreter(requirement), *install, "--no-deps", requirement])


def _reason(command: list[str]) -> str:
    """Run a command of pip. Why it fails; nothing if it does not."""
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    reasons = [line.removeprefix("ERROR: ") for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
    return (reasons or [f"pip ended with {done.returncode}"])[0] if done.returncode else ""


def _has_own_environment(requirement: str) -> bool:
    return requirement.startswith(("python==", "onnxruntime-"))


def _interpreter(requirement: str) -> str:
    return str(_place(requirement) / "bin" / "python") if _has_own_environment(requirement) else sys.executable


def _place(requirement: str) -> Path:
    return FOLDER / re.sub(r"[^\w.]+", "-", requirement)


def _log(requirement: str) -> Path:
    return _place(requirement).with_name(f"{_place(requirement).name}.log")


def _part(requirement: str) -> tuple[str, ...]:
    if requirement.startswith("python=="):
        return PART_OF_PYTHON
    return PART_OF_TORCH if requirement.startswith("torch==") else PART


def _is_large(requirement: str) -> bool:
    """Whether it brings torch."""
    return requirement.startswith(("torch==", "python=="))


def _title(requirement: str) -> str:
    """The first line of what is kept: what other tests printed is no answer."""
    return f"tests: {' '.join(_part(requirement))}"


def run(requirement: str, *, keep: bool = False) -> bool:
    """Run the part with a version in place of the tested one, and keep its output."""
    refusal = _refusal(requirement)
    if refusal:
        _log(requirement).write_text(f"{_title(requirement)}\n{_REFUSED}: {refusal}\n", encoding="utf-8")
        return False
    command = [_interpreter(requirement), "-m", "pytest", "-q", "-m", "not slow and not serial and not soak"]
    printed, codes = [_title(requirement)], set()
    for path in _part(requirement):
        done = subprocess.run(
            [*command, path],
            env=environment_with(requirement),
            cwd=ROOT,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        printed.append(done.stdout)
        codes.add(done.returncode)
    _log(requirement).write_text("\n".join(printed), encoding="utf-8")
    if _is_large(requirement) and not keep:
        shutil.rmtree(_place(requirement))
    return not any(codes)


def row(requirement: str) -> str:
    """The row of a version, from the output that is kept."""
    kept = _log(requirement).read_text(encoding="utf-8") if _log(requirement).exists() else ""
    title, *lines = kept.splitlines() or [""]
    if title != _title(requirement):
        return _row_on_the_page(requirement)
    if lines and lines[-1].startswith(_REFUSED):
        return f"| {requirement} | {lines[-1].replace('|', '/')[:200]} | |\n"
    counts: Counter[str] = Counter()
    ends = [line for line in lines if _END.search(line)]
    for line in ends:
        counts.update({what.rstrip("s") if what == "errors" else what: int(count) for count, what in _COUNT.findall(line)})
    said = ", ".join(f"{counts[what]:,} {what}" for what in ("failed", "error", "passed", "skipped") if counts[what])
    if not ends:
        said = lines[-1].replace("|", "/")[:200] if lines else "no output"
    elif len(ends) < len(_part(requirement)):
        said += f", {len(_part(requirement)) - len(ends)} of {len(_part(requirement))} parts did not end"
    names = [line.split(" - ")[0].split(maxsplit=1)[1] for line in lines if line.startswith(("FAILED ", "ERROR "))]
    functions = Counter((name.rpartition("::")[2] or name).partition("[")[0] for name in names)
    failed = ", ".join(f"`{name}`{f' ({count})' if count > 1 else ''}" for name, count in functions.items())
    return f"| {requirement} | {said} | {failed} |\n"


def _row_on_the_page(requirement: str) -> str:
    """What was measured before, on this machine or another."""
    start = f"| {requirement} |"
    for line in PAGE.read_text(encoding="utf-8").splitlines() if PAGE.exists() else ():
        if line.startswith(start):
            return f"{line}\n"
    is_pinned = requirement in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return f"{start} {'pinned: every test runs with it' if is_pinned else 'not run'} | |\n"


def page() -> str:
    """The page, from the output that is kept."""
    lists = {"part_of_torch": PART_OF_TORCH, "part_of_python": PART_OF_PYTHON, "part": PART}
    parts = {name: ", ".join(f"`{path}`" for path in paths) for name, paths in lists.items()}
    ranges = {name: str(SUPPORTED[name]) for name in ("torch", "onnxruntime")}
    head = _HEAD.format(**ranges, **parts, python=platform.python_version(), machine=platform.machine())
    return f"{head}| package | tests | failed |\n|---|---|---|\n{''.join(map(row, REQUIREMENTS))}"


def main() -> int:
    """Print a row per version; 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.versions")
    parser.add_argument("requirements", nargs="*", default=REQUIREMENTS, metavar="PACKAGE==VERSION")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--keep", action="store_true", help="leave each torch and each Python installed after its run")
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
