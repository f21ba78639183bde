"""A program as text with one planted cause, and what it becomes when an advice is followed."""

import re
import textwrap
from dataclasses import dataclass

HEAD = """\
import contextlib, copy, dataclasses, functools, logging, math, random, time
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
def stack(depth, width): return nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth)]).eval()
def shaped(*sizes, dims=()):
    for x in map(torch.randn, sizes):
        if dims: torch._dynamo.mark_dynamic(x, dims)
        yield (x,)
torch.manual_seed(0)
up, down, log, args = nn.Linear(256, 256), nn.Linear(256, 256), logging.getLogger("strangers"), (torch.randn(64, 256),)
"""
_AROUND = "def model(x):\n    y = up(x).relu()\n{}    return down(y)\n"
_FORM = re.compile(r"(?P<indent> *)#(?P<how>[?+]) (?P<kinds>[\w,]+):(?: (?P<text>.*))?$")
_MARK = re.compile(r"  #!$")


@dataclass(frozen=True, slots=True)
class Program:
    """A program, and what is known of it.

    Attributes:
        name: What is planted.
        first: What must come first: kinds of `actions`, of advice, or rules; any will do. Empty where nothing needs to be changed.
        text: Its source, in which `#!` marks lines of the cause. A comment `#? KINDS: LINE` is what the line above it becomes where the
            first advice is of one of these kinds, and `#+ KINDS: LINE` a line that is added. It defines `model`, or is the middle of one,
            and may define `args` of one call, or `calls()`, which yields those of each; or `run()`, which compiles by itself, as it may
            with `is_compiled = False`; `kwargs`, `grad`, `dynamic`, `options`, `is_profiled`, `tolerance`; `is_random` or `is_other`
            where results may differ, from call to call or once the advice is followed; `by_other_means()`, which returns the ns that
            the first action is about.
        group: Where it comes from.
    """

    name: str
    first: str
    text: str
    group: str

    @property
    def lines(self) -> frozenset[int]:
        """The lines of the cause in the file."""
        return frozenset(number for number, line in enumerate(self._lines(""), 1) if _MARK.search(line))

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of advice that can be followed."""
        found = filter(None, map(_FORM.match, self.text.splitlines()))
        return frozenset(kind for form in found for kind in form["kinds"].split(","))

    def source(self, kind: str = "") -> str:
        """The text of the file; as it is once the advice of a kind has been followed, if one is given."""
        return "\n".join(_MARK.sub("", line) for line in self._lines(kind)) + "\n"

    def patched(self, number: int, text: str) -> str:
        """The text of the file with another line."""
        lines = self.source().splitlines()
        lines[number - 1] = lines[number - 1].replace(lines[number - 1].strip(), text or "pass")
        return "\n".join(lines) + "\n"

    def _lines(self, kind: str) -> list[str]:
        lines = HEAD.splitlines()
        for line in self.text.splitlines():
            found = _FORM.match(line)
            if found is None:
                lines.append(line)
            elif kind in found["kinds"].split(","):
                if found["how"] == "?":
                    lines.pop()
                lines += [found["indent"] + found["text"]] if found["text"] else []
        return lines


def programs(text: str, group: str) -> tuple[Program, ...]:
    """Take programs apart, which begin with `=== NAME | FIRST`, and put code around those that define nothing to call."""
    made = []
    for head, _, body in (part.partition("\n") for part in text.split("\n=== ")[1:]):
        name, _, first = head.partition("|")
        whole = body if "model" in body or "run()" in body else _AROUND.format(textwrap.indent(body.rstrip() + "\n", "    "))
        made.append(Program(name.strip(), first.strip(), whole, group))
    return tuple(made)
