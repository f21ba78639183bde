"""Compares two values, with a third as arbiter, for a verdict: how far apart they are, and whether rounding explains it.

A difference is judged by the value's own magnitude: an element of 1e-9 beside others of about 1 is rounding, whatever its
relative error. A difference beyond the tolerance is not yet a verdict: if ONNX Runtime is about as close to a run in double
precision as PyTorch is, both have only rounded. Rounding grows with the depth of a model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend.basis import provenance
from ortlens.errors import UsageError
from ortlens.lens.verify.excuses import excuse_rounding
from ortlens.lens.verify.float64 import Missing
from ortlens.lens.verify.lockstep import maker_of
from ortlens.trace import records as r

if TYPE_CHECKING:
    from collections.abc import Sequence


_CHUNK = 1 << 20  # elements; temporary copies in double precision are no larger than this, however large the values
_ROUNDS_ALIKE = 4.0
"""How much larger ONNX Runtime's error may be than PyTorch's, as a root mean square, to count as the same kind of rounding."""

_PEAKS_ALIKE = 8.0  # the same for the largest error, which varies more
_BY_CHANCE: Mapping[int, float] = {1: 64.0, 2: 10.0, 3: 5.5}
"""The same for values of so few elements, where the difference is small: random errors of one size are further apart in 1 of 100 cases.

A single sum of ten million numbers is off by 5 or by 80, whoever adds them up. Source: quantiles of the F-distribution."""

_NEAR = 4.0  # times the tolerance: how large that small difference may be
_EVEN = 0.01  # errors that differ by less than this share are equal

DEFAULTS: Mapping[torch.dtype, tuple[float, float]] = {
    torch.float64: (1e-13, 1e-10),
    torch.float32: (1e-7, 1e-5),
    torch.float16: (1e-4, 5e-3),
    torch.bfloat16: (1e-3, 4e-2),
}
"""Absolute and relative tolerance by dtype: some hundred roundings. Integers and bools must be equal."""

_PARTS = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}
"""Complex numbers are compared as pairs, with the tolerance of their parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """The tolerance: `atol + rtol * max(|eager|, root mean square of eager)`, element by element."""

    atol: float
    rtol: float
    given: bool = False  # whether the user chose it; then a larger difference is never accepted as rounding


class Tolerances:
    """The tolerance for each dtype: the default, or the user's."""

    def __init__(self, atol: object = None, rtol: object = None) -> None:
        """Read the user's tolerances: each a number, a mapping of torch dtypes to numbers, or None for the defaults."""
        self._atol, self._rtol = _checked("atol", atol), _checked("rtol", rtol)

    @property
    def given(self) -> bool:
        """Whether the user chose any."""
        return bool(self._atol or self._rtol)

    def of(self, dtype: torch.dtype) -> Tolerance:
        """Return the tolerance for values of one dtype."""
        atol, rtol = DEFAULTS.get(_PARTS.get(dtype, dtype), (0.0, 0.0))
        own_atol, own_rtol = (given.get(dtype, given.get(None)) for given in (self._atol, self._rtol))
        given = own_atol is not None or own_rtol is not None
        return Tolerance(atol=atol if own_atol is None else own_atol, rtol=rtol if own_rtol is None else own_rtol, given=given)


def _checked(name: str, value: object) -> dict[torch.dtype | None, float]:
    """Map dtypes to numbers; None stands for all others."""
    found: dict[torch.dtype | None, float] = {}
    for dtype, number in (value if isinstance(value, Mapping) else {} if value is None else {None: value}).items():
        if isinstance(value, Mapping) and not isinstance(dtype, torch.dtype):
            raise UsageError(f"{name} maps torch dtypes to numbers, such as {{torch.float16: 1e-2}}; {dtype!r} is not a dtype")
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not number >= 0:
            raise UsageError(f"{name if dtype is None else f'{name}[{dtype}]'} must be a number from 0, not {number!r}")
        found[dtype] = float(number)
    return found


