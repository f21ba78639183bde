"""What cases of the tests are made of: functions that another process finds by name. Only standard library, so that it starts at once."""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

from ortlens.studies.child import answer, stage


def doubled(number: int) -> dict[str, int]:
    sys.stdout.write("working\n")
    return {"twice": 2 * number}


def dereferences_null() -> None:
    stage("reading memory")
    ctypes.string_at(0)


def hangs(pid_file: str = "") -> NoReturn:
    stage("waiting")
    if pid_file:
        Path(pid_file).write_text(str(os.getpid()), encoding="utf-8")
    while True:
        time.sleep(0.01)


def hangs_with_a_child(pid_file: str) -> NoReturn:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(pid_file).write_text(str(child.pid), encoding="utf-8")
    hangs()


def eats() -> NoReturn:
    stage("eating")
    held = []
    while True:
        held.append(bytearray(8 << 20))
        time.sleep(0.01)


def asks_for_too_much() -> None:
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")


def raises() -> NoReturn:
    raise ValueError("no <weights>\nand more")


def leaves(code: int) -> None:
    os._exit(code)


def exits() -> NoReturn:
    sys.exit(7)


def is_killed() -> None:
    os.kill(os.getpid(), 9)


def answers_and_crashes() -> None:
    answer({"done": True})
    ctypes.string_at(0)


def chatters() -> int:
    for _ in range(100_000):
        sys.stdout.write("x" * 100 + "\n")
    sys.stdout.write("the end\n")
    return 1


def reads() -> list[str]:
    return [sys.stdin.read(), *sys.argv]


class Model:
    """Stands for a class of models."""

    def __call__(self) -> None:
        """Computes nothing."""


partial = functools.partial(doubled, 3)
CASES = {"a": doubled, "b": (doubled, (2,))}


def made() -> dict[str, object]:
    return CASES
