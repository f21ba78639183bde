"""What texts tell of the user's program: values are shortened when they are recorded; redaction takes them, source text and paths out.

A guard such as `user == 'alice@example.com'` holds a value that the program was called with. A capture keeps values short, a redacted one
keeps none. Names stay: those of arguments, modules and attributes, as in `L['self']._modules['drop']` or `tensor 'x' size mismatch`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from ortlens.analysis.identity import file_name
from ortlens.analysis.index import grouped
from ortlens.trace.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from ortlens.trace.records import Capture
    from ortlens.trace.schema import Table


GONE = "…"
_LONGEST, _HEAD = 12, 4  # characters of a text that stays whole, and of one that does not
_LONGEST_DIGITS = 15  # a size, a count or a float stays; the number of a card or an account does not
# Text in quotes; `of` and the like before it, and `[` with the name of a table, say that it is a name.
_TEXT = re.compile(r"""(?<![\w'"])(?P<kind>[rbuRBU]{0,2})(?P<quote>['"])(?P<text>(?:\\.|(?!(?P=quote))[^\\\n])*)(?P=quote)(?!\w)""")
_NAMED = re.compile(
    r"(?:tensor|type of|attribute|argument|parameter|module|function|method|operator|class|variable|name|named|builtin|object) '?$|<class $"
)
_TABLE = re.compile(r"(?:\b[LG]|kwargs(?:'\])?|_modules|_parameters|_buffers|__dict__|__kwdefaults__|\.attrs)\[$")
_DIGITS = re.compile(rf"(?<![\w.])[0-9]{{{_LONGEST_DIGITS},}}(?![\w.])")
_COMPARED = re.compile(r"(?P<what>[^=!]*)(?P<sign>[=!]=) *(?P<value>-?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[jJ]?)…?(?![\w.])")
_SIZE = re.compile(r"size\(\)|stride\(\)|len\(|dim\(\)|ndim|storage_offset|shape")
_CONSTANT = re.compile(r"(?P<head>ConstantVariable\(\w+: )(?:'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|[^()\n]*)\)")
_EXCEPTION = re.compile(r"(?P<kind>\b(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Iteration|Failed|Unsupported)): [^\n]*")
_PLAIN = re.compile(r"True|False|None|<class '[\w.]+'>|requires_grad=\w+|torch\.\w+|[\w.\[\]'\"]+\.size\(\)\[\d+\] = \d+")
_IDENTIFIER = re.compile(r"\w+(?:\.\w+)*")


def shortened(text: str) -> str:
    """Cut long quoted texts and long numbers in a text to their first characters; a capture holds texts like this."""
    return _DIGITS.sub(lambda match: match[0][:_HEAD] + GONE, _with_texts(text, _short))


def erased(text: str, names: Collection[str] = ()) -> str:
    """Take the values out of a text, as in a redacted capture; `names` may stay.

    What goes: quoted texts that are no names, numbers that something was compared with except sizes, and messages of exceptions.
    """
    plain = _EXCEPTION.sub(rf"\g<kind>: {GONE}", text)
    plain = _CONSTANT.sub(rf"\g<head>{GONE})", plain)
    plain = _with_texts(plain, lambda held: held if held in names else GONE)
    return _DIGITS.sub(GONE, _COMPARED.sub(_without_number, plain))


def erased_value(value: str, guard: str) -> str:
    """Erase a value that a guard met, as far as it is one of the program's; sizes, types and flags stay."""
    is_size = "mismatch" in guard or _SIZE.search(guard) is not None
    return value if _PLAIN.fullmatch(value) or (is_size and "'" not in value and '"' not in value) else GONE


def _with_texts(text: str, change: Callable[[str], str]) -> str:
    def changed(match: re.Match[str]) -> str:
        before = text[max(0, match.start() - 40) : match.start()]
        held = match["text"]
        if before.endswith("File "):  # a place, which redaction shortens by itself
            return match[0]
        if held == GONE or (_IDENTIFIER.fullmatch(held) and (_NAMED.search(before) or _TABLE.search(before))):
            return match[0]
        if _NAMED.search(before) and ("[" in held or held.startswith("___")):  # an expression: tensor 'L['x']', tensor '___from_numpy(x)'
            return match[0]
        return f"{match['kind']}{match['quote']}{change(held)}{match['quote']}"

    return _TEXT.sub(changed, text)


def _short(held: str) -> str:
    return held if len(held) <= _LONGEST else held[:_HEAD] + GONE


def _without_number(match: re.Match[str]) -> str:
    return match[0] if _SIZE.search(match["what"]) else f"{match['what']}{match['sign']} {GONE}"


# A path inside a sentence: absolute, of either system, or leading up from somewhere; a URL's slashes follow a colon and a slash.
_PATH = re.compile(
    r"""(?<![\w/:.\\])(?:[A-Za-z]:[\\/]|~[\\/]|\.{1,2}[\\/]|[\\/])(?:[^\s\\/:*?"'<>|,;()]+[\\/])+(?P<name>[^\s\\/:*?"'<>|,;()]*)"""
)
_QUOTED = re.compile(r"""(?m)(?P<head>File ["'][^"'\n]*["'], line \d+[^\n]*\n)[^\n]+""")  # what follows is a line of the program
_MIN_SOURCE = 6  # characters; `x` or `pass` would take words out of every sentence
_PROVIDER_OPTION = re.compile(r"(?P<key>\b\w+): [^,]+")


def redacted_capture(capture: Capture) -> Capture:
    """Remove what identifies the machine and the program; names of functions, modules and operators stay.

    Paths become file names. Source lines, values in guards, reasons and exceptions, options of providers and the name of `cache_dir` go,
    and so do attachments, since models may hold paths and source lines.
    """
    records = [record for name in TABLES for record in getattr(capture, name)]
    names = _short_names(dict.fromkeys(file for record in records if (file := getattr(record, "file", None))))
    lines = {source.strip() for record in records if (source := getattr(record, "source", None))}
    # The longest first, so that one inside another does not leave its rest.
    sources = sorted((text for text in lines if len(text) >= _MIN_SOURCE), key=lambda text: (-len(text), text))
    paths, known = sorted(names, key=lambda path: (-len(path), path)), _known(capture)
    scrub = cache(lambda text: erased(_scrubbed(text, paths, names, sources), known))
    redacted: dict[str, Any] = {
        name: tuple(_redacted(record, table, names, scrub) for record in getattr(capture, name)) for name, table in TABLES.items()
    }
    # What advice depends on goes, so that the advice stays.
    redacted["recompiles"] = tuple(
        replace(shown, values=_without_values(item.values, item.guard or item.reason), traits=None)
        for item, shown in zip(capture.recompiles, redacted["recompiles"], strict=True)
    )
    redacted["breaks"] = tuple(
        replace(shown, stop_source=None, refused_reason=None, refused_values=_without_values(item.refused_values, item.refused_guard or ""))
        for item, shown in zip(capture.breaks, redacted["breaks"], strict=True)
    )
    redacted["values"] = ()  # their figures are elements, where there are few
    redacted["graph_inputs"] = tuple(replace(shown, low=None, high=None, histogram=()) for shown in redacted["graph_inputs"])
    environment = {key: _without_secrets(key, scrub(value)) for key, value in capture.environment.items()}
    ways = tuple(replace(way, note=scrub(way.note)) for way in capture.figures.ways)
    guards = tuple(replace(row, file=row.file and (names.get(row.file) or file_name(row.file))) for row in capture.figures.guards)
    refused = capture.figures.freeze_refused
    figures = replace(capture.figures, ways=ways, guards=guards, freeze_refused=refused and scrub(refused))
    return replace(capture, name=scrub(capture.name), environment=environment, figures=figures, attachments={}, **redacted)


def _without_values(values: Iterable[str], guard: str) -> tuple[str, ...]:
    return tuple(erased_value(value, guard) for value in values)


def _known(capture: Capture) -> frozenset[str]:
    """Collect the names that may stand in quotes."""
    known = {name for node in capture.nodes for name in (node.node, node.target, node.module, node.module_type) if name}
    known |= {name for graph in capture.graphs for name in (graph.graph_id, graph.name, graph.target) if name}
    known |= {name for session in capture.sessions for name in session.providers}
    return frozenset(known | {op.partition(":")[0] for model in capture.models for op in model.ops})


def _without_secrets(key: str, text: str) -> str:
    """Remove values that name a place or open a door from an option: the name of a folder, options of a provider."""
    if key in ("option_cache_dir", "option_dump_path"):
        return GONE
    return _PROVIDER_OPTION.sub(rf"\g<key>: {GONE}", text) if key.startswith("option_") else text


def _short_names(files: Iterable[str]) -> dict[str, str]:
    """Map paths to file names; two paths of one name get a digest, which does not depend on the order of rows."""
    paths = grouped((file_name(file), file) for file in files)
    return {
        path: name if len(same) == 1 else f"{name}~{hashlib.sha256(path.encode('utf-8', 'backslashreplace')).hexdigest()[:6]}"
        for name, same in paths.items()
        for path in same
    }


def _scrubbed(text: str, paths: list[str], names: Mapping[str, str], sources: list[str]) -> str:
    # Dynamo writes the source line behind a guard, with the place cut off at the front.
    plain = _QUOTED.sub(rf"\g<head>    {GONE}", "\n".join(line.partition("  #")[0].rstrip() for line in text.split("\n")))
    for source in sources:
        plain = plain.replace(source, GONE)
    for path in paths:
        plain = plain.replace(path, names[path])
    return _PATH.sub(lambda match: match["name"] or GONE, plain)


_KEPT = frozenset(
    {"graph_id", "node", "target", "module", "partition_id", "session_id", "model_id", "kernel", "inputs", "onnx_nodes", "nodes"}
)
"""Names by which tables refer to each other."""


def _redacted(record: Any, table: Table, names: Mapping[str, str], scrub: Callable[[str], str]) -> Any:  # noqa: ANN401 - any record
    held = ((column.name, getattr(record, column.name)) for column in table.columns if not column.choices and column.name not in _KEPT)
    changes = {name: new for name, value in held if value and (new := _new_value(name, value, names, scrub)) != value}
    return replace(record, **changes) if changes else record


def _new_value(name: str, value: Any, names: Mapping[str, str], scrub: Callable[[str], str]) -> Any:  # noqa: ANN401 - any field
    if name == "source":
        return None
    if name in ("file", "path"):
        return names.get(value) or file_name(value)
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, tuple):
        return tuple([scrub(item) if isinstance(item, str) else item for item in value])
    return value
