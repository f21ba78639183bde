"""The command line: parse, call, print, and complete in a shell. Only `main` turns errors into exit codes."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from typing import TYPE_CHECKING, NoReturn

from ortlens._os_errors import explained
from ortlens.cli import captures, explain, run, studies
from ortlens.cli.commands import EXIT_INTERRUPTED, EXIT_OK, EXIT_PIPE, EXIT_USAGE, Command, print_error, print_text, quietly
from ortlens.errors import OrtLensError, UsageError, near_hint
from ortlens.job.options import OneOf, Parser
from ortlens.trace.schema import SHOWN_TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ortlens.cli.commands import Commands

COMPLETION = Command(
    name="completion",
    text="Print a script that completes commands and options of ortlens in your shell.",
    run=lambda options: print_text(_completion_script(options.shell, _commands_in(parser()))),
    asks="How does my shell complete commands and options?",
    examples="""
        ortlens completion bash > ~/.local/share/bash-completion/completions/ortlens
        source <(ortlens completion zsh)  # in ~/.zshrc, after compinit
        ortlens completion fish > ~/.config/fish/completions/ortlens.fish
    """,
)
_COMMANDS = (
    explain.DEMO,
    run.RUN,
    run.WATCH,
    explain.EXPLAIN,
    captures.SHOW,
    captures.REPORT,
    captures.EXPORT,
    captures.COMPARE,
    captures.CHECK,
    studies.BENCH,
    studies.TUNE,
    studies.SURVEY,
    studies.BISECT,
    explain.DOCTOR,
    COMPLETION,
)
"""The commands, in the order of the help."""


def parser() -> argparse.ArgumentParser:
    """Build the parser of the command line, in which each command has its help and its function."""
    from ortlens import __version__

    top: argparse.ArgumentParser = Parser(
        prog="ortlens",
        description="Run PyTorch models through ONNX Runtime with torch.compile, and see what happened.",
        epilog="ortlens COMMAND --help has examples. In Python: lens = ortlens.explain(model)(*args); print(lens.summary())",
    )
    top.add_argument("--version", action="version", version=f"ortlens {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return an exit code. An error is one message on stderr, with ORTLENS_DEBUG=1 the traceback too."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(arguments)
    except SystemExit as leaving:  # argparse: --help, --version, a wrong option
        return leaving.code if isinstance(leaving.code, int) else EXIT_OK
    except BrokenPipeError:  # the reader, `head` say, has enough; the interpreter must not flush into the pipe again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except (OrtLensError, OSError) as err:
        return _fail(explained(err) if isinstance(err, OSError) else str(err))
    except Exception as err:  # noqa: BLE001 - the last line of the front end: a user gets a sentence, not a stack
        return _fail(f"unexpected {type(err).__name__}: {err}. Set ORTLENS_DEBUG=1 to see where, and please report it.")
    return code


def _run(arguments: list[str]) -> int:
    top = parser()
    if not arguments:
        top.print_help()
        return EXIT_OK
    commands = commands_of(top)
    asked = next((argument for argument in arguments if not argument.startswith("-")), None)
    if asked is not None and asked not in commands:
        raise UsageError(f"there is no command {asked!r}.{near_hint(asked, commands)} The commands are: {', '.join(commands)}.")
    options, unknown = top.parse_known_args(arguments)
    if unknown:
        _refuse(unknown[0], options.command, commands[options.command])
    with quietly(is_quiet=getattr(options, "quiet", False)):
        code: int = options.run(options) or EXIT_OK
    if options.command != "run":  # whose stdout is the program's, which may have closed it
        sys.stdout.flush()
    return code


def _refuse(word: str, name: str, command: argparse.ArgumentParser) -> NoReturn:
    if not word.startswith("-"):
        hint = f" Did you mean --table {word}?" if name in ("show", "export") and word in SHOWN_TABLES else ""
        command.error(f"{word!r} is one argument too many.{hint}")
    option = word.partition("=")[0]
    known = [text for action in command._actions for text in action.option_strings if text.startswith("--")]  # noqa: SLF001 - as below
    command.error(f"{name} has no option {option}.{near_hint(option, known)}")


def commands_of(top: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Map the name of each command of a parser, in order, to the command's own parser."""
    return dict(_commands_in(top).choices)


def _commands_in(top: argparse.ArgumentParser) -> Commands:
    return next(action for action in top._actions if isinstance(action, argparse._SubParsersAction))  # noqa: SLF001 - argparse offers no other way


def _fail(message: str) -> int:
    if os.environ.get("ORTLENS_DEBUG") == "1":
        traceback.print_exc()
    print_error(f"ortlens: {message}")
    return EXIT_USAGE


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


def _completion_script(shell: str, commands: Commands) -> str:
    """Write the script that completes commands and their options in a shell."""
    parsers: dict[str, argparse.ArgumentParser] = dict(commands.choices)
    if shell == "fish":
        texts = {action.dest: action.help or "" for action in commands._choices_actions}  # noqa: SLF001 - the help of commands has no public name
        return "\n".join(_fish(parsers, texts))
    script = _BASH.format(commands=" ".join(parsers), cases="\n".join(_cases(parsers)))
    return _ZSH + script if shell == "zsh" else script


def _cases(parsers: dict[str, argparse.ArgumentParser]) -> Iterator[str]:
    for name, parser in parsers.items():
        for action in _options_of(parser):
            if values := _values(action):
                yield f'    *:{name}:{action.option_strings[-1]}:*) choices="{values}" ;;'
        yield f'    *:{name}:*:-*) choices="{" ".join(text for action in _options_of(parser) for text in action.option_strings)}" ;;'
        for values in filter(None, map(_values, parser._get_positional_actions())):  # noqa: SLF001 - as below
            yield f'    *:{name}:*) choices="{values}" ;;'


def _fish(parsers: dict[str, argparse.ArgumentParser], texts: dict[str, str]) -> Iterator[str]:
    for name, parser in parsers.items():
        yield f"complete -c ortlens -n __fish_use_subcommand -f -a {name} -d {_quoted(texts[name])}"
        for values in filter(None, map(_values, parser._get_positional_actions())):  # noqa: SLF001 - as below
            yield f"complete -c ortlens -n '__fish_seen_subcommand_from {name}' -f -a {_quoted(values)}"
        for action in _options_of(parser):
            spelled = " ".join(f"-l {text[2:]}" if text.startswith("--") else f"-s {text[1:]}" for text in action.option_strings)
            values = f" -x -a {_quoted(_values(action))}" if _values(action) else " -r" if action.nargs != 0 else ""
            yield f"complete -c ortlens -n '__fish_seen_subcommand_from {name}' {spelled}{values} -d {_quoted(action.help or '')}"


def _options_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if action.option_strings]  # noqa: SLF001 - argparse offers no other way


def _values(action: argparse.Action) -> str:
    return " ".join(action.type.names if isinstance(action.type, OneOf) else map(str, action.choices or ()))


def _quoted(text: str) -> str:
    plain = text.replace(" (default: %(default)s)", "").replace("%%", "%").replace("\\", "\\\\").replace("'", "\\'")
    return f"'{plain}'"
