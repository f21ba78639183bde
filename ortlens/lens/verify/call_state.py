"""The state that a call starts from and may change, and what a call gave.

The state is copied, so that several calls can start alike and leave it as it was. It is tensors, what arguments hold, and random
generators; Python objects that a module or function holds are the user's. The outcome of a call is its results, what it wrote, its
gradients, and how its results share memory.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import random
import sys
import types
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from ortlens import _torch
from ortlens.analysis.index import grouped
from ortlens.backend.basis.memory_order import block_of, tensors_overlap
from ortlens.backend.freeze.arguments import named_arguments, parameters_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

Named: TypeAlias = tuple[str, Any]

_MAX_COPIED_BYTES = 8 << 30  # weights beyond this are not copied: a model of this size may just fit into memory once
_MAX_OBJECTS = 200_000  # objects looked at, nearest first: a data set with a million entries is no state of a model

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_OPAQUE = frozenset(sys.stdlib_module_names) | {"torch", "ortlens", "onnxruntime", "onnx", "onnxscript", "numpy", "pandas", "IPython"}
_TENSOR_OR_NONE = (torch.Tensor, type(None))
_OPEN = (torch.optim.Optimizer, types.SimpleNamespace)
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
_STATE = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer, torch.Generator, *_FUNCTIONS)
"""What is looked at of all that a module holds and a function names: their lists and other objects are not put back, so not compared."""


class Reachable:
    """What is reachable from some roots."""

    def __init__(self, roots: Iterable[Named], *, with_plain: bool = False) -> None:
        """Look around from named objects; `with_plain` collects numbers, strings and None as well."""
        # every tensor with data of its own, by the first name it was found under; gradients among them
        self.tensors: dict[str, torch.Tensor] = {}
        # numbers, strings and None, likewise; only if they were asked for, and then tensors are listed under all their names
        self.plain: dict[str, Any] = {}
        self.modules: list[torch.nn.Module] = []
        self.generators: list[torch.Generator] = []
        self.containers: list[Any] = []  # lists, dictionaries, and attributes of objects, of arguments and optimisers
        self._with_plain = with_plain
        self._seen: dict[int, object] = {}  # holds on to what was seen, so that no id is used twice
        waiting = collections.deque(roots)
        while waiting and len(self._seen) < _MAX_OBJECTS:
            waiting.extend(self._look(*waiting.popleft()))

    def _look(self, name: str, value: Any) -> Iterator[Named]:
        if isinstance(value, _PLAIN):
            if self._with_plain:
                self.plain[name] = value
            return
        if id(value) in self._seen:
            if self._with_plain and isinstance(value, torch.Tensor):  # a result that is returned twice is two results
                self.tensors[name] = value
            return
        self._seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            yield from self._tensor(name, value)
        elif isinstance(value, torch.Generator):
            self.generators.append(value)
        elif isinstance(value, torch.nn.Module):
            self.modules.append(value)
            named = [(_joined(name, key), item) for table in _tables_of(value) for key, item in table.items()]
            yield from (each for each in (*named, (name, type(value).forward)) if isinstance(each[1], _STATE))
        elif isinstance(value, _FUNCTIONS):
            yield from _captured(name, value)
        else:
            yield from self._parts(name, value)

    def _tensor(self, name: str, value: torch.Tensor) -> Iterator[Named]:
        if _torch.is_fake(value) or value.layout is not torch.strided or value.device.type == "meta":
            return
        while name in self.tensors:
            name += "'"
        self.tensors[name] = value
        if value.is_leaf and value.grad is not None:
            yield f"grad of {name}", value.grad

    def _parts(self, name: str, value: Any) -> Iterator[Named]:
        if type(value).__module__ in ("builtins", "collections") and isinstance(value, (dict, list, collections.deque)):
            self.containers.append(value)
        if isinstance(value, dict):
            for place, (key, item) in enumerate(value.items()):
                yield f"{name}[{key!r}]" if isinstance(key, (str, int)) else f"{name}[#{place}]", item
        elif isinstance(value, (list, tuple, collections.deque)):
            fields = getattr(value, "_fields", None)
            yield from ((f"{name}.{fields[n]}" if fields else f"{name}[{n}]", item) for n, item in enumerate(value))
        elif isinstance(value, _OPEN) or not (isinstance(value, (type, types.ModuleType)) or _is_opaque(type(value))):
            yield from self._attributes(name, value)

    def _attributes(self, name: str, value: Any) -> Iterator[Named]:
        own = getattr(value, "__dict__", {})
        self.containers.append(own)
        everything = dataclasses.is_dataclass(value)
        yield from ((_joined(name, key), item) for key, item in own.items() if everything or not isinstance(item, _PLAIN))
        members = {key: member for kind in type(value).__mro__ for key, member in vars(kind).items()}
        for key, member in members.items():
            if isinstance(member, types.MemberDescriptorType) and hasattr(value, key):  # a slot
                yield _joined(name, key), getattr(value, key)


def _tables_of(module: torch.nn.Module) -> tuple[dict[str, Any], ...]:
    """Return the dictionaries in which a module holds what its attributes are."""
    return module._parameters, module._buffers, module._modules, vars(module)  # noqa: SLF001 - what `register_buffer` changes


def _captured(name: str, function: Any) -> Iterator[Named]:
    """Yield what a function is bound to, or the state that its code names."""
    if isinstance(function, functools.partial):
        yield from ((name, function.func), (f"{name}.args", function.args), (f"{name}.keywords", function.keywords))
    elif isinstance(function, types.MethodType):
        yield from ((name, function.__self__), (name, function.__func__))
    elif not _is_opaque(function):
        named = {used: function.__globals__[used] for used in _global_names(function.__code__) if used in function.__globals__}
        named |= {f"{function.__name__}.defaults[{n}]": item for n, item in enumerate(function.__defaults__ or ())}
        named |= function.__kwdefaults__ or {}
        for free, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # it has no value yet
                named[free] = cell.cell_contents
        yield from (each for each in named.items() if isinstance(each[1], _STATE))


def _global_names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def _joined(name: str, part: str) -> str:
    return part if not name or name == "_orig_mod" else name if part == "_orig_mod" else f"{name}.{part}"


def _is_opaque(of: Any) -> bool:
    """Tell whether a class or function is one of a library whose inside is no state of a model."""
    return (of.__module__ or "").partition(".")[0] in _OPAQUE


_CALLS_OF_MODULE = ("forward", "_wrapped_call_impl", "__call__", "_call_impl")  # methods that compiled modules have as their targets


def module_behind(function: Any) -> Any:
    """Return the module whose call a function is, so that its weights have their own names; anything else as it is."""
    owner = getattr(function, "__self__", None)
    return owner if isinstance(owner, torch.nn.Module) and getattr(function, "__name__", "") in _CALLS_OF_MODULE else function


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor as it was: an alias with its sizes then, and its gradient."""

    tensor: torch.Tensor
    alias: torch.Tensor
    requires_grad: bool
    grad: torch.Tensor | None

    def put_back(self) -> None:
        now = self.tensor
        if now.requires_grad != self.requires_grad and not self.requires_grad:
            with contextlib.suppress(RuntimeError):  # a view cannot be detached in place
                now.detach_()
        if _layout(now) != _layout(self.alias):
            now.data = self.alias
        if now.is_leaf and now.requires_grad and now.grad is not self.grad:
            now.grad = self.grad


