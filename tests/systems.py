"""Modules that believe to run on another operating system."""

import os
import sys
from types import ModuleType
from typing import Any

import pytest

SYSTEMS = ("linux", "darwin", "win32")
_UNIX = ("geteuid", "getpgid", "killpg", "sysconf")


def put_on(monkeypatch: pytest.MonkeyPatch, system: str, *modules: ModuleType) -> None:
    """Give modules the names of a system, and Windows no functions of Unix; how paths work is left to the real `os`."""
    for module in modules:
        for real in (os, sys):
            if vars(module).get(real.__name__) is real:
                made: Any = ModuleType(real.__name__)
                vars(made).update({name: value for name, value in vars(real).items() if system != "win32" or name not in _UNIX})
                made.name, made.platform = "nt" if system == "win32" else "posix", system
                monkeypatch.setattr(module, real.__name__, made)
