"""Compares one call of the compiled function with the same call of the function itself, and with one in double precision.

Both start from the same inputs, state and random seed, and each is called twice: what PyTorch gives otherwise in its second call has no
verdict. Results, what was written, gradients, shared memory and the random state are compared. A difference is traced in steps, each of
which leaves out one suspect: PyTorch's numbers in ONNX Runtime's memory tell the numbers from the code around the partitions, and PyTorch
alone on the lowered graphs tells that code from the lowering.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ortlens import _torch
from ortlens.lens.verify.call_state import Outcome, Part, outcome_of
from ortlens.lens.verify.compare_values import Tolerances, ValueVerdict, compare, dtype_name, judge
from ortlens.lens.verify.excuses import OF_CALLS, CallEvidence, excuse
from ortlens.lens.verify.float64 import Float64Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from ortlens.lens.verify.call_state import CallState


_GIVEN = {"result": "returned", "gradient": "computed", "random": "drawn"}
_OTHER_NUMBERS = "the generator is in another state after the call: other random numbers were drawn"


@dataclass(slots=True, kw_only=True)
class CallCheck:
    """The comparison of one call."""

    call: Callable[[], object]  # of the compiled function
    eager: Callable[[], object] | None  # of the function itself; None if that is unknown
    state: CallState  # what both calls start from
    tolerances: Tolerances
    place_in_code: tuple[str | None, int | None]  # file and first line of the function, for parts whose own line is unknown
    verdicts: list[ValueVerdict] = field(default_factory=list)  # one per part of the call, in order
    cause: str = ""  # where the difference comes from: `inside`, `boundary`, `lowering`; empty if nothing differs
    expected: Outcome = field(default_factory=Outcome)  # what PyTorch gives
    _accumulates: bool = False

    def run(self, compiled: Outcome, again: Outcome) -> None:
        """Compare the outcome of a call of the compiled function, and that of its second call, with PyTorch's."""
        self.expected = self.called(self.eager)
        if self.expected.gradient_error is not None:
            self._accumulates = True
            self.expected = self.called(self.eager)
        unsteady = {verdict.node for verdict in self._against(self.called(self.eager), {}) if verdict.ok is False}
        for outcome, note in ((compiled, ""), (again, "in the second call from the same state")):
            self.verdicts = list(self._against(outcome, {}))
            if self.wrong():
                self._ask_arbiter(outcome)
            for verdict in self.wrong() if note else ():
                verdict.add(note)
            if self.wrong():
                break
        for verdict in self.verdicts:
            excuse(verdict, CallEvidence(unsteady), OF_CALLS)

    def wrong(self) -> list[ValueVerdict]:
        """List the parts that differ."""
        return [verdict for verdict in self.verdicts if verdict.ok is False]

    def trace(self, boundary: AbstractContextManager[object], lowered: AbstractContextManager[object]) -> None:
        """Set `cause`, from calls with PyTorch's numbers in ONNX Runtime's outputs (`boundary`), and with PyTorch alone (`lowered`)."""
        self.cause = "inside" if self._same(boundary) else "boundary" if self._same(lowered) else "lowering"

    def _same(self, substitute: AbstractContextManager[object]) -> bool:
        """Tell whether another way to run the compiled function gives the parts that differ as PyTorch gives them."""
        names = {verdict.node for verdict in self.wrong()}
        with substitute:  # the backward, which comes after the call, is substituted as well
            found = list(self._against(self.called(), {}))
        return not any(verdict.ok is False for verdict in found if verdict.node in names)

    def called(self, call: Callable[[], object] | None = None) -> Outcome:
        """Call the compiled function, or another, from the same state, which is put back."""
        self.state.restore()
        try:
            return outcome_of(call or self.call, self.state, accumulates=self._accumulates)
        finally:
            self.state.restore()

    def _ask_arbiter(self, compiled: Outcome) -> None:
        """Judge again with a run in double precision, and take the lines from it."""
        if self.expected.error is not None:
            return
        doubles, again = Float64Run(), Outcome()
        with doubles:
            again = self.called(self.eager)
        if again.error is not None:  # an operator that cannot be watched: the verdicts stay as they are
            return
        values = {name: doubles.double_of(part.live) for name, part in again.parts.items() if part.live is not None}
        self.verdicts = list(self._against(compiled, values))
        for verdict in self.wrong():
            verdict.place_in_code = self._line(doubles, verdict.node, again.parts.get(verdict.node)) or self.place_in_code

    def _line(self, doubles: Float64Run, name: str, part: Part | None) -> tuple[str | None, int | None] | None:
        if part is None or part.live is None:
            return doubles.drawn if part is not None and part.kind == "random" else None
        if part.kind == "gradient":
            source = self.state.tensors.get(name.removeprefix("gradient of "))
            return None if source is None else doubles.line_of(source, read=True)
        return doubles.line_of(part.live)

    def _against(self, compiled: Outcome, doubles: Mapping[str, Any]) -> Iterator[ValueVerdict]:
        """Compare an outcome with what is expected."""
        expected = self.expected
        if expected.error is not None or compiled.error is not None:
            yield self._errors("result", compiled.error, expected.error)
            yield from self._writes_before_raising(compiled)
            return
        for place, name in enumerate(dict.fromkeys([*expected.parts, *compiled.parts])):
            ours, theirs = compiled.parts.get(name), expected.parts.get(name)
            verdict = self.verdict(name, place)
            if ours is None or theirs is None:
                part, by = (theirs, "PyTorch") if ours is None else (ours, "the compiled function")
                kind = "written" if part is None else _GIVEN.get(part.kind, "written")
                verdict.ok, verdict.note = False, _OTHER_NUMBERS if kind == "drawn" else f"{kind} by {by} only"
            else:
                _judge_part(verdict, ours, theirs, doubles.get(name), self.tolerances)
            yield verdict
        if compiled.gradient_error is not None or expected.gradient_error is not None:
            yield self._errors("gradients", compiled.gradient_error, expected.gradient_error)

    def verdict(self, name: str, place: int = 0, note: str = "") -> ValueVerdict:
        """Begin a verdict on a part of the call."""
        return ValueVerdict(node=name, scope="call", place=place, note=note, place_in_code=self.place_in_code)

    def _errors(self, name: str, ours: Exception | None, theirs: Exception | None) -> ValueVerdict:
        verdict = self.verdict(name, 0, f"the compiled function {_said(ours)}, PyTorch {_said(theirs)}")
        # What catches PyTorch's error must catch ours; what Dynamo raises while it compiles, it raises under any backend.
        alike = isinstance(ours, type(theirs)) or _torch.is_of_dynamo(ours) or _torch.is_of_dynamo(theirs)
        verdict.ok = None if theirs is not None and alike else False
        return verdict

    def _writes_before_raising(self, compiled: Outcome) -> Iterator[ValueVerdict]:
        """Yield what only the compiled function wrote although PyTorch raises; it may write less, as any compiled code at its end."""
        expected = self.expected
        for place, (name, ours) in enumerate(compiled.parts.items() if expected.error is not None else ()):
            theirs = expected.parts.get(name)
            if ours.kind != "written" or (theirs is not None and ours.value.shape == theirs.value.shape and ours.value.equal(theirs.value)):
                continue
            verdict = self.verdict(name, place + 1, f"written by the compiled function although PyTorch {_said(expected.error)}")
            verdict.ok = False
            yield verdict


