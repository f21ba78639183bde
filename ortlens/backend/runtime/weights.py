"""Frozen weights: constants of a session, given to it in torch's memory, and the check that they have not changed.

`WeightWatch` notices writes that torch does not count: through `param.data`, a numpy view, or the storage. Small weights are compared whole
on every call, by the generated call itself. Of the larger ones every call compares another window, so that after `CALLS` calls all of their
bytes have been compared. Up to 1 MiB per partition, that is with a copy, else with checksums.
"""

from __future__ import annotations

import ctypes
import inspect
import itertools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import onnx
import torch

from ortlens import _ort, _torch
from ortlens.backend.basis.memory_order import raw_bytes, span
from ortlens.backend.basis.node_provenance import captured
from ortlens.backend.runtime.devices import kind_of, memory_of
from ortlens.backend.runtime.graph_view import CONTRIB, GraphView

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

    import onnxruntime

    from ortlens.backend.runtime.session import SessionFactory
    from ortlens.trace.records import WeightsChange


LOCATION = "weights"
"""The location that the model names for frozen weights; the session receives them in memory under that name."""

_CALLS = frozenset({"__call__", "_wrapped_call_impl", "_call_impl", "forward"})  # the methods through which modules are called


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenWeight:
    """One weight as it was when the session was created."""

    name: str  # name of the input it replaces
    tensor: torch.Tensor  # the parameter or buffer itself, to compare by identity
    version: int  # torch's count of in-place writes
    pointer: int  # address of its data; `param.data = other` changes it but not the version
    contiguous: torch.Tensor  # the tensor whose bytes the session uses; a copy only if the weight is not contiguous
    # A view of its bytes, including those between its elements; None for a weight without elements, and on a device.
    memory: memoryview | None
    # A view of all of its bytes if these are few, else of some of its elements; None without `memory`.
    sample: memoryview | None
    sampled: memoryview | bytearray | None  # a copy of that. It compares itself with the sample faster than the other way round

    @property
    def integer_bytes(self) -> int:
        """Its size if it holds 8-bit integers, else 0."""
        return self.contiguous.nbytes if self.contiguous.dtype in (torch.int8, torch.uint8) else 0

    @property
    def is_small(self) -> bool:
        """Whether the sample is all there is, so that every call notices every change."""
        return self.memory is not None and len(self.memory) <= WHOLE_BYTES

    def is_still(self, tensor: Any) -> bool:
        """Tell whether a value is this weight: the same tensor, count of writes, address and sample; see `WeightWatch` for other writes."""
        unmoved = tensor is self.tensor and _torch.version_of(tensor) == self.version and tensor.data_ptr() == self.pointer
        return unmoved and self.sampled == self.sample


def freeze(name: str, tensor: Any) -> FrozenWeight | None:
    """Note the present state of a weight under the name of its input; None for one made in inference mode, without a version."""
    if not isinstance(tensor, torch.Tensor) or tensor.is_inference() or tensor.layout is not torch.strided:
        return None
    if not kind_of(tensor.device).holds_weights:
        return None
    detached = tensor.detach()
    # Itself, unless its bytes are on a device that is copied from, in another order or of another sign.
    plain = detached.to(memory_of(tensor.device)).resolve_neg().contiguous()
    memory = _memory_of(detached) if kind_of(tensor.device).checksums is None else None
    sample, sampled = (None, None) if memory is None else _sample_of(detached, memory)
    return FrozenWeight(
        name=name,
        tensor=tensor,
        version=_torch.version_of(tensor),
        pointer=tensor.data_ptr(),
        contiguous=plain,
        memory=memory,
        sample=sample,
        sampled=sampled,
    )


def change_of(moved: Iterable[tuple[FrozenWeight, Any]]) -> WeightsChange:
    """Find out what happened to frozen weights that are not what they were: `written` if the same tensors are passed.

    For other tensors: `other_module` if the earlier ones belong to modules being called, which thus share the code, else `replaced`.
    """
    left = [weight.tensor for weight, given in moved if given is not weight.tensor]
    if not left:
        return "written"
    return "other_module" if are_of_calling_modules(left) else "replaced"


