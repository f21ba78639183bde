"""Other versions of a package, installed in front of the environment of this process, and ready environments with their own Python."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_PIP = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--only-binary=:all:")
_WITH_LIBRARIES = ("torch==", "torch-")  # needs the libraries that it was built with; other packages run with what is installed


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Where a process finds its packages."""

    name: str  # as reports name it
    python: str = sys.executable
    front: Path | None = None  # a folder that its imports search first

    def start(self, links: Path) -> tuple[str, list[str], bool]:
        """Return the interpreter, what is put on its path, and whether that is all of it; another one gets `ortlens` alone, by a link."""
        if self.python == sys.executable:
            return self.python, [*([] if self.front is None else [str(self.front)]), *sys.path], True
        link = links / "ortlens"
        package = Path(__file__).parents[1]
        try:
            link.symlink_to(package, target_is_directory=True)
        except OSError:  # Windows asks for a privilege
            shutil.copytree(package, link)
        return self.python, [str(links)], False


HERE = Environment(name="installed")  # that of this process


def default_folder() -> Path:
    """Return the folder for installed versions, in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("LOCALAPPDATA") if os.name == "nt" else None) or "~/.cache"
    return Path(base).expanduser() / "ortlens" / "environments"


def place_of(requirement: str, folder: Path) -> Path:
    """Return the folder of an installed requirement, such as `onnxruntime==1.32.0`; its name tells that it is no user's code."""
    return folder / re.sub(r"[^\w.]+", "-", requirement) / "site-packages"


def install(requirement: str, place: Path, *, pip_args: Sequence[str] = ()) -> str:
    """Install a requirement, or a wheel, into a folder of its own unless it is there; return why pip could not, or an empty text."""
    if place.exists():
        return ""
    place.parent.mkdir(parents=True, exist_ok=True)
    wanted = [requirement] if requirement.endswith(".whl") else requirement.split()
    alone = () if requirement.startswith(_WITH_LIBRARIES) else ("--no-deps",)
    fresh = tempfile.mkdtemp(dir=place.parent)  # a download that fails halfway is not taken for the package
    refusal = pip_refusal([sys.executable, *_PIP, *alone, *pip_args, "--target", fresh, *wanted])
    if refusal:
        shutil.rmtree(fresh)
    else:
        Path(fresh).rename(place)
    return refusal


def pip_refusal(command: Sequence[str], cwd: Path | None = None) -> str:
    """Run a command of pip; return the reason that it gives if it fails, else an empty text."""
    done = subprocess.run(command, cwd=cwd, check=False, capture_output=True, text=True, errors="replace")  # noqa: S603 - pip of this Python
    if not done.returncode:
        return ""
    lines = done.stderr.strip().splitlines()
    reasons = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    reason = (reasons or lines[-1:] or [f"pip ended with {done.returncode}"])[0]
    return re.sub(r" \(from versions: .*?\)", "", reason)  # a hundred of them
