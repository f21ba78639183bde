"""Runs at the start of each Python process that `ortlens run` leads to, in place of the environment's own sitecustomize, which follows."""

# ruff: noqa: INP001 - Python looks for a module of this name in a folder, which is no package

import contextlib
import importlib.machinery
import importlib.util
import sys
from pathlib import Path

_here = Path(__file__).resolve().parent
sys.path[:] = [_path for _path in sys.path if Path(_path).resolve() != _here]
_own = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
if _own is not None and _own.loader is not None:
    _module = importlib.util.module_from_spec(_own)
    sys.modules["sitecustomize"] = _module
    _own.loader.exec_module(_module)

with contextlib.suppress(Exception):  # a Python without ortlens, or another version of it
    from ortlens.job.process import record_child

    record_child()
