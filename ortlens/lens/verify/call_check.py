"""Compares one call of the compiled function with the same call of the function itself, and with one in double precision.

Both start from the same inputs, state and random seed, and each is called twice: what PyTorch gives otherwise in its second call has no
verdict. Results, what was written, gradients, shared memory and the random state are compared. A difference is traced in steps, each of
which leaves out one suspect: PyTorch's numbers in ONNX Runtime's memory tell the numbers from the code around the partitions, and PyTorch
alone on the lowered graphs tells that code from the lowering.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ortlens import _torch
from ortlens._torch.dispatch_mode import TorchDispatchMode
from ortlens.backend.lowering.checks import UNSAID_WRITES
from ortlens.lens.verify.call_state import Outcome, Part, outcome_of
from ortlens.lens.verify.compare_values import Tolerances, ValueVerdict, compare, dtype_name, judge
from ortlens.lens.verify.lockstep import Missing, run_in_double

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from types import FrameType

    from ortlens.lens.verify.call_state import CallState


_UNSTEADY = "PyTorch's own results differ between two calls"
_GIVEN = {"result": "returned", "gradient": "computed", "random": "drawn"}
_OTHER_NUMBERS = "the generator is in another state after the call: other random numbers were drawn"


@dataclass(slots=True, kw_only=True)
class CallCheck:
    """The comparison of one call."""

    eager: Callable[[], object]
    state: CallState  # what both calls start from
    tolerances: Tolerances
    place_in_code: tuple[str | None, int | None]  # file and first line of the function, for parts whose own line is unknown
    verdicts: list[ValueVerdict] = field(default_factory=list)  # one per part of the call, in order
    cause: str = ""  # where the difference comes from: `inside`, `boundary`, `lowering`; empty if nothing differs
    expected: Outcome = field(default_factory=Outcome)  # what PyTorch gives
    _accumulates: bool = False

    def run(self, compiled: Outcome, again: Outcome) -> None:
        """Compare the outcome of a call of the compiled function, and that of its second call, with PyTorch's."""
        self.expected = self._called(self.eager)
        if self.expected.gradient_error is not None:
            self._accumulates = True
            self.expected = self._called(self.eager)
        unsteady = {verdict.node for verdict in self._against(self._called(self.eager), {}) if verdict.ok is False}
        for outcome, note in ((compiled, ""), (again, "in the second call from the same state")):
            self.verdicts = list(self._against(outcome, {}))
            if self.wrong():
                self._ask_arbiter(outcome)
            for verdict in self.wrong() if note else ():
                verdict.add(note)
            if self.wrong():
                break
        for verdict in self.verdicts:
            if verdict.node in unsteady:
                verdict.leave_open(_UNSTEADY)

    def wrong(self) -> list[ValueVerdict]:
        """List the parts that differ."""
        return [verdict for verdict in self.verdicts if verdict.ok is False]

    def trace(self, call: Callable[[], object], boundary: AbstractContextManager[object], lowered: AbstractContextManager[object]) -> None:
        """Set `cause`, from calls with PyTorch's numbers in ONNX Runtime's outputs (`boundary`), and with PyTorch alone (`lowered`)."""
        if self._same(call, boundary):
            self.cause = "inside"
        else:
            self.cause = "boundary" if self._same(call, lowered) else "lowering"

    def _same(self, call: Callable[[], object], substitute: AbstractContextManager[object]) -> bool:
        """Tell whether another way to run the compiled function gives the parts that differ as PyTorch gives them."""
        names = {verdict.node for verdict in self.wrong()}
        with substitute:  # the backward, which comes after the call, is substituted as well
            found = list(self._against(self._called(call), {}))
        return not any(verdict.ok is False for verdict in found if verdict.node in names)

    def _called(self, call: Callable[[], object]) -> Outcome:
        self.state.restore()
        try:
            return outcome_of(call, self.state, accumulates=self._accumulates)
        finally:
            self.state.restore()

    def _ask_arbiter(self, compiled: Outcome) -> None:
        """Judge again with a run in double precision, and take the lines from it."""
        if self.expected.error is not None:
            return
        doubles, again = Float64Run(), Outcome()
        with doubles:
            again = self._called(self.eager)
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
            verdict = self._verdict(name, place)
            if ours is None or theirs is None:
                part, by = (theirs, "PyTorch") if ours is None else (ours, "the compiled function")
                kind = "written" if part is None else _GIVEN.get(part.kind, "written")
                verdict.ok, verdict.note = False, _OTHER_NUMBERS if kind == "drawn" else f"{kind} by {by} only"
            else:
                _judge_part(verdict, ours, theirs, doubles.get(name), self.tolerances)
            yield verdict
        if compiled.gradient_error is not None or expected.gradient_error is not None:
            yield self._errors("gradients", compiled.gradient_error, expected.gradient_error)

    def _verdict(self, name: str, place: int, note: str = "") -> ValueVerdict:
        return ValueVerdict(node=name, scope="call", place=place, note=note, place_in_code=self.place_in_code)

    def _errors(self, name: str, ours: Exception | None, theirs: Exception | None) -> ValueVerdict:
        verdict = self._verdict(name, 0, f"the compiled function {_said(ours)}, PyTorch {_said(theirs)}")
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
            verdict = self._verdict(name, place + 1, f"written by the compiled function although PyTorch {_said(expected.error)}")
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


