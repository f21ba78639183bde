"""Outputs of an ONNX model against those of the PyTorch module that it was made from."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
import torch

from ortlens import _ort, _torch
from ortlens.analysis.problems.catalogue import remedy
from ortlens.errors import UsageError
from ortlens.lens.onnx_model.sessions import run
from ortlens.lens.onnx_model.signature import BY_BITS, Input
from ortlens.lens.onnx_model.two_models.lockstep import between
from ortlens.lens.verify.call_state import CallState
from ortlens.lens.verify.causes import difference_words, finding_of_call
from ortlens.lens.verify.compare_values import ValueVerdict, judge
from ortlens.lens.verify.excuses import OF_CALLS, CallEvidence, excuse
from ortlens.lens.verify.float64 import Float64Run, Missing
from ortlens.trace import records as r
from ortlens.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ortlens.lens.onnx_model.signature import Feed
    from ortlens.lens.verify.compare_values import Tolerances
    from ortlens.trace.recorder import Recorder

_NAMED = 3  # outputs that a finding names
_CALLS_WITH_RANDOM_NUMBERS = 8  # more where random numbers are drawn: a mask of few elements may come twice


def verify(  # noqa: PLR0913, PLR0917 - one call site
    session: onnxruntime.InferenceSession,
    reference: Callable[..., Any],
    inputs: Sequence[Input],
    feed: Feed,
    recorder: Recorder,
    tolerances: Tolerances,
) -> tuple[list[Any], dict[str, Any]] | None:
    """Fill the table of compared values; return the tensors of a call and the model's outputs, unless these vary from call to call.

    Raises UsageError if the reference fails or returns another number of tensors.
    """
    if not callable(reference):
        raise UsageError(
            f"verify() takes the PyTorch module or function that the model was made from, an exported program or an ONNX model, not "
            f"{type(reference).__name__}"
        )
    values = [_tensor(each, feed[each.name]) for each in inputs]
    made = run(session, inputs, feed, "the model")
    outputs, again = (_outputs(session, each) for each in (made, run(session, inputs, feed, "the model")))
    eager, wide, unsteady = _eager(reference, values, outputs, tolerances)
    evidence = CallEvidence(unsteady, _differing(outputs, again, tolerances), _name(reference), "; is it in evaluation mode?")
    verdicts = []
    for place, name in enumerate(dict.fromkeys((*eager, *outputs))):
        verdict = ValueVerdict(node=name, scope="call", place=place, onnx_value=name)
        judge(verdict, outputs[name], eager.get(name), wide.get(name), tolerances)
        excuse(verdict, evidence, OF_CALLS)
        verdicts.append(verdict)
    rows = [(verdict.row(None), outputs[verdict.node], eager.get(verdict.node)) for verdict in verdicts]
    recorder.replace_all(r.Numeric, [replace(row, **_sqnr(ours, theirs)) for row, ours, theirs in rows])
    wrong = [verdict for verdict in verdicts if verdict.ok is False]
    recorder.replace_findings(("call_differs",), [_finding(wrong, len(verdicts), _name(reference))] if wrong else [])
    return None if evidence.unsteady or evidence.unsteady_in_ort else (values, made)


def generated(model: Any, ids: Any, kwargs: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Call `generate` of transformers; return the new tokens, in rows, and the logits of each."""
    ids = torch.as_tensor(ids, dtype=torch.int64)
    more = {"attention_mask": torch.ones_like(ids), **kwargs, "return_dict_in_generate": True, "output_logits": True}
    made = model.generate(ids, **more)
    return made.sequences[:, ids.shape[1] :], torch.stack(tuple(made.logits), 1).float()


