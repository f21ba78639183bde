"""Which cells of the notebook show a widget. A cell that runs again shows something else, so what nothing else shows is closed.

Without it, every run of a cell would leave a model in the kernel, in the page and in the saved notebook.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ortlens._shell import shell

if TYPE_CHECKING:
    from collections.abc import Callable

_SHOWN: dict[Callable[[], None], set[str]] = {}  # by what closes it


def shown(close: Callable[[], None]) -> None:
    """Note that the running cell shows something.

    Args:
        close: Called when no cell shows it any more; equal callables stand for the same thing.
    """
    cell = _metadata().get("cellId")
    if isinstance(cell, str):  # nbclient and consoles name no cells: there nothing runs twice
        _watch()
        _SHOWN.setdefault(close, set()).add(cell)


def forget(close: Callable[[], None]) -> None:
    """Stop following something that was closed otherwise.

    Args:
        close: What `shown` was given.
    """
    _SHOWN.pop(close, None)


def cell_starts(_info: object = None) -> None:
    """Close what only the cell that now starts to run showed, or cells that were deleted.

    Args:
        _info: What IPython passes to its listeners; unused.
    """
    about = _metadata()
    deleted = about.get("deletedCells")
    gone = {about.get("cellId"), *(deleted if isinstance(deleted, list) else ())}
    for close, cells in list(_SHOWN.items()):
        cells.difference_update(gone)
        if not cells:
            _SHOWN.pop(close, None)
            close()


def _watch() -> None:
    events = shell().events
    if cell_starts not in events.callbacks.get("pre_run_cell", ()):
        events.register("pre_run_cell", cell_starts)


def _metadata() -> dict[str, Any]:
    """What the front end said about the cell that runs; notebooks name it."""
    ask = getattr(shell(), "get_parent", None)  # a kernel's shell has it
    parent = ask() if ask is not None else None
    found = parent.get("metadata") if isinstance(parent, dict) else None
    return found if isinstance(found, dict) else {}
