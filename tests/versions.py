"""Run a part of the suite with other versions of what ortlens needs: `python -m tests.versions [PACKAGE==VERSION ...]`.

Each is installed below `build/versions`, in front of the tested environment, where the output of the tests is kept, too. A Python gets
an environment of its own there, by its command on the PATH. Prints each result and writes it into docs/data/versions.json; what cannot be
installed has the reason there.
Torch comes with its libraries, 5 GB per version: it is deleted after its run, as a Python is, but for `--keep`.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ortlens.studies.environments import install, pip_refusal, place_of
from tests.faults.register import MEASURED
from tests.figures import read, write

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "versions"
TORCH = ("2.13.0", "2.14.1", "2.15.0")
# What needs another one comes with it: pandas 2 needs pytz, and pandas 3 no longer takes numpy 1.
PANDAS = "pandas==2.2.* pytz"
OLDEST = ("onnx==1.22.*", "onnx-ir==0.2.0", "onnxscript==0.7.0", PANDAS, f"numpy==1.26.* {PANDAS}")
REQUIREMENTS = (
    *("python==3.12", "python==3.13"),
    *(f"torch=={version}" for version in TORCH),
    *(f"onnxruntime=={version}" for version in MEASURED),
    *OLDEST,
    *("numpy==2.*", "pandas==3.*", "onnx==1.*"),
)
PART = ("tests/unit/trace/test_schema.py", "tests/hostile/test_onnx_models.py", "tests/integration/test_capture.py")
_TRACED = tuple(f"tests/integration/test_{name}.py" for name in ("breaks", "break_kinds", "recompile_kinds", "freeze", "capture"))
PART_OF_PYTHON = (*PART[:2], *_TRACED)
PART_OF_TORCH = ("tests/conformance", "tests/unit/lens", *_TRACED)
_PIP = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet")
_END = re.compile(r"^\d.* in \d+\.\d+s( \(|$)")  # of what pytest prints
_COUNT = re.compile(r"(\d+) (failed|passed|skipped|errors?)\b")


def environment_with(requirement: str) -> dict[str, str] | None:
    """What a process needs to find another version of a package first; it is installed if it is not there."""
    if _refusal(requirement):
        return None
    in_front = [] if _is_python(requirement) else [str(_place(requirement))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*in_front, str(ROOT)])}


def _refusal(requirement: str) -> str:
    """Install it unless it is there. Why that fails; nothing if it is there."""
    target = _place(requirement)
    if not _is_python(requirement):
        return install(requirement, target)
    if target.exists():
        return ""
    FOLDER.mkdir(parents=True, exist_ok=True)
    if refusal := _refused_python(requirement):
        shutil.rmtree(target, ignore_errors=True)
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
    return next(filter(None, (pip_refusal(step, ROOT) for step in steps)), "")


def _is_python(requirement: str) -> bool:
    return requirement.startswith("python==")


def _interpreter(requirement: str) -> str:
    return str(_place(requirement) / "bin" / "python") if _is_python(requirement) else sys.executable


def _place(requirement: str) -> Path:
    return place_of(requirement, FOLDER)


def _log(requirement: str) -> Path:
    return _place(requirement).with_name(f"{_place(requirement).name}.log")


def _part(requirement: str) -> tuple[str, ...]:
    if _is_python(requirement):
        return PART_OF_PYTHON
    return PART_OF_TORCH if requirement.startswith("torch==") else PART


def _is_large(requirement: str) -> bool:
    """Whether it brings torch."""
    return requirement.startswith(("torch==", "python=="))


def run(requirement: str, *, keep: bool = False) -> dict[str, Any]:
    """Run the part with a version in place of the tested one, and keep its output."""
    refusal = _refusal(requirement)
    if refusal:
        return {"note": f"cannot be installed: {refusal}"[:200]}
    command = [_interpreter(requirement), "-m", "pytest", "-q", "-m", "not slow and not serial and not soak"]
    printed = []
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
    _log(requirement).write_text("\n".join(printed), encoding="utf-8")
    if _is_large(requirement) and not keep:
        shutil.rmtree(_place(requirement))
    return _result("\n".join(printed).splitlines(), len(printed))


def _result(lines: Sequence[str], parts: int) -> dict[str, Any]:
    """Count outcomes and failed tests in what pytest printed; a note when it did not end."""
    counts: Counter[str] = Counter()
    ends = [line for line in lines if _END.search(line)]
    for line in ends:
        counts.update({what.rstrip("s") if what == "errors" else what: int(count) for count, what in _COUNT.findall(line)})
    result: dict[str, Any] = {what: counts[what] for what in ("failed", "error", "passed", "skipped") if counts[what]}
    if not ends:
        result["note"] = lines[-1][:200] if lines else "no output"
    elif len(ends) < parts:
        result["note"] = f"{parts - len(ends)} of {parts} parts did not end"
    names = [line.split(" - ")[0].split(maxsplit=1)[1] for line in lines if line.startswith(("FAILED ", "ERROR "))]
    functions = Counter((name.rpartition("::")[2] or name).partition("[")[0] for name in names)
    return {**result, "tests": functions} if functions else result


def main() -> int:
    """Print and write the result of each version; 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.versions")
    parser.add_argument("requirements", nargs="*", default=REQUIREMENTS, metavar="PACKAGE==VERSION")
    parser.add_argument("--keep", action="store_true", help="leave each torch and each Python installed after its run")
    given = parser.parse_args()
    failed = False
    for requirement in given.requirements:
        result = run(requirement, keep=given.keep)
        failed |= bool({"failed", "error", "note"} & set(result))
        print(requirement, json.dumps(result), flush=True)  # noqa: T201 - this program's output
        results = {**read("versions")["versions"], requirement: result}
        ordered = {name: results[name] for name in REQUIREMENTS if name in results}
        write("versions", {"python": platform.python_version(), "machine": platform.machine(), "versions": ordered})
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
