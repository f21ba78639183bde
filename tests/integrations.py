"""Runs the blocks of docs/integrations.md that need other libraries, each in a fresh process: `python -m tests.integrations [NAME...]`.

The libraries are installed in build/integrations, on top of the environment that runs this. `models` among the names, or no name, also
measures models of these libraries for the last section of the page, see `tests.libraries`.
"""

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import venv
from importlib.metadata import requires
from pathlib import Path

from tests.libraries.models import PACKAGES
from tests.packaging.test_doc_examples import Block, python_blocks

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "integrations.md"
FOLDER = ROOT / "build" / "integrations"
_NEEDS = re.compile(r"needs (\S+); make sweep-integrations runs it")
_PRINTS = "writes the table below it"
_TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
_MODELS = "models"
_WITH_TORCHVISION = ("timm", "torchvision")
"""The wheels of torchvision are made for builds of torch with CUDA, which they would bring along. timm imports it for its images only."""
_TORCHVISION = "from tests.libraries.models import declare_torchvision; declare_torchvision(); "


def blocks() -> dict[str, list[Block]]:
    """The blocks of the page that need a library, by its name."""
    found: dict[str, list[Block]] = {}
    for block in python_blocks(PAGE.read_text(encoding="utf-8")):
        if block.reason and (needs := _NEEDS.search(block.reason)):
            found.setdefault(needs[1], []).append(block)
    return found


def _install(names: list[str]) -> Path:
    """An environment with the libraries, which sees what this one has; its interpreter."""
    python = FOLDER / "bin" / "python"
    if not python.is_file():
        venv.create(FOLDER, with_pip=True)
    here = Path(sysconfig.get_path("purelib"))
    inside = FOLDER / here.relative_to(sys.prefix)
    (inside / "development.pth").write_text(f"{here}\n{ROOT}\n", encoding="utf-8")
    pins = FOLDER / "pins.txt"  # of what ortlens needs alone: with every pin of the tests, pip takes a release of mlflow that is years old
    ours = {re.split(r"[^\w.-]", line)[0] for line in requires("ortlens") or () if "extra ==" not in line}
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins.write_text("\n".join(line for line in lines if line.partition("==")[0] in ours), encoding="utf-8")
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, "--upgrade", "-c", str(pins), *(name for name in names if name not in _WITH_TORCHVISION)], check=True)
    if _WITH_TORCHVISION[0] in names:
        subprocess.run([*pip, "--no-deps", "--upgrade", "--target", str(FOLDER / "images"), *_WITH_TORCHVISION], check=True)
    return python


def _run(python: Path, name: str, block: Block) -> bool:
    is_timm = name in _WITH_TORCHVISION
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(FOLDER / "images") if is_timm else ""}
    program = "\n" * block.line + block.body
    with tempfile.TemporaryDirectory() as folder:
        command = [str(python), "-c", (_TORCHVISION if is_timm else "") + f"exec(compile({program!r}, {PAGE.name!r}, 'exec'))"]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=600)
    sys.stdout.write(f"{name}, line {block.line}: {'ok' if done.returncode == 0 else 'FAILED'}\n")
    if done.returncode == 0 and _PRINTS in (block.reason or ""):
        _write_table(block, done.stdout)
    if done.returncode:
        sys.stdout.write(f"{done.stdout}\n{done.stderr}\n")
    return done.returncode == 0


def _write_table(block: Block, printed: str) -> None:
    """Put the last table that a block printed in the place of the first one below it."""
    page = PAGE.read_text(encoding="utf-8")
    below = page.index(block.body) + len(block.body)
    PAGE.write_text(page[:below] + _TABLE.sub(lambda _: _TABLE.findall(printed)[-1], page[below:], count=1), encoding="utf-8")


def main() -> int:
    """Run those that are named, or all; 1 if one fails."""
    named = sys.argv[1:]
    found = {name: made for name, made in blocks().items() if not named or name in named}
    measures = not named or _MODELS in named
    python = _install([*dict.fromkeys((*found, *(PACKAGES if measures else ())))])
    results = [_run(python, name, block) for name, made in found.items() for block in made]
    if measures:
        environment = {**os.environ, "PYTHONPATH": str(FOLDER / "images")}
        results.append(subprocess.run([str(python), "-m", "tests.libraries"], cwd=ROOT, env=environment, check=False).returncode == 0)
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
