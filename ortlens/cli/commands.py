"""How a command is added to the parser, how the parser refuses what it does not know, and how a shell completes commands."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, NoReturn

from ortlens.cli.printing import print_text
from ortlens.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
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


def command_in(  # noqa: PLR0913 - what a command has
    commands: Commands, name: str, text: str, run: Callable[[argparse.Namespace], int | None], *, asks: str, examples: str
) -> argparse.ArgumentParser:
    """Add a command; `run` returns the exit code, None for `EXIT_OK`.

    `asks` are the questions that it answers, a line each; `examples` are lines as typed, comments behind two blanks.
    """
    questions, lines = (textwrap.dedent(block).strip() for block in (asks, examples))
    command: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=textwrap.fill(text, min(shutil.get_terminal_size().columns, _MOST_COLUMNS) - 2, break_on_hyphens=False),
        epilog=f"answers:\n{textwrap.indent(questions, '  ')}\n\nexamples:\n{textwrap.indent(lines, '  ')}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if isinstance(command, Parser):
        command.asks = tuple(questions.splitlines())
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


_TEXT = "Print a script that completes commands and options of ortlens in your shell."
_ASKS = "How does my shell complete commands and options?"
_EXAMPLES = """
    ortlens completion bash > ~/.local/share/bash-completion/completions/ortlens
    source <(ortlens completion zsh)  # in ~/.zshrc, after compinit
    ortlens completion fish > ~/.config/fish/completions/ortlens.fish
"""
_SHELLS = ("bash", "zsh", "fish")
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


def add_completion(commands: Commands) -> None:
    """Add `completion` to the parser, as the last command."""
    command = command_in(commands, "completion", _TEXT, lambda options: _completion(options, commands), asks=_ASKS, examples=_EXAMPLES)
    command.add_argument("shell", metavar="SHELL", type=OneOf(_SHELLS), help=", ".join(_SHELLS))


def _completion(options: argparse.Namespace, commands: Commands) -> None:
    parsers: dict[str, argparse.ArgumentParser] = dict(commands.choices)
    texts = {action.dest: action.help or "" for action in commands._choices_actions}  # noqa: SLF001 - the help of commands has no public name
    if options.shell == "fish":
        print_text("\n".join(_fish(parsers, texts)))
        return
    script = _BASH.format(commands=" ".join(parsers), cases="\n".join(_cases(parsers)))
    print_text(_ZSH + script if options.shell == "zsh" else script)


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
