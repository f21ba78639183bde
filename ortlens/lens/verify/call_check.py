"""Compares one call of the compiled function with the same call of the function itself.

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
from ortlens.lens.verify.call_outcome import Outcome, Part, outcome_of
from ortlens.lens.verify.compare_values import Tolerances, compare
from ortlens.lens.verify.float64_run import Float64Run
from ortlens.lens.verify.verdicts import Verdict, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from ortlens.lens.verify.call_state import CallState

_UNSTEADY = "PyTorch's own results differ between two calls"
_GIVEN = {"result": "returned", "gradient": "computed"}
_OTHER_NUMBERS = "the generator is in another state after the call: other random numbers were drawn"


@dataclass(slots=True, kw_only=True)
class CallCheck:
    """The comparison of one call."""

    eager: Callable[[], object]
    state: CallState  # what both calls start from
    tolerances: Tolerances
    place_in_code: tuple[str | None, int | None]  # file and first line of the function, for parts whose own line is unknown
    verdicts: list[Verdict] = field(default_factory=list)  # one per part of the call, in order
    cause: str = ""  # where the difference comes from: `inside`, `boundary`, `lowering`; empty if nothing differs
    _expected: Outcome = field(default_factory=Outcome)
    _accumulates: bool = False

    def run(self, compiled: Outcome, again: Outcome) -> None:
        """Compare the outcome of a call of the compiled function, and that of its second call, with PyTorch's."""
        self._expected = self._called(self.eager)
        if self._expected.gradient_error is not None:
            self._accumulates = True
            self._expected = self._called(self.eager)
        unsteady = {verdict.node for verdict in self._against(self._called(self.eager), self._expected, {}) if verdict.ok is False}
        for outcome, note in ((compiled, ""), (again, "in the second call from the same state")):
            self.verdicts = self._compared(outcome, {})
            if self.wrong():
                self._ask_arbiter(outcome)
            for verdict in self.wrong() if note else ():
                verdict.add(note)
            if self.wrong():
                break
        for verdict in self.verdicts:
            if verdict.node in unsteady:
                verdict.leave_open(_UNSTEADY)

    @property
    def expected_error(self) -> Exception | None:
        """What PyTorch raises."""
        return self._expected.error

    def wrong(self) -> list[Verdict]:
        """List the parts that differ."""
        return [verdict for verdict in self.verdicts if verdict.ok is False]

    def trace(self, call: Callable[[], object], boundary: AbstractContextManager[object], lowered: AbstractContextManager[object]) -> None:
        """Find out where a difference comes from; sets `cause`.

        During `boundary`, ONNX Runtime's outputs hold PyTorch's numbers; during `lowered`, PyTorch runs the lowered graphs.
        """
        if self._same(call, boundary):
            self.cause = "inside"
        else:
            self.cause = "boundary" if self._same(call, lowered) else "lowering"

    def _same(self, call: Callable[[], object], substitute: AbstractContextManager[object]) -> bool:
        """Tell whether another way to run the compiled function gives the parts that differ as PyTorch gives them."""
        names = {verdict.node for verdict in self.wrong()}
        with substitute:  # the backward, which comes after the call, is substituted as well
            found = self._compared(self._called(call), {})
        return not any(verdict.ok is False for verdict in found if verdict.node in names)

    def _called(self, call: Callable[[], object]) -> Outcome:
        self.state.restore()
        try:
            return outcome_of(call, self.state, accumulates=self._accumulates)
        finally:
            self.state.restore()

    def _ask_arbiter(self, compiled: Outcome) -> None:
        """Judge again with a run in double precision, and take the lines from it."""
        if self._expected.error is not None:
            return
        doubles, again = Float64Run(), Outcome()
        with doubles:
            again = self._called(self.eager)
        if again.error is not None:  # an operator that cannot be watched: the verdicts stay as they are
            return
        values = {name: doubles.double_of(part.live) for name, part in again.parts.items() if part.live is not None}
        self.verdicts = self._compared(compiled, values)
        for verdict in self.wrong():
            verdict.place_in_code = self._line(doubles, verdict.node, again.parts.get(verdict.node)) or self.place_in_code

    def _line(self, doubles: Float64Run, name: str, part: Part | None) -> tuple[str | None, int | None] | None:
        if part is None or part.live is None:
            return doubles.drawn if part is not None and part.kind == "random" else None
        if part.kind == "gradient":
            source = self.state.tensors.get(name.removeprefix("gradient of "))
            return None if source is None else doubles.line_of(source, read=True)
        return doubles.line_of(part.live)

    def _compared(self, compiled: Outcome, doubles: Mapping[str, Any]) -> list[Verdict]:
        return list(self._against(compiled, self._expected, doubles))

    def _against(self, compiled: Outcome, expected: Outcome, doubles: Mapping[str, Any]) -> Iterator[Verdict]:
        if expected.error is not None or compiled.error is not None:
            yield self._errors("result", compiled.error, expected.error)
            yield from self._writes_before_raising(compiled, expected)
            return
        names = list(dict.fromkeys([*expected.parts, *compiled.parts]))
        for place, name in enumerate(names):
            ours, theirs = compiled.parts.get(name), expected.parts.get(name)
            verdict = Verdict(node=name, scope="call", place=place, line_of=None, place_in_code=self.place_in_code)
            if ours is None or theirs is None:
                _one_sided(verdict, ours, theirs)
            else:
                _judge_part(verdict, ours, theirs, doubles.get(name), self.tolerances)
            yield verdict
        if compiled.gradient_error is not None or expected.gradient_error is not None:
            yield self._errors("gradients", compiled.gradient_error, expected.gradient_error)

    def _errors(self, name: str, ours: Exception | None, theirs: Exception | None) -> Verdict:
        verdict = Verdict(node=name, scope="call", place=0, line_of=None, place_in_code=self.place_in_code)
        verdict.ok = None if theirs is not None and _is_caught_alike(ours, theirs) else False
        verdict.note = f"the compiled function {_said(ours)}, PyTorch {_said(theirs)}"
        return verdict

    def _writes_before_raising(self, compiled: Outcome, expected: Outcome) -> Iterator[Verdict]:
        """Yield what only the compiled function wrote although PyTorch raises.

        It may have written less: any compiled code writes at its end.
        """
        for place, (name, ours) in enumerate(compiled.parts.items() if expected.error is not None else ()):
            theirs = expected.parts.get(name)
            if ours.kind != "written" or (theirs is not None and ours.value.shape == theirs.value.shape and ours.value.equal(theirs.value)):
                continue
            verdict = Verdict(node=name, scope="call", place=place + 1, ok=False, line_of=None, place_in_code=self.place_in_code)
            verdict.note = f"written by the compiled function although PyTorch {_said(expected.error)}"
            yield verdict


