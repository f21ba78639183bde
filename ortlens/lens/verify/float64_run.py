"""Runs a function in PyTorch as it is, and every operator in double precision beside it, and notes the user line of each.

The double values belong to memory, not to tensors: every view of a tensor finds the part of them that is its own, and an
operator that writes in place writes into them as well. Backward operators are covered in the same way.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ortlens import _torch
from ortlens._torch.dispatch_mode import TorchDispatchMode
from ortlens.lens.verify.lockstep import Missing, run_in_double

if TYPE_CHECKING:
    from types import FrameType

_WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.float64: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex128: torch.complex128,
}
_aten = torch.ops.aten
_WRITES_UNSAID: dict[Any, tuple[str, ...]] = {
    _aten.native_batch_norm.default: ("running_mean", "running_var"),
    _aten.cudnn_batch_norm.default: ("running_mean", "running_var"),
    _aten.miopen_batch_norm.default: ("running_mean", "running_var"),
}
"""Arguments that an operator writes to although its schema does not say so (torch 2.13, `native_functions.yaml`)."""

_OFTEN = 64  # values of freed memory are dropped after as many new ones
_OWN = __file__.rpartition("verify")[0]
"""The folder of the lens, whose frames are not the user's."""


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
        self._made: dict[int, tuple[int, Line]] = {}
        self._views: dict[tuple[Any, ...], tuple[int, Line]] = {}
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
        known = [self._made.get(key), self._views.get((key, *_region(tensor)))]
        return max((found for found in known if found is not None), default=(0, None))[1]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and once more in double precision."""
        del types
        kwargs = kwargs or {}
        line = _user_line()
        written = _written(func, args, kwargs)
        given = _tensors((args, kwargs))
        self._note_reads(given, line)
        drawn = torch.Tag.nondeterministic_seeded in func.tags
        if drawn:
            self.drawn = self.drawn or line
        wide = None if drawn else self._in_double(func, args, kwargs, written)
        made = func(*args, **kwargs)
        inputs = {_key(tensor) for tensor in given}
        outputs, doubles = _tensors(made), [] if wide is None else _tensors(wide)
        for place, tensor in enumerate(outputs):
            if _key(tensor) not in inputs:
                if wide is None and not drawn:
                    self._failed.add(_key(tensor))
                else:
                    self._failed.discard(_key(tensor))
                self._store(tensor, doubles[place] if len(doubles) == len(outputs) else None)
                self._note_line(tensor, line, whole=True)
            else:
                self._note_line(tensor, line, whole=False)
        for tensor in written:
            if wide is None:
                self._doubles.pop(_key(tensor), None)
            self._note_line(tensor, line, whole=True)
        return made

    def _note_line(self, tensor: torch.Tensor, line: Line | None, *, whole: bool) -> None:
        """Note the line of an operator for a view, or for all of a tensor's memory."""
        if line is not None:
            self._operators += 1
            if whole:
                self._made[_key(tensor)] = self._operators, line
            else:
                place = (_key(tensor), *_region(tensor))
                self._views[place] = self._operators, line

    def _note_reads(self, given: list[torch.Tensor], line: Line | None) -> None:
        if line is not None:
            for tensor in given:
                self._read.setdefault(_key(tensor), line)

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
    schema, unsaid = func._schema, _WRITES_UNSAID.get(func, ())  # noqa: SLF001 - every overload has one
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
