"""The arbiter: what PyTorch computes in double precision, operator by operator, of a node or beside a whole call.

Floats and complex numbers are wide throughout. Whole numbers, such as indices, are those of the run in double precision, which so tells
whether rounding decided a choice; beside a call on a GPU, which an index out of range makes unusable, they are PyTorch's own. What an
operator cannot do in double precision is `Missing`, with the reason.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.fx.node import map_aggregate
from torch.multiprocessing.reductions import StorageWeakRef

from ortlens import _torch
from ortlens.backend.operators.facts import UNSAID_WRITES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import FrameType


_aten = torch.ops.aten
_WIDENS_ITSELF = (_aten._softmax.default, _aten._log_softmax.default)  # noqa: SLF001 - operators' names
"""Operators with a flag that only float16 allows."""

FOR_ANY_LAYOUT: Mapping[Any, Any] = {_aten.view.default: _aten.reshape.default}
"""Operators that fail if the memory layout differs from the trace, and their replacements for any layout: results of PyTorch's own
kernels do not always have the layout of the trace (batch normalisation of a transposed tensor)."""


class Missing(NamedTuple):
    """Stands for a value that a run could not compute."""

    reason: str


def widened(value: Any) -> Any:
    """Convert a tensor of floats or complex numbers to double precision, or name that dtype; any other value is returned as it is."""
    if isinstance(value, torch.Tensor):
        return value.detach().to(widened(value.dtype))
    if isinstance(value, torch.dtype):
        return torch.float64 if value.is_floating_point else torch.complex128 if value.is_complex else value
    return value


def run_in_double(overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any], widen: Callable[[Any], Any] = widened) -> Any:
    """Run one operator in double precision; a `Missing` if it cannot run so. `widen` converts each tensor and dtype of the arguments."""
    if overload is _aten.view.dtype:
        return Missing("the bits of a float mean something else in double precision")
    try:
        wide, named = map_aggregate((tuple(args), dict(kwargs)), widen)
        target: Any = FOR_ANY_LAYOUT.get(overload, overload)
        return map_aggregate(target(*((*wide[:2], False) if target in _WIDENS_ITSELF else wide), **named), widened)
    except Exception as error:  # noqa: BLE001 - without double precision there is no arbiter, nothing else is lost
        return Missing(f"{overload} does not run in double precision ({type(error).__name__})")


def call_in_double(node: torch.fx.Node, read: Callable[[torch.fx.Node], Any]) -> Any:
    """Run one node in double precision on the values that `read` returns; a `Missing` if it cannot run so."""
    return run_in_double(node.target, *torch.fx.map_arg((node.args, node.kwargs), read))


_reference: Any = StorageWeakRef  # whose methods have no annotations
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


class Float64Run(_torch.TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own has no annotations
    """A context: what PyTorch computes inside it is also computed in double precision."""

    def __init__(self) -> None:
        """Begin without values."""
        super().__init__()  # type: ignore[no-untyped-call]  # likewise
        self._doubles: dict[int, _Doubles] = {}
        self._lines: dict[tuple[Any, ...], tuple[int, Line]] = {}  # by memory, or by memory and the region of a view
        self._read: dict[int, Line] = {}
        self._failed: dict[int, Missing] = {}  # why there is none, by memory
        self._operators = 0
        self._stored = 0
        self.drawn: Line | None = None

    def double_of(self, tensor: torch.Tensor) -> torch.Tensor | Missing:
        """Return the value in double precision of a tensor made or read in this context; a `Missing` where the run has none."""
        found = self._known(tensor)
        return self._failed.get(_key(tensor), widened(tensor)) if found is None else found

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
        outputs, doubles = _tensors(made), _tensors(wide)
        for place, tensor in enumerate(outputs):
            is_new = _key(tensor) not in inputs
            if is_new:
                self._failed.pop(_key(tensor), None)
                if isinstance(wide, Missing):
                    self._failed[_key(tensor)] = wide
                self._store(tensor, doubles[place] if len(doubles) == len(outputs) else None)
            self._note_line(tensor, line, whole=is_new)
        for tensor in written:
            if drawn or isinstance(wide, Missing):
                self._doubles.pop(_key(tensor), None)
            self._note_line(tensor, line, whole=True)
        return made

    def _note_line(self, tensor: torch.Tensor, line: Line | None, *, whole: bool) -> None:
        """Note the line of an operator for a view, or for all of a tensor's memory."""
        if line is not None:
            self._operators += 1
            self._lines[(_key(tensor),) if whole else (_key(tensor), *_region(tensor))] = self._operators, line

    def _in_double(self, func: Any, args: Any, kwargs: Any, written: list[torch.Tensor]) -> Any:
        """Compute the operator's result for the double values. What it writes to, it writes to in double too."""
        changed = {id(tensor) for tensor in written}

        def widen(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return widened(value)
            if id(value) in changed and self._known(value) is None:
                self._store(value, value, whole=True)
            known = self._known(value)
            if known is not None:
                return known
            return widened(value).clone() if id(value) in changed else widened(value)

        return run_in_double(func, args, kwargs, widen)

    def _known(self, tensor: torch.Tensor) -> torch.Tensor | None:
        held = self._doubles.get(_key(tensor))
        if held is None or held.dtype is not tensor.dtype or tensor.is_conj() or tensor.is_neg() or held.owner.expired():
            return None
        return held.values.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def _store(self, tensor: torch.Tensor, value: torch.Tensor | None, *, whole: bool = False) -> None:
        """Keep the double values of a tensor's storage; with `whole`, those of the entire storage."""
        is_wide = tensor.is_floating_point() or tensor.is_complex() or tensor.device.type == "cpu"
        if value is None or value.shape != tensor.shape or not is_wide:
            self._doubles.pop(_key(tensor), None)
            return
        storage = tensor.untyped_storage()
        places = storage.nbytes() // tensor.element_size()
        if whole:
            everything = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage, 0, (places,), (1,))
            values = everything.to(widened(tensor.dtype), copy=True)
        else:
            values = torch.zeros(places, dtype=widened(tensor.dtype), device=tensor.device)
            values.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).copy_(value)
        self._doubles[_key(tensor)] = _Doubles(_reference(storage), values, tensor.dtype)
        self._stored += 1
        if self._stored % _OFTEN == 0:
            self._doubles = {key: held for key, held in self._doubles.items() if not held.owner.expired()}


def _key(tensor: torch.Tensor) -> int:
    return int(_reference(tensor.untyped_storage()).cdata)


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
