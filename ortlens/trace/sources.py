"""Whole source files of the user's program, as attachments of a capture: name, content, and what is read back of strangers' captures."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ortlens.trace.records import Break, Fallback, Node

MAX_FILES = 20
MAX_CHARS = 200_000
"""Of one file; a longer one is generated, or has its lines recorded as before."""

MAX_TOTAL = 400_000
"""Characters of all files that a page shows: a quarter of that once compressed."""

_FOLDER = "sources/"
_INSTALLED = re.compile(r"[\\/](site-packages|dist-packages|lib[\\/]python3[^\\/]*)[\\/]")


def is_own(file: str) -> bool:
    """Whether a file is the user's, not one of a library or of Python.

    Args:
        file: Its name.

    Returns:
        False also for names such as `<string>`, and for cells of notebooks.
    """
    return not file.startswith(("<", "In[")) and not _INSTALLED.search(file)


def attachment_of(file: str, text: str) -> tuple[str, bytes]:
    """A source file as an attachment.

    Args:
        file: Its name, as the records have it.
        text: Its text.

    Returns:
        Name and content. The name is a digest, since paths are no names of members.
    """
    name = hashlib.sha256(file.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{_FOLDER}{name}.json", json.dumps({"file": file, "text": text}).encode()


def recorded_lines(records: Iterable[Node | Break | Fallback]) -> dict[str, dict[int, str]]:
    """The lines of the user's files that records quote.

    Args:
        records: Nodes, breaks, fallbacks.

    Returns:
        By file and number.
    """
    found: dict[str, dict[int, str]] = {}
    for record in records:
        if record.file and record.line and record.source and is_own(record.file):
            found.setdefault(record.file, {})[record.line] = record.source
    return found


def is_same_program(text: str, lines: Mapping[int, str]) -> bool:
    """Whether a text is the one that ran, and not what its file became since.

    Args:
        text: Of the whole file.
        lines: Lines that were recorded while it ran.

    Returns:
        True if it has all of them.
    """
    have = text.splitlines()
    return all(number <= len(have) and have[number - 1].strip() == line.strip() for number, line in lines.items())


def sources_of(attachments: Mapping[str, bytes]) -> dict[str, list[str]]:
    """The source files of a capture.

    Args:
        attachments: Of any capture; what is not as `attachment_of` writes it is left out.

    Returns:
        The lines by name of the file, `MAX_TOTAL` characters at most.
    """
    found: dict[str, list[str]] = {}
    room = MAX_TOTAL
    for name in sorted(name for name in attachments if name.startswith(_FOLDER)):
        data = attachments[name]
        if len(data) > 8 * MAX_CHARS:
            continue
        try:
            said = json.loads(data)
        except (ValueError, RecursionError):
            continue
        file, text = (said.get("file"), said.get("text")) if isinstance(said, dict) else (None, None)
        if isinstance(file, str) and isinstance(text, str) and len(text) <= room:
            found[file] = text.splitlines()
            room -= len(text)
    return found
