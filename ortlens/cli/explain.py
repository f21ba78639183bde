"""`ortlens explain`: a model or function of the user's, compiled, called and explained."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from ortlens.cli.commands import command_in
from ortlens.cli.exit_codes import EXIT_NO, EXIT_OK
from ortlens.cli.inputs import inputs_from_texts
from ortlens.cli.printing import print_error, print_summary, print_text, print_written
from ortlens.cli.targets import add_target, raised_as_usage, target_from_text
from ortlens.errors import OrtLensError
from ortlens.job.request import add_compiling, add_measuring, add_outputs, request_from_options
from ortlens.job.work import explained, new_lens, write_outputs

if TYPE_CHECKING:
    import argparse

    from ortlens.cli.commands import Commands
    from ortlens.cli.inputs import Inputs
    from ortlens.job.request import Request
    from ortlens.lens.lens import Lens

_TEXT = "Compile your model or function through ONNX Runtime, call it on random inputs, and explain what happened."


def add(commands: Commands) -> None:
    """Add the command to the parser.

    Args:
        commands: Where commands are added.
    """
    command = command_in(commands, "explain", _TEXT, _explain)
    add_target(command)
    add_compiling(command)
    add_measuring(command)
    add_outputs(command, "-o")
    command.add_argument("--json", action="store_true", help="print the overview as JSON")


def _explain(options: argparse.Namespace) -> int:
    request = request_from_options(options, no_grad=True)
    inputs = inputs_from_texts(options.input)  # a slip here should not wait for torch

    from ortlens._versions import check_supported

    check_supported()
    lens = _watched(request, options, inputs)
    written = write_outputs(request, lens)
    _tell(lens, written, as_json=options.json)
    return EXIT_NO if any(row.ok is False for row in lens.captured().numerics) else EXIT_OK


def _watched(request: Request, options: argparse.Namespace, inputs: Inputs) -> Lens:
    import torch

    torch.manual_seed(options.seed)
    target = target_from_text(options.target, on_meta=request.dry_run)
    with raised_as_usage("creating the inputs"):
        args, kwargs = inputs.made(options.seed)
    lens = new_lens(request, options.target)
    try:
        with raised_as_usage(f"calling {options.target} with {' '.join(options.input) or 'no --input'}"):
            explained(request, lens, target, args, kwargs)
    except BaseException:
        _keep(request, lens)
        raise
    return lens


def _keep(request: Request, lens: Lens) -> None:
    """Write what was captured before an error or Ctrl-C; errors while writing are suppressed in favour of the first."""
    if lens.captured().graphs:
        with contextlib.suppress(OrtLensError):
            for line in write_outputs(request, lens):
                print_error(line)


def _tell(lens: Lens, written: list[str], *, as_json: bool) -> None:
    if not as_json:
        print_summary(lens.captured())
        print_written(written)
        return
    from ortlens.analysis.overview import overview_of

    print_text(json.dumps(asdict(overview_of(lens.captured())), indent=2))
    for line in written:
        print_error(line)