def verify_tokens(  # noqa: PLR0913, PLR0917 - one call site
    reference: Any, ids: Any, kwargs: Mapping[str, Any], ours: tuple[Any, Any], recorder: Recorder, tolerances: Tolerances
) -> None:
    """Compare the tokens that a language model generated, and their logits, with those of the reference; `ours` are its own.

    They are compared up to the first token that differs: after it, each computes something else. Where its logits agree, rounding decided.
    """

    def generate(prompt: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return generated(reference, prompt, kwargs)

    generate.__name__ = f"{_name(reference)}.generate"
    tokens, logits = torch.as_tensor(ours[0]).long(), torch.as_tensor(ours[1]).float()
    eager, wide, _ = _eager(generate, [torch.as_tensor(ids)], {"tokens": tokens, "logits": logits}, tolerances)
    theirs, most = eager["tokens"], min(tokens.shape[1], eager["tokens"].shape[1])
    differing = (tokens[:, :most] != theirs[:, :most]).nonzero().tolist()
    row, first = min(differing, key=lambda place: place[1], default=(0, most))
    numbers = ValueVerdict(node="logits", scope="call", place=1, onnx_value="logits")
    double, (logits, others) = wide.get("logits"), (value[:, : first + 1] for value in (logits, eager["logits"]))
    judge(numbers, logits, others, double[:, : first + 1] if isinstance(double, torch.Tensor) else double, tolerances)
    verdict = ValueVerdict(node="tokens", scope="call", place=0, ok=first == most)
    if first < most:
        margins = [f"{-float(value[row, first].topk(2).values.diff()):.3g}" for value in (logits, others)]
        verdict.node = f"token {first + 1} of {tokens.shape[1]}"
        margin = f"the margin of its logits, top-1 minus top-2, is {margins[0]}, and {margins[1]} in PyTorch"
        verdict.note = f"{tokens[row, first]} instead of {theirs[row, first]}; {margin}"
        if numbers.ok:
            verdict.leave_open("the logits agree, and rounding decides between tokens that are as near as that")
    wrong = [each for each in (verdict, numbers) if each.ok is False]
    recorder.replace_all(r.Numeric, [verdict.row(None), numbers.row(None)])
    recorder.replace_findings(("call_differs",), [_finding(wrong, 2, _name(reference))] if wrong else [])


def _sqnr(ours: object, theirs: object) -> dict[str, Any]:
    if not isinstance(ours, torch.Tensor) or not isinstance(theirs, torch.Tensor) or ours.shape != theirs.shape or ours.is_complex():
        return {}
    return r.same(between(ours.double().numpy(), theirs.double().numpy()), "sqnr_db", "cosine")


def _name(reference: object) -> str:
    return getattr(reference, "__name__", None) or type(reference).__name__


def _tensor(of: Input, value: Any) -> Any:
    if value is None or isinstance(value, list):
        return value if value is None else [_tensor(of, item) for item in value]
    made = _as_tensor(value, of.element)
    if isinstance(made, Missing):
        raise UsageError(f"the input {of.name!r} is {of.type}, which PyTorch has no tensors of; the model cannot be compared with PyTorch")
    return made


def _outputs(session: onnxruntime.InferenceSession, values: Mapping[str, Any]) -> dict[str, torch.Tensor | Missing]:
    """Collect tensors by output; those of a sequence one by one, none of an optional output without a value."""
    found: dict[str, torch.Tensor | Missing] = {}
    for each in session.get_outputs():
        value, element = values[each.name], Input(name=each.name, type=each.type, shape=None).element
        if isinstance(value, list) and element:
            found |= {f"{each.name}[{place}]": _as_tensor(item, element) for place, item in enumerate(value)}
        elif value is not None:
            found[each.name] = _as_tensor(value, element)
    return found


def _as_tensor(value: Any, element: str) -> torch.Tensor | Missing:
    dtype = getattr(torch, BY_BITS.get(element, ""), None)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        made = torch.from_numpy(value.astype(value.dtype.name))  # a copy; of two types of the same bits, torch knows the one of this name
        return made if dtype is None else made.view(dtype)
    if isinstance(value, onnxruntime.OrtValue) and dtype is not None and value.device_name() == "cpu":
        made = torch.from_numpy(np.frombuffer(_ort.bytes_of(value, dtype.itemsize), np.uint8).copy())
        return made.view(dtype).reshape(value.shape())
    return Missing(f"{f'tensor({element})' if element else type(value).__name__} is not compared")


def _paired(outputs: Mapping[str, Any], eager: Sequence[Any], reference: object) -> list[str]:
    """Choose the outputs that the tensors of the reference are compared with: all, or all that PyTorch has tensors of."""
    tensors = [name for name, value in outputs.items() if not isinstance(value, Missing)]
    pairs = next((names for names in (list(outputs), tensors) if len(names) == len(eager)), None)
    if pairs is None:
        raise UsageError(
            f"the model has {counted(len(outputs), 'output')} ({', '.join(outputs)}), and {_name(reference)} returns "
            f"{counted(len(eager), 'tensor')}; pass a function that returns the same ones, in the same order"
        )
    return pairs


def _eager(
    reference: Callable[..., Any], values: list[Any], outputs: Mapping[str, Any], tolerances: Tolerances
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor | Missing], set[str]]:
    """Call the reference for its results, the same in double precision, and the names of those that vary with the random numbers drawn."""
    state, unsteady = CallState(reference, (), {}), set[str]()
    try:
        first = _called(reference, values)
        names = _paired(outputs, first, reference)
        eager = dict(zip(names, first, strict=True))
        for _ in range(_CALLS_WITH_RANDOM_NUMBERS if state.drew() else 1):
            state.restore(random=False)
            unsteady |= _differing(eager, dict(zip(names, _called(reference, values), strict=False)), tolerances)
        state.restore()
        return eager, dict(zip(names, _in_double(reference, values), strict=False)), unsteady
    finally:
        state.restore()


def _differing(values: Mapping[str, Any], others: Mapping[str, Any], tolerances: Tolerances) -> set[str]:
    """Name the values that another call gave otherwise, or not at all."""
    found = set()
    for name, value in values.items():
        verdict = ValueVerdict(node=name, scope="call", place=0)
        judge(verdict, others.get(name), value, None, tolerances)
        if verdict.ok is False or name not in others:
            found.add(name)
    return found


def _called(reference: Callable[..., Any], values: list[Any]) -> list[Any]:
    try:
        with torch.no_grad(), _torch.uncompiled():
            made = reference(*_torch.map_tensors(torch.clone, values))
    except Exception as error:
        raise UsageError(f"calling {_name(reference)} with the model's inputs failed: {type(error).__name__}: {error}") from error
    return _torch.tensors_of(made)


def _in_double(reference: Callable[..., Any], values: list[Any]) -> list[Any]:
    run = Float64Run()
    try:
        with run:
            made = _called(reference, values)
    except UsageError:  # an operator that cannot be watched
        return []
    return [run.double_of(tensor) for tensor in made]


def _finding(wrong: Sequence[ValueVerdict], count: int, reference: str) -> r.Finding:
    parts = "; ".join(f"{verdict.node}: {difference_words(verdict)}" for verdict in wrong[:_NAMED])
    return replace(
        finding_of_call(wrong, "", None),
        evidence=f"{len(wrong)} of {counted(count, 'output')} differ from {reference}: {parts}",
        hazard="The model gives other results than the module that it was made from.",
        **remedy(
            "Check that both have the same weights and that the module is in evaluation mode; export it again.",
            "If the difference remains with graph_optimization_level = ORT_DISABLE_ALL in ort_session_options, the exporter is at fault, "
            "else ONNX Runtime.",
        ),
    )