class CallState:
    """The state of a target and its arguments before a call."""

    def __init__(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, parameters: bool = True) -> None:
        """Copy the state; values of parameters only if `parameters` may change."""
        program = isinstance(target, torch.export.ExportedProgram)
        owned = [("", target.state_dict), ("", target.constants)] if program else [("", target)]
        names = [name for name, _ in named_arguments(parameters_source(module_behind(target)), tuple(range(len(args))), {})]
        self._roots: list[Named] = [*zip(names, args, strict=True), *kwargs.items(), *owned]
        found = Reachable(self._roots)
        self.tensors = found.tensors
        self.left_out = 0  # bytes of weights that were not copied
        self._containers = [(held, held.copy()) for held in found.containers]
        tables = [table for module in found.modules for table in _tables_of(module)]
        self._tables = [(table, {key: item for key, item in table.items() if isinstance(item, _TENSOR_OR_NONE)}) for table in tables]
        self._tensors = [
            _Tensor(tensor, tensor.detach(), tensor.requires_grad, tensor.grad if tensor.is_leaf else None)
            for tensor in self.tensors.values()
        ]
        self._copies: dict[int, tuple[Any, Any]] = {}  # storages, whose methods have no annotations
        self._copy_storages(parameters=parameters)
        # Functions that read and put back the state of each random generator, and the state then.
        accesses = (*((each.get_state, each.set_state) for each in found.generators), *_global_generators())
        self._generators = [(read, put_back, read()) for read, put_back in accesses]
        self.random_state = torch.get_rng_state()  # state of torch's generator on the CPU

    def _copy_storages(self, *, parameters: bool) -> None:
        copied = 0
        for tensor in sorted(self.tensors.values(), key=lambda tensor: isinstance(tensor, torch.nn.Parameter)):
            storage: Any = tensor.untyped_storage()
            key = storage.data_ptr()
            if not storage.nbytes() or key in self._copies or (isinstance(tensor, torch.nn.Parameter) and not parameters):
                continue
            if isinstance(tensor, torch.nn.Parameter) and copied + storage.nbytes() > _MAX_COPIED_BYTES:
                self.left_out += storage.nbytes()
                continue
            copied += storage.nbytes()
            self._copies[key] = storage, storage.clone()

    def restore(self, *, random: bool = True) -> None:
        """Put everything back, except version counters; without `random`, generators go on, and the next call draws other numbers."""
        for held, before in self._containers:
            held.clear()
            (held.update if isinstance(held, dict) else held.extend)(before)
        for table, tensors in self._tables:
            table.update(tensors)
        for noted in self._tensors:
            noted.put_back()
        for storage, copy in self._copies.values():
            if storage.nbytes() != copy.nbytes():
                storage.resize_(copy.nbytes())
            if not _equal_bytes(storage, copy):
                storage.copy_(copy)
        if random:
            for _, put_back, state in self._generators:
                put_back(state)

    def drew(self) -> bool:
        """Tell whether random numbers were drawn since, from any generator that is put back."""
        return not all(_is_same_state(read(), state) for read, _, state in self._generators)

    def written(self) -> dict[str, torch.Tensor]:
        """Collect the tensors that are not as they were, or were not there, by name, including gradients that appeared."""
        before = {id(noted.tensor): noted for noted in self._tensors}
        changed = {key for key, (storage, copy) in self._copies.items() if not _equal_bytes(storage, copy)}
        found: dict[str, torch.Tensor] = {}
        for name, tensor in Reachable(self._roots).tensors.items():
            noted = before.get(id(tensor))
            same = noted is not None and _layout(tensor) == _layout(noted.alias) and self.tensors.get(name) is tensor
            if not same or tensor.untyped_storage().data_ptr() in changed:
                found[name] = tensor
        return found


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.untyped_storage().data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype


