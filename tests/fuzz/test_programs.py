"""A few random programs, other ones with each commit.

They are drawn from seeds that were all judged right when the range was written down, so that a failure is something that changed.
`make sweep-fuzz` goes beyond them.
"""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.fuzz.oracle import Difference, Verdict, judge
from tests.fuzz.plants import planted
from tests.fuzz.program import Program
from tests.fuzz.sweep import rows_of, touched_parts

if TYPE_CHECKING:
    from pathlib import Path

_JUDGED = range(40001, 40026)
_GRAPHS_JUDGED = range(1000, 1025)
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


def test_graphs_of_this_commit(root: Path, tmp_path: Path) -> None:
    (place, *_) = seeds_of_the_commit(root)
    for row in rows_of(_GRAPHS_JUDGED[place - _JUDGED.start], cache_dir=str(tmp_path), seconds=0, graphs=True):
        if row["verdict"] == "wrong":
            pytest.fail(f"{row['script']}\n# wrong: {row['differences']}")


def test_a_graph_that_differs_is_printed_as_a_program(tmp_path: Path) -> None:
    with planted("outputs share memory between calls"):
        (row,) = rows_of(32, cache_dir=str(tmp_path), seconds=1, graphs=True)
    assert row["verdict"] == "wrong"
    assert "torch.compile(function, backend=BACKEND" in str(row["script"])


def test_rounding_that_pytorch_makes_is_no_difference() -> None:
    """Of two equal numbers, PyTorch's normalisation is off by 0.014, ONNX Runtime's by nothing."""
    equal = ("a", "values(3, 1, n, dtype=torch.int64).movedim(0, -1)")
    normalised = "F.batch_norm(torch.expm1(a), None, None, training=True)"
    program = Program(seed=8077, inputs=(equal,), returns=(normalised,), steps=("call(2)",))
    assert judge(program).word == "rounding"


def test_what_raises_is_said_of_the_part_whose_argument_was_spoilt() -> None:
    program = Program(seed=1, inputs=(("i_0", "places(1, 3)"), ("i_1", "places(2, 3)")), returns=("i_0", "i_1"))
    program = program.replace(steps=("call(5)", 'given(5, i_1="spoilt(i_1, -1)")'))
    found = [Difference(1, "raised", "plain", ""), Difference(1, "outs[1]", "value", "")]
    assert touched_parts(program, Verdict("torch", tuple(found))) == {1}
    assert touched_parts(program, Verdict("torch", (*found, Difference(1, "outs[0]", "error", "")))) == set()


def test_the_commit_chooses_the_programs(root: Path, tmp_path: Path) -> None:
    assert len(set(seeds_of_the_commit(root))) == _FUNCTIONS
    assert seeds_of_the_commit(tmp_path) == [40001, 40008, 40015]