def _said(error: Exception | None) -> str:
    return "returns" if error is None else f"raises {type(error).__name__}: {error}"[:200]


def _judge_part(verdict: ValueVerdict, ours: Part, theirs: Part, double: Any, tolerances: Tolerances) -> None:
    if ours.kind == "random":
        verdict.ok = torch.equal(ours.value, theirs.value)
        verdict.note = "" if verdict.ok else _OTHER_NUMBERS
        return
    if not isinstance(theirs.value, torch.Tensor) or not isinstance(ours.value, torch.Tensor):
        _judge_plain(verdict, ours.value, theirs.value, tolerances)
        return
    if ours.value.dtype is not theirs.value.dtype:
        verdict.ok, verdict.note = False, f"{dtype_name(ours.value)} from the compiled function, {dtype_name(theirs.value)} from PyTorch"
        return
    judge(verdict, ours.value, theirs.value, double, tolerances)
    for wrong in _other_differences(ours, theirs):
        verdict.ok = False
        verdict.add(wrong)


def _judge_plain(verdict: ValueVerdict, ours: Any, theirs: Any, tolerances: Tolerances) -> None:
    if isinstance(ours, float) and isinstance(theirs, float):
        tolerance = tolerances.of(torch.float32)  # a number of a tensor, most likely of this dtype
        same = ours == theirs or (ours != ours and theirs != theirs)  # noqa: PLR0124 - NaN
        verdict.ok = same or abs(ours - theirs) <= tolerance.atol + tolerance.rtol * abs(theirs)
    else:
        verdict.ok = type(ours) is type(theirs) and bool(ours == theirs)
    verdict.note = "" if verdict.ok else f"{ours!r:.80} from the compiled function, {theirs!r:.80} from PyTorch"


def _other_differences(ours: Part, theirs: Part) -> Iterator[str]:
    """Yield what differs besides the numbers: shared memory, strides, differentiability."""
    if ours.kind != "result" or ours.value.shape != theirs.value.shape:
        return
    if missing := sorted(theirs.shares - ours.shares):
        yield f"shares no memory with {', '.join(missing[:3])}, as PyTorch's does: writing to one does not show in the other"
    if more := sorted(ours.shares - theirs.shares):
        yield f"shares memory with {', '.join(more[:3])}, which PyTorch's does not: writing to one changes the other"
    if not missing and _strides(ours) != _strides(theirs):
        yield f"its strides are {ours.strides}, PyTorch's are {theirs.strides}, which decide whether reshape() returns a view"
    elif theirs.span is not None and not more and not _is_same_memory(ours.span, theirs.span):
        yield "the memory between its elements holds other values than PyTorch's, which as_strided() shows"
    if ours.requires_grad != theirs.requires_grad:
        yield f"requires_grad is {ours.requires_grad}, PyTorch's is {theirs.requires_grad}"


def _is_same_memory(ours: torch.Tensor | None, theirs: torch.Tensor) -> bool:
    """Tell whether memory holds the same values up to rounding, in elements that are read on neither side as results."""
    if ours is None or ours.shape != theirs.shape:
        return False
    found = compare(ours, theirs, None, Tolerances().of(theirs.dtype))
    return found.near and not found.clashes


def _strides(part: Part) -> list[int]:
    """Return the strides that mean something: not those of dimensions with one element."""
    return [stride for size, stride in zip(part.value.shape, part.strides, strict=True) if size > 1] if part.value.numel() else []


def eager_call(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[[], object] | None:
    """Return a call of the function itself, in which nothing is compiled; None if the target cannot be called so."""
    is_program = isinstance(target, torch.export.ExportedProgram)
    run = target.module() if is_program else target
    if not callable(run) or _torch.compiled_ahead(target) is not None:
        return None

    def call() -> object:
        with torch.no_grad() if is_program else _torch.uncompiled():
            return run(*args, **kwargs)

    return call