def _equal_bytes(one: torch.UntypedStorage, other: torch.UntypedStorage) -> bool:
    if one.nbytes() != other.nbytes():
        return False
    bytes_of = [torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage) for storage in (one, other)]
    return torch.equal(*bytes_of)


def _is_same_state(one: Any, other: Any) -> bool:
    """Tell whether two states of a generator are equal: plain values, tuples, tensors or arrays."""
    if isinstance(one, tuple):
        return all(map(_is_same_state, one, other))
    return bool((one == other).all()) if hasattr(one, "all") else bool(one == other)


def _global_generators() -> Iterator[tuple[Callable[[], Any], Callable[[Any], object]]]:
    """Yield functions that read and set the states of the generators that everything draws from by default."""
    yield random.getstate, random.setstate
    yield torch.get_rng_state, torch.set_rng_state
    if torch.accelerator.is_available():
        module: Any = torch.get_device_module(torch.accelerator.current_accelerator())
        for device in range(torch.accelerator.device_count()) if hasattr(module, "get_rng_state") else ():
            yield functools.partial(module.get_rng_state, device), functools.partial(module.set_rng_state, device=device)
    if (numpy := sys.modules.get("numpy")) is not None:
        yield numpy.random.get_state, numpy.random.set_state


RANDOM_STATE = "random state"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One thing that a call gave."""

    kind: str  # `result`, `written`, `gradient` or `random`
    value: Any  # a tensor of its own, or a plain value
    live: torch.Tensor | None = None  # the tensor itself, whose memory tells where it was made; None for plain values
    strides: tuple[int, ...] = ()
    requires_grad: bool = False  # whether it takes part in automatic differentiation
    shares: frozenset[str] = frozenset()  # arguments, weights and earlier results that it has elements in common with
    # all memory from its first to its last element, of a result with gaps between them in memory of its own
    span: torch.Tensor | None = None


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What one call gave."""

    parts: dict[str, Part] = field(default_factory=dict)  # everything that it gave, by name; what it wrote also if it raised
    error: Exception | None = None
    gradient_error: Exception | None = None  # what its backward raised


