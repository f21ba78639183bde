"""The verdict on a capture: how fast, how much in ONNX Runtime, how split, how right. Every view shows the same four."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import inf, isfinite
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from ortlens.analysis.coverage import coverage_of, current_ids, own_recompiles
from ortlens.analysis.index import once, verdicts_by_value
from ortlens.analysis.ledger import measured_call
from ortlens.analysis.onnx_model import is_onnx_model
from ortlens.analysis.speed import Pace, call_pace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ortlens.analysis.speed import SpeedVerdict
    from ortlens.trace.records import Capture, Figures, LedgerPartName, Numeric, StepRole


@dataclass(frozen=True, slots=True, kw_only=True)
class CallNumbers:
    """The verdict on a call as a whole: its results, what it wrote, its gradients."""

    right: int  # parts that match PyTorch
    wrong: tuple[Numeric, ...]  # parts that differ
    unchecked: int  # parts without a verdict
    why: str  # why the first of these has none
    is_open: bool  # whether that one was compared, and PyTorch leaves the answer open
    undecided: float = 0.0  # the largest absolute difference in parts that were compared without a verdict; 0 without one
    sqnr_db: float | None = None  # the least SQNR of a part, where two ONNX models were compared


class Differences(NamedTuple):
    """The largest differences, each over all that differ from PyTorch, or over all values where none does."""

    max_abs: float
    max_rel: float | None  # relative to the value
    tolerances: float | None  # in tolerances, without those that a reason excuses


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericsSummary:
    """The verdict on the numbers of a capture."""

    right: int  # values inside partitions that were compared and are right
    wrong: int  # values inside partitions that were compared and are wrong
    unchecked: tuple[tuple[str, bool, int], ...]  # reasons why values have no verdict, whether compared, how many; the most frequent first
    first: Numeric | None  # the first of them that is wrong, in the order of the graph; None when none is
    origins: tuple[Numeric, ...]  # values that are the first to hold NaN or infinities
    per_op: bool  # whether operators were compared one by one, each on PyTorch inputs
    partitions: int  # partitions that the values are from
    eager_nodes: int  # nodes that PyTorch runs, which need no comparison
    call: CallNumbers | None = None  # the verdict on the call as a whole; None when it was not compared
    left_out: int = 0  # values that were not compared, or not in all calls, because the time of `verify` was over
    beyond: int = 0  # values and parts of the call that match for a reason, though they differ by more than their tolerance
    max_abs: float | None = None  # the largest difference of all that has a verdict
    largest: Differences | None = None  # None where all is equal, or nothing finite was compared
    against: str = "PyTorch"  # what it was compared with: or the name of an ONNX model

    @property
    def compared(self) -> int:
        """Values that were compared."""
        return self.right + self.wrong

    @property
    def right_in_all(self) -> int:
        """Values and parts of the call that match."""
        return self.right + (self.call.right if self.call else 0)

    @property
    def wrong_in_all(self) -> int:
        """Those that do not."""
        return self.wrong + (len(self.call.wrong) if self.call else 0)

    @property
    def is_right(self) -> bool:
        """Whether all that was compared, the call as a whole included, is as PyTorch gives it."""
        return self.right_in_all > 0 and not self.wrong_in_all and not self.is_undecided

    @property
    def is_undecided(self) -> bool:
        """Whether the call as a whole differs from PyTorch's where PyTorch leaves the answer open, as it does the order of equal values."""
        return self.call is not None and self.call.undecided > 0 and not self.call.right and not self.call.wrong


@once
def numbers_of(capture: Capture) -> NumericsSummary | None:
    """Sum up the compared values; None when nothing was compared, which is no verdict at all."""
    if not capture.numerics:
        return None
    rows = [row for row in capture.numerics if row.scope != "call"]
    values = {(row.partition_id, row.node): row for row in reversed(rows)}
    verdicts = {key: verdicts_by_value(capture)[key] for key in reversed(values)}
    reasons = Counter((why_not(values[key]), values[key].is_undecided) for key, ok in verdicts.items() if ok is None)
    return NumericsSummary(
        right=sum(ok is True for ok in verdicts.values()),
        wrong=sum(ok is False for ok in verdicts.values()),
        unchecked=tuple((why, is_open, count) for (why, is_open), count in reasons.most_common()),
        first=next((row for row in rows if row.first_divergence), None),
        origins=tuple(row for row in rows if row.nonfinite == "origin"),
        per_op=any(row.scope == "op" for row in rows),
        partitions=len({row.partition_id for row in rows}),
        eager_nodes=len(capture.fallbacks),
        call=_call_of([row for row in capture.numerics if row.scope == "call"]),
        left_out=sum(row.left_out for row in capture.numerics),
        beyond=len({(row.partition_id, row.node) for row in capture.numerics if row.ok and (tolerances_of(row) or 0.0) > 1}),
        max_abs=max((row.max_abs for row in capture.numerics if row.ok is not None and row.max_abs is not None), default=None),
        largest=_largest([row for row in capture.numerics if row.ok is False] or [row for row in capture.numerics if row.ok]),
        against=capture.environment.get("onnx_reference", "PyTorch"),
    )


def why_not(row: Numeric) -> str:
    """Say why a value has no verdict; captures of earlier versions hold only the whole note."""
    return row.why or row.note or "no reason was recorded"


