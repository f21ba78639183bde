"""Remarks on lines, for who reviews a change: annotations where GitHub Actions runs the command, and `--sarif FILE`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ortlens.cli.printing import json_text, print_note, write_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from ortlens.analysis.answers.check import VerdictRow
    from ortlens.trace.records import Capture


def add_sarif(command: argparse.ArgumentParser) -> None:
    """Add `--sarif`."""
    command.add_argument(
        "--sarif", metavar="FILE", type=Path, help="write what there is to change as SARIF, each cause on its line, for code scanning"
    )


def tell_reviewers(capture: Capture, sarif: Path | None, rows: Sequence[VerdictRow] = ()) -> None:
    """Print annotations where GitHub Actions runs the command, to stderr, which it reads as well as stdout; write SARIF if asked for."""
    is_on_github = os.environ.get("GITHUB_ACTIONS") == "true"
    if not is_on_github and sarif is None:
        return
    from ortlens import __version__
    from ortlens.views.remarks import Checkout, github_lines, remarks_of
    from ortlens.views.sarif import sarif_log

    checkout = Checkout(_root())
    remarks = remarks_of(capture, rows, checkout)
    for line in github_lines(remarks) if is_on_github else ():
        print_note(line)
    if sarif is not None:
        write_text(sarif, json_text(sarif_log(remarks, capture, checkout, __version__)) + "\n")


def _root() -> Path:
    """Find the checkout: GitHub's workspace, else the repository around the current folder, else that folder."""
    here = Path.cwd()
    if given := os.environ.get("GITHUB_WORKSPACE"):
        return Path(given)
    return next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)
