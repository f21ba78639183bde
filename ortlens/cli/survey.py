"""`ortlens survey`: many models, each in a process of its own, one page."""

from __future__ import annotations

import argparse
import json
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortlens.cli.commands import EXIT_NO, EXIT_OK, add_quiet, command_in
from ortlens.cli.printing import print_json, print_note, print_text, width
from ortlens.errors import UsageError
from ortlens.job.request import COUNT, SECONDS, options_from_pairs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ortlens.analysis.surveyed import SurveyRow
    from ortlens.cli.commands import Commands

_TEXT = "Run many models, each in a process of its own: a crash, a hang or a lack of memory costs its own case. One page, one table."
_EXAMPLES = """
    ortlens survey cases.py -o results  # CASES in cases.py: a mapping from names to functions that return (model, args)
    ortlens survey cases.toml -o results --time-limit 120 --memory-limit 4G
    ortlens survey cases.py -o results --options min_partition_nodes=1 --options min_partition_nodes=8 on_slow=fallback
    ortlens survey cases.py -o results --scheduler tcp://head:8786  # on the workers of a Dask cluster
"""
_SIZE = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[KMGT]?)i?B?", re.IGNORECASE)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_COLUMNS = ("case", "options", "status", "coverage", "partitions", "breaks", "ratio", "call_ns", "reason", "finding")


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    command = command_in(commands, "survey", _TEXT, _survey, examples=_EXAMPLES)
    command.add_argument("cases", metavar="CASES", help="FILE.py[:NAME], MODULE:NAME (default name: CASES), FILE.toml or FILE.json")
    command.add_argument(
        "-o", "--folder", metavar="FOLDER", type=Path, help="keep results here, and run only what is missing; index.html is the page"
    )
    command.add_argument("--only", metavar="GLOB", action="append", default=[], help="only cases of such a name; may be repeated")
    command.add_argument(
        "--options",
        metavar="KEY=VALUE",
        nargs="+",
        action="append",
        default=[],
        help="options of the ortlens backend; if repeated, every case runs under each",
    )
    command.add_argument("--workers", metavar="N", type=COUNT, help="cases at the same time (default: one per two cores)")
    command.add_argument(
        "--time-limit", metavar="S", type=SECONDS, default=600.0, help="seconds that a case may take (default: %(default)s)"
    )
    command.add_argument("--memory-limit", metavar="SIZE", type=_size, help="memory of a case, as 4G (default: its share of the machine's)")
    command.add_argument("--profile", action="store_true", help="also measure where the time inside ONNX Runtime goes, kernel by kernel")
    command.add_argument("--verify", action="store_true", help="also compare every value with PyTorch's, with float64 as the reference")
    command.add_argument("--no-reports", action="store_true", help="no report of each case: the page alone")
    command.add_argument("--retry", action="store_true", help="run cases again that have a reason and no result")
    command.add_argument("--scheduler", metavar="ADDRESS", help="run on a Dask cluster; pip install 'ortlens[dask]'")
    command.add_argument("--title", metavar="TEXT", help="title of the page (default: CASES)")
    command.add_argument("--json", action="store_true", help="print the table as JSON")
    add_quiet(command)


def _survey(options: argparse.Namespace) -> int:
    from ortlens.studies.cases import cases_from_text
    from ortlens.studies.survey import survey

    variants = [options_from_pairs(pairs) for pairs in options.options] or None
    cases = [case for case in cases_from_text(options.cases, variants) if _is_wanted(case.name, options.only)]
    if not cases:
        raise UsageError(f"no case of {options.cases} has a name like {' or '.join(options.only)}")
    client = _client(options.scheduler)
    frame = survey(
        cases,
        client,
        folder=options.folder,
        workers=options.workers,
        time_limit=options.time_limit,
        memory_limit=options.memory_limit,
        profile=options.profile,
        verify=options.verify,
        reports=not options.no_reports,
        retry=options.retry,
        title=options.title or f"Survey of {Path(options.cases).name}",
        tell=lambda row: print_note(_line(row)),
    )
    _tell(frame, options)
    return EXIT_OK if (frame.status == "ok").all() else EXIT_NO


def _is_wanted(name: str, globs: Sequence[str]) -> bool:
    return not globs or any(fnmatch(name, glob) for glob in globs)


def _client(address: str | None) -> Any:  # noqa: ANN401 - a dask.distributed.Client
    if address is None:
        return None
    from ortlens._optional import require

    try:
        return require("distributed", "--scheduler").Client(address, timeout=10)
    except (OSError, ValueError) as err:
        raise UsageError(f"there is no Dask scheduler at {address}: {err}") from err


def _line(row: SurveyRow) -> str:
    from ortlens.units import percent, time_from_ns
    from ortlens.views.wording import visible

    how = row.reason or ("" if row.coverage is None else f"{percent(row.coverage)} in ONNX Runtime")
    name = f"{row.case} ({row.options})" if row.options else row.case
    return visible(f"{name}: {row.status}, {time_from_ns(row.case_ns)}; {how}".rstrip("; "))


def _tell(frame: Any, options: argparse.Namespace) -> None:  # noqa: ANN401 - a pandas frame
    if options.json:
        print_json(json.loads(frame.to_json(orient="records")))
    else:
        from ortlens.analysis.surveyed import SurveyRow
        from ortlens.views.table import table

        rows: Any = [SurveyRow(**{name: _plain(value) for name, value in row.items()}) for row in frame.to_dict("records")]
        names = [name for name in _COLUMNS if any(getattr(row, name) not in (None, "") for row in rows)]
        print_text(table(rows, names, width=width(), limit=None))
    if options.folder is not None:
        print_note(f"Page written to {options.folder.expanduser().absolute() / 'index.html'}")


def _plain(value: Any) -> Any:  # noqa: ANN401 - any cell of a frame
    """Return a cell as its record holds it."""
    if isinstance(value, (tuple, str)):
        return value
    import pandas as pd

    return None if pd.isna(value) else value


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None or not (size := round(float(match["number"]) * _UNITS[match["unit"].upper()])):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 512M or 4G")
    return size
