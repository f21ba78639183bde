"""Values of the user's program inside texts of PyTorch and Python: guards, reasons, messages of exceptions.

A guard such as `user == 'alice@example.com'` holds a value that the program was called with. A capture keeps values short, a redacted one
keeps none. Names stay: those of arguments, modules and attributes, as in `L['self']._modules['drop']` or `tensor 'x' size mismatch`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

GONE = "…"
_LONGEST, _HEAD = 12, 4  # characters of a text that stays whole, and of one that does not
_LONGEST_DIGITS = 15  # a size, a count or a float stays; the number of a card or an account does not
# Text in quotes; `of` and the like before it, and `[` with the name of a table, say that it is a name.
_TEXT = re.compile(r"""(?<![\w'"])(?P<kind>[rbuRBU]{0,2})(?P<quote>['"])(?P<text>(?:\\.|(?!(?P=quote))[^\\\n])*)(?P=quote)(?!\w)""")
_NAMED = re.compile(
    r"(?:tensor|type of|attribute|argument|parameter|module|function|method|operator|class|variable|name|named|builtin|object) '?$|<class $"
)
_TABLE = re.compile(r"(?:\b[LG]|kwargs(?:'\])?|_modules|_parameters|_buffers|__dict__|__kwdefaults__|\.attrs)\[$")
_DIGITS = re.compile(rf"(?<![\w.]){'[0-9]'}{{{_LONGEST_DIGITS},}}(?![\w.])")
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
