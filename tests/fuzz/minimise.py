"""Makes a failing program smaller for as long as it fails in the same way."""

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tests.fuzz.oracle import Verdict, judge
from tests.fuzz.program import Program

_PARTS = ("steps", "body", "returns", "state", "inputs")


def signature(verdict: Verdict) -> frozenset[str]:
    """What a smaller program has to share: the kinds of differences, and the classes of errors and the text of warnings."""
    words = set()
    for item in verdict.differences:
        kind = item.kind
        if kind in ("error", "warning"):
            kind += ": " + re.sub(r"[\d'\"\[\](){}<>]+", "", item.text)[:80]
        words.add(kind)
    return frozenset(words)


def smallest(
    program: Program, verdict: Verdict, *, judged: Callable[[Program], Verdict] = judge, seconds: float = 60
) -> tuple[Program, Verdict]:
    """Leave out and simplify parts of a program."""
    wanted, end = signature(verdict), time.monotonic() + seconds
    tried: set[str] = set()
    shrunk = True
    while shrunk:
        shrunk = False
        for smaller in _smaller(program):
            text = smaller.replace(seed=0).to_json()
            if text in tried:
                continue
            if time.monotonic() > end:
                return program, verdict
            tried.add(text)
            torch.compiler.reset()
            found = judged(smaller)
            if found.word == "wrong" and signature(found) & wanted:
                program, verdict, shrunk = smaller, found, True
                break
    return program, verdict


def _smaller(program: Program) -> Iterator[Program]:
    """Smaller programs, those that save most first; some are not valid."""
    for part in _PARTS:
        items = getattr(program, part)
        for size in (len(items) // 2, 1):
            if 0 < size < len(items) or (size == len(items) and part not in ("steps", "returns", "inputs")):
                for start in range(len(items) - size, -1, -1):
                    yield program.replace(**{part: items[:start] + items[start + size :]})
    simpler: dict[str, Any] = {"options": {}, "trains": False, "marks": (), "captures": False, "dynamic": False}
    for key, value in simpler.items():
        if getattr(program, key) != value:
            yield program.replace(**{key: value})
    if program.dynamic:
        yield program.replace(dynamic=None)
    for key in program.options:
        yield program.replace(options={name: value for name, value in program.options.items() if name != key})
    yield from _simpler_inputs(program)
    yield from _simpler_lines(program)


def _simpler_inputs(program: Program) -> Iterator[Program]:
    for place, (name, expression) in enumerate(program.inputs):
        plain = [re.sub(r"^leaf\((.*)\)$", r"\1", expression), re.sub(r", dtype=torch\.\w+", "", expression)]
        core = re.search(r"values\([^()]*\)", expression)
        plain += [core.group(0)] if core else []
        plain += [
            re.sub(r"values\((\d+), [^()]*\)", shape, expression) for shape in (r"values(\1, n)", r"values(\1, n, 4)", r"values(\1, 4)")
        ]
        for text in plain:
            if len(text) < len(expression):
                yield program.replace(inputs=(*program.inputs[:place], (name, text), *program.inputs[place + 1 :]))


def _simpler_lines(program: Program) -> Iterator[Program]:
    """Replace one statement's result by an earlier name in what follows, or one of its calls by its operand."""
    for part in ("body", "returns"):
        lines = getattr(program, part)
        for place, line in enumerate(lines):
            shorter = {re.sub(r"\.\w+\([^()]*\)$", "", line), re.sub(r"\[[^\[\]]*\]$", "", line), re.sub(r"\.shape\[(-?\d)\]", "", line)}
            shorter |= {
                re.sub(pattern, text, line)
                for pattern, text in ((r" // 2", ""), (r"\w+\.shape\[-?\d\] - ", "-"), (r"\w+\.shape\[-?\d\]", "2"))
            }
            match = re.fullmatch(r"(\w+) = (.*)", line)
            if match and part == "body":
                for name in dict.fromkeys(re.findall(r"\b(?:self\.)?[abct]\w*\b", match.group(2))):
                    later = [re.sub(rf"\b{match.group(1)}\b", name, text) for text in lines[place + 1 :]]
                    returns = tuple(re.sub(rf"\b{match.group(1)}\b", name, text) for text in program.returns)
                    yield program.replace(body=(*lines[:place], *later), returns=returns)
            for text in shorter - {line}:
                if text and not text.endswith("="):
                    yield program.replace(**{part: (*lines[:place], text, *lines[place + 1 :])})
