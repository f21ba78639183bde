"""Plants each defect in turn, and says after how many programs, and how soon, it is found."""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from typing import TYPE_CHECKING

import torch

from tests.fuzz.generator import parts_of, random_program
from tests.fuzz.oracle import Verdict, judge, judge_graph
from tests.fuzz.plants import BEYOND_GRAPHS, PLANTS, planted
from tests.fuzz.program import Program, part_of
from tests.fuzz.sweep import quicken, touched_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def hunt_all(chosen: Sequence[str], functions: int, seed: int, *, graphs: bool = False) -> int:
    """Hunt planted defects, one after the other."""
    quicken()
    missed = 0
    for name in [name for name in PLANTS if name.startswith(tuple(chosen) or "") and not (graphs and name in BEYOND_GRAPHS)]:
        started, cpu = time.monotonic(), time.process_time()
        found, judged = hunt(name, functions, seed, graphs=graphs)
        spent = f"{judged} programs, {time.process_time() - cpu:.0f} s of CPU, {time.monotonic() - started:.0f} s"
        sys.stdout.write(f"{'found' if found else 'MISSED'}: {name}: {spent}{f', seed {found.seed}' if found else ''}\n")
        if found:
            sys.stdout.write(f"    {found.to_json()}\n")
        sys.stdout.flush()
        missed += found is None
    return int(missed > 0)


def hunt(name: str, functions: int, seed: int, *, graphs: bool = False) -> tuple[Program | None, int]:
    """Hunt one planted defect."""
    judged, judge_it = 0, judge_graph if graphs else judge
    with tempfile.TemporaryDirectory() as folder:
        for place in range(seed, seed + functions):
            if not place % 8:
                gc.collect()
            count = parts_of(place, graphs=graphs)
            program = random_program(place, cache_dir=folder, parts=count, graphs=graphs)
            with planted(name):
                verdict = judge_it(program)
            judged += count
            if verdict.word == "wrong":
                found = _culprit(name, program, count, verdict, judge_it)
                if found is not None:
                    return found, judged
    return None, judged


def _culprit(name: str, program: Program, count: int, verdict: Verdict, judge_it: Callable[[Program], Verdict]) -> Program | None:
    """The part of a program that differs because of the defect: without it, it is not wrong."""
    touched = touched_parts(program, verdict)
    for part in sorted(range(count), key=lambda part: part not in touched):
        alone = part_of(program, part) if count > 1 else program
        with planted(name):
            verdict = judge_it(alone)
        if verdict.word == "wrong":
            torch.compiler.reset()
            if judge_it(alone).word != "wrong":
                return alone
    return None
