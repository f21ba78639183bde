"""The command line: `entry` parses and turns errors into exit codes; each command is a file of its own."""

from __future__ import annotations

from ortlens.cli.entry import main

__all__ = ["main"]
