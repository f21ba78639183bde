"""One case, in its process: make the model, compile and call it, write the capture and the report."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortlens.studies.child import answer, stage

if TYPE_CHECKING:
    from ortlens.studies.cases import Case

CAPTURE, JOURNAL, REPORT = "capture.ortlens", "journal", "report.html"
"""Files of the folder of a case; the journal is what a process leaves that does not live to save its capture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What is done with each case beyond compiling and calling it."""

    profile: bool = False
    verify: bool = False
    reports: bool = True


def measured(case: Case, extras: Extras, folder: str) -> dict[str, Any]:
    """Measure a case, with its target as text, and return fields of `SurveyRow`; the capture is saved even if the model raises."""
    stage("importing torch")
    import torch

    from ortlens.analysis.surveyed import figures_of
    from ortlens.job.inputs import inputs_from_texts
    from ortlens.job.request import Request
    from ortlens.job.targets import call_from_text
    from ortlens.job.work import explained
    from ortlens.lens.lens import Lens

    inputs = inputs_from_texts(case.inputs)
    stage("making the model and its inputs")
    torch.manual_seed(case.seed)
    target, args, kwargs = call_from_text(str(case.target), (tuple(case.args), case.kwargs))
    more, named = inputs.made(case.seed)
    request = Request(
        backend=case.backend,
        options=case.options,
        dry_run=case.dry_run,
        dynamic=case.dynamic,
        calls=case.calls,
        no_grad=not case.grad,
        profile=extras.profile,
        verify=extras.verify,
    )
    stage("compiling and calling")
    lens = Lens(case.backend, options=case.options or None, name=case.name, journal=Path(folder) / JOURNAL, dry_run=case.dry_run)
    try:
        explained(request, lens, target, (*args, *more), {**kwargs, **named})
    except BaseException:
        with contextlib.suppress(Exception):
            lens.save(Path(folder) / CAPTURE)
        raise
    stage("saving the capture")
    lens.save(Path(folder) / CAPTURE)
    figures = figures_of(lens.captured())
    answer(figures)
    if extras.reports:
        stage("writing the report")
        lens.report(Path(folder) / REPORT)
    return figures