def _is_caught_alike(ours: Exception | None, theirs: Exception) -> bool:
    """Tell whether what catches PyTorch's error catches ours; what Dynamo raises while it compiles, it raises under any backend."""
    return isinstance(ours, type(theirs)) or _torch.is_of_dynamo(ours) or _torch.is_of_dynamo(theirs)


def _said(error: Exception | None) -> str:
    return "returns" if error is None else f"raises {type(error).__name__}: {error}"[:200]


def _one_sided(verdict: Verdict, ours: Part | None, theirs: Part | None) -> None:
    """Note what only one of the calls gave; a tensor that was written to on one side only is compared as it is."""
    part = theirs if ours is None else ours
    kind = _GIVEN.get("result" if part is None else part.kind, "written")
    verdict.ok = False
    if part is not None and part.kind == "random":
        verdict.note = _OTHER_NUMBERS
        return
    verdict.note = f"{kind} by PyTorch only" if ours is None else f"{kind} by the compiled function only"


def _judge_part(verdict: Verdict, ours: Part, theirs: Part, double: Any, tolerances: Tolerances) -> None:
    if ours.kind == "random":
        verdict.ok = torch.equal(ours.value, theirs.value)
        verdict.note = "" if verdict.ok else _OTHER_NUMBERS
        return
    if not isinstance(theirs.value, torch.Tensor) or not isinstance(ours.value, torch.Tensor):
        _judge_plain(verdict, ours.value, theirs.value, tolerances)
        return
    if ours.value.dtype is not theirs.value.dtype:
        verdict.ok, verdict.note = False, f"{_dtype(ours)} from the compiled function, {_dtype(theirs)} from PyTorch"
        return
    judge(verdict, ours.value, theirs.value, double, tolerances)
    for wrong in _other_differences(ours, theirs):
        verdict.ok = False
        verdict.add(wrong)


def _judge_plain(verdict: Verdict, ours: Any, theirs: Any, tolerances: Tolerances) -> None:
    numbers = all(isinstance(value, float) for value in (ours, theirs))
    if numbers:
        tolerance = tolerances.of(torch.float32)  # a number of a tensor, most likely of this dtype
        same = ours == theirs or (ours != ours and theirs != theirs)  # noqa: PLR0124 - NaN
        verdict.ok = same or abs(ours - theirs) <= tolerance.atol + tolerance.rtol * abs(theirs)
    else:
        verdict.ok = type(ours) is type(theirs) and bool(ours == theirs)
    verdict.note = "" if verdict.ok else f"{ours!r:.80} from the compiled function, {theirs!r:.80} from PyTorch"


def _other_differences(ours: Part, theirs: Part) -> Iterator[str]:
    """Yield what differs besides the numbers: shared memory, the strides of views, differentiability."""
    if ours.kind != "result" or ours.value.shape != theirs.value.shape:
        return
    if missing := sorted(theirs.shares - ours.shares):
        yield f"shares no memory with {', '.join(missing[:3])}, as PyTorch's does: writing to one does not show in the other"
    if more := sorted(ours.shares - theirs.shares):
        yield f"shares memory with {', '.join(more[:3])}, which PyTorch's does not: writing to one changes the other"
    if (theirs.shares or theirs.span is not None) and not missing and _strides(ours) != _strides(theirs):
        yield f"a view with strides {ours.strides}, PyTorch's has {theirs.strides}"
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


def _dtype(part: Part) -> str:
    return str(part.value.dtype).removeprefix("torch.")


def eager_call(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[[], object] | None:
    """Return a call of the function itself, in which nothing is compiled; None if the target cannot be called."""
    if isinstance(target, torch.export.ExportedProgram):
        return _call_of_program(target, args, kwargs)
    if not callable(target):
        return None

    def call() -> object:
        with _torch.uncompiled():
            return target(*args, **kwargs)

    return call


def _call_of_program(program: torch.export.ExportedProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[[], object]:
    module = program.module()

    def call() -> object:
        with torch.no_grad():
            return module(*args, **kwargs)

    return call
