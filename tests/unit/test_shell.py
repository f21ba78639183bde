"""Cells of a notebook are called what their reader calls them."""

import atexit
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from ortlens._shell import display_frames, display_name

IPython = pytest.importorskip("IPython")
KERNEL = "/usr/lib/python3/site-packages/ipykernel/kernelbase.py:891 execute_request"


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The file name of a cell that ran as the first one, in a shell of its own."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    shell.run_cell("def f(x):\n    return x", store_history=True)
    yield shell.user_ns["f"].__code__.co_filename
    InteractiveShell.clear_instance()
    atexit.unregister(shell.atexit_operations)  # it would collect garbage at the end of the whole run


def test_a_cell_is_called_by_its_number(cell: str) -> None:
    assert cell != "In[1]"
    assert display_name(cell) == "In[1]"
    assert display_name("/home/a/model.py") == "/home/a/model.py"


def test_a_stack_begins_in_the_first_cell(cell: str) -> None:
    magic = f"{Path(IPython.__file__).parent}/core/interactiveshell.py:2583 run_line_magic"
    stack = (KERNEL, f"{cell}:7 <module>", magic, "/a b/model.py:3 forward", f"{cell}:2 f")
    assert display_frames(stack) == ("In[1]:7 <module>", "/a b/model.py:3 forward", "In[1]:2 f")
    assert display_frames((KERNEL, "model.py:3 forward", "odd")) == (KERNEL, "model.py:3 forward", "odd"), "there is no cell in it"
    assert display_frames(()) == ()


@pytest.mark.parametrize("shell", [None, object(), types.SimpleNamespace(compile=None)])
def test_outside_of_a_notebook_names_stay(monkeypatch: pytest.MonkeyPatch, shell: object) -> None:
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    assert display_name("model.py") == "model.py"
    monkeypatch.setitem(sys.modules, "IPython", None)
    assert display_name("model.py") == "model.py"