def tolerances_of(row: Numeric) -> float | None:
    """Bound a difference in tolerances, if known: an element may differ by `atol` and by `rtol` times its size; infinite if both are 0."""
    if row.max_abs is None or row.max_rel is None or (row.atol is None and row.rtol is None):
        return None
    return min(_over(row.max_abs, row.atol), _over(row.max_rel, row.rtol))


def _over(difference: float, allowed: float | None) -> float:
    return abs(difference) / allowed if allowed else inf if difference else 0.0


def _largest(rows: Sequence[Numeric]) -> Differences | None:
    finite = [row for row in rows if row.max_abs and isfinite(row.max_abs) and isfinite(row.max_rel or 0.0)]
    if not finite:
        return None
    known = [many for row in finite if (many := tolerances_of(row)) is not None and isfinite(many) and not (row.ok and many > 1)]
    relative = [row.max_rel for row in finite if row.max_rel is not None]
    return Differences(max(row.max_abs or 0.0 for row in finite), max(relative, default=None), max(known, default=None))


def _call_of(rows: Sequence[Numeric]) -> CallNumbers | None:
    if not rows:
        return None
    unchecked = [row for row in rows if row.ok is None]
    return CallNumbers(
        right=sum(row.ok is True for row in rows),
        wrong=tuple(row for row in rows if row.ok is False),
        unchecked=len(unchecked),
        why=why_not(unchecked[0]) if unchecked else "",
        is_open=bool(unchecked) and unchecked[0].is_undecided,
        undecided=max((row.max_abs for row in unchecked if row.max_abs and isfinite(row.max_abs)), default=0.0),
        sqnr_db=min((row.sqnr_db for row in rows if row.sqnr_db is not None), default=None),
    )


CorrectVerdict: TypeAlias = Literal["verified", "partly", "differs", "unchecked", "nothing"]
"""`partly` where something that runs was not compared; `nothing` where ONNX Runtime computed nothing."""

_WORDS: Mapping[str, SpeedVerdict] = {"faster": "faster", "slower": "slower"}


def speed_of(capture: Capture) -> Pace:
    """Return the pace of the compiled call against eager, as measured with the capture, else by `ortlens bench`."""
    return call_pace(capture) or benched(capture.figures, "ortlens") or Pace(verdict="unmeasured")


def benched(figures: Figures, way: str) -> Pace | None:
    """Return the pace that `ortlens bench` measured for one way; None where it did not."""
    known = {item.way: item for item in figures.ways}
    eager, found = known.get("eager"), known.get(way)
    if eager is None or found is None or not (eager.call_ns and found.call_ns):
        return None
    low, ratio, high = found.ratio_low or 0.0, found.ratio or 0.0, found.ratio_high or 0.0
    if not (0 < ratio < inf and 0 <= low < inf and 0 <= high < inf):  # a damaged capture may hold any number
        return None
    return Pace(verdict=_WORDS.get(found.verdict, "same"), call_ns=found.call_ns, eager_ns=eager.call_ns, ratio=ratio, interval=(low, high))


def ort_share(capture: Capture) -> float | None:
    """Return ONNX Runtime's share of a call, 0 to 1; None if no call was measured, or another backend ran it.

    Of the time that a device is waited for, it has what it has of the time on the host beside PyTorch's operators.
    """
    call = measured_call(capture)
    if call is None or coverage_of(capture).verdict == "foreign":
        return None
    run, eager, wait = (call.share.get(part, 0.0) for part in _IN_OPERATORS)
    return run + (wait * run / (run + eager) if run else 0.0)


_IN_OPERATORS: tuple[LedgerPartName, ...] = ("run", "eager", "wait")


def recompiles_by_role(capture: Capture) -> Counter[StepRole | None]:
    """Count recompiles by role, None outside a generation; compiling decode after prefill is not one."""
    roles = {graph.compile_id: graph.role for graph in capture.graphs}
    pairs = [(roles.get(item.compile_id), roles.get(item.of_compile_id)) for item in own_recompiles(capture)]
    return Counter(role for role, of_role in pairs if role is None or role == of_role)


def is_wholly_compared(capture: Capture, numbers: NumericsSummary) -> bool:
    """Tell whether every partition of the current graphs and every part of the call was compared before time ran out.

    Of an ONNX model, the outputs are compared and nothing inside: there the parts of the call are all.
    """
    if is_onnx_model(capture):
        return numbers.call is not None and not numbers.call.unchecked
    compared = {item.partition_id for item in capture.numerics if item.ok is not None}
    whole = all(item.partition_id in compared for item in capture.partitions if item.graph_id in current_ids(capture))
    return whole and not numbers.left_out and not (numbers.call is not None and numbers.call.unchecked)


def correct_verdict(capture: Capture) -> CorrectVerdict:
    """Tell whether results match PyTorch's, as far as they were compared."""
    numbers = numbers_of(capture)
    if numbers is None or not (numbers.compared or numbers.call):
        return "nothing" if coverage_of(capture).verdict in ("none", "foreign", "no_compute", "empty") else "unchecked"
    if numbers.wrong_in_all:
        return "differs"
    if not numbers.right_in_all:
        return "unchecked"
    return "verified" if is_wholly_compared(capture, numbers) else "partly"
