"""How a command is added to the parser, and how the parser refuses what it does not know."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, NoReturn

from ortlens.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeAlias

    Commands: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 - what add_subparsers returns, by no public name

EXIT_OK = 0
EXIT_NO = 1
"""A negative answer: results differ, a limit does not hold, the main job cannot run here."""
EXIT_USAGE = 2
"""The command is wrong, or an error stopped it."""
EXIT_INTERRUPTED = 130
EXIT_PIPE = 141

_MOST_COLUMNS = 100


class Parser(argparse.ArgumentParser):
    """Raises one line with the next step where argparse prints the usage and ends the process."""

    def error(self, message: str) -> NoReturn:
        """Raise `UsageError` with what argparse found."""
        raise UsageError(f"{message}{'' if message.endswith(('.', '?')) else '.'} See: {self.prog} --help")


def command_in(
    commands: Commands, name: str, text: str, run: Callable[[argparse.Namespace], int | None], *, examples: str
) -> argparse.ArgumentParser:
    """Add a command and return its parser; `run` returns the exit code, None for `EXIT_OK`.

    `examples` are a line or two as they are typed, each with what it does behind two blanks.
    """
    lines = "\n".join(f"  {line}" for line in textwrap.dedent(examples).strip().splitlines())
    command: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=textwrap.fill(text, min(shutil.get_terminal_size().columns, _MOST_COLUMNS) - 2),
        epilog=f"examples:\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(run=run)
    return command


def add_quiet(command: argparse.ArgumentParser) -> None:
    """Add `--quiet`, which the printing functions obey, to a parser that has its other options."""
    has_json = any("--json" in action.option_strings for action in command._actions)  # noqa: SLF001 - argparse offers no other way
    asked = ", and what --json asks for" if has_json else ""
    command.add_argument("-q", "--quiet", action="store_true", help=f"print nothing but errors{asked}")


@dataclass(frozen=True, slots=True)
class OneOf:
    """A type of argument: one of some names, where a slip names the near one."""

    names: tuple[str, ...]

    def __call__(self, text: str) -> str:
        """Return a name as typed; raise `argparse.ArgumentTypeError` if it is none of them."""
        if text not in self.names:
            raise argparse.ArgumentTypeError(f"there is no {text!r}.{near_hint(text, self.names)} There are: {', '.join(self.names)}")
        return text


def near_hint(word: str, known: Iterable[str]) -> str:
    """Ask whether another word was meant, as ` Did you mean show?`; empty if no word is near."""
    near = get_close_matches(word, known, n=1)
    return f" Did you mean {near[0]}?" if near else ""
