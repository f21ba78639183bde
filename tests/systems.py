"""Modules that believe to run on another operating system."""

import os
import sys
from types import ModuleType, SimpleNamespace

import pytest

SYSTEMS = ("linux", "darwin", "win32")


def put_on(monkeypatch: pytest.MonkeyPatch, system: str, *modules: ModuleType) -> None:
    """Give modules the names of a system, and Windows no functions of Unix; how paths work is left to the real `os`."""
    lacks = ("geteuid", "getpgid", "killpg", "sysconf") if system == "win32" else ()
    seen = {name: value for name, value in {**vars(sys), **vars(os)}.items() if name not in lacks}
    seen |= {"name": "nt" if system == "win32" else "posix", "platform": system}
    for module in modules:
        for name in {"os", "sys"} & vars(module).keys():
            monkeypatch.setattr(module, name, SimpleNamespace(**seen))
