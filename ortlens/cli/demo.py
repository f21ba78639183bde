"""`ortlens demo`: the main job on a bundled model, in one go."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ortlens.cli.commands import add_quiet, command_in
from ortlens.cli.exit_codes import EXIT_NO, EXIT_OK
from ortlens.cli.printing import print_summary, print_text, print_written
from ortlens.job.request import add_outputs, request_from_options
from ortlens.job.work import write_outputs

if TYPE_CHECKING:
    import argparse

    from ortlens.cli.commands import Commands


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    text = "Run a small bundled model through ONNX Runtime and explain what happened."
    command = command_in(commands, "demo", text, _demo, examples=_EXAMPLES)
    add_outputs(command, "-o")
    add_quiet(command)


def _demo(options: argparse.Namespace) -> int:
    from ortlens._versions import check_supported

    request = request_from_options(options)
    check_supported()
    print_text(_DEMO_BEFORE)
    sys.stdout.flush()
    from ortlens.demo import run_demo

    result = run_demo()
    verdict = "Results match" if result.is_match else "RESULTS DIFFER"
    print_text(f"{verdict}: over {result.calls} calls, the largest difference from plain PyTorch is {result.max_abs_difference:.1e}.\n")
    print_summary(result.lens.captured())
    print_written(write_outputs(request, result.lens))
    saved = options.save or "demo.ortlens"
    look = f"open {options.report} in a browser" if options.report else "ortlens demo --html demo.html, and open that file in a browser"
    print_text(_DEMO_AFTER.format(saved=saved, first="" if options.save else f"ortlens demo --save {saved} && ", look=look))
    return EXIT_OK if result.is_match else EXIT_NO


_EXAMPLES = """
    ortlens demo
    ortlens demo --html demo.html -o demo.ortlens
"""

_DEMO_BEFORE = """\
Running a small attention model twice: in plain PyTorch, and through ONNX Runtime with torch.compile
while ortlens records. The model has one graph break, one operator that ONNX lacks and one recompile
on purpose. This takes a few seconds.
"""

_DEMO_AFTER = """
Next steps
  your own model    lens = ortlens.explain(model)(*args); print(lens.summary())
                    or, in a shell: ortlens explain mymodels:net --input f32[1,3,224,224]
  look closer       {first}ortlens show {saved} --table fallbacks
  look around       {look}
  check this setup  ortlens doctor"""