WHOLE_BYTES = 4096
"""Weights of up to this size are compared whole in every call, which takes as long as to compare a few elements of a large one."""
_WORDS = {1: "B", 2: "H", 4: "I", 8: "Q"}
_SAMPLES = 8  # each is a cache line that every call may have to load from memory; more of them cost more than they reveal


def _memory_of(tensor: torch.Tensor) -> memoryview | None:
    """View the bytes from a strided CPU weight's first element to its last, without keeping it alive; None if there is no element."""
    if not tensor.numel():
        return None
    return memoryview((ctypes.c_uint8 * (span(tensor) * tensor.element_size())).from_address(tensor.data_ptr())).cast("B")


def _sample_of(tensor: torch.Tensor, memory: memoryview) -> tuple[memoryview, memoryview | bytearray]:
    """Return a view of a weight, or of elements spread evenly over its memory, and a copy; they compare in less than 0.1 us."""
    word = _WORDS.get(tensor.element_size())
    if len(memory) <= WHOLE_BYTES or word is None:
        return memory, bytearray(memory)
    row = max((stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1), default=1)
    step = len(memory) // tensor.element_size() // _SAMPLES
    if step > row:  # whole rows plus the golden ratio of one; otherwise it would hit every second row and few columns
        step = step // row * row + int(0.618 * row)
    sample = memory.cast(cast("Any", word))[:: step | 1]
    return sample, memoryview(sample.tobytes()).cast(cast("Any", word))


def add_initializers(weights: Sequence[FrozenWeight], options: onnxruntime.SessionOptions, shared: frozenset[str]) -> list[Any]:
    """Give weights to a session, which reads `shared` ones in place; return values over their memory, which must outlive the session.

    Of weights on a device it also gets copies in the memory of the host, from which it folds constants.
    """
    values = {weight.name: _ort.value_over(weight.contiguous.cpu()) for weight in weights}
    options.add_external_initializers(list(values), list(values.values()))
    kept = list(values.values())
    for weight in weights:
        if weight.name in shared:
            value = values[weight.name] if weight.contiguous.device.type == "cpu" else _ort.value_over(weight.contiguous)
            options.add_initializer(weight.name, value)
            kept.append(value)
    return kept


def copied_bytes(weights: Sequence[FrozenWeight], *, shared: frozenset[str]) -> int:
    """Count the bytes of the weights that a session does not read in torch's memory, or that had to be made contiguous first."""
    return sum(weight.contiguous.nbytes for weight in weights) - shareable_bytes(weights, shared)


def shareable_bytes(weights: Sequence[FrozenWeight], shareable: frozenset[str]) -> int:
    """Count the bytes of the weights that a session could read in torch's memory, without those made contiguous first."""
    in_place = [weight for weight in weights if weight.contiguous.data_ptr() == weight.pointer]
    return sum(weight.contiguous.nbytes for weight in in_place if weight.name in shareable)


def with_frozen(model: onnx.ModelProto, weights: list[FrozenWeight], *, inline_bytes: float = -1) -> onnx.ModelProto:
    """Copy a model with inputs turned into initializers, outside at `LOCATION`, or inline up to a size; protobuf takes 2 GiB in all."""
    frozen = {weight.name: weight for weight in weights}
    made = onnx.ModelProto()
    made.CopyFrom(model)
    kept = [value for value in made.graph.input if value.name not in frozen]
    for value in made.graph.input:
        if value.name in frozen:
            made.graph.initializer.append(
                _initializer(value, frozen[value.name], inline=frozen[value.name].contiguous.nbytes <= inline_bytes)
            )
    del made.graph.input[:]
    made.graph.input.extend(kept)
    return made


def _initializer(value: onnx.ValueInfoProto, weight: FrozenWeight, *, inline: bool) -> onnx.TensorProto:
    tensor = onnx.TensorProto(name=value.name, data_type=value.type.tensor_type.elem_type, dims=list(weight.contiguous.shape))
    if inline:
        tensor.raw_data = raw_bytes(weight.contiguous)
        return tensor
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, text in (("location", LOCATION), ("offset", "0"), ("length", str(weight.contiguous.nbytes))):
        tensor.external_data.add(key=key, value=text)
    return tensor


