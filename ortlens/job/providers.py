"""Execution providers as they are written on the command line, and the libraries that plug-ins are registered from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ortlens._versions import LIBRARY_SUFFIXES, libraries_of, provider_libraries, registered_libraries
from ortlens.analysis.placement import short_name
from ortlens.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def provider_from_text(text: str) -> tuple[str, dict[str, str]]:
    """Read `NAME` or `NAME:KEY=VALUE,...`; raise `ValueError` if it is neither."""
    name, colon, rest = text.partition(":")
    pairs = [pair.partition("=") for pair in rest.split(",")] if colon else []
    if name.split() != [name] or not all(key and equals for key, equals, _ in pairs):
        raise ValueError(text)
    return name, {key: value for key, _, value in pairs}


def text_from_provider(name: str, settings: Mapping[str, str]) -> str:
    """Write a provider as it is read."""
    return f"{name}{':' if settings else ''}{','.join(f'{key}={value}' for key, value in settings.items())}"


def name_among(name: str, available: Iterable[str]) -> str | None:
    """Find a provider by its name, or by that without `ExecutionProvider`, in capitals or not; None if it is not there."""
    names = list(available)
    known = {short_name(each).casefold(): each for each in names} | {each.casefold(): each for each in names}
    return known.get(name.casefold())


def available_name(name: str, also: Iterable[str] = ()) -> str:
    """Return the full name of a provider, available or `also` one of these; the `UsageError` for another says how to register it."""
    import onnxruntime

    available = onnxruntime.get_available_providers()
    found = name_among(name, (*available, *also))
    if found is None:
        raise UsageError(f"--provider {name} is not available; the installed ONNX Runtime has {', '.join(available)}{how_to_register()}")
    return found


def how_to_register() -> str:
    """Name the options that register the libraries of installed packages, as a sentence to add; empty if there are no more."""
    known = [path for path, _ in registered_libraries().values()]
    lines = [f"--provider-library {each.name}={each.distribution}" for each in provider_libraries() if str(each.path) not in known]
    return f". To register the library of an installed package, add {' or '.join(lines)}" if lines else ""


def library_from_text(text: str) -> tuple[str, str]:
    """Read `NAME=PATH` or `NAME=PACKAGE`, with the path of the package's library; raise `UsageError` where there is no such one."""
    name, equals, place = text.partition("=")
    if not name or not equals or not place:
        raise UsageError(f"--provider-library {text}: write NAME=PATH or NAME=PACKAGE, such as ggml=onnxruntime-ggml")
    path = Path(place).expanduser()
    if path.is_file():
        return name, str(path.absolute())
    if path.suffix in LIBRARY_SUFFIXES or len(path.parts) > 1:
        raise UsageError(f"--provider-library {text}: there is no file {path.absolute()}")
    found = libraries_of(place)
    if found is None:
        raise UsageError(f"--provider-library {text}: there is no file and no package {place}; to install it: pip install {place}")
    if len(found) != 1:
        several = f"several libraries with execution providers: {', '.join(str(each.path) for each in found)}"
        what = several if found else "no library with an execution provider"
        raise UsageError(f"--provider-library {text}: {place} has {what}; name one by its path")
    return name, str(found[0].path)


def register(name: str, path: str) -> None:
    """Register a library, unless it is; the `UsageError` for one that ONNX Runtime refuses has its text."""
    import onnxruntime

    known = {name: found for name, (found, _) in registered_libraries().items()}
    if known.get(name) == path:
        return
    try:
        onnxruntime.register_execution_provider_library(name, path)
    except Exception as err:
        if name not in known and path in known.values():  # registered under this name, and its provider has one of its own
            return
        why = " ".join(str(err).split())
        raise UsageError(f"--provider-library {name}={path}: onnxruntime {onnxruntime.__version__} refuses it: {why}") from err
