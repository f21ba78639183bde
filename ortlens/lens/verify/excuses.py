"""Differences that are no fault: sums whose terms cancel, the order of equal values, the end of a range, what differs from itself.

And two within the tolerance that are a fault: a number rounded to 16 bits, and a result that the operator cannot have, such as a tanh
beyond 1, of which the next operator may make NaN. The first node that produces NaN or an infinity is their origin.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ortlens.backend.basis import provenance
from ortlens.backend.operators.facts import Call
from ortlens.lens.verify.float64 import Missing, call_in_double
from ortlens.lens.verify.lockstep import call

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from ortlens.lens.verify.compare_values import ValueComparison, ValueVerdict
    from ortlens.lens.verify.lockstep import NodeStep


_aten = torch.ops.aten

_SHORT = (torch.float16, torch.bfloat16)
_FEWEST_DIFFERING = 4  # elements: fewer may differ by a rounding that nobody defines
LEAVES_UNWRITTEN = (
    _aten.empty.memory_format,
    _aten.empty_like.default,
    _aten.empty_strided.default,
    _aten.empty_permuted.default,
    _aten.new_empty.default,
    _aten.new_empty_strided.default,
)
"""Operators that return uninitialised memory."""

_ORDERS = (_aten.topk.default, _aten.sort.default, _aten.sort.stable)
"""Operators whose second output holds the positions of the values. argmax and max return the first of equal values, these any."""

_SUMS = (_aten.sum.default, _aten.sum.dim_IntList, _aten.mean.default, _aten.mean.dim)


RANGES: Mapping[Any, tuple[float, float]] = {
    **dict.fromkeys((_aten.tanh.default, _aten.erf.default, _aten.sin.default, _aten.cos.default), (-1.0, 1.0)),
    **dict.fromkeys((_aten.sigmoid.default, _aten.hardsigmoid.default, _aten._softmax.default), (0.0, 1.0)),  # noqa: SLF001 - a name
    **dict.fromkeys((_aten.exp.default, _aten.exp2.default, _aten.relu.default, _aten.softplus.default), (0.0, math.inf)),
    **dict.fromkeys((_aten.abs.default, _aten.sqrt.default, _aten.acosh.default), (0.0, math.inf)),
    **dict.fromkeys((_aten.log_sigmoid_forward.default, _aten._log_softmax.default), (-math.inf, 0.0)),  # noqa: SLF001 - same
    **dict.fromkeys((_aten.atan.default, _aten.asin.default), (-math.pi / 2, math.pi / 2)),
    _aten.acos.default: (0.0, math.pi),
    _aten.cosh.default: (1.0, math.inf),
    _aten.expm1.default: (-1.0, math.inf),
    _aten.relu6.default: (0.0, 6.0),
}
"""Operator -> the least and the largest result that it may have."""

_ALPHAS = (_aten.elu.default, _aten.celu.default)
"""Operators that do not go below their argument alpha, which is 1 if it is not given, times the scale."""


class CallEvidence(NamedTuple):
    """What is known of the parts of a call from other calls."""

    unsteady: Collection[str] = ()  # names of those that PyTorch gives otherwise in a second call
    unsteady_in_ort: Collection[str] = ()  # likewise ONNX Runtime
    reference: str = "PyTorch"
    advice: str = ""  # on why that may be unsteady
    amplifies: str = ""  # why they differ although every value inside is right for its inputs; empty where one is not


class Excuse(NamedTuple):
    """A reason why a value that differs is not ONNX Runtime's fault."""

    text: str
    holds: Callable[[ValueVerdict, Any], bool]  # by the step of a node, or by the evidence of a call
    is_right: bool = False  # whether the value is right then; else nobody can tell


def excuse_rounding(verdict: ValueVerdict, found: ValueComparison) -> None:
    """Accept a value beyond the tolerance if ONNX Runtime is about as close to the run in double precision as PyTorch is."""
    if found.finite_alike():
        verdict.ok = True
        verdict.add(f"{_BY_CHANCE if found.by_chance() else _ALIKE} ({found.ort_error:.2g} and {found.eager_error:.2g})")


def excuse(verdict: ValueVerdict, evidence: NodeStep | CallEvidence, rows: Sequence[Excuse]) -> Excuse | None:
    """Find the first excuse for a value, and note it, except for `CARRIED_ON`, which other values decide."""
    found = next((row for row in rows if row.holds(verdict, evidence)), None)
    if found is None or found is CARRIED_ON:
        return found
    if found.is_right:
        verdict.ok, verdict.is_excused = True, True
        verdict.add(found.text)
    else:
        verdict.leave_open(found.text.format(evidence))
    if found is TIES:  # how far positions are apart is no difference of numbers
        verdict.comparison = None
    return found


def is_at_fault(verdict: ValueVerdict, step: NodeStep, *, knows_inputs: bool = True) -> bool:
    """Call a value within the tolerance wrong if it is none that rounding explains; tell whether it is."""
    if verdict.ok is not True or not (fault := (knows_inputs and _rounded_number(verdict, step)) or _beyond_range(step)):
        return False
    verdict.ok = False
    verdict.restate(fault)
    return True