@dataclass(slots=True, kw_only=True)
class ValueComparison:
    """The comparison of two values of the same shape and dtype, without the elements that are NaN on both sides."""

    elements: int
    max_abs: float = 0.0  # largest absolute difference between finite elements
    # the same over `max(|eager|, root mean square of eager)`; None where eager is zero throughout and ORT is not
    max_rel: float | None = 0.0
    within: bool = True  # whether every difference is within the tolerance
    near: bool = True  # whether every difference is within four times the tolerance
    both_nan: int = 0  # elements that are NaN on both sides
    clashes: int = 0  # elements that are NaN or infinite on one side, and something else on the other
    ort_bad: int = 0  # elements of ONNX Runtime's value that are NaN or infinite
    eager_bad: int = 0  # the same of PyTorch's
    hidden: bool = False  # whether integers differ that are the same number in double precision, which cannot judge them then
    ort_error: float | None = None  # root mean square of ONNX Runtime's distance to the run in double precision; None without one
    eager_error: float | None = None  # the same of PyTorch's
    ort_peak: float = 0.0  # largest distance of ONNX Runtime's value to that run
    eager_peak: float = 0.0  # the same of PyTorch's

    @property
    def agrees(self) -> bool:
        """Whether all elements are the same within the tolerance."""
        return self.within and not self.clashes

    def finite_alike(self) -> bool:
        """Whether ONNX Runtime is about as close to the run in double precision as PyTorch is, where both sides are finite."""
        return self._errors_within(_ROUNDS_ALIKE, _PEAKS_ALIKE) or self.by_chance()

    def by_chance(self) -> bool:
        """Whether so few elements, with errors beyond those limits, may still be rounded alike: the small differences are no evidence."""
        factor = _BY_CHANCE.get(self.elements)
        if factor is None or not self.near or self._errors_within(_ROUNDS_ALIKE, _PEAKS_ALIKE):
            return False
        return self._errors_within(factor, factor)

    def _errors_within(self, factor: float, peak: float) -> bool:
        """Tell whether ONNX Runtime's errors are at most this many times PyTorch's."""
        if self.ort_error is None or self.eager_error is None or self.hidden:
            return False
        return self.ort_error <= factor * self.eager_error and self.ort_peak <= peak * self.eager_peak

    def closer(self) -> str | None:
        """Which side is closer to the run in double precision: `ort`, `eager` or `equal`; None without one."""
        if self.ort_error is None or self.eager_error is None:
            return None
        if abs(self.ort_error - self.eager_error) <= _EVEN * max(self.ort_error, self.eager_error):
            return "equal"
        return "ort" if self.ort_error < self.eager_error else "eager"


def compare(ort: torch.Tensor, eager: torch.Tensor, double: torch.Tensor | None, tolerance: Tolerance) -> ValueComparison:
    """Compare two values of one shape and dtype, a million elements at a time, and with `double` if there is a run in double precision."""
    flat_ort, flat_eager = _flat(ort), _flat(eager)
    found = ValueComparison(elements=flat_eager.numel())
    flat_double = None if double is None or double.shape != eager.shape else _flat(double)
    scale = _root_mean_square(flat_eager)
    sums = [0.0, 0.0]
    for place in range(0, found.elements, _CHUNK):
        part = slice(place, place + _CHUNK)
        a, b = flat_ort[part].double(), flat_eager[part].double()
        _differ(found, a, b, scale, tolerance)
        if not flat_eager.dtype.is_floating_point:
            _differ_as_integers(found, flat_ort[part], flat_eager[part], a == b)
        if flat_double is not None:
            _arbitrate(found, a, b, flat_double[part].double(), sums)
    if flat_double is not None:
        found.ort_error, found.eager_error = (math.sqrt(total / max(found.elements, 1)) for total in sums)
    return found


def _differ_as_integers(found: ValueComparison, ours: torch.Tensor, theirs: torch.Tensor, same_as_doubles: torch.Tensor) -> None:
    """Compare as integers, since doubles are exact up to 2**53 only."""
    differ = ours != theirs
    if not bool(differ.any()):
        return
    found.within = found.near = False
    if bool((hidden := differ & same_as_doubles).any()):
        found.hidden = True
        found.max_abs = max(found.max_abs, float((ours[hidden] - theirs[hidden]).abs().max()))


def _flat(value: torch.Tensor) -> torch.Tensor:
    plain = value.detach().cpu()
    if plain.is_complex():
        plain = torch.view_as_real(plain.resolve_conj())
    if plain.dtype in (torch.uint16, torch.uint32):  # torch compares few unsigned types
        plain = plain.to(torch.int64)
    elif plain.dtype is torch.uint64:
        plain = plain.view(torch.int64)
    return plain.reshape(-1)


