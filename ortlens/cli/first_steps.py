"""The first commands that a user types: `demo` runs the bundled model, `doctor` lists what is installed and what is missing."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from ortlens.cli.commands import EXIT_NO, EXIT_OK, add_quiet, command_in
from ortlens.cli.printing import print_json, print_summary, print_text, print_written
from ortlens.job.request import add_outputs, request_from_options
from ortlens.job.work import write_outputs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from ortlens.cli.commands import Commands
    from ortlens.doctor import Check

_DEMO = "Run a small bundled model through ONNX Runtime and explain what happened."
_DEMO_EXAMPLES = """
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

_DOCTOR = "List versions and providers, what is missing and how to install it. Exits 1 when models cannot run in ONNX Runtime."
_DOCTOR_EXAMPLES = """
    ortlens doctor
    ortlens doctor --quiet && ortlens demo  # only where it can run
"""
_MARKS = {"ok": "ok", "info": "--", "warning": "!", "error": "X"}


def add_demo(commands: Commands) -> None:
    """Add `demo` to the parser."""
    command = command_in(commands, "demo", _DEMO, _demo, examples=_DEMO_EXAMPLES)
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


def add_doctor(commands: Commands) -> None:
    """Add `doctor` to the parser."""
    command = command_in(commands, "doctor", _DOCTOR, _doctor, examples=_DOCTOR_EXAMPLES)
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
