"""The installed Netron, read as files: which of its modules drawing an ONNX model takes, as they can stand in one page.

Nothing of Netron is bundled with ortlens, imported or run in Python.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortlens._optional import require
from ortlens._versions import SupportedRange, version_of

if TYPE_CHECKING:
    from collections.abc import Collection

TESTED = SupportedRange(low=(9, 0), high=(9, 4))
"""Versions whose files were seen to work in a browser: 9.0.0 and 9.3.3. Others are tried, and say so."""

_MODULES = ("text", "base", "grapher", "dagre", "protobuf", "onnx", "onnx-proto", "view")
_IMPORT = re.compile(r"^import \* as (\w+) from '\./([\w-]+)\.js';$", re.MULTILINE)
_EXPORT = re.compile(r"^export const (?:(\w+)|\{ ([\w, ]+) \}) = ", re.MULTILINE)
_LATER = re.compile(r"\bimport\('\./([\w-]+)\.js'\)")
_OTHER_MODULE_SYNTAX = re.compile(r"^(?:import|export)\b.*$", re.MULTILINE)
_STYLE = re.compile(r"<style>(.*?)</style>", re.DOTALL)
_BODY = re.compile(r"<body[^>]*>(.*)</body>", re.DOTALL)
_NEEDED_IDS = ("target", "sidebar", "sidebar-title", "toolbar", "zoom-in-button")
_NOT_SHOWN = ("examples",)  # of an operator: pages of Python


class UnexpectedFilesError(Exception):
    """The installed Netron is laid out otherwise than the versions that this was written for; the message says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """What a page needs of Netron."""

    version: str  # version of the installed package; `unknown` without metadata
    modules: dict[str, str]  # bodies of functions of `need` and `later` that return what a module exports, by the module's name
    styles: tuple[str, ...]  # style sheets
    body: str  # markup that the modules expect to find
    operators: tuple[dict[str, Any], ...]  # what Netron knows about operators of ONNX, each version of each

    @property
    def tested(self) -> bool:
        """Whether this version is one of those that were tested."""
        return self.version != "unknown" and TESTED.holds(self.version)


def installed_viewer(feature: str) -> Viewer:
    """Read the installed Netron, once per process and installation; raise `UnexpectedFilesError` for an unexpected layout.

    `feature` is what the user asked for, as the subject of a sentence: `"lens.netron()"`.
    """
    folder = _folder()
    if folder is None:
        require("netron", feature=feature)  # raises, and says what to install
        raise UnexpectedFilesError("the package 'netron' has no folder")
    return _viewer(folder, version_of("netron") or "unknown")


def operators_for(viewer: Viewer, used: Collection[tuple[str, str]], opsets: Collection[tuple[str, int]]) -> list[dict[str, Any]]:
    """Select the operator definitions that some models need: those in force under their operator sets, without examples.

    `used` has domains and types of operators, `opsets` domains and versions.
    """
    newest: dict[tuple[str, str, int], dict[str, Any]] = {}
    for operator in viewer.operators:
        name = (str(operator["module"]), str(operator["name"]))
        for version in (version for domain, version in opsets if domain == name[0] and name in used):
            held = newest.get((name[0], name[1], version), {}).get("version", -1)
            if held < operator.get("version", 0) <= version:
                newest[name[0], name[1], version] = operator
    distinct = {(name, kind, operator.get("version", 0)): operator for (name, kind, _), operator in newest.items()}
    return [{key: value for key, value in distinct[at].items() if key not in _NOT_SHOWN} for at in sorted(distinct)]


def _folder() -> Path | None:
    try:
        spec = find_spec("netron")
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) if places else None


@lru_cache(maxsize=2)
def _viewer(folder: Path, version: str) -> Viewer:
    page = _text(folder / "index.html")
    body = _BODY.search(page)
    if body is None or any(f'id="{name}"' not in body[1] for name in _NEEDED_IDS):
        raise UnexpectedFilesError("index.html lacks parts of the page that the viewer draws into")
    return Viewer(
        version=version,
        modules={name: _function_body(name, _text(folder / f"{name}.js")) for name in _MODULES},
        styles=(_text(folder / "grapher.css"), *_STYLE.findall(page)),
        body=_narrow(body[1]),
        operators=_operators(folder / "onnx-metadata.json"),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as err:
        raise UnexpectedFilesError(f"{path.name} cannot be read: {err}") from err


def _function_body(name: str, source: str) -> str:
    """Turn a module into the body of a function: static imports ask `need`, dynamic ones `later`, exports are returned."""
    exported = ", ".join(one or several for one, several in _EXPORT.findall(source))
    missing = sorted({wanted for _, wanted in _IMPORT.findall(source)} - set(_MODULES))
    if missing:
        raise UnexpectedFilesError(f"{name}.js needs {', '.join(missing)}, which drawing ONNX models has not needed so far")
    text = _IMPORT.sub(r"const \1 = need('\2');", source)
    text = _LATER.sub(r"later('\1')", _EXPORT.sub(lambda found: f"const {found[1] or '{ ' + found[2] + ' }'} = ", text))
    other = _OTHER_MODULE_SYNTAX.search(text)
    if other or not exported:
        raise UnexpectedFilesError(f"{name}.js has unexpected syntax: {other[0][:80] if other else 'it exports nothing'}")
    return f"{_narrow(text)}\nreturn {{ {exported} }};"


def _narrow(text: str) -> str:
    """Drop indentation, a tenth of what remains after packing; not where a text of several lines may hold some."""
    lines = text.splitlines()
    if any(line.count("`") % 2 for line in lines):
        return text
    return "\n".join(line.strip() for line in lines if line.strip())


def _operators(path: Path) -> tuple[dict[str, Any], ...]:
    try:
        found = json.loads(_text(path))
        if not all(isinstance(operator, dict) and "name" in operator and "module" in operator for operator in found):
            raise UnexpectedFilesError(f"{path.name} does not list operators")
    except (ValueError, TypeError) as err:
        raise UnexpectedFilesError(f"{path.name} is not JSON: {err}") from err
    return tuple(found)
