"""How a command is added to the parser, how the parser refuses what it does not know, and how a shell completes commands."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from ortlens.errors import UsageError
from ortlens.job.options import OneOf, add_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    Commands: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 - what add_subparsers returns, by no public name


EXIT_OK = 0
EXIT_NO = 1  # a negative answer: results differ, a limit does not hold, the main job cannot run here
EXIT_USAGE = 2  # the command is wrong, or an error stopped it
EXIT_INTERRUPTED = 130
EXIT_PIPE = 141

_MOST_COLUMNS = 100


class Parser(argparse.ArgumentParser):
    """Raises one line with the next step where argparse prints the usage and ends the process."""

    asks: tuple[str, ...] = ()  # questions that a command answers

    def error(self, message: str) -> NoReturn:
        """Raise `UsageError` with what argparse found."""
        raise UsageError(f"{message}{'' if message.endswith(('.', '?')) else '.'} See: {self.prog} --help")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command: its name, what it does, the questions that it answers, a line each, and examples, as typed, comments behind two blanks."""

    name: str
    text: str
    run: Callable[[argparse.Namespace], int | None]  # returns the exit code; None for `EXIT_OK`
    asks: str
    examples: str
    usage: str | None = None

    def add(self, commands: Commands) -> None:
        """Add it to the parser, with its options."""
        questions, lines = (textwrap.dedent(block).strip() for block in (self.asks, self.examples))
        parser: argparse.ArgumentParser = commands.add_parser(
            self.name,
            usage=self.usage,
            help=self.text,
            description=textwrap.fill(self.text, min(shutil.get_terminal_size().columns, _MOST_COLUMNS) - 2, break_on_hyphens=False),
            epilog=f"answers:\n{textwrap.indent(questions, '  ')}\n\nexamples:\n{textwrap.indent(lines, '  ')}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if isinstance(parser, Parser):
            parser.asks = tuple(questions.splitlines())
        parser.set_defaults(run=self.run)
        add_options(parser, self.name)


_BASH = """\
_ortlens() {{
  local choices= cur=${{COMP_WORDS[COMP_CWORD]}}
  case "$COMP_CWORD:${{COMP_WORDS[1]}}:${{COMP_WORDS[COMP_CWORD-1]}}:$cur" in
    1:*) choices="{commands}" ;;
{cases}
  esac
  COMPREPLY=($(compgen -W "$choices" -- "$cur"))
}}
complete -o default -F _ortlens ortlens"""
_ZSH = "autoload -U +X bashcompinit && bashcompinit\n"


def completion_script(shell: str, commands: Commands) -> str:
    """Write the script that completes commands and their options in a shell."""
    parsers: dict[str, argparse.ArgumentParser] = dict(commands.choices)
    if shell == "fish":
        texts = {action.dest: action.help or "" for action in commands._choices_actions}  # noqa: SLF001 - the help of commands has no public name
        return "\n".join(_fish(parsers, texts))
    script = _BASH.format(commands=" ".join(parsers), cases="\n".join(_cases(parsers)))
    return _ZSH + script if shell == "zsh" else script


def _cases(parsers: dict[str, argparse.ArgumentParser]) -> Iterator[str]:
    for name, parser in parsers.items():
        for action in _options(parser):
            if values := _values(action):
                yield f'    *:{name}:{action.option_strings[-1]}:*) choices="{values}" ;;'
        yield f'    *:{name}:*:-*) choices="{" ".join(text for action in _options(parser) for text in action.option_strings)}" ;;'
        for values in filter(None, map(_values, parser._get_positional_actions())):  # noqa: SLF001 - as below
            yield f'    *:{name}:*) choices="{values}" ;;'


def _fish(parsers: dict[str, argparse.ArgumentParser], texts: dict[str, str]) -> Iterator[str]:
    for name, parser in parsers.items():
        yield f"complete -c ortlens -n __fish_use_subcommand -f -a {name} -d {_quoted(texts[name])}"
        for values in filter(None, map(_values, parser._get_positional_actions())):  # noqa: SLF001 - as below
            yield f"complete -c ortlens -n '__fish_seen_subcommand_from {name}' -f -a {_quoted(values)}"
        for action in _options(parser):
            spelled = " ".join(f"-l {text[2:]}" if text.startswith("--") else f"-s {text[1:]}" for text in action.option_strings)
            values = f" -x -a {_quoted(_values(action))}" if _values(action) else " -r" if action.nargs != 0 else ""
            yield f"complete -c ortlens -n '__fish_seen_subcommand_from {name}' {spelled}{values} -d {_quoted(action.help or '')}"


def _options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if action.option_strings]  # noqa: SLF001 - argparse offers no other way


def _values(action: argparse.Action) -> str:
    return " ".join(action.type.names if isinstance(action.type, OneOf) else map(str, action.choices or ()))


def _quoted(text: str) -> str:
    plain = text.replace(" (default: %(default)s)", "").replace("%%", "%").replace("\\", "\\\\").replace("'", "\\'")
    return f"'{plain}'"
