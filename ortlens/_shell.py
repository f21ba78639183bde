"""The IPython shell that runs, if one does. IPython is never imported: where nobody has, no notebook runs."""

from __future__ import annotations

import sys
from typing import Any


def shell() -> Any:  # noqa: ANN401 - an IPython shell, which may not be installed
    """The running IPython shell.

    Returns:
        The shell; None in plain Python.
    """
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


def in_notebook() -> bool:
    """Whether a kernel stands behind the shell, which a terminal's shell has not."""
    return getattr(shell(), "kernel", None) is not None