def watch_over(frozen: Iterable[FrozenWeight]) -> WeightWatch | DeviceWatch:
    """Watch the weights that no call compares whole: in the memory of the host, or of a device if they lie on one."""
    left = [weight for weight in frozen if not weight.is_small and weight.tensor.numel()]
    on_device = {weight.name: weight.tensor.detach() for weight in left if weight.memory is None}
    sums = next((kind_of(tensor.device).checksums for tensor in on_device.values()), None)
    if sums is not None:
        return DeviceWatch(on_device, sums)
    return WeightWatch({weight.name: weight.memory for weight in left if weight.memory is not None})


def are_of_calling_modules(tensors: Iterable[torch.Tensor]) -> bool:
    """Tell whether all tensors are weights of modules that are being called in this thread, or of modules inside these.

    Modules that a global variable of the calling code holds, directly or in a list, tuple or dict, count too. Tensors are compared by
    identity.
    """
    left = {id(tensor) for tensor in tensors}
    seen: set[int] = set()
    for root in _modules_on_stack():
        inside = [root]
        while inside and left:
            module = inside.pop()
            if id(module) not in seen:
                seen.add(id(module))
                left.difference_update(map(id, (*_held(module, "_parameters"), *_held(module, "_buffers"))))
                inside += filter(_is_module, _held(module, "_modules"))
        if not left:
            return True
    return not left


def _modules_on_stack() -> Iterator[torch.nn.Module]:
    """List the modules that are being called, innermost first, and those in global variables of the code that calls them."""
    frame, seen = inspect.currentframe(), set[int]()
    while frame is not None:
        # Before Python 3.13, reading `f_locals` copies all variables, so that the tensors of a loop that goes on would stay alive.
        if frame.f_code.co_name in _CALLS and frame.f_code.co_varnames[:1] == ("self",):
            yield from filter(_is_module, [frame.f_locals.get("self")])
        elif id(frame.f_globals) not in seen:
            seen.add(id(frame.f_globals))
            for value in list(frame.f_globals.values()):
                yield from filter(_is_module, _items(value))
        frame = frame.f_back


def _items(value: Any) -> list[Any]:
    """Return the items of a plain collection, else the value itself in a list."""
    if type(value) in {list, tuple}:
        return list(value)
    return list(value.values()) if type(value) is dict else [value]


def _is_module(value: object) -> bool:
    """Tell whether a value is a module, without reading its attributes, which may run the user's code."""
    return issubclass(type(value), torch.nn.Module)


def _held(module: torch.nn.Module, kind: str) -> list[Any]:
    """Read what a module holds of a kind, past its public methods, which the user may have overridden."""
    return list((vars(module).get(kind) or {}).values())


class HeldWeights:
    """The weights that the sessions of a partition hold as constants, and what became of earlier ones."""

    def __init__(self, factory: SessionFactory) -> None:
        """Begin with none."""
        self._factory = factory
        self._freezable = factory.weight_inputs if factory.freezes else frozenset()
        self._held: dict[int, FrozenWeight] = {}
        self._watch: WeightWatch | DeviceWatch = WeightWatch({})
        self._changes = 0
        self.table_bytes = 0  # size of the weights that stay inputs because the model only looks them up
        self.change: WeightsChange | None = None  # what the last change was; None before the first
        self.changed: tuple[torch.fx.Node, ...] = ()  # the inputs of the partition that it was about

    @property
    def frozen(self) -> tuple[FrozenWeight, ...]:
        """Those that are held now."""
        return tuple(self._held.values())

    def found_in(self, args: Sequence[Any]) -> dict[int, FrozenWeight]:
        """Return what a session for some arguments is to hold: those held now, which sessions for other sizes share, else new ones."""
        if self._held:
            return self._held
        names, bound = self._factory.input_names(), self._factory.bound_names()
        tables = lookup_tables(self._factory.model, (names[place] for place in self._freezable))
        places = [place for place in sorted(self._freezable) if names[place] in bound]
        if others := {args[place].device for place in places} - {torch.device("cpu")}:  # a session and its watch are for one device
            places = [place for place in places if args[place].device == next(iter(others))]
        # To compare a small one whole in every call costs less than to bind it.
        looked_up = {place for place in places if names[place] in tables and args[place].nbytes > WHOLE_BYTES}
        self.table_bytes = sum(args[place].nbytes for place in looked_up)
        freezable = [place for place in places if place not in looked_up]
        return {place: weight for place in freezable if (weight := freeze(names[place], args[place])) is not None}

    def hold(self, found: dict[int, FrozenWeight]) -> None:
        """Hold what a session was made with."""
        if not self._held:
            self._held, self._watch = found, watch_over(found.values())

    def intact(self) -> Callable[[], bool] | None:
        """Return the check of what a call cannot see in its arguments: the bytes of weights."""
        return self._watch.is_next_intact if self._watch.calls else None

    def differences(self, args: Sequence[Any]) -> tuple[set[str], set[str], int]:
        """Name the weights that were replaced or written to, those that were so unseen, and the calls until all of that is noticed."""
        moved = {weight.name: (weight, args[place]) for place, weight in self._held.items() if not weight.is_still(args[place])}
        unseen = set(self._watch.changed(except_for=moved))
        if changed := {*moved, *unseen}:
            self.change = change_of(moved.values())
            self.changed = tuple(self._factory.partition.inputs[place] for place, weight in self._held.items() if weight.name in changed)
        return changed, unseen, self._watch.calls

    def drop(self, *, have_changed: bool) -> None:
        """Hold nothing any more; weights that change too often are not frozen again."""
        self._held, self._watch = {}, WeightWatch({})
        self._changes += have_changed
        if self._changes > _MAX_REFREEZES:
            self._freezable = frozenset()


