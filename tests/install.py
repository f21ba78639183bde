"""Run the install lines of the docs, each in an environment of its own: `python -m tests.install [TEXT]`.

A block of `docs/index.md` under "Install" is run as it stands, with a wheel of this checkout in place of the published one, and then what
the block is for: the demo, or reading a capture. TEXT chooses the blocks that contain it. What pip and uv print is kept under
`build/install`. Torch comes with its libraries, gigabytes per environment; each is deleted after its run. `PIP_CONSTRAINT`,
`PIP_FIND_LINKS` and their like hold for pip and uv, as for a user.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from ortlens.demo import run_demo
from tests.packaging.test_doc_examples import blocks_of
from tests.sweep import say

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / "build" / "install"
_DEMO = "ortlens doctor; ortlens demo"
_READ = "ortlens show {capture} && ortlens report {capture} -o report.html"
_LIMIT_S = 1800


def lines_to_install() -> list[str]:
    """The blocks that install something for a user, in the order of the page."""
    section = (ROOT / "docs" / "index.md").read_text(encoding="utf-8").partition("\n## Install\n")[2]
    return [block.body for block in blocks_of(section) if block.language == "bash" and re.search(r"\bpip install\b", block.body)]


def _wheel(folder: Path) -> Path:
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def _ran(script: str, environment: Path, folder: Path, wheels: Path, log: Path) -> int:
    links = {
        name: f"{wheels}{sign}{os.environ.get(name, '')}".strip(sign) for name, sign in (("PIP_FIND_LINKS", " "), ("UV_FIND_LINKS", ","))
    }
    bins = environment / ("Scripts" if os.name == "nt" else "bin")
    environ = {**os.environ, **links, "PATH": f"{bins}{os.pathsep}{os.environ['PATH']}", "VIRTUAL_ENV": str(environment)}
    environ = {name: value for name, value in environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    with log.open("a", encoding="utf-8") as out:
        out.write(f"$ {script}\n")
        out.flush()
        command = ["bash", "-ec", script]
        return subprocess.run(
            command, cwd=folder, env=environ, stdout=out, stderr=subprocess.STDOUT, timeout=_LIMIT_S, check=False
        ).returncode


def result_of(block: str, number: int, wheels: Path, capture: Path) -> str:
    """Run a block and what it is for; say how it ended."""
    log = LOGS / f"{number}.log"
    log.unlink(missing_ok=True)
    if re.search(r"^uv ", block, re.MULTILINE) and shutil.which("uv") is None:
        return "not run: uv is not installed"
    with tempfile.TemporaryDirectory() as folder:
        environment, place = Path(folder, "env"), Path(folder)
        venv.create(environment, with_pip=True, symlinks=os.name != "nt")
        check = _READ.format(capture=capture) if "--no-deps" in block else _DEMO
        for script in (block, check):
            if code := _ran(script, environment, place, wheels, log):
                return f"failed with {code}: see {log.relative_to(ROOT)}"
    return "works"


def main() -> int:
    """Print a line per block; 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.install", description=__doc__)
    parser.add_argument("text", nargs="?", default="", help="blocks that contain this")
    text = parser.parse_args().text
    LOGS.mkdir(parents=True, exist_ok=True)
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        wheels = _wheel(Path(folder)).parent
        capture = run_demo().lens.save(Path(folder, "demo.ortlens"))
        for number, block in enumerate(lines_to_install(), 1):
            if text in block:
                result = result_of(block, number, wheels, capture)
                failed |= result.startswith("failed")
                say(f"{result:40} {'; '.join(block.split(chr(10))).strip('; ')}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
