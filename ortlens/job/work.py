"""Doing what a `Request` asks for: compile and call, look closer, write files."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortlens.errors import OrtLensError, UsageError
from ortlens.views.wording import COMMAND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ortlens.job.request import Request
    from ortlens.lens.lens import Lens
    from ortlens.lens.onnx_model.onnx_lens import OnnxLens
    from ortlens.views.capture_view import CaptureView
    from ortlens.views.wording import Hints

OWN_NAMES = ("ortlens", "onnxrt")  # the names of our backend


def new_lens(request: Request, name: str) -> Lens:
    """Create a lens that has recorded nothing yet; raise `UsageError` for a wrong option, or what the backend cannot do."""
    from ortlens.lens.lens import Lens

    if request.backend not in OWN_NAMES and (request.profile or request.verify):
        asked = "--profile" if request.profile else "--verify"
        raise UsageError(f"{asked} needs ONNX Runtime, which --backend {request.backend} does not use; leave one of them out")
    return Lens(request.backend, options=request.options or None, name=name, dry_run=request.dry_run)


def explained(request: Request, lens: Lens, target: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Compile a target, call it, and profile and verify it as requested. What the target raises passes; what the lens saw stays."""
    import torch

    from ortlens.lens.explain import planned_device
    from ortlens.lens.explain_torch import Wanted, explain_under

    with torch.no_grad() if request.no_grad else contextlib.nullcontext():
        device = planned_device(target, request.device, dry_run=request.dry_run)
        explain_under(lens, target, args, kwargs, Wanted(request.dynamic, request.calls, device))
        seen = lens.captured() if request.profile or request.verify else None
        if request.profile and seen and seen.sessions:  # else the summary says why ONNX Runtime computed nothing
            lens.profile(*args, **_budget(request), **kwargs)
        if request.verify and seen and seen.graphs:
            lens.verify(*args, **_budget(request), **kwargs)


def _budget(request: Request) -> dict[str, Any]:
    """Return the time limit as an argument, if there is one; else a target may have an argument of that name."""
    return {} if request.budget_s is None else {"budget_s": request.budget_s}


def is_onnx_file(text: str) -> bool:
    """Tell whether a target is an ONNX model, by the end of its name."""
    return Path(text).suffix.lower() in {".onnx", ".ort"}


def onnx_explained(
    request: Request,
    file: str,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    reference: Callable[..., Any] | None = None,
) -> OnnxLens:
    """Run an ONNX model, and profile it and verify it against `reference` if requested; without inputs, make them from its signature."""
    from ortlens.lens.explain import explain

    if request.backend != OWN_NAMES[0] or request.dynamic is not None or request.device is not None:
        raise UsageError("an ONNX model is run as it is; --backend, --dynamic and --device are for what torch.compile compiles")
    lens: OnnxLens = explain(file, options=request.options or None, dry_run=request.dry_run, calls=request.calls)(*args, **(kwargs or {}))
    if request.profile:
        lens.profile(**_budget(request))
    if request.verify and reference is not None:
        lens.verify(reference)
    return lens


def write_outputs(request: Request, view: CaptureView, *, title: str | None = None, hints: Hints = COMMAND) -> list[str]:
    """Write the files that were asked for, each whatever becomes of the other; return a line per file that says where it is."""
    view.hints = hints
    steps: list[tuple[str, Callable[[], object]]] = []
    if (save := request.save) is not None:
        steps.append(("Saved to", lambda: view.save(save)))
    if (report := request.report) is not None:
        steps.append(("Report written to", lambda: view.report(report, title, redact=request.redact)))
    lines: list[str] = []
    errors: list[Exception] = []
    for words, write in steps:
        with _kept(errors):
            lines.append(f"{words} {write()}")
    if errors:
        raise OrtLensError("; ".join([*map(str, errors), *lines])) from errors[0]
    return lines


@contextlib.contextmanager
def _kept(errors: list[Exception]) -> Iterator[None]:
    try:
        yield
    except (OrtLensError, OSError) as err:
        errors.append(err)
