"""The command line: `entry` parses and turns errors into exit codes; commands that belong together share a file."""

from __future__ import annotations

from ortlens.cli.entry import main

__all__ = ["main"]
