"""Judges programs one after another in this process and prints a line of JSON for each: `python -m tests.fuzz.sweep FIRST COUNT`."""

import argparse
import dataclasses
import gc
import json
import logging
import re
import resource
import tempfile
import time
import warnings
from collections.abc import Iterator

import torch

from tests.fuzz.generator import parts_of, random_program
from tests.fuzz.minimise import smallest
from tests.fuzz.oracle import Verdict, judge, judge_graph
from tests.fuzz.program import Program, part_of, script
from tests.sweep import say_row

_MOST_BYTES = 12 << 30
"""A program that is made smaller may ask for more than a machine has: without a limit, the system kills any process."""


def _row(program: Program, verdict: Verdict, seconds: float, *, graphs: bool) -> dict[str, object]:
    if graphs and verdict.word == "wrong":
        compiled = _judged_anew(program).word
        verdict = dataclasses.replace(verdict, word="road" if compiled == "right" else compiled)
    row: dict[str, object] = {"seed": program.seed, "verdict": verdict.word, "seconds": round(seconds, 3)}
    if verdict.differences:
        row |= {"differences": [[item.step, item.label, item.kind, item.text[:300]] for item in verdict.differences[:4]]}
    if verdict.word in ("wrong", "road", "unprepared"):
        row |= {"program": json.loads(program.to_json()), "script": script(program, graph=verdict.word == "road")}
    return row


def main() -> int:
    """Judge programs."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.sweep", description="Judge random programs in this process.")
    parser.add_argument("first", type=int, help="seed of the first function")
    parser.add_argument("count", type=int, help="number of functions")
    parser.add_argument("--graphs", action="store_true", help="judge them as graphs")
    parser.add_argument("--reshapes", action="store_true", help="write into what is reshaped")
    parser.add_argument("--minimise", type=float, default=60, metavar="SECONDS")
    given = parser.parse_args()
    quicken()
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(given.first, given.first + given.count):
            say_row({"begin": seed})
            if not seed % 8:
                gc.collect()
            for row in rows_of(seed, cache_dir=folder, seconds=given.minimise, graphs=given.graphs, reshapes=given.reshapes):
                say_row(row)
    return 0


def quicken() -> None:
    """Leave out what takes time in this process and is not judged; the caller collects cycles now and then: 14 % of the time."""
    logging.disable(logging.CRITICAL)  # Dynamo logs what it could not trace
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # Dynamo times the guards of each graph with flushed caches, for its own log: 8 % of the time that a program takes.
    vars(torch._dynamo.guards)["profile_guard_manager"] = lambda *_: 0.0
    gc.freeze()
    gc.disable()


def rows_of(
    seed: int, *, cache_dir: str | None, seconds: float, graphs: bool = False, reshapes: bool = False
) -> Iterator[dict[str, object]]:
    """Judge the programs of one seed."""
    started, count = time.monotonic(), parts_of(seed, graphs=graphs, reshapes=reshapes)
    judged = judge_graph if graphs else _judged_anew
    program = random_program(seed, cache_dir=cache_dir, parts=count, graphs=graphs, reshapes=reshapes)
    verdict = judged(program)

    def found(program: Program, verdict: Verdict, count: int) -> dict[str, object]:
        took = time.monotonic() - started
        if verdict.word == "wrong" and seconds:
            program, verdict = smallest(program, verdict, judged=judged, seconds=seconds)
        return {**_row(program, verdict, took, graphs=graphs), "count": count}

    if verdict.word == "right" or count == 1:
        yield found(program, verdict, count=count)
        return
    if verdict.word == "torch" and (touched := touched_parts(program, verdict)):
        yield found(program, verdict, count=len(touched))
        yield {"seed": seed, "verdict": "right", "seconds": 0, "count": count - len(touched)}
        return
    words = []
    for part in range(count):
        alone = part_of(program, part)
        verdict_alone = judged(alone)
        words.append(verdict_alone.word)
        yield found(alone, verdict_alone, count=1)
    if verdict.word == "wrong" and "wrong" not in words:  # wrong together only
        yield found(program, verdict, count=0)


def _judged_anew(program: Program) -> Verdict:
    torch.compiler.reset()
    return judge(program)


def touched_parts(program: Program, verdict: Verdict) -> set[int]:
    """Find the parts that hold what differs."""
    found = set()
    for item in verdict.differences:
        if item.label.startswith("kept"):
            continue  # an output of an earlier call
        place = re.match(r"(outs|ins)\[(\d+)\]", item.label)
        texts = program.returns if place and place.group(1) == "outs" else [name for name, _ in program.inputs]
        text = texts[int(place.group(2)) % len(texts)] if place else item.label
        if item.label == "raised" and "spoilt(" in program.steps[item.step]:
            text = program.steps[item.step]  # it names the argument that makes PyTorch raise
        ends = set(re.findall(r"\w_(\d+)\b", text))
        if item.kind in ("error", "warning", "shared") or item.label.startswith("leaves") or len(ends) != 1:
            return set()
        found.add(int(ends.pop()))
    return found


if __name__ == "__main__":
    raise SystemExit(main())