def _root_mean_square(flat: torch.Tensor) -> float:
    total, count = 0.0, 0
    for place in range(0, flat.numel(), _CHUNK):
        part = flat[place : place + _CHUNK].double()
        finite = part[torch.isfinite(part)]
        total += float(finite.square().sum())
        count += finite.numel()
    return math.sqrt(total / count) if count and math.isfinite(total) else 0.0


def _differ(found: ValueComparison, a: torch.Tensor, b: torch.Tensor, scale: float, tolerance: Tolerance) -> None:
    finite_a, finite_b = torch.isfinite(a), torch.isfinite(b)
    sound = finite_a & finite_b
    if not bool(sound.all()):
        both_nan = torch.isnan(a) & torch.isnan(b)
        found.both_nan += int(both_nan.sum())
        found.clashes += int((~sound & ~both_nan & (a != b)).sum())
        found.ort_bad += int((~finite_a).sum())
        found.eager_bad += int((~finite_b).sum())
        a, b = a[sound], b[sound]
    if not a.numel():
        return
    distance, size = (a - b).abs(), b.abs().clamp_(min=scale)
    largest = float(distance.max())
    if largest == 0.0:
        return
    found.max_abs = max(found.max_abs, largest)
    relative = float((distance / size).max())  # never 0 / 0: then the distance would be 0 throughout
    found.max_rel = max(found.max_rel, relative) if found.max_rel is not None and math.isfinite(relative) else None
    allowed = tolerance.atol + tolerance.rtol * size
    if bool((distance > allowed).any()):
        found.within = False
        found.near = found.near and not bool((distance > _NEAR * allowed).any())


def _arbitrate(found: ValueComparison, a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, sums: list[float]) -> None:
    sound = torch.isfinite(a) & torch.isfinite(b) & torch.isfinite(d)
    if not bool(sound.all()):
        a, b, d = a[sound], b[sound], d[sound]
    if not a.numel():
        return
    ort, eager = (a - d).abs(), (b - d).abs()
    sums[0] += float(ort.square().sum())
    sums[1] += float(eager.square().sum())
    found.ort_peak = max(found.ort_peak, float(ort.max()))
    found.eager_peak = max(found.eager_peak, float(eager.max()))


@dataclass(slots=True, kw_only=True)
class ValueVerdict:
    """The verdict on one value; becomes a row of the frame `numerics`."""

    node: str  # FX node that computes it
    scope: r.NumericScope  # what was compared
    place: int  # its place in the graph, to find the first divergence
    onnx_value: str | None = None
    ok: bool | None = None  # whether it is right; None if it was not checked
    tolerance: Tolerance | None = None  # the tolerance; None if nothing was compared
    comparison: ValueComparison | None = None  # how far apart the values are; None likewise
    nonfinite: str | None = None  # as in the column
    is_excused: bool = False  # whether it differs, and PyTorch might return the same; see `excuses`
    note: str = ""  # why it was not checked, or what was found
    details: tuple[str, ...] = ()  # what was found besides
    open_because: str = ""  # why there is no verdict although it was compared
    left_out: bool = False  # whether the time was over before it, or some calls of its partition, were compared
    line_of: torch.fx.Node | None = None  # the node whose user line is shown; None for a part of the whole call
    place_in_code: tuple[str | None, int | None] = (None, None)  # file and line of the user, where no node tells them

    @property
    def is_strict(self) -> bool:
        """Whether nothing excuses a difference: the tolerance is the user's, or there is nothing to measure."""
        return self.tolerance is None or self.tolerance.given

    def is_close(self, ort: Any, other: Any) -> bool:
        """Tell whether two values differ by a single rounding at most, that is, by the tolerance."""
        if not isinstance(ort, torch.Tensor):
            return type(ort) is type(other) and not isinstance(ort, Missing) and bool(ort == other)
        if not isinstance(other, torch.Tensor) or ort.shape != other.shape or ort.dtype is not other.dtype or self.tolerance is None:
            return False
        return compare(ort, other, None, self.tolerance).agrees

    @property
    def text(self) -> str:
        """The note with its details."""
        return "; ".join(filter(None, (self.note, *self.details)))

    def add(self, note: str) -> None:
        """Add to the note."""
        if self.note:
            self.details += (note,)
        else:
            self.note = note

    def restate(self, note: str) -> None:
        """Replace the note and its details."""
        self.note, self.details = note, ()

    def leave_open(self, why: str) -> None:
        """Give no verdict on what was compared."""
        self.ok, self.open_because = None, why

    def row(self, partition_id: str | None) -> r.Numeric:
        """Make the record, not marked as the first divergence; `partition_id` is None for a part of the whole call."""
        found, passed = self.comparison, self.tolerance
        file, line = self.place_in_code if self.line_of is None else provenance.user_line(self.line_of)[:2]
        return r.Numeric(
            partition_id=partition_id,
            **r.same(self, "node", "scope", "onnx_value", "ok", "nonfinite", "left_out"),
            max_abs=None if found is None else _finite(found.max_abs),
            max_rel=None if found is None else _finite(found.max_rel),
            **({} if passed is None else r.same(passed, "atol", "rtol")),
            closer_to_fp64=None if found is None else found.closer(),
            file=file,
            line=line,
            note="; ".join(filter(None, (self.open_because and f"no verdict: {self.open_because}", self.text))),
            why="" if self.ok is not None else self.open_because or self.note,
            is_undecided=bool(self.open_because),
        )


