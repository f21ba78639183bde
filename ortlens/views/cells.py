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
    """Note that the running cell shows something; `close` is called when no cell does any more, once for equal ones."""
    cell = _metadata().get("cellId")
    if isinstance(cell, str):  # nbclient and consoles name no cells: there nothing runs twice
        _watch()
        _SHOWN.setdefault(close, set()).add(cell)


def forget(close: Callable[[], None]) -> None:
    """Stop following something that was closed otherwise."""
    _SHOWN.pop(close, None)


def cell_starts(_info: object = None) -> None:
    """Close what was shown only by the cell that now starts to run, or by deleted cells; IPython calls this."""
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
    """Return what the front end said about the cell that runs; notebooks give its id."""
    ask = getattr(shell(), "get_parent", None)  # a kernel's shell has it
    parent = ask() if ask is not None else None
    found = parent.get("metadata") if isinstance(parent, dict) else None
    return found if isinstance(found, dict) else {}
