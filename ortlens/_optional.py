"""Packages that only some features need: import them when asked, or name the line that installs them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ortlens.errors import OptionalDependencyError

if TYPE_CHECKING:
    from types import ModuleType


def require(module: str, feature: str) -> ModuleType:
    """Import a module that one feature needs.

    `pip install ortlens` installs all of them. A package can still be missing or broken, for example after
    `pip install --no-deps ortlens`.

    Args:
        module: Name as in an import statement; dots are allowed.
        feature: What the user asked for, as the subject of a sentence: `"lens.netron()"`.

    Returns:
        The module, imported.

    Raises:
        OptionalDependencyError: The package is not installed, or is installed and fails to import. The message names
            the feature, the package and the line that installs it.

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
