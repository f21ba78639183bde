"""The verdict on a capture: how fast, how much in ONNX Runtime, how split, how right. Every view shows the same four."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Literal, TypeAlias

from ortlens.analysis.coverage import coverage_of, current_graphs, is_dry_run, own_recompiles
from ortlens.analysis.ledger import ledger_totals
from ortlens.analysis.numbers import numbers_of
from ortlens.analysis.onnx_model import is_onnx_model
from ortlens.analysis.speed import Pace, call_pace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ortlens.analysis.numbers import NumericsSummary
    from ortlens.analysis.speed import SpeedVerdict
    from ortlens.trace.records import Capture, Figures, LedgerPartName, StepRole

TimeVerdict: TypeAlias = Literal["measured", "unmeasured", "planned", "foreign", "none", "empty"]
"""Of a call as a whole; `planned` where nothing ran, `none` where ONNX Runtime runs nothing, `empty` where nothing was compiled."""

CorrectVerdict: TypeAlias = Literal["verified", "partly", "differs", "unchecked", "nothing"]

_WORDS: Mapping[str, SpeedVerdict] = {"faster": "faster", "slower": "slower"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Splits:
    """Into how much the model falls."""

    breaks: int  # places where PyTorch stopped tracing
    graphs: int  # current graphs
    partitions: int | None  # ONNX models of the current graphs; None under another backend
    recompiles: int  # without the compilation of decode after prefill
    is_cut_short: bool  # whether a dry run ended before the function did, so that there may be more

    @property
    def is_whole(self) -> bool:
        """Whether nothing is split, as far as is known."""
        return not (self.breaks or self.recompiles or self.is_cut_short) and (self.partitions or 0) <= self.graphs


@dataclass(frozen=True, slots=True, kw_only=True)
class Correct:
    """Whether results match PyTorch's."""

    # `verified`; `partly` where something that runs was not compared; `differs`; `unchecked`; `nothing` where ONNX Runtime computed nothing
    verdict: CorrectVerdict
    right: int  # values and parts of the call that match
    wrong: int  # those that do not


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureVerdict:
    """The four answers."""

    speed: Pace  # the compiled call against eager
    inductor: Pace | None  # Inductor against eager; None where nobody asked
    time: TimeVerdict  # whether it is known how much of a call is in ONNX Runtime, or why not
    splits: Splits  # into how much the model falls
    correct: Correct  # whether results match


def verdict_of(capture: Capture) -> CaptureVerdict:
    """Read the verdict off a capture; what was not measured says so."""
    benched, inductor = (_benched(capture.figures, way) for way in ("ortlens", "inductor"))
    coverage = coverage_of(capture)
    return CaptureVerdict(
        speed=call_pace(capture) or benched or Pace(verdict="unmeasured"),
        inductor=inductor,
        time=_time(capture),
        splits=Splits(
            breaks=len(capture.breaks),
            graphs=len(current_graphs(capture.graphs)),
            partitions=None if coverage.verdict in ("foreign", "empty") else coverage.partition_count,
            recompiles=sum(recompiles_by_role(capture).values()),
            is_cut_short=coverage.is_cut_short,
        ),
        correct=_correct(capture, numbers_of(capture)),
    )


def _benched(figures: Figures, way: str) -> Pace | None:
    """Return the pace that `ortlens bench` measured for one way."""
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
    ledger = ledger_totals(capture)
    if ledger is None or not ledger.is_measured or coverage_of(capture).verdict == "foreign":
        return None
    run, eager, wait = (ledger.share.get(part, 0.0) for part in _IN_OPERATORS)
    return run + (wait * run / (run + eager) if run else 0.0)


_IN_OPERATORS: tuple[LedgerPartName, ...] = ("run", "eager", "wait")


def _time(capture: Capture) -> TimeVerdict:
    if is_dry_run(capture):
        return "planned"
    coverage = coverage_of(capture).verdict
    if coverage in ("empty", "foreign", "none"):
        return coverage
    return "unmeasured" if ort_share(capture) is None else "measured"


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
    current = {graph.graph_id for graph in current_graphs(capture.graphs)}
    whole = all(item.partition_id in compared for item in capture.partitions if item.graph_id in current)
    return whole and not numbers.left_out and not (numbers.call is not None and numbers.call.unchecked)


def _correct(capture: Capture, numbers: NumericsSummary | None) -> Correct:
    if numbers is None or not (numbers.compared or numbers.call):
        nothing = coverage_of(capture).verdict in ("none", "foreign", "no_compute", "empty")
        return Correct(verdict="nothing" if nothing else "unchecked", right=0, wrong=0)
    right = numbers.right + (numbers.call.right if numbers.call else 0)
    wrong = numbers.wrong + (len(numbers.call.wrong) if numbers.call else 0)
    verdict: CorrectVerdict = "unchecked"
    if wrong:
        verdict = "differs"
    elif right:
        verdict = "verified" if is_wholly_compared(capture, numbers) else "partly"
    return Correct(verdict=verdict, right=right, wrong=wrong)
