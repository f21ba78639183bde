"""Packages that only some features need: import them when asked, or name the line that installs them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ortlens.errors import OptionalDependencyError

if TYPE_CHECKING:
    from types import ModuleType


def require(module: str, feature: str) -> ModuleType:
    """Import a module that one feature needs, or raise an `OptionalDependencyError` with the line that installs it.

    `feature` is the subject of the message: `lens.netron()`. A package can be missing or broken, as after `pip install --no-deps ortlens`.

    Example:
        >>> require("json", feature="This example").__name__
        'json'
    """
    try:
        return import_module(module)
    except ImportError as err:
        raise OptionalDependencyError(_advice(module, feature, err), name=err.name, path=err.path) from err


def _advice(module: str, feature: str, err: ImportError) -> str:
    package = module.partition(".")[0]
    if isinstance(err, ModuleNotFoundError) and err.name in {package, module}:
        return f"{feature} needs {package}, which is not installed: pip install {package}"
    # An installed package that does not import is usually half upgraded; a plain install would change nothing.
    return f"{feature} needs {package}, which does not import here: {err}. To repair it: pip install --force-reinstall {package}"
