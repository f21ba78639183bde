"""Functions of the user's program, as attachments of a capture: what is kept of a file, and what is read back of strangers' captures.

Of a file, the functions are kept that recorded lines are in, without what stands in their strings: a file may hold passwords, and a capture
is sent to others.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import io
import json
import re
import tokenize
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ortlens.trace.records import Break, CallLine, Fallback, Node

MAX_FILES = 20
MAX_CHARS = 200_000  # of one file; a longer one is generated, or has its lines recorded as before
MAX_TOTAL = 400_000  # characters of all files that a page shows: a quarter of that once compressed
_FOLDER = "sources/"
_INSTALLED = re.compile(r"[\\/](site-packages|dist-packages|lib[\\/]python3[^\\/]*)[\\/]")


def is_own(file: str) -> bool:
    """Tell whether a file is the user's, not a library's or Python's; False also for `<string>` and cells of notebooks."""
    return not file.startswith(("<", "In[")) and not _INSTALLED.search(file)


def attachment_of(file: str, lines: Sequence[str | None]) -> tuple[str, bytes]:
    """Return an attachment with the kept lines, and its name: a digest, since paths are no names of members."""
    name = hashlib.sha256(file.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{_FOLDER}{name}.json", json.dumps({"file": file, "lines": lines}).encode()


def kept_lines(text: str, recorded: Mapping[int, str]) -> list[str | None]:
    """Select what is kept of a source file: a line each, None outside of the functions that the recorded lines are in.

    The other lines of these functions have `…` in their strings. Empty where the text is no Python, or has other lines than were recorded.
    """
    have = text.splitlines()
    if any(number > len(have) or have[number - 1].strip() != line.strip() for number, line in recorded.items()):
        return []
    try:
        functions, plain = _parsed(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError):
        return []
    wanted = {number for span, heads in functions if any(line in span for line in recorded) for number in (*span, *heads)}
    return [
        line if number in recorded else plain[number - 1] if number in wanted and number <= len(plain) else None
        for number, line in enumerate(have, start=1)
    ]


@functools.lru_cache(maxsize=MAX_FILES)
def _parsed(text: str) -> tuple[list[tuple[range, tuple[int, ...]]], list[str]]:
    """Find the outermost functions, each with the numbers of its lines and of the heads of the classes around it, and the masked lines."""
    functions: list[tuple[range, tuple[int, ...]]] = []
    waiting: list[tuple[ast.AST, tuple[int, ...]]] = [(ast.parse(text), ())]
    while waiting:
        node, heads = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            functions.append((range(first, (node.end_lineno or node.lineno) + 1), heads))
            continue
        inside = (*heads, node.lineno) if isinstance(node, ast.ClassDef) else heads
        waiting.extend((child, inside) for child in ast.iter_child_nodes(node))
    return functions, _without_strings(text).splitlines()


def _without_strings(text: str) -> str:
    """Put `…` in place of what stands in strings; the text keeps its lines."""
    lines = text.splitlines(keepends=True)
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if tokenize.tok_name[token.type] in _STRINGS]
    for token in reversed(tokens):
        (first, start), (last, end) = token.start, token.end
        lines[first - 1] = lines[first - 1][:start] + _masked(token.string) + lines[last - 1][end:]
        lines[first:last] = ["\n"] * (last - first)
    return "".join(lines)


_STRINGS = ("STRING", "FSTRING_MIDDLE")  # from Python 3.12 on, an f-string is several tokens
_QUOTED = re.compile(r"(?P<prefix>[A-Za-z]*)(?P<quote>\"\"\"|'''|\"|')")


def _masked(string: str) -> str:
    found = _QUOTED.match(string)
    return f"{found['prefix']}{found['quote']}…{found['quote']}" if found and string.endswith(found["quote"]) else "…"


def recorded_lines(records: Iterable[Node | Break | Fallback | CallLine]) -> dict[str, dict[int, str]]:
    """Collect the lines of the user's files that records quote, by file and number."""
    found: dict[str, dict[int, str]] = {}
    for record in records:
        if record.file and record.line and record.source and is_own(record.file):
            found.setdefault(record.file, {})[record.line] = record.source
    return found


def sources_of(attachments: Mapping[str, bytes]) -> dict[str, list[str | None]]:
    """Read the kept lines by name of the file, `MAX_TOTAL` characters at most; None for lines that were not kept.

    Attachments that are not as `attachment_of` writes them are left out.
    """
    found: dict[str, list[str | None]] = {}
    room = MAX_TOTAL
    for name in sorted(name for name in attachments if name.startswith(_FOLDER)):
        data = attachments[name]
        if len(data) > 8 * MAX_CHARS:
            continue
        try:
            said = json.loads(data)
        except (ValueError, RecursionError):
            continue
        file, lines = (said.get("file"), said.get("lines")) if isinstance(said, dict) else (None, None)
        if not isinstance(file, str) or not isinstance(lines, list) or not all(line is None or isinstance(line, str) for line in lines):
            continue
        size = sum(len(line or "") + 1 for line in lines)
        if lines and size <= room:
            found[file] = lines
            room -= size
    return found
