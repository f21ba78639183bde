"""The state that a call starts from and may change, and what a call gave.

The state is copied, so that several calls can start alike and leave nothing behind. The outcome of a call is its results, what it wrote,
its gradients, and how its results share memory.
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend.memory_order import block_of, tensors_overlap
from ortlens.lens.verify.reachable import Reachable, argument_roots, restorer_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ortlens.lens.verify.reachable import Named


_MAX_COPIED_BYTES = 8 << 30  # weights beyond this are not copied: a model of this size may just fit into memory once


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
        self._roots: list[Named] = [*argument_roots(target, args, kwargs), *owned]
        found = Reachable(self._roots)
        self.tensors = found.tensors
        self.left_out = 0  # bytes of weights that were not copied
        self._containers = [restorer for held in found.containers if (restorer := restorer_of(held)) is not None]
        self._globals = [(names, name, names[name]) for names, name in found.globals]
        self._tensors = [
            _Tensor(tensor, tensor.detach(), tensor.requires_grad, tensor.grad if tensor.is_leaf else None)
            for tensor in self.tensors.values()
        ]
        self._copies: dict[int, tuple[Any, Any]] = {}  # storages, whose methods have no annotations
        self._copy_storages(parameters=parameters)
        # Functions that read and put back the state of each random generator, and the state then.
        self._generators = [(*access, access[0]()) for access in (*map(_access, found.generators), *_global_generators())]
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

    def restore(self, *, random: bool = True) -> bool:
        """Put everything back, except version counters; without `random`, generators go on, and the next call draws other numbers.

        Return whether a Python container or a global had changed.
        """
        changed = sum(bool(restorer()) for restorer in self._containers) > 0
        for names, name, value in self._globals:
            if names.get(name) is not value:
                names[name], changed = value, True
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
        return changed

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
    """Tell whether two states of a generator are equal: plain values, dictionaries, tuples, tensors or arrays."""
    if isinstance(one, dict):
        return all(_is_same_state(value, other[key]) for key, value in one.items())
    if isinstance(one, tuple):
        return all(map(_is_same_state, one, other))
    return bool((one == other).all()) if hasattr(one, "all") else bool(one == other)


def _access(generator: Any) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    """Return functions that read and set the state of a generator of torch, Python or NumPy."""
    if isinstance(generator, random.Random):
        return generator.getstate, generator.setstate
    if (bits := getattr(generator, "bit_generator", None)) is not None:
        return lambda: bits.state, functools.partial(setattr, bits, "state")
    return generator.get_state, generator.set_state


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
    by_memory: dict[int, list[tuple[str, torch.Tensor]]] = {}
    for name, tensor in state.tensors.items():
        by_memory.setdefault(tensor.untyped_storage().data_ptr(), []).append((name, tensor))
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
