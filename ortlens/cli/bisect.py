"""`ortlens bisect` runs one program across versions, providers, optimisation levels and runs, and says what differs."""

from __future__ import annotations

import shlex
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ortlens.cli.commands import EXIT_NO, EXIT_OK, add_quiet, command_in
from ortlens.cli.printing import add_json, print_json, print_note, print_text, width
from ortlens.errors import UsageError
from ortlens.job.inputs import inputs_from_texts
from ortlens.job.request import COUNT, SECONDS, add_backend_options, options_from_pairs
from ortlens.job.targets import add_target

if TYPE_CHECKING:
    import argparse

    from ortlens.cli.commands import Commands
    from ortlens.studies.bisect import Bisection

_BISECT = (
    "Run your model across versions of onnxruntime and torch, providers, optimisation levels and many runs: which results, times and "
    "memory differ, from which node on, and a text for an issue."
)
_BISECT_ASKS = "Which version, provider or optimisation level makes results, times or memory differ, and at which node?"
_EXAMPLES = """
    ortlens bisect mymodels:net --input f32[8,256] --onnxruntime 1.30.0 1.31.1 1.32.0
    ortlens bisect model.onnx --levels disable all -o issue  # a folder with the smallest model that differs
    ortlens bisect model.onnx --onnxruntime onnxruntime-openvino==1.24.1 --providers OpenVINOExecutionProvider
    ortlens bisect mymodels:net --input f32[8,256] --torch 2.14.1 --pip-args='-i https://download.pytorch.org/whl/cpu'
    ortlens bisect mymodels:net --input f32[8,256] --runs 2000  # does its memory grow?
"""


def add_bisect(commands: Commands) -> None:
    """Add `bisect` to the parser."""
    command = command_in(commands, "bisect", _BISECT, _bisect, asks=_BISECT_ASKS, examples=_EXAMPLES)
    add_target(command, "an ONNX model: model.onnx")
    command.add_argument(
        "--onnxruntime", metavar="VERSION", nargs="+", default=[], help="versions, installed apart, or DISTRIBUTION==VERSION"
    )
    command.add_argument(
        "--torch", metavar="VERSION", nargs="+", default=[], help="versions of PyTorch, each of which makes its own ONNX models"
    )
    command.add_argument(
        "--environment", metavar="NAME=PYTHON", nargs="+", default=[], help="ready environments with onnxruntime and numpy, by their Python"
    )
    command.add_argument("--providers", metavar="NAME", nargs="+", default=[], help="execution providers (default: CPUExecutionProvider)")
    command.add_argument(
        "--levels", metavar="NAME", nargs="+", default=[], help="optimisation levels: disable, basic, extended, layout, all"
    )
    command.add_argument(
        "--runs",
        metavar="N",
        type=COUNT,
        default=200,
        help="runs in one process, to compare the last with the first (default: %(default)s)",
    )
    command.add_argument(
        "--seconds", metavar="N", type=SECONDS, default=60.0, help="time for ten rounds of all sides in turns (default: %(default)s)"
    )
    command.add_argument("--environments", metavar="FOLDER", type=Path, help="where versions are installed (default: in the user's cache)")
    command.add_argument("--pip-args", metavar="ARGS", default="", help="further arguments of pip install, such as -i URL")
    add_backend_options(command)
    command.add_argument(
        "-o", "--folder", metavar="FOLDER", type=Path, help="write the text for an issue, with the smallest model that differs"
    )
    add_json(command, "everything")
    add_quiet(command)


def _bisect(options: argparse.Namespace) -> int:
    inputs_from_texts(options.input)  # a slip here should not wait for an installation
    chosen, environments = options_from_pairs(options.option), [_named(text) for text in options.environment]
    target = options.folder.expanduser() if options.folder is not None else None
    if target is not None and target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"-o {target}: it is not empty, and nothing is overwritten; name a folder that does not exist yet")
    pip_args = shlex.split(options.pip_args)

    from ortlens.studies.bisect import Axes, bisect
    from ortlens.studies.bisect_text import write_issue
    from ortlens.studies.environments import default_folder

    axes = Axes(
        onnxruntime=options.onnxruntime,
        torch=options.torch,
        environments=environments,
        providers=options.providers,
        levels=options.levels,
        folder=(options.environments or default_folder()).expanduser().absolute(),
        pip_args=pip_args,
    )
    with tempfile.TemporaryDirectory(prefix="ortlens-bisect-", ignore_cleanup_errors=True) as folder:
        result = bisect(
            options.target,
            options.input,
            axes,
            folder=Path(folder),
            seed=options.seed,
            options=chosen,
            runs=options.runs,
            seconds=options.seconds,
        )
        if target is not None:
            print_note(f"Written to {write_issue(result, target.absolute(), shlex.join(['ortlens', *sys.argv[1:]]))}")
    _tell(result, as_json=options.json)
    return EXIT_NO if result.differs else EXIT_OK


def _named(text: str) -> tuple[str, str]:
    name, equals, python = text.partition("=")
    if not equals or not name or not Path(python).expanduser().is_file():
        raise UsageError(
            f"--environment {text}: write NAME=PYTHON, with the path of an interpreter that exists, such as old=/envs/old/bin/python"
        )
    return name, str(Path(python).expanduser())


def _tell(result: Bisection, *, as_json: bool) -> None:
    if as_json:
        print_json("bisect", asdict(result) | {"differs": result.differs})
        return
    from ortlens.studies.bisect_text import sentences
    from ortlens.studies.engine import sides_text

    timed = [row for row in result.rows if row.call_ns is not None]  # sentences tell of the others
    print_text("\n".join([sides_text(timed, width=width()), "", *sentences(result)]))
