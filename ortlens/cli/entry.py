"""The command line: parse, call, print. Only `main` turns errors into exit codes."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from typing import TYPE_CHECKING, NoReturn

from ortlens._os_errors import explained
from ortlens._versions import require
from ortlens.cli import captures, explain, run, studies
from ortlens.cli.commands import EXIT_INTERRUPTED, EXIT_OK, EXIT_PIPE, EXIT_USAGE, print_error, quietly
from ortlens.errors import OrtLensError, UsageError, near_hint
from ortlens.job.options import OneOf, Parser
from ortlens.trace.schema import SHOWN_TABLES

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what may come next, through `argcomplete`, which ends the process
        require("argcomplete", "completion").autocomplete(parser(), always_complete_options=False, default_completer=_names)
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


def _names(action: argparse.Action, **_: object) -> Sequence[str]:
    """List the names that an argument takes; where there are none, a shell completes files."""
    return action.type.names if isinstance(action.type, OneOf) else ()


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
    listed = next(action for action in top._actions if isinstance(action, argparse._SubParsersAction))  # noqa: SLF001 - argparse offers no other way
    return dict(listed.choices)


def _fail(message: str) -> int:
    if os.environ.get("ORTLENS_DEBUG") == "1":
        traceback.print_exc()
    print_error(f"ortlens: {message}")
    return EXIT_USAGE
