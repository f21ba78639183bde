"""What runs in the process of one case: a function by name, its answer as a file. `apart.py` starts it and judges its end."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import pickle
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortlens._files import write_file

if TYPE_CHECKING:
    from types import ModuleType

ANSWER, STAGE = "answer.json", "stage"  # files of the folder that the process is given
VARIABLE = "ORTLENS_SURVEY_CASE"  # set in the environment of such a process
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "bad allocation", "bad_alloc", "Failed to allocate memory")
_folder: Path | None = None


def stage(text: str) -> None:
    """Note what is being done, for the reason if the process does not survive it."""
    if _folder is not None:
        (_folder / STAGE).write_text(text, encoding="utf-8")


def answer(value: object) -> None:
    """Give the answer, plain enough for JSON, before the end: it counts even if the process does not live to its end."""
    if _folder is not None and not (_folder / ANSWER).exists():
        _write(_folder, {"value": value})


def _write(folder: Path, answer: dict[str, Any]) -> None:
    write_file(folder / ANSWER, json.dumps(answer).encode("utf-8"))


def main() -> None:
    """Run the function that comes through standard input, and leave. The folder is the last argument."""
    global _folder  # noqa: PLW0603 - the process has one folder
    _folder = Path(sys.argv[-1])
    sys.argv[:] = ["ortlens"]
    orders = os.dup(0)
    with open(0, "rb", closefd=False) as stream:
        function, args = pickle.load(stream)  # noqa: S301 - from the process that started this one
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a device
        os.dup2(nothing.fileno(), 0)
    threading.Thread(target=_end_with_parent, args=(orders,), daemon=True).start()
    _be_modest()
    faulthandler.enable(all_threads=False)
    try:
        answer(function(*args))
    except BaseException as error:  # noqa: BLE001 - whatever the model raises is the answer, SystemExit too
        traceback.print_exc()
        if not (_folder / ANSWER).exists():
            _write(_folder, {"error": in_a_line(error), "is_memory": _is_memory(error)})
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)  # what crashes while Python takes itself down takes no answer with it


def _end_with_parent(orders: int) -> None:
    """End when the other end of standard input is closed, as it is when the parent ends, however it does."""
    os.read(orders, 1)
    if hasattr(os, "killpg") and os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _be_modest() -> None:
    """Write no core dumps; and when the machine runs out of memory, go before the process that started this one."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        limits: ModuleType = __import__("resource")
        limits.setrlimit(limits.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def in_a_line(error: BaseException) -> str:
    """Write why something failed, from its innermost cause: the whole message of an error of ours, which ends with what to do."""
    from ortlens.backend.basis.error_text import innermost_cause, without_colours
    from ortlens.errors import OrtLensError

    error = innermost_cause(error)
    text = without_colours(str(error)).strip()
    if isinstance(error, OrtLensError):  # its message is made for people, and may have a place in the second line
        return " ".join(text.split())
    from ortlens.job.targets import where

    first = text.splitlines()[0] if text else ""
    return " ".join(f"{type(error).__name__}: {first}{where(error)}".split())


def _is_memory(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, MemoryError) or any(sign in str(error) for sign in _OUT_OF_MEMORY):
            return True
        error = error.__cause__ or error.__context__
    return False
