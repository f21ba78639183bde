"""Outputs of an ONNX model against those of the PyTorch module that it was made from."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
import torch

from ortlens import _torch
from ortlens.backend.runtime import _ort
from ortlens.errors import UsageError
from ortlens.lens.onnx_model.running import run
from ortlens.lens.verify.compare_values import Tolerances
from ortlens.lens.verify.lockstep import Missing
from ortlens.lens.verify.verdicts import Verdict, judge
from ortlens.trace import records as r
from ortlens.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ortlens.lens.onnx_model.signature import Feed, Input
    from ortlens.trace.recorder import Recorder

_NAMED = 3  # outputs that a finding names


def verify(  # noqa: PLR0913, PLR0917 - one call site
    session: onnxruntime.InferenceSession,
    reference: Callable[..., Any],
    inputs: Sequence[Input],
    feed: Feed,
    recorder: Recorder,
    atol: Any,
    rtol: Any,
) -> None:
    """Fill the table of compared values.

    Args:
        session: Of the model.
        reference: The module or function.
        inputs: Of the model.
        feed: Values by input.
        recorder: Where the rows and the finding go.
        atol: Absolute tolerance, as for `OnnxLens.verify`.
        rtol: Relative tolerance, likewise.

    Raises:
        UsageError: The reference cannot be called, raises, or returns another number of tensors than the model.
        SessionError: ONNX Runtime cannot run the model.
    """
    if not callable(reference):
        raise UsageError(f"verify() takes the PyTorch module or function that the model was made from, not {type(reference).__name__}")
    tolerances = Tolerances(atol, rtol)
    values = [_tensor(each, feed[each.name]) for each in inputs]
    outputs = run(session, inputs, feed, "the model")
    eager = _called(reference, values)
    if len(eager) != len(outputs):
        raise UsageError(
            f"the model has {counted(len(outputs), 'output')} ({', '.join(outputs)}), and {_name(reference)} returns "
            f"{counted(len(eager), 'tensor')}; pass a function that returns the same ones, in the same order"
        )
    wide = _in_double(reference, values, len(outputs))
    verdicts = []
    for place, ((name, ours), theirs) in enumerate(zip(outputs.items(), eager, strict=True)):
        verdict = Verdict(node=name, scope="call", place=place, onnx_value=name, line_of=None)
        judge(verdict, _as_tensor(ours), theirs, wide[place], tolerances)
        verdicts.append(verdict)
    recorder.replace_all(r.Numeric, [verdict.row(None) for verdict in verdicts])
    kept = [finding for finding in recorder.records(r.Finding) if finding.rule != "call_differs"]
    wrong = [verdict for verdict in verdicts if verdict.ok is False]
    recorder.replace_all(r.Finding, [*kept, *([_finding(wrong, len(verdicts), _name(reference))] if wrong else [])])


def _name(reference: object) -> str:
    return getattr(reference, "__name__", None) or type(reference).__name__


def _tensor(of: Input, value: Any) -> Any:
    if value is None or isinstance(value, list):
        return value if value is None else [_tensor(of, item) for item in value]
    if not isinstance(value, np.ndarray) or value.dtype == object:
        raise UsageError(f"the input {of.name!r} is {of.type}, which PyTorch has no tensors of; the model cannot be compared with PyTorch")
    made = torch.from_numpy(value.copy())
    return made.view(torch.bfloat16) if of.element == "bfloat16" else made


def _as_tensor(value: Any) -> torch.Tensor | Missing:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return torch.from_numpy(value.copy())
    if isinstance(value, onnxruntime.OrtValue) and value.data_type() == "tensor(bfloat16)":
        return _ort.tensor_of(value).clone()
    return Missing(f"{value.data_type() if isinstance(value, onnxruntime.OrtValue) else type(value).__name__} is not compared")


def _called(reference: Callable[..., Any], values: list[Any]) -> list[Any]:
    try:
        with torch.no_grad():
            made = reference(*_cloned(values))
    except Exception as error:
        raise UsageError(f"calling {_name(reference)} with the model's inputs failed: {type(error).__name__}: {error}") from error
    return _torch.tensors_of(made)


def _cloned(values: list[Any]) -> list[Any]:
    cloned: list[Any] = _torch.map_tensors(torch.clone, values)
    return cloned


def _in_double(reference: Callable[..., Any], values: list[Any], count: int) -> list[Any]:
    """The outputs of a copy of the module in double precision; where it does not run so, the reason for each."""
    if not isinstance(reference, torch.nn.Module):
        return [Missing("the reference is a function, of which there is no copy in double precision")] * count
    try:
        double = copy.deepcopy(reference).double()
        wide = _torch.map_tensors(lambda value: value.double() if value.is_floating_point() else value.clone(), values)
        made = _called(double, wide)
    except Exception as error:  # noqa: BLE001 - whatever a module does that was never run so; the comparison goes on without it
        return [Missing(f"{type(error).__name__} in double precision")] * count
    return made if len(made) == count else [Missing("other outputs in double precision")] * count


def _finding(wrong: Sequence[Verdict], count: int, reference: str) -> r.Finding:
    parts = [f"{verdict.node}: {_distance(verdict)}" for verdict in wrong]
    return r.Finding(
        rule="call_differs",
        subject="call",
        severity="error",
        title=f"{wrong[0].node} differs from PyTorch's: {_distance(wrong[0])}" + (f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""),
        evidence=f"{len(wrong)} of {counted(count, 'output')} differ from {reference}: {'; '.join(parts[:_NAMED])}",
        hazard="The model gives other results than the module that it was made from.",
        mitigation="Check that both have the same weights and that the module is in evaluation mode; export it again. If the difference "
        "remains with graph_optimization_level = ORT_DISABLE_ALL in ort_session_options, the exporter is at fault, else ONNX Runtime.",
    )


def _distance(verdict: Verdict) -> str:
    found = verdict.comparison
    if found is None or (found.within and found.clashes):
        return verdict.note or "it differs"
    return f"by up to {found.max_abs:.3g}"