def _finite(value: float | None) -> float | None:
    return value if value is None or math.isfinite(value) else None


def judge(verdict: ValueVerdict, ort: Any, eager: Any, double: Any, tolerances: Tolerances) -> None:
    """Compare two values and decide whether ONNX Runtime's is right; fills in `verdict`. `double` is None where no such run is wanted."""
    ort, eager = _as_tensor(ort), _as_tensor(eager)
    if missing := next((value for value in (ort, eager) if isinstance(value, Missing)), None):
        verdict.note = missing.reason
        return
    if ort.dtype is not eager.dtype:
        verdict.note = f"not comparable: {dtype_name(ort)} in ONNX Runtime, {dtype_name(eager)} in PyTorch"
        return
    if ort.shape != eager.shape:
        verdict.ok, verdict.note = False, f"shape {list(ort.shape)} in ONNX Runtime, {list(eager.shape)} in PyTorch"
        return
    wide = None if double is None else _as_tensor(double)
    if isinstance(wide, Missing):
        verdict.note, wide = f"no float64 run: {wide.reason}", None
    verdict.tolerance = tolerances.of(eager.dtype)
    verdict.comparison = compare(ort, eager, wide, verdict.tolerance)
    _decide(verdict, verdict.comparison, verdict.tolerance)


def _decide(verdict: ValueVerdict, found: ValueComparison, tolerance: Tolerance) -> None:
    verdict.nonfinite = {(True, True): "both", (True, False): "ort", (False, True): "eager"}.get((found.ort_bad > 0, found.eager_bad > 0))
    if found.both_nan and found.both_nan == found.elements:
        verdict.add("only NaN on both sides: nothing to compare")
        return
    if found.both_nan:
        verdict.add(f"{found.both_nan:,} of {found.elements:,} elements are NaN on both sides and were not compared")
    verdict.ok = found.agrees
    if found.clashes:
        verdict.add(f"{found.clashes:,} of {found.elements:,} elements are NaN or infinite on one side only")
    elif not verdict.ok and not tolerance.given:
        excuse_rounding(verdict, found)


def _as_tensor(value: Any) -> torch.Tensor | Missing:
    if isinstance(value, (torch.Tensor, Missing)):
        return value
    if isinstance(value, (bool, int, float)):
        return torch.tensor(value, device="cpu")
    return Missing(f"a {type(value).__name__} is not compared")


def dtype_name(value: torch.Tensor) -> str:
    """Name the dtype of a tensor as a user writes it, as `float32`."""
    return str(value.dtype).removeprefix("torch.")


def verdict_on(node: torch.fx.Node, scope: r.NumericScope, place: int, onnx_value: str | None = None, **known: Any) -> ValueVerdict:
    """Begin the verdict on a value of a node, which is reported under the operator that computes it."""
    maker, _ = maker_of(node)
    return ValueVerdict(node=maker.name, scope=scope, place=place, onnx_value=onnx_value, line_of=maker, **known)


def unchecked(nodes: Sequence[torch.fx.Node], scope: r.NumericScope, note: str, *, left_out: bool = False) -> list[ValueVerdict]:
    """Make the verdicts on values of one graph that were not compared."""
    places = {node: place for place, node in enumerate(nodes[0].graph.nodes)} if nodes else {}
    return [verdict_on(node, scope, places[node], note=note, left_out=left_out) for node in nodes]
