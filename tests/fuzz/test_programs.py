"""A few random programs, other ones with each commit.

They are drawn from seeds that were all judged right when the range was written down, so that a failure is something that changed.
`make fuzz-programs` goes beyond them.
"""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.fuzz.sweep import rows_of

if TYPE_CHECKING:
    from pathlib import Path

_JUDGED = range(40001, 40026)
_FUNCTIONS = 3
"""Most hold eight programs; the three take some five seconds on an idle machine."""


def seeds_of_the_commit(root: Path) -> list[int]:
    """Seeds that change with the commit, and stay while it is worked on; the first ones outside a checkout."""
    git = shutil.which("git")
    done = git and subprocess.run([git, "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    number = int(done.stdout[:7], 16) if done and done.returncode == 0 else 0
    return [_JUDGED[(number + place * 7) % len(_JUDGED)] for place in range(_FUNCTIONS)]


def test_programs_of_this_commit(root: Path, tmp_path: Path) -> None:
    for seed in seeds_of_the_commit(root):
        for row in rows_of(seed, cache_dir=str(tmp_path), seconds=0):
            if row["verdict"] == "wrong":
                pytest.fail(f"{row['script']}\n# wrong: {row['differences']}")


def test_the_commit_chooses_the_programs(root: Path, tmp_path: Path) -> None:
    assert len(set(seeds_of_the_commit(root))) == _FUNCTIONS
    assert seeds_of_the_commit(tmp_path) == [40001, 40008, 40015]