def outcome_of(call: Callable[[], object], state: CallState, *, accumulates: bool = False) -> Outcome:
    """Call, differentiate a weighted sum of the results, with `accumulates` as `backward()` does, and look at what changed."""
    try:
        result = call()
    except Exception as error:  # noqa: BLE001 - compared with what PyTorch raises
        return Outcome(error=error, parts=_written(state))
    made = Outcome()
    found = Reachable([("result", result)], with_plain=True)
    made.parts |= {name: Part(kind="result", value=value) for name, value in found.plain.items()}
    made.parts |= _results(found.tensors, state)
    if not torch.equal(drawn := torch.get_rng_state(), state.random_state):
        made.parts[RANDOM_STATE] = Part(kind="random", value=drawn)
    made.parts |= _written(state)
    try:
        gradients = _gradients(found.tensors, state, accumulates=accumulates)
        made.parts |= {f"gradient of {name}": _part("gradient", grad) for name, grad in gradients.items()}
    except Exception as error:  # noqa: BLE001 - compared with what PyTorch's own backward raises
        made.gradient_error = error
    return made


def _written(state: CallState) -> dict[str, Part]:
    return {f"{name} after the call": _part("written", tensor) for name, tensor in state.written().items()}


def _part(kind: str, tensor: torch.Tensor, shares: frozenset[str] = frozenset()) -> Part:
    value = tensor.detach().clone(memory_format=torch.contiguous_format)
    strides = tuple(tensor.stride())
    span = _span(tensor) if kind == "result" and not shares else None
    return Part(kind=kind, value=value, live=tensor, strides=strides, requires_grad=tensor.requires_grad, shares=shares, span=span)


def _span(tensor: torch.Tensor) -> torch.Tensor | None:
    """Copy the memory from the first to the last element; None where there are no gaps, which `as_strided` would show."""
    length = block_of(tensor)[1] // tensor.element_size()
    if length <= tensor.numel():
        return None
    return tensor.detach().as_strided((length,), (1,), tensor.storage_offset()).clone()


def _results(tensors: Mapping[str, torch.Tensor], state: CallState) -> dict[str, Part]:
    by_memory = grouped((tensor.untyped_storage().data_ptr(), (name, tensor)) for name, tensor in state.tensors.items())
    made = {}
    for name, tensor in tensors.items():
        if name.startswith("grad of "):
            continue
        near = by_memory.setdefault(tensor.untyped_storage().data_ptr(), [])
        made[name] = _part("result", tensor, frozenset(other for other, value in near if tensors_overlap(tensor, value)))
        near.append((name, tensor))
    return made


def _gradients(results: Mapping[str, torch.Tensor], state: CallState, *, accumulates: bool) -> dict[str, torch.Tensor]:
    if not torch.is_grad_enabled():
        return {}
    outputs = [tensor for tensor in results.values() if tensor.requires_grad and tensor.grad_fn is not None]
    inputs = {name: tensor for name, tensor in state.tensors.items() if tensor.requires_grad}
    if not outputs or not inputs:
        return {}
    weights = [_weights_like(tensor, place) for place, tensor in enumerate(outputs)]
    if accumulates:
        grads = _accumulated(outputs, list(inputs.values()), weights)
    else:
        grads = torch.autograd.grad(outputs, list(inputs.values()), weights, allow_unused=True)
    return {name: torch.zeros_like(tensor) if grad is None else grad for (name, tensor), grad in zip(inputs.items(), grads, strict=True)}


def _accumulated(outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]) -> Any:
    for tensor in inputs:
        tensor.grad = None
        tensor.retain_grad()
    torch.autograd.backward(outputs, weights)
    grads = [tensor.grad for tensor in inputs]
    for tensor in inputs:
        tensor.grad = None
    return grads


def _weights_like(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """Draw always the same random numbers: with ones, the gradient of a softmax or a normalisation would be zero whatever it does."""
    dtype = torch.complex64 if tensor.is_complex() else torch.float32
    made = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed), dtype=dtype, device="cpu")
    return made.to(device=tensor.device, dtype=tensor.dtype)
