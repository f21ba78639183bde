"""What one call gave: its results, what it wrote, its gradients, and how its results share memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend.memory_order import block_of, tensors_overlap
from ortlens.lens.verify.reachable import Reachable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ortlens.lens.verify.call_state import CallState

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
    """Call, differentiate a weighted sum of the results with weights that are always the same, and look at what changed.

    With `accumulates`, gradients are taken as `backward()` leaves them, which is all that reentrant checkpoints allow.
    """
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
        made[name] = _part("result", tensor, _sharing(tensor, near))
        near.append((name, tensor))
    return made


def _sharing(tensor: torch.Tensor, others: Iterable[tuple[str, torch.Tensor]]) -> frozenset[str]:
    return frozenset(name for name, other in others if tensors_overlap(tensor, other))


def _gradients(results: Mapping[str, torch.Tensor], state: CallState, *, accumulates: bool) -> dict[str, torch.Tensor]:
    if not torch.is_grad_enabled():
        return {}
    outputs = [tensor for tensor in results.values() if tensor.requires_grad and tensor.grad_fn is not None]
    inputs = state.differentiable()
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
    made = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return made.to(device=tensor.device, dtype=tensor.dtype)