_MAX_REFREEZES = 2  # how often changed weights are frozen again before they become inputs: weights that change more often are being trained


def lookup_tables(model: onnx.ModelProto, weights: Iterable[str]) -> frozenset[str]:
    """Find the weights that Gather alone reads, at places that differ per call; as constants they would gain nothing."""
    given = frozenset(weights)
    varying = {value.name for value in model.graph.input} - given
    tables: set[str] = set()
    others = {value.name for value in model.graph.output}
    for node in model.graph.node:
        read = [*node.input, *captured(node)]
        if varying.intersection(read):
            varying.update(node.output)
        looks_up = node.op_type == "Gather" and not node.domain and node.input[1] in varying
        others.update(read[1:] if looks_up else read)
        tables.update(read[:1] if looks_up else ())
    return frozenset(tables & given) - others


_PRODUCTS = frozenset({("", "MatMul"), ("", "Gemm"), (CONTRIB, "FusedMatMul")})
_OPERANDS = 2  # the third input of Gemm is added, and may be rearranged


def shareable(model: onnx.ModelProto) -> frozenset[str]:
    """Find the initializers that a session may read in torch's memory: both factors of matrix products, read by nothing else.

    `add_external_initializers` alone has ONNX Runtime copy each weight before it packs it. With `add_initializer` under the same name it
    reads torch's memory as it is, also after a rewrite has transposed the initializer of the model in place, as its transpose optimizer
    does for operands of Add, Where or Concat. No rewrite changes those of matrix products in place.
    """
    products: set[str] = set()
    graph = GraphView(model)
    others = {*graph.returned, *graph.captured}
    for node in graph.nodes:
        place = _OPERANDS if (node.domain, node.op_type) in _PRODUCTS else 0
        products.update(node.input[:place])
        others.update(node.input[place:])
    return frozenset(tensor.name for tensor in model.graph.initializer if tensor.name in products - others)


_Noted: TypeAlias = "tuple[bytearray | int, Any]"

CALLS = 256
"""How many calls it takes at most until every byte has been compared."""
_COPIED = 1 << 23  # up to this many bytes are compared with a copy; between calls that fill the caches a checksum takes 25 us longer
_WINDOW = 2048  # the least number of bytes per call; they compare with a copy in 0.1 us
_PIECE = 1 << 17  # bytes per checksum: its intermediate results stay in the cache
_WORD = 8
_HALF = np.uint64(32)


