"""Files as targets of `ortlens explain`: ONNX models, and programs of torch.export."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortlens.errors import UsageError
from ortlens.job.targets import target_from_text
from ortlens.job.work import onnx_explained

if TYPE_CHECKING:
    import argparse

    from torch.export import ExportedProgram

    from ortlens.job.inputs import Inputs
    from ortlens.job.request import Request
    from ortlens.lens.onnx_model.onnx_lens import OnnxLens


def is_program_file(text: str) -> bool:
    """Tell whether a target is a program of torch.export, by the end of its name."""
    return Path(text).suffix.lower() == ".pt2"


def onnx_model(request: Request, options: argparse.Namespace, inputs: Inputs) -> OnnxLens:
    """Run an ONNX model, and profile and verify it if requested; raise `UsageError` if `--verify` lacks `--reference`."""
    if request.verify and not options.reference:
        raise UsageError("--verify of an ONNX model needs the PyTorch module that it was made from: --reference MODULE:NAME")
    args, kwargs = inputs.arrays(options.seed)
    reference = target_from_text(options.reference) if request.verify else None
    return onnx_explained(request, options.target, args, kwargs, reference)


def program_from_file(text: str) -> ExportedProgram:
    """Load a program of torch.export; raise `UsageError` if there is no such file, or it holds no program."""
    import torch

    path = Path(text).expanduser()
    if not path.is_file():
        raise UsageError(f"there is no file {text!r} in {Path.cwd()}")
    try:
        return torch.export.load(path)
    except Exception as error:
        raise UsageError(f"{text} is not a program of torch.export ({type(error).__name__}: {error})") from error


def example_inputs(program: ExportedProgram, text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the inputs that a program was exported with; raise `UsageError`, which names the file `text`, if there are none."""
    if program.example_inputs is None:
        raise UsageError(f"{text} holds no example inputs; give them with --input, for example --input f32[1,3,224,224]")
    args, kwargs = program.example_inputs
    return tuple(args), dict(kwargs)
