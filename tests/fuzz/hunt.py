"""Plants each defect in turn, and says after how many programs, and how soon, it is found."""

import gc
import json
import tempfile
import time
from collections.abc import Sequence

import torch

from tests.fuzz.oracle import judge, judge_graph
from tests.fuzz.plants import BEYOND_GRAPHS, PLANTS, planted
from tests.fuzz.program import Program
from tests.fuzz.sweep import quicken, rows_of
from tests.sweep import say


def hunt_all(chosen: Sequence[str], functions: int, seed: int, *, graphs: bool = False) -> int:
    """Hunt planted defects, one after the other."""
    quicken()
    missed = 0
    for name in [name for name in PLANTS if name.startswith(tuple(chosen) or "") and not (graphs and name in BEYOND_GRAPHS)]:
        started, cpu = time.monotonic(), time.process_time()
        found, judged = hunt(name, functions, seed, graphs=graphs)
        spent = f"{judged} programs, {time.process_time() - cpu:.0f} s of CPU, {time.monotonic() - started:.0f} s"
        say(f"{'found' if found else 'MISSED'}: {name}: {spent}{f', seed {found.seed}' if found else ''}")
        if found:
            say(f"    {found.to_json()}")
        missed += found is None
    return int(missed > 0)


def hunt(name: str, functions: int, seed: int, *, graphs: bool = False) -> tuple[Program | None, int]:
    """Hunt one planted defect: a program that is wrong with it, and not without it."""
    judged = 0
    with tempfile.TemporaryDirectory() as folder:
        for place in range(seed, seed + functions):
            if not place % 8:
                gc.collect()
            with planted(name):
                rows = list(rows_of(place, cache_dir=folder, seconds=0, graphs=graphs))
            for row in rows:
                judged += int(str(row["count"]))
                if row["verdict"] in ("wrong", "road"):
                    program = Program.from_json(json.dumps(row["program"]))
                    torch.compiler.reset()
                    if (judge_graph if graphs else judge)(program).word != "wrong":
                        return program, judged
    return None, judged