class WeightWatch:
    """Compares the bytes of the larger weights of a partition, a window per call."""

    def __init__(self, memories: Mapping[str, memoryview]) -> None:
        """Note the present bytes of weights, which must be kept alive as long as the watch."""
        total = sum(map(len, memories.values()))
        # A window may end in less than a word and leave the rest free.
        windows = list(_windows(memories, max(_WINDOW, _rounded_up(-(-total // CALLS) + _WORD))))
        self.calls = len(windows)  # after how many calls every byte has been compared; 0 without weights to watch
        self._windows = [tuple((name, _noted(live, copies=total <= _COPIED)) for name, live in window) for window in windows]
        rounds = itertools.cycle([tuple(pair for _, pair in window) for window in self._windows]).__next__
        # Compares the next window, and says whether it is unchanged. Threads that call it at once compare different windows.
        self.is_next_intact = _comparing_copies(rounds) if total <= _COPIED else lambda: all(itertools.starmap(_is_same, rounds()))

    def changed(self, *, except_for: Container[str] = ()) -> frozenset[str]:
        """Find the weights that changed, except those to leave out: the memory of one that has moved may be gone."""
        return frozenset(name for window in self._windows for name, pair in window if name not in except_for and not _is_same(*pair))


class DeviceWatch:
    """Compares sums of the bits of weights on a device, once in `CALLS` calls, without waiting for the device.

    A change that leaves the sum as it was, such as two elements that changed places, is not seen.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], sums: Callable[[Sequence[torch.Tensor]], Callable[[], Any]]) -> None:
        """Note the present sums of weights, which must be kept alive as long as the watch."""
        self.calls = 2 * CALLS  # after how many calls a change is noticed, if the device has caught up with the host by then
        self._names, self._tensors, self._start = list(tensors), list(tensors.values()), sums
        self._sums = self._awaited()
        self._arriving: Callable[[], Any] = lambda: None
        self._count = itertools.count(1)

    def _awaited(self) -> Any:
        arriving = self._start(self._tensors)
        while (sums := arriving()) is None:
            time.sleep(0)
        return sums

    def is_next_intact(self) -> bool:
        """Compare what has arrived since, and start the next sums when it is time."""
        if next(self._count) % CALLS:
            return True
        arrived, self._arriving = self._arriving(), self._start(self._tensors)
        return arrived is None or arrived == self._sums

    def changed(self, *, except_for: Container[str] = ()) -> frozenset[str]:
        """Find the weights that changed, except those to leave out."""
        pairs = zip(self._names, self._sums, self._awaited(), strict=True)
        return frozenset(name for name, kept, now in pairs if kept != now and name not in except_for)


def _comparing_copies(next_window: Callable[[], tuple[_Noted, ...]]) -> Callable[[], bool]:
    def is_next_intact() -> bool:
        for kept, live in next_window():  # noqa: SIM110 - a generator would take twice as long, in every call
            if kept != live:
                return False
        return True

    return is_next_intact


def _noted(live: memoryview, *, copies: bool) -> _Noted:
    """Note bytes beside the live ones: in a bytearray, which compares faster with a view than another view, or as a checksum."""
    if copies or len(live) % _WORD:
        return bytearray(live), live
    words = np.frombuffer(live, dtype=np.uint64)
    return _checksum(words), words


def _is_same(kept: bytearray | int, live: Any) -> bool:
    return bool(kept == live) if isinstance(kept, bytearray) else _checksum(live) == kept


def _windows(memories: Mapping[str, memoryview], size: int) -> Iterator[list[tuple[str, memoryview]]]:
    """Cut memories into windows of a number of bytes, each in pieces of one weight; a last piece may end in less than a word."""
    window: list[tuple[str, memoryview]] = []
    room = size
    for name, memory in memories.items():
        start = 0
        while start < len(memory):
            left = len(memory) - start
            length = min(room, _PIECE, left // _WORD * _WORD or left)
            window.append((name, memory[start : start + length]))
            start, room = start + length, room - length
            if room < _WORD:
                yield window
                window, room = [], size
    if window:
        yield window


def _rounded_up(size: int) -> int:
    return -(-size // _WORD) * _WORD


_MULTIPLIERS = np.random.default_rng(0).integers(1 << 63, size=_PIECE // _WORD, dtype=np.uint64) | np.uint64(1)
"""Odd, so that a change of one word always changes the sum."""


def _checksum(words: np.ndarray[Any, np.dtype[np.uint64]]) -> int:
    """Sum products, modulo 2**64, of mixed halves: multiplied by odd numbers alone, two changed signs would cancel out."""
    return int(np.dot(words ^ (words >> _HALF), _MULTIPLIERS[: len(words)]))
