"""The search for dead code finds what is dead and leaves alone what is used out of sight."""

from pathlib import Path

from tests.packaging.dead_code import dead_code

ALIVE = """
from dataclasses import dataclass
import zipfile

@dataclass(frozen=True)
class Row:
    column_of_a_frame: int

def main(info: zipfile.ZipInfo) -> Row:
    info.create_system = 3
    return Row(1)

def ortlens_backend() -> None:
    main(zipfile.ZipInfo())
"""

DEAD = """
import os

_NOBODY_COMPARES_WITH_THIS = 1

def nobody_calls_this():
    return 1

class Box:
    def __init__(self):
        self.nobody_reads_this = 1
"""


def test_names_used_out_of_sight_are_alive_and_planted_dead_code_is_found(tmp_path: Path) -> None:
    (tmp_path / "alive.py").write_text(ALIVE, encoding="utf-8")
    assert dead_code(tmp_path) == []
    (tmp_path / "dead.py").write_text(DEAD, encoding="utf-8")
    found = "\n".join(dead_code(tmp_path))
    assert all(name in found for name in ("nobody_calls_this", "nobody_reads_this", "_NOBODY_COMPARES_WITH_THIS", "Box", "'os'"))
