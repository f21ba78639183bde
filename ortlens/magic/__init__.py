"""The `%ortlens` and `%%ortlens` magics: `%load_ext ortlens` brings them into a notebook or an IPython terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortlens.magic.magics import CellTransform, OrtlensMagics, completed_options

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


def load(shell: InteractiveShell) -> None:
    """Bring the magics into a shell; those of an earlier load give way."""
    unload(shell)
    shell.register_magics(OrtlensMagics(shell))
    shell.input_transformers_cleanup.append(CellTransform())
    shell.Completer.custom_matchers.append(completed_options)


def unload(shell: InteractiveShell) -> None:
    """Take the magics out of a shell; one without them stays as it is."""
    # By name: a reloaded module's class is another one.
    shell.input_transformers_cleanup[:] = [
        each for each in shell.input_transformers_cleanup if type(each).__name__ != CellTransform.__name__
    ]
    magics = shell.magics_manager.registry.pop(OrtlensMagics.__name__, None)
    if magics is not None:
        magics.close()
    matchers = shell.Completer.custom_matchers
    matchers[:] = [each for each in matchers if each.__name__ != completed_options.__name__]
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("ortlens", None)
