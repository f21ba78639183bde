"""How a command is added to the parser."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from typing import TypeAlias

    Commands: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 - what add_subparsers returns, by no public name


def command_in(commands: Commands, name: str, text: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
    """Add a command.

    Args:
        commands: Where commands are added.
        name: Its name.
        text: What it does, one sentence or two.
        run: Runs it on the parsed options, and returns the exit code.

    Returns:
        Its parser.
    """
    command: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    command.set_defaults(run=run)
    return command
