"""Finds where NaN and infinities come from: the first node that produces one from finite inputs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.fx

from ortlens.backend.lowering import provenance
from ortlens.lens.verify.lockstep import Missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ortlens.lens.verify.lockstep import Step

_LIMIT = 0.99  # share of the largest number of a dtype, which masks are filled with
_ENDS = 0.9  # share of the largest number of a dtype from which on rounding decides between it and infinity
_NEAR = 0.05  # relative distance to double precision of what narrower dtypes compute without overflow


class Origin(NamedTuple):
    """A node that produces NaN or infinities from inputs without them."""

    node: torch.fx.Node
    sides: str  # `ort`, `eager` or `both`
    kind: str  # `NaN` or `Inf`
    overflow: bool  # whether the run in double precision stays finite
    note: str


def origin_of(step: Step, maker: torch.fx.Node, earlier: Sequence[torch.fx.Node]) -> Origin | None:
    """Check whether a node is the origin of NaN or infinities; `maker` is the operator behind it if it selects an output.

    Infinities that are written in the program, or that follow from the extreme numbers in masks, are intended and do not count. NaN that
    results from infinities counts, unless these have an origin themselves.
    """
    kinds = {side: _made_here(step.node, value, read, earlier) for side, value, read in _sides(step)}
    found = {side: kind for side, kind in kinds.items() if kind is not None}
    if not found or maker in earlier:
        return None
    sides = "both" if len(found) == 2 else next(iter(found))  # noqa: PLR2004 - both sides
    kind = found.get("eager") or found["ort"]
    double = step.double
    finite = not isinstance(double, Missing) and is_finite(double)
    return Origin(maker, sides, kind, finite, _words(step, sides, kind, finite=finite))


def _sides(step: Step) -> tuple[tuple[str, Any, Callable[[torch.fx.Node], Any]], ...]:
    return ("ort", step.ort, step.read_ort), ("eager", step.eager, step.read)


def _made_here(node: torch.fx.Node, value: Any, read: Callable[[torch.fx.Node], Any], earlier: Sequence[torch.fx.Node]) -> str | None:
    if isinstance(value, Missing) or is_finite(value):
        return None
    inputs = [given for given in map(read, node.all_input_nodes) if not isinstance(given, Missing)]
    if any(map(has_nan, inputs)):
        return None
    if has_nan(value):
        return None if earlier and any(map(has_infinite, inputs)) else "NaN"
    on_purpose = any(map(_at_limit, inputs)) or any(_at_limit(arg) for arg in (*node.args, *node.kwargs.values()))
    return None if on_purpose else "Inf"


def _words(step: Step, sides: str, kind: str, *, finite: bool) -> str:
    side = {"both": "both sides", "ort": "ONNX Runtime's side", "eager": "PyTorch's side"}[sides]
    text = f"produces {kind} from inputs without any, on {side}"
    made = next((tensor for tensor in provenance.tensors_in(step.eager) if tensor.dtype.is_floating_point), None)
    if not finite or made is None:
        return text
    limit, name = torch.finfo(made.dtype).max, str(made.dtype).removeprefix("torch.")
    largest = max((float(tensor.abs().max()) for tensor in provenance.tensors_in(step.double) if tensor.numel()), default=0.0)
    return f"{text}; the float64 run stays finite, up to {largest:.4g}" + (f", and {name} ends at {limit:.4g}" if largest > limit else "")


def is_excused(ort: Any, eager: Any, double: Any) -> bool:
    """Tell whether two values are infinite or NaN in different places only where PyTorch's range ends.

    Such an element is at the end of the dtype's range on one side, not finite on both, or overflowed in PyTorch while ONNX Runtime is close
    to the run in double precision. True also without such a run, since nothing is known then.
    """
    if not (isinstance(ort, torch.Tensor) and isinstance(eager, torch.Tensor)) or ort.shape != eager.shape:
        return False
    if isinstance(double, Missing) or double.shape != eager.shape:
        return True
    ours, theirs = torch.isfinite(ort), torch.isfinite(eager)
    differ = (~ours | ~theirs) & (ort != eager) & ~(torch.isnan(ort) & torch.isnan(eager))
    a, b, d = (value[differ].double() for value in (ort, eager, double))
    largest = _ENDS * torch.finfo(eager.dtype).max
    at_end = (a.abs() >= largest) & (b.abs() >= largest) & (a.sign() == b.sign())
    right = ~torch.isfinite(b) & torch.isfinite(a) & ((a - d).abs() <= _NEAR * d.abs())
    other_kind = ~torch.isfinite(a) & ~torch.isfinite(b)  # the order of a sum decides between infinity and NaN
    return bool((at_end | right | other_kind).all())


def is_finite(value: Any) -> bool:
    """Tell whether a value holds neither NaN nor infinities; True also for values without floats."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in _floats(value))


def has_nan(value: Any) -> bool:
    """Tell whether a value holds NaN; False for values without floats."""
    return any(bool(torch.isnan(tensor).any()) for tensor in _floats(value))


def has_infinite(value: Any) -> bool:
    """Tell whether a value holds an infinity; False for values without floats."""
    return any(bool(torch.isinf(tensor).any()) for tensor in _floats(value))


def _at_limit(value: Any) -> bool:
    """Tell whether a value, or a number among arguments, holds an infinity or the largest number of its dtype, as masks do."""
    if isinstance(value, float):
        return math.isinf(value) or abs(value) >= _LIMIT * torch.finfo(torch.float16).max
    limited = ((tensor, _LIMIT * torch.finfo(tensor.dtype).max) for tensor in _floats(value))
    return any(bool((tensor.abs() >= limit).any()) for tensor, limit in limited)


def _floats(value: Any) -> Iterator[torch.Tensor]:
    return (tensor for tensor in provenance.tensors_in(value) if tensor.dtype.is_floating_point)
