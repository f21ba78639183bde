"""Options of the magics: those of the command line, and what only a notebook has."""

from __future__ import annotations

import argparse
import keyword
import re
import shlex
from difflib import get_close_matches
from typing import TYPE_CHECKING, NoReturn

from ortlens.errors import UsageError
from ortlens.job.request import add_compiling, add_measuring, add_outputs

if TYPE_CHECKING:
    from collections.abc import Iterable

_OPTION = re.compile(r"\s*(?P<name>--?[A-Za-z][\w-]*)(?P<equals>=)?")
_VALUE = re.compile(r"""\s*(?P<value>(?:"[^"]*"|'[^']*'|[^\s"'])+)""")


class _Parser(argparse.ArgumentParser):
    """Raises where argparse would end the process."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message.rstrip('?.')}{'?' if message.endswith('?') else '.'} %ortlens? shows all options")


def line_parser() -> argparse.ArgumentParser:
    """Make the parser of the options of `%ortlens`; it raises UsageError."""
    parser = _Parser(prog="%ortlens", add_help=False, allow_abbrev=False)
    _add_notebook(parser)
    add_compiling(parser)
    parser.add_argument("--no-grad", action="store_true", help="without gradients, for inference")
    return parser


def cell_parser() -> argparse.ArgumentParser:
    """Make the parser of the options of `%%ortlens`; it raises UsageError."""
    parser = _Parser(prog="%%ortlens", add_help=False, allow_abbrev=False)
    _add_notebook(parser)
    return parser


def _add_notebook(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", dest="store", metavar="NAME", type=_name, help="keep the lens under this name")
    parser.add_argument("--quiet", action="store_true", help="show nothing")
    add_measuring(parser)
    add_outputs(parser)


def _name(text: str) -> str:
    if not text.isidentifier() or keyword.iskeyword(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid variable name")
    return text


def split_line(parser: argparse.ArgumentParser, line: str) -> tuple[argparse.Namespace, str]:
    """Take the options off the front of a line; what is behind them is Python and stays as it is.

    `--` ends the options, for an expression that begins with a minus.
    """
    words: list[str] = []
    known = parser._option_string_actions  # noqa: SLF001 - argparse offers no other way to ask which options take a value
    while match := _OPTION.match(line):
        action = known.get(match["name"])
        if action is None:
            break
        words.append(match["name"])
        line = line[match.end() :]
        if action.nargs != 0:
            value = _VALUE.match(line)
            words += shlex.split(value["value"]) if value else []
            line = line[value.end() :] if value else line
    rest = line.strip()
    if rest.startswith("-") and not rest.startswith("-- ") and (unknown := _OPTION.match(rest)) and _is_option(unknown["name"], rest):
        parser.error(f"there is no option {unknown['name']}{_hint(unknown['name'], known)}")
    return parser.parse_args(words), rest.removeprefix("-- ").rstrip("; ").strip()


def _hint(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, known, n=1)
    if near:
        return f"; did you mean {near[0]}?"
    return "" if name.startswith("--") else "; put -- before an expression that starts with a minus, as in %ortlens -- -x"


def _is_option(name: str, rest: str) -> bool:
    """Tell an option, as `--nope x`, from an expression, as `-model(x)`."""
    return name.startswith("--") or rest[len(name) : len(name) + 1] in ("", " ", "=")


def cell_options(line: str) -> argparse.Namespace:
    """Read the line of a cell magic; options that mean something for a single call alone are refused."""
    parser = cell_parser()
    try:
        words = shlex.split(line, comments=True)
    except ValueError as err:
        raise UsageError(f"%%ortlens {line}: {err}") from err
    options, more = parser.parse_known_args(words)
    if more:
        _refuse_unknown(parser, more[0])
    if options.profile or options.verify:
        asked = "profile" if options.profile else "verify"
        raise UsageError(
            f"--{asked} calls a model again and needs its arguments, which a cell does not give. Use %ortlens --{asked} model(x), "
            f"or keep the lens with -o lens and call lens.{asked}(x) after the cell"
        )
    return options


def _refuse_unknown(parser: argparse.ArgumentParser, word: str) -> NoReturn:
    name = word.partition("=")[0]
    if any(name in action.option_strings for action in line_parser()._actions):  # noqa: SLF001 - as above
        raise UsageError(f"{name} is an option of %ortlens only; in a cell, pass it to torch.compile. %ortlens? shows all options")
    near = _hint(name, parser._option_string_actions) if name.startswith("--") else ""  # noqa: SLF001 - as above
    parser.error(f"{word} is not an option of %%ortlens{near or '; the code goes in the lines below'}")
