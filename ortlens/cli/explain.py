"""`ortlens explain` runs a model and explains it, `demo` the bundled one; `doctor` lists what is installed and what is missing."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortlens.cli.commands import (
    EXIT_NO,
    EXIT_OK,
    Command,
    facts_of,
    print_answer,
    print_error,
    print_json,
    print_summary,
    print_text,
    print_written,
    tell_reviewers,
)
from ortlens.errors import OrtLensError, UsageError
from ortlens.job.request import explained, is_onnx_file, new_lens, onnx_explained, request_from_options, write_outputs
from ortlens.job.targets import calling, inputs_from_texts, raised_as_usage, target_from_text
from ortlens.lens.explain import is_language_model

if TYPE_CHECKING:
    import argparse

    from torch.export import ExportedProgram

    from ortlens.job.request import Request
    from ortlens.job.targets import Inputs
    from ortlens.lens.lens import Lens
    from ortlens.lens.onnx_model.onnx_lens import OnnxLens


def _explain(options: argparse.Namespace) -> int:
    request = request_from_options(options, no_grad=True)
    inputs = inputs_from_texts(options.input)  # a slip here should not wait for torch

    from ortlens._versions import check_supported

    check_supported()
    is_onnx = is_onnx_file(options.target) or is_language_model(options.target)
    lens = _onnx_model(request, options, inputs) if is_onnx else _watched(request, options, inputs)
    written = write_outputs(request, lens)
    if options.json:
        print_json("explain", facts_of(lens.captured()))
    else:
        print_summary(lens.captured())
    print_written(written, beside_json=options.json)
    tell_reviewers(lens.captured(), options.sarif)
    return EXIT_NO if any(row.ok is False for row in lens.captured().numerics) else EXIT_OK


EXPLAIN = Command(
    name="explain",
    text=(
        "Compile your model or function through ONNX Runtime, call it on random inputs, and explain what happened. Or run an ONNX model "
        "(model.onnx) as it is, or an exported program (program.pt2)."
    ),
    run=_explain,
    asks="""
        Why is my model slow, and what do I change first?
        Where does it break graphs and recompile, and what stays in PyTorch?
        Are the results those of PyTorch? (--verify)
        What would run in ONNX Runtime, without memory for the weights or a GPU? (--dry-run)
    """,
    examples="""
        ortlens explain mymodels:net --input f32[1,3,224,224] --html run.html
        ortlens explain mymodels:Classifier --input 'i64[1,16]:30522' mask=bool[1,16] --profile --verify
        ortlens explain zoo.py:llama_7b --input 'i64[1,2048]:32000' --dry-run  # needs no memory for weights
        ortlens explain mymodels:net --input f32[1,3,224,224] --dry-run --device cuda  # plans for a GPU, on any machine
        ortlens explain model.onnx --profile
    """,
)


def _onnx_model(request: Request, options: argparse.Namespace, inputs: Inputs) -> OnnxLens:
    """Run an ONNX model, and profile and verify it if requested; raise `UsageError` if `--verify` lacks `--reference`."""
    from ortlens.lens.onnx_model.signature import feed_from, inputs_of
    from ortlens.lens.onnx_model.source import source_of

    if request.verify and not options.reference:
        raise UsageError("--verify of an ONNX model needs what it was made from: --reference MODULE:NAME, model.onnx or program.pt2")
    structure = source_of(options.target).structure if len(inputs.calls) > 1 else None
    feeds = structure and tuple(feed_from(inputs_of(structure), *each.arrays(options.seed)) for each in inputs.calls)
    args, kwargs = (feeds, {}) if feeds else inputs.arrays(options.seed)
    reference = _reference(options.reference) if request.verify else None
    return onnx_explained(request, options.target, args, kwargs, reference)


def _reference(text: str) -> Any:  # noqa: ANN401 - what `OnnxLens.verify` takes
    if is_onnx_file(text):
        return text
    return _program_from_file(text) if Path(text).suffix.lower() == ".pt2" else target_from_text(text)


def _program_from_file(text: str) -> ExportedProgram:
    """Load a program of torch.export; raise `UsageError` if there is no such file, or it holds no program."""
    import torch

    path = Path(text).expanduser()
    if not path.is_file():
        raise UsageError(f"there is no file {text!r} in {Path.cwd()}")
    try:
        return torch.export.load(path)
    except Exception as error:
        raise UsageError(f"{text} is not a program of torch.export ({type(error).__name__}: {error})") from error


def _watched(request: Request, options: argparse.Namespace, inputs: Inputs) -> Lens:
    import torch

    torch.manual_seed(options.seed)
    target: Any
    is_program = Path(options.target).suffix.lower() == ".pt2"
    target = _program_from_file(options.target) if is_program else target_from_text(options.target, on_meta=request.dry_run)
    calls = [each.made(options.seed) for each in (inputs.calls if not request.dry_run else [inputs])]  # which plans for one call
    if is_program and not options.input:
        if target.example_inputs is None:
            raise UsageError(f"{options.target} holds no example inputs; give them with --input, for example --input f32[1,3,224,224]")
        calls = [target.example_inputs]
    lens = new_lens(request, options.target)
    try:
        with raised_as_usage([calling(options, target, *call) for call in calls][-1]):
            explained(request, lens, target, *calls)
    except BaseException:
        if lens.captured().graphs:  # what was captured until then is written; errors while writing are suppressed in favour of the first
            with contextlib.suppress(OrtLensError):
                for line in write_outputs(request, lens):
                    print_error(line)
        raise
    return lens


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

_MARKS = {"ok": "ok", "info": "--", "warning": "!", "error": "X"}


def _demo(options: argparse.Namespace) -> int:
    from ortlens._versions import check_supported

    request = request_from_options(options)
    check_supported()
    if not options.json:
        print_text(_DEMO_BEFORE)
        sys.stdout.flush()
    from ortlens.demo import run_demo

    result = run_demo()
    if options.json:
        facts = {"is_match": result.is_match, "calls": result.calls, "max_abs_difference": result.max_abs_difference}
        print_json("demo", {**facts_of(result.lens.captured()), **facts})
        print_written(write_outputs(request, result.lens), beside_json=True)
        return EXIT_OK if result.is_match else EXIT_NO
    verdict = "Results match" if result.is_match else "RESULTS DIFFER"
    print_text(f"{verdict}: over {result.calls} calls, the largest difference from plain PyTorch is {result.max_abs_difference:.1e}.\n")
    print_summary(result.lens.captured())
    print_written(write_outputs(request, result.lens))
    saved = options.save or "demo.ortlens"
    look = f"open {options.report} in a browser" if options.report else "ortlens demo --html demo.html, and open that file in a browser"
    print_text(_DEMO_AFTER.format(saved=saved, first="" if options.save else f"ortlens demo --save {saved} && ", look=look))
    return EXIT_OK if result.is_match else EXIT_NO


DEMO = Command(
    name="demo",
    text="Run a small bundled model through ONNX Runtime and explain what happened.",
    run=_demo,
    asks="Does it work here, and what does it show?",
    examples="""
        ortlens demo
        ortlens demo --html demo.html -o demo.ortlens
    """,
)


def _doctor(options: argparse.Namespace) -> int:
    from ortlens.doctor import examine, is_ready

    checks = examine()
    ready = is_ready(checks)
    size = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{_MARKS[check.status]:>2}  {check.name:<{size}}  {check.found}")
        if check.advice:
            lines.append(f"{'':>2}  {'':<{size}}  -> {check.advice}")
    end = "Ready. Try it: `ortlens demo`." if ready else "Not ready: fix the lines marked X."
    print_answer(options, "doctor", {"ready": ready, "checks": checks}, "\n".join([*lines, "", end]))
    return EXIT_OK if ready else EXIT_NO


DOCTOR = Command(
    name="doctor",
    text="List versions and providers, what is missing and how to install it. Exits 1 when models cannot run in ONNX Runtime.",
    run=_doctor,
    asks="What is installed, and what is missing?",
    examples="""
        ortlens doctor
        ortlens doctor --quiet && ortlens demo  # only where it can run
    """,
)