_WIDE = dict.fromkeys((torch.float16, torch.bfloat16, torch.float32, torch.float64), torch.float64)
_WIDE |= dict.fromkeys((torch.complex64, torch.complex128), torch.complex128)
_OFTEN = 64  # values of freed memory are dropped after as many new ones
_OWN = __file__.rpartition("verify")[0]  # the folder of the lens, whose frames are not the user's


class Line(NamedTuple):
    """A line of the user's code."""

    file: str
    line: int


class _Doubles(NamedTuple):
    """The double values of one storage."""

    owner: Any  # a StorageWeakRef, whose methods have no annotations
    values: torch.Tensor
    dtype: torch.dtype


class Float64Run(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own has no annotations
    """A context: what PyTorch computes inside it is also computed in double precision."""

    def __init__(self) -> None:
        """Begin without values."""
        super().__init__()  # type: ignore[no-untyped-call]  # likewise
        self._doubles: dict[int, _Doubles] = {}
        self._lines: dict[tuple[Any, ...], tuple[int, Line]] = {}  # by memory, or by memory and the region of a view
        self._read: dict[int, Line] = {}
        self._failed: set[int] = set()
        self._operators = 0
        self._stored = 0
        self.drawn: Line | None = None

    def double_of(self, tensor: torch.Tensor) -> torch.Tensor | Missing:
        """Return the value in double precision of a tensor made or read in this context; a `Missing` where the run has none."""
        found = self._known(tensor)
        if found is None and _key(tensor) in self._failed:
            return Missing("its operator does not run in double precision")
        return tensor.detach().to(_WIDE.get(tensor.dtype, tensor.dtype)) if found is None else found

    def line_of(self, tensor: torch.Tensor, *, read: bool = False) -> Line | None:
        """Find the line that made or last wrote a tensor; with `read`, the one that first read its memory; None if unknown."""
        key = _key(tensor)
        if read:
            return self._read.get(key)
        return max((self._lines[place] for place in ((key,), (key, *_region(tensor))) if place in self._lines), default=(0, None))[1]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and once more in double precision."""
        del types
        kwargs = kwargs or {}
        line = _user_line()
        written = _written(func, args, kwargs)
        given = _tensors((args, kwargs))
        if line is not None:
            for tensor in given:
                self._read.setdefault(_key(tensor), line)
        drawn = torch.Tag.nondeterministic_seeded in func.tags
        if drawn:
            self.drawn = self.drawn or line
        wide = None if drawn else self._in_double(func, args, kwargs, written)
        made = func(*args, **kwargs)
        inputs = {_key(tensor) for tensor in given}
        outputs, doubles = _tensors(made), [] if wide is None else _tensors(wide)
        for place, tensor in enumerate(outputs):
            is_new = _key(tensor) not in inputs
            if is_new:
                (self._failed.add if wide is None and not drawn else self._failed.discard)(_key(tensor))
                self._store(tensor, doubles[place] if len(doubles) == len(outputs) else None)
            self._note_line(tensor, line, whole=is_new)
        for tensor in written:
            if wide is None:
                self._doubles.pop(_key(tensor), None)
            self._note_line(tensor, line, whole=True)
        return made

    def _note_line(self, tensor: torch.Tensor, line: Line | None, *, whole: bool) -> None:
        """Note the line of an operator for a view, or for all of a tensor's memory."""
        if line is not None:
            self._operators += 1
            self._lines[(_key(tensor),) if whole else (_key(tensor), *_region(tensor))] = self._operators, line

    def _in_double(self, func: Any, args: Any, kwargs: Any, written: list[torch.Tensor]) -> Any:
        """Compute the operator's result for the double values; None if it has none. What it writes to, it writes to in double too."""
        changed = {id(tensor) for tensor in written}

        def wide(tensor: torch.Tensor) -> torch.Tensor:
            known = self._known(tensor)
            if known is None and id(tensor) in changed:
                self._store(tensor, tensor, whole=True)
                known = self._known(tensor)
            if known is not None:
                return known
            if tensor.dtype in _WIDE:
                return tensor.to(_WIDE[tensor.dtype])
            return tensor.clone() if id(tensor) in changed else tensor

        try:
            given, named = _torch.map_tensors(wide, (args, kwargs))
            return run_in_double(func, given, named)
        except Exception:  # noqa: BLE001 - then the values of PyTorch's own precision take over
            return None

    def _known(self, tensor: torch.Tensor) -> torch.Tensor | None:
        held = self._doubles.get(_key(tensor))
        if held is None or held.dtype is not tensor.dtype or tensor.is_conj() or tensor.is_neg() or held.owner.expired():
            return None
        return held.values.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def _store(self, tensor: torch.Tensor, value: torch.Tensor | None, *, whole: bool = False) -> None:
        """Keep the double values of a tensor's storage; with `whole`, those of the entire storage."""
        if tensor.dtype not in _WIDE or value is None or value.shape != tensor.shape:
            self._doubles.pop(_key(tensor), None)
            return
        storage = tensor.untyped_storage()
        places = storage.nbytes() // tensor.element_size()
        if whole:
            values = (
                torch.empty(0, dtype=tensor.dtype, device=tensor.device)
                .set_(storage, 0, (places,), (1,))
                .to(_WIDE[tensor.dtype], copy=True)
            )
        else:
            values = torch.zeros(places, dtype=_WIDE[tensor.dtype], device=tensor.device)
            values.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).copy_(value)
        self._doubles[_key(tensor)] = _Doubles(_reference(storage), values, tensor.dtype)
        self._stored += 1
        if self._stored % _OFTEN == 0:
            self._doubles = {key: held for key, held in self._doubles.items() if not held.owner.expired()}


def _key(tensor: torch.Tensor) -> int:
    return int(_reference(tensor.untyped_storage()).cdata)


def _reference(storage: Any) -> Any:
    make: Any = StorageWeakRef
    return make(storage)


def _region(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset()


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [tensor for tensor in _torch.tensors_of(tree) if tensor.layout is torch.strided]


def _written(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Collect the arguments that an operator writes to."""
    schema, unsaid = func._schema, UNSAID_WRITES.get(func, ())  # noqa: SLF001 - every overload has one
    if not schema.is_mutable and not unsaid:
        return []
    found = []
    for place, argument in enumerate(schema.arguments):
        if argument.name in unsaid or (argument.alias_info is not None and argument.alias_info.is_write):
            found += _tensors(args[place] if place < len(args) else kwargs.get(argument.name))
    return found


def _user_line() -> Line | None:
    """Find the innermost frame outside torch; None inside what the lens itself calls, such as the backward."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - the caller's line is wanted
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_OWN):
            return None
        if not file.startswith((_torch.torch_folder(), "<")):
            return Line(file, frame.f_lineno)
        frame = frame.f_back
    return None
