"""What was asked for with the options of a command or magic, as one object, and doing it: compile, call, look closer, write files."""

from __future__ import annotations

import ast
import contextlib
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortlens.errors import OrtLensError, UsageError
from ortlens.job.providers import available_name, library_from_text, register
from ortlens.views.wording import COMMAND

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from ortlens.lens.lens import Lens
    from ortlens.lens.onnx_model.onnx_lens import OnnxLens
    from ortlens.views.capture_view import CaptureView
    from ortlens.views.wording import Hints


_PREFERRED = "preferred_execution_providers"
_WORDS = {"true": True, "false": False, "none": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked for."""

    backend: str = "ortlens"
    options: Mapping[str, Any] = field(default_factory=dict)
    dry_run: bool = False
    device: str | None = None  # that a dry run plans for; None for where the tensors are
    dynamic: bool | None = None
    calls: int | None = None
    no_grad: bool = False  # turn gradients off around everything
    profile: bool = False  # also find out where the time inside ONNX Runtime goes
    verify: bool = False  # also compare every value with PyTorch's
    keep_values: bool = False  # also record digests of values
    budget_s: float | None = None  # seconds for each of these two; None for their defaults
    report: Path | None = None  # where the HTML report goes; None writes none
    save: Path | None = None  # where the capture goes; None keeps it in memory
    redact: bool = False  # leave paths, source lines and values out of the report

    def __post_init__(self) -> None:
        """Reject contradictory options, and files that cannot be written, before anything runs."""
        if self.dry_run and (self.profile or self.verify or self.keep_values):
            asked = "--profile" if self.profile else "--verify" if self.verify else "--keep-values"
            raise UsageError(f"{asked} needs a real run, and --dry-run runs nothing; leave one of them out")
        if self.device is not None and not self.dry_run:
            raise UsageError(f"--device {self.device} says what a dry run plans for, and moves nothing; add --dry-run")
        if self.budget_s is not None and not (self.profile or self.verify):
            raise UsageError("--budget limits the time of --profile and --verify; add one of them")
        if self.redact and self.report is None:
            raise UsageError("--redact applies to the report; add --report FILE")
        # Early: a file that cannot be written should not cost the minutes of the run before it.
        if self.report is not None:
            from ortlens.views.markup import checked_target

            checked_target(self.report)
        if self.save is not None and not self.save.absolute().parent.is_dir():
            raise UsageError(f"--save {self.save}: there is no folder {self.save.absolute().parent}; create it first, or choose another")


def request_from_options(options: argparse.Namespace, **given: Any) -> Request:  # noqa: ANN401 - fields of Request
    """Make the request from parsed options and given fields; options that the caller does not have keep their defaults."""
    names = set(Request.__slots__) - {"options"}
    found = {name: value for name, value in vars(options).items() if name in names}
    return Request(**{**found, "options": backend_options(options), **given})


def backend_options(options: argparse.Namespace, pairs: Sequence[str] = ()) -> dict[str, Any]:
    """Read options of the backend, those of `--option` unless others are given, and `--provider`; register libraries before."""
    for text in getattr(options, "provider_library", ()):
        register(*library_from_text(text))
    chosen = options_from_pairs(pairs or getattr(options, "option", ()))
    if providers := getattr(options, "provider", ()):
        if _PREFERRED in chosen:
            raise UsageError(f"--provider sets {_PREFERRED}, which is among the options, too; leave one out")
        from ortlens.lens.profiling.forecast import RULED

        also = RULED if getattr(options, "dry_run", False) else ()
        chosen[_PREFERRED] = [(available_name(name, also), settings) for name, settings in providers]
    return chosen


def options_from_pairs(pairs: Sequence[str]) -> dict[str, Any]:
    """Read options of the backend, each `key=value`, a Python literal or plain text; `OrtBackendOptions` checks their names."""
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key:
            raise UsageError(f"--option {pair}: an option is written key=value, for example --option min_partition_nodes=2")
        if key in options:
            raise UsageError(f"--option {key} is given twice, as {options[key]!r} and as {text!r}; leave one out")
        options[key] = value_from_text(text)
    return options


def value_from_text(text: str) -> Any:  # noqa: ANN401 - any literal
    """Read a value as a user writes it: `3`, `2.5`, `true`, `none`, `['a']`, `'quoted'`; plain words stay as they are."""
    word = text.strip().lower()
    if word in _WORDS:
        return _WORDS[word]
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text


OWN_NAMES = ("ortlens", "onnxrt")  # the names of our backend


def new_lens(request: Request, name: str) -> Lens:
    """Create a lens that has recorded nothing yet; raise `UsageError` for a wrong option, or what the backend cannot do."""
    from ortlens.lens.lens import Lens

    if request.backend not in OWN_NAMES and (request.profile or request.verify or request.keep_values):
        asked = "--profile" if request.profile else "--verify" if request.verify else "--keep-values"
        raise UsageError(f"{asked} needs ONNX Runtime, which --backend {request.backend} does not use; leave one of them out")
    return Lens(request.backend, options=request.options or None, name=name, dry_run=request.dry_run)


def explained(request: Request, lens: Lens, target: Callable[..., Any], *calls: tuple[tuple[Any, ...], Mapping[str, Any]]) -> None:
    """Compile a target, call it, and profile and verify it as requested. What the target raises passes; what the lens saw stays.

    Of several calls, the first is measured and profiled. The others are made once, and each is verified.
    """
    import torch

    from ortlens.lens.explain import planned_device
    from ortlens.lens.explain_torch import Wanted, explain_under

    with torch.no_grad() if request.no_grad else contextlib.nullcontext():
        device = planned_device(target, request.device, dry_run=request.dry_run)
        (args, kwargs), *others = calls
        explain_under(lens, target, args, kwargs, Wanted(request.dynamic, request.calls, device, request.keep_values))
        for place, (more, named) in enumerate(others, 2):
            lens.call_target(more, named)
            lens.compilations.recorder.note(explain_inputs=place)
        seen = lens.captured() if request.profile or request.verify else None
        if request.profile and seen and seen.sessions:  # else the summary says why ONNX Runtime computed nothing
            lens.profile(*args, **_budget(request), **kwargs)
        if request.verify and seen and seen.graphs:
            lens.compilations.recorder.keep_worst([partial(lens.verify, *more, **_budget(request), **named) for more, named in calls])


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
    reference: object = None,
) -> OnnxLens:
    """Run an ONNX model, and profile it and verify it against `reference` if requested; without inputs, make them from its signature."""
    from ortlens.lens.explain import explain

    if request.backend != OWN_NAMES[0] or request.dynamic is not None or request.device is not None:
        raise UsageError("an ONNX model is run as it is; --backend, --dynamic and --device are for what torch.compile compiles")
    same = {name: getattr(request, name) for name in ("dry_run", "calls", "keep_values")}
    lens: OnnxLens = explain(file, options=request.options or None, **same)(*args, **(kwargs or {}))
    if request.profile:
        lens.profile(**_budget(request))
    if request.verify and reference is not None:
        lens.verify(reference, *args, **(kwargs or {}))
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
        try:
            lines.append(f"{words} {write()}")
        except (OrtLensError, OSError) as err:
            errors.append(err)
    if errors:
        raise OrtLensError("; ".join([*map(str, errors), *lines])) from errors[0]
    return lines
