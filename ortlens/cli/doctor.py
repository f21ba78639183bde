"""`ortlens doctor`: what is installed, what is missing and how to get it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from ortlens.cli.commands import add_quiet, command_in
from ortlens.cli.exit_codes import EXIT_NO, EXIT_OK
from ortlens.cli.printing import print_json, print_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from ortlens.cli.commands import Commands
    from ortlens.doctor import Check

_EXAMPLES = """
    ortlens doctor
    ortlens doctor --quiet && ortlens demo  # only where it can run
"""
_MARKS = {"ok": "ok", "info": "--", "warning": "!", "error": "X"}


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    text = "List versions and providers, what is missing and how to install it. Exits 1 when models cannot run in ONNX Runtime."
    command = command_in(commands, "doctor", text, _doctor, examples=_EXAMPLES)
    command.add_argument("--json", action="store_true", help="print JSON")
    add_quiet(command)


def _doctor(options: argparse.Namespace) -> int:
    from ortlens.doctor import examine, is_ready

    checks = examine()
    ready = is_ready(checks)
    if options.json:
        print_json({"ready": ready, "checks": [asdict(check) for check in checks]})
    else:
        print_text("\n".join(_check_lines(checks)))
        print_text("\nReady. Try it: `ortlens demo`." if ready else "\nNot ready: fix the lines marked X.")
    return EXIT_OK if ready else EXIT_NO


def _check_lines(checks: Sequence[Check]) -> list[str]:
    size = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{_MARKS[check.status]:>2}  {check.name:<{size}}  {check.found}")
        if check.advice:
            lines.append(f"{'':>2}  {'':<{size}}  -> {check.advice}")
    return lines