def _beyond_range(step: NodeStep) -> str:
    """Describe a number in ONNX Runtime's result that the operator cannot have, if PyTorch's has none; empty if there is none."""
    bounds, ort, eager = _range_of(step.node), step.ort, step.eager
    if bounds is None or not all(isinstance(value, torch.Tensor) and value.is_floating_point() for value in (ort, eager)):
        return ""
    least, largest = torch.tensor(bounds, dtype=eager.dtype)
    outside, outside_eager = (value[(value < least) | (value > largest)] for value in (ort.detach().cpu(), eager.detach().cpu()))
    if not len(outside) or len(outside_eager):
        return ""
    return "{:.9g} is outside the range of the operator, {:.9g} to {:.9g}".format(outside[0].item(), *bounds)


def _range_of(node: torch.fx.Node) -> tuple[float, float] | None:
    if node.target in _ALPHAS:
        factors: Sequence[Any] = (*node.args[1 : 3 if node.target is _aten.elu.default else 2], *node.kwargs.values())
        known = all(isinstance(factor, (int, float)) and factor > 0 for factor in factors)
        return (-math.prod(factors), math.inf) if known else None
    return RANGES.get(node.target)


def differ_by_ties(node: torch.fx.Node, item: int | None, first: Any, second: Any, read: Callable[[torch.fx.Node], Any]) -> bool:
    """Tell whether results of sorting differ only in an order that PyTorch leaves undefined, with all positions in range."""
    if node.target not in _ORDERS or item is None:
        return False
    given = Call(node)
    if given.get("stable") is True:
        return False
    source = read(node.all_input_nodes[0])
    if not all(isinstance(value, torch.Tensor) for value in (first, second, source)) or first.shape != second.shape or not source.dim():
        return False
    dim, in_any_order = given["dim"], given.get("sorted") is False
    if item == 0:
        return in_any_order and torch.equal(first.sort(dim).values, second.sort(dim).values)
    values = [_values_at(source, places, dim) for places in (first, second)]
    if any(value is None for value in values):
        return False
    one, other = (value.sort(dim).values if in_any_order else value for value in values if value is not None)
    return torch.equal(one, other)


def _values_at(source: torch.Tensor, places: torch.Tensor, dim: int) -> torch.Tensor | None:
    """Read the values at these positions; None if a position is out of range or repeated, which is always an error."""
    if places.numel() and (int(places.min()) < 0 or int(places.max()) >= source.shape[dim]):
        return None
    distinct = bool((places.sort(dim).values.diff(dim=dim) != 0).all())
    return source.gather(dim, places) if distinct else None


def _cancels(verdict: ValueVerdict, step: NodeStep) -> bool:
    """Tell whether two results of a sum or mean are the same within the tolerance, taken of the magnitudes of its terms.

    Adding n numbers in any order is off by a few roundings of what is added. If terms of both signs cancel, that is much of the result, and
    how much differs between PyTorch, which adds in a tree, and ONNX Runtime. A lost term, or a sum of so many that rounding adds up, is
    larger. A tolerance that the user chose is taken as it is.
    """
    tolerance, ort, eager = verdict.tolerance, step.ort, step.eager
    if step.maker.target not in _SUMS or tolerance is None or tolerance.given:
        return False
    if not all(isinstance(value, torch.Tensor) and value.dtype.is_floating_point for value in (ort, eager)) or ort.shape != eager.shape:
        return False

    def magnitude(source: torch.fx.Node) -> Any:
        value = step.read(source)
        return value.abs() if isinstance(value, torch.Tensor) else value

    magnitudes = call_in_double(step.maker, magnitude)
    if not isinstance(magnitudes, torch.Tensor):
        return False
    distance = (ort.detach().double() - eager.detach().double()).abs()
    return bool((distance <= tolerance.atol + tolerance.rtol * magnitudes).all())


def _rounded_number(verdict: ValueVerdict, step: NodeStep) -> str:
    """Name a Python number that ONNX Runtime rounds to 16 bits, where PyTorch keeps float32: within the tolerance, yet no rounding.

    Operators with several results, such as norms, have their numbers as attributes, which are float32.
    """
    args, ort, found = step.node.args, step.ort, verdict.comparison
    if verdict.is_strict or found is None or not found.max_abs or step.item is not None or ort.dtype not in _SHORT:
        return ""
    rounded = {number: float(torch.tensor(number, dtype=ort.dtype, device="cpu")) for number in args if isinstance(number, float)}
    number = next((number for number, short in rounded.items() if number not in (short, math.inf)), None)
    right = None if number is None else step.local()
    if not isinstance(right, torch.Tensor) or ort.shape != right.shape or (differing := _count_differing(ort, right)) < _FEWEST_DIFFERING:
        return ""
    short: Any = call(step.node, step.read_ort, tuple(rounded.get(given, given) if isinstance(given, float) else given for given in args))
    is_rounded = _count_differing(ort, short) * 4 <= differing
    return f"the number {number:g} is rounded to 16 bits, which PyTorch keeps in float32" if is_rounded else ""


def _count_differing(one: torch.Tensor, other: torch.Tensor) -> int:
    return int(((one != other) & ~(one.isnan() & other.isnan())).sum())


_LIMIT = 0.99  # share of the largest number of a dtype, which masks are filled with
_ENDS = 0.9  # share of the largest number of a dtype from which on rounding decides between it and infinity
_NEAR = 0.05  # relative distance to double precision of what narrower dtypes compute without overflow


class NonfiniteOrigin(NamedTuple):
    """A node that produces NaN or infinities from inputs without them."""

    node: torch.fx.Node
    sides: str  # `ort`, `eager` or `both`
    kind: str  # `NaN` or `Inf`
    overflow: bool  # whether the run in double precision stays finite
    note: str


def origin_of(step: NodeStep) -> NonfiniteOrigin | None:
    """Check whether a node is another origin of NaN or infinities.

    Infinities that are written in the program, or that follow from the extreme numbers in masks, are intended and do not count. NaN that
    results from infinities counts, unless these have an origin themselves.
    """
    earlier = [origin.node for origin in step.origins]
    sides = (("ort", step.ort, step.read_ort), ("eager", step.eager, step.read))
    found = {side: kind for side, value, read in sides if (kind := _made_here(step.node, value, read, earlier)) is not None}
    if not found or step.maker in earlier:
        return None
    side = "both" if len(found) == len(sides) else next(iter(found))
    kind = found.get("eager") or found["ort"]
    finite = not isinstance(step.double, Missing) and is_finite(step.double)
    return NonfiniteOrigin(step.maker, side, kind, finite, _words(step, side, kind, finite=finite))


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


def _words(step: NodeStep, sides: str, kind: str, *, finite: bool) -> str:
    side = {"both": "both sides", "ort": "ONNX Runtime's side", "eager": "PyTorch's side"}[sides]
    text = f"produces {kind} from inputs without any, on {side}"
    made = next((tensor for tensor in provenance.tensors_in(step.eager) if tensor.dtype.is_floating_point), None)
    if not finite or made is None:
        return text
    limit, name = torch.finfo(made.dtype).max, str(made.dtype).removeprefix("torch.")
    largest = max((float(tensor.abs().max()) for tensor in provenance.tensors_in(step.double) if tensor.numel()), default=0.0)
    return f"{text}; the float64 run stays finite, up to {largest:.4g}" + (f", and {name} ends at {limit:.4g}" if largest > limit else "")


def _follows_origin(verdict: ValueVerdict, step: NodeStep) -> bool:
    """Tell whether a value differs only where it is NaN or infinite, and this follows from PyTorch's own: nothing to compare with."""
    found = verdict.comparison
    if step.origin is None or found is None or verdict.is_strict or not (found.clashes and found.eager_bad):
        return False
    return (found.within or found.finite_alike()) and _differ_at_the_end_of_the_range(step.ort, step.eager, step.double)


def _differ_at_the_end_of_the_range(ort: Any, eager: Any, double: Any) -> bool:
    """Tell whether two values are infinite or NaN in different places only where PyTorch's range ends.

    Such an element is at the end of the dtype's range on one side, not finite on both, or overflowed in PyTorch while ONNX Runtime is close
    to the run in double precision. True also without such a run, since nothing is known then.
    """
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


def _is_right_for_its_inputs(verdict: ValueVerdict, step: NodeStep) -> bool:
    local = step.local()
    return verdict.is_close(step.ort, local) or differ_by_ties(step.maker, step.item, step.ort, local, step.read_ort)


UNINITIALISED = "uninitialised memory: any value is right"
_ALIKE = "beyond the tolerance but ok: about as close to the float64 run as PyTorch"
_BY_CHANCE = "beyond the tolerance but ok: errors of so few numbers differ by chance"
_CANCELLED = "beyond the tolerance but ok: the terms of this sum cancel, and the difference is rounding beside their magnitudes"
NONFINITE = Excuse("PyTorch's value contains NaN or infinities from {0.origin}", _follows_origin)
TIES = Excuse(
    "equal values in another order, which PyTorch does not define",
    lambda _, step: differ_by_ties(step.maker, step.item, step.ort, step.eager, step.read),
    is_right=True,
)
CARRIED_ON = Excuse("the operator is right for the inputs that ONNX Runtime computed", _is_right_for_its_inputs)
OF_NODES = (NONFINITE, Excuse(_CANCELLED, _cancels, is_right=True), TIES, CARRIED_ON)
OF_CALLS = (
    Excuse("{0.reference}'s own results differ between two calls{0.advice}", lambda verdict, call: verdict.node in call.unsteady),
    Excuse("the model's own results differ between two runs", lambda verdict, call: verdict.node in call.unsteady_in_ort),
    Excuse("every value is right for its inputs, and {0.amplifies}", lambda _, call: bool(call.amplifies)),
)
