"""A capture against limits and a baseline: one verdict per limit. What was not measured has not passed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

from ortlens.analysis.answers.verdict import tolerances_of
from ortlens.analysis.compare.comparison import compared
from ortlens.analysis.coverage import coverage_of, given_up, is_dry_run, own_recompiles
from ortlens.analysis.placement import borders, short_name
from ortlens.analysis.problems.catalogue import given_up_title
from ortlens.errors import UsageError
from ortlens.trace.records import column, optional
from ortlens.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ortlens.analysis.compare.changes import Kind
    from ortlens.analysis.compare.comparison import Compared
    from ortlens.analysis.compare.durations import Timing
    from ortlens.trace.records import Capture, Numeric


Outcome: TypeAlias = Literal["passed", "failed", "unmeasured"]
LimitName: TypeAlias = Literal[
    "max_breaks", "max_recompiles", "max_skipped", "min_coverage", "max_pieces", "max_abs_err", "min_sqnr", "max_slowdown", "baseline"
]

_SMALL = 0.05  # a partition with a smaller share of the time of all partitions does not count as a slowdown; the call does
_KINDS: tuple[tuple[Kind, str], ...] = (
    ("break", "breaks"),
    ("recompile", "recompiles"),
    ("function", "functions"),
    ("operator", "operators"),
    ("coverage", "coverage"),
    ("result", "results"),
    ("finding", "findings"),
)


Limits: TypeAlias = "Mapping[LimitName, float]"
"""What a capture must not exceed: distinct graph breaks, recompiles, functions that run uncompiled, pieces of a provider, the largest
difference, and how much longer than in the baseline anything may take; and the least share of operators in ONNX Runtime, or of ONNX nodes
on the provider, and the least SQNR of an output, in dB. What is not asked is absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRow:
    """One limit and what the capture says to it."""

    limit: LimitName = column("The limit, or `baseline` for what must not get worse.")
    subject: str = column(
        "The provider; of a baseline `breaks`, `recompiles`, `functions`, `operators`, `coverage`, `results`, `findings` or `times`.",
        default="",
    )
    verdict: Outcome = column("`passed`, `failed`, or `unmeasured`: the capture does not hold it.")
    value: float | None = optional("What was found; of the baseline, how many got worse.")
    allowed: float | None = optional("What is allowed at most, or at least for coverage and SQNR.")
    detail: str = column("The first offender, or why it was not measured.", default="")
    file: str | None = optional("File of the user line.")
    line: int | None = optional("Number of the user line.")
    asked: bool = column("Whether it was asked for by name, so that `unmeasured` fails the check.", default=True)

    @property
    def holds(self) -> bool:
        """Whether the check may pass with it."""
        return self.verdict == "passed" or (self.verdict == "unmeasured" and not self.asked)


def limits_from(**given: float | None) -> Limits:
    """Make limits, and refuse values that make no sense with a `UsageError`; a `max_slowdown` of 0.2 counts as 1.2."""
    limits = {name: number for name, number in given.items() if number is not None}
    for name, number in limits.items():
        is_count = name in ("max_breaks", "max_recompiles", "max_skipped", "max_pieces")
        kind = int if is_count else (int, float)
        if not isinstance(number, kind) or isinstance(number, bool) or not 0 <= number < math.inf:
            raise UsageError(f"{name} must be a {'whole ' if is_count else ''}number from 0, not {number!r}")
    if limits.get("min_coverage", 0) > 1:
        raise UsageError(f"min_coverage is a share from 0 to 1, not {limits['min_coverage']!r}; for 90 % set 0.9")
    if limits.get("max_slowdown", 1) < 1:
        limits["max_slowdown"] += 1
    return cast("Limits", limits)


def verdicts_of(capture: Capture, limits: Limits, baseline: Capture | None = None, provider: str | None = None) -> tuple[VerdictRow, ...]:
    """Hold a capture against limits, and against an earlier capture of the same program that nothing may be worse than.

    With a `provider`, `max_pieces` and `min_coverage` are about what that runs. Raises `UsageError` when nothing is asked, `max_slowdown`
    has no baseline, `max_pieces` no provider, a provider neither limit, or the captures are of different models.
    """
    if not limits and baseline is None:
        raise UsageError(
            "nothing to check; set max_breaks, max_recompiles, max_skipped, min_coverage, max_abs_err, min_sqnr, max_pieces of a "
            "provider, or a baseline with or without max_slowdown"
        )
    if "max_slowdown" in limits and baseline is None:
        raise UsageError("max_slowdown needs a baseline: an earlier capture of the same program")
    on = {name: partial(_on_provider, name, provider) for name in _OF_PROVIDER} if provider is not None else {}
    rules: dict[LimitName, Callable[[Capture], _Found]] = {**_RULES, **on}
    if not (limits.keys() <= {*rules, "max_slowdown"}) or (on and limits.keys().isdisjoint(on)):
        raise UsageError("max_pieces and an execution provider go together, as in max_pieces=1 with provider='CoreML'; so may min_coverage")
    rows = [_judged(name, rule(capture), limits[name]) for name, rule in rules.items() if name in limits]
    if baseline is not None:
        result = compared(baseline, capture)
        rows += [*_against(result), _times(result, limits.get("max_slowdown"))]
    return tuple(rows)


class _Found(NamedTuple):
    """What a limit is held against."""

    value: float | None  # None where it is not known
    first: str = ""  # the first offender
    unknown: str = ""  # why there may be more, so that what is within the limit has not passed
    place: object = None  # with the user line, if any
    subject: str = ""  # the provider that it is about, if any


def _judged(name: LimitName, found: _Found, allowed: float) -> VerdictRow:
    """Judge a figure: failed beyond the limit whatever is unknown; within it, unmeasured where there may be more."""
    within = found.value is None or (found.value >= allowed if name.startswith("min_") else found.value <= allowed)
    within &= name != "max_pieces" or found.value != 0  # in none, a provider runs nothing
    verdict: Outcome = "failed" if not within else "unmeasured" if found.unknown else "passed"
    detail, place = (found.unknown, None) if verdict == "unmeasured" else (found.first, found.place)
    said: dict[str, Any] = {"subject": found.subject, "detail": detail, **_place(place)}
    return VerdictRow(limit=name, verdict=verdict, value=found.value, allowed=float(allowed), **said)


def _place(item: object) -> dict[str, Any]:
    return {"file": getattr(item, "file", None), "line": getattr(item, "line", None)}


def _breaks(capture: Capture) -> _Found:
    first = max(capture.breaks, key=lambda item: (item.cost_ns or 0, item.occurrences), default=None)
    unknown = "nothing was compiled" if not capture.graphs and first is None else ""
    if not unknown and coverage_of(capture).is_cut_short:
        unknown = "the dry run ended before the function did"
    return _Found(float(len(capture.breaks)), first.reason if first else "", unknown, first)


def _recompiles(capture: Capture) -> _Found:
    made = own_recompiles(capture)
    first = made[0] if made else None
    unknown = "nothing was compiled" if not capture.graphs else "a dry run calls nothing again" if is_dry_run(capture) else ""
    return _Found(float(len(made)), (first.guard or first.reason) if first else "", unknown, first)


def _skipped(capture: Capture) -> _Found:
    lost = given_up(capture)
    unknown = "nothing was compiled" if not capture.graphs and not capture.frames else ""
    return _Found(float(len(lost)), given_up_title(lost[0]) if lost else "", unknown, lost[0] if lost else None)


def _coverage(capture: Capture) -> _Found:
    coverage = coverage_of(capture)
    if coverage.share is None:
        words = {"empty": "nothing was compiled", "no_compute": "no graph computes anything"}
        return _Found(None, unknown=words.get(coverage.verdict, f"the backend {capture.backend} does not partition graphs"))
    if lost := given_up(capture):
        return _Found(coverage.share, given_up_title(lost[0]), place=lost[0])
    first = next(iter(capture.fallbacks), None)
    return _Found(coverage.share, f"{first.target} stays in PyTorch: {first.reason}" if first else "", place=first)


def _abs_err(capture: Capture) -> _Found:
    known = [row for row in capture.numerics if row.max_abs is not None or row.ok is not None]
    if not known:
        return _Found(None, unknown="no value could be compared" if capture.numerics else "the results were not verified")
    sizes = [math.inf if _differs_otherwise(row) or math.isnan(row.max_abs or 0.0) else row.max_abs or 0.0 for row in known]
    worst = max(range(len(known)), key=sizes.__getitem__)
    left = sum(row.left_out for row in capture.numerics)
    why = f"{counted(left, 'value was', 'values were')} not compared, because the time of verify was over" if left else ""
    return _Found(sizes[worst], known[worst].node, why, known[worst])


def _sqnr(capture: Capture) -> _Found:
    """Take the least of the outputs; what cannot be compared, such as another shape, is infinitely far."""
    rows = [row for row in capture.numerics if row.scope == "call" and (row.sqnr_db is not None or row.reference_value is not None)]
    known = [(-math.inf if row.sqnr_db is None else row.sqnr_db, row) for row in rows if row.sqnr_db is not None or row.ok is False]
    if not known:
        return _Found(None, unknown="no output was compared with that of another ONNX model")
    value, worst = min(known, key=lambda pair: pair[0])
    left = [row.node for row in rows if row.sqnr_db is None and row.ok is not False]
    return _Found(value, worst.node, f"{left[0]} was not compared" if left else "", worst)


def _differs_otherwise(row: Numeric) -> bool:
    """Tell whether something is wrong whose size no number says: a shape, strides, memory that is shared."""
    if row.ok is not False or row.max_abs is None or row.max_rel is None:
        return row.max_abs is None and not row.ok
    return (tolerances := tolerances_of(row)) is not None and tolerances <= 1


_OF_PROVIDER: tuple[LimitName, ...] = ("min_coverage", "max_pieces")


def _on_provider(name: LimitName, provider: str, capture: Capture) -> _Found:
    """Count the pieces of a provider over all sessions, or its share of the nodes."""
    rows = [row for row in capture.placements if short_name(row.provider).lower() == short_name(provider).lower()]
    if not rows:
        return _Found(None, unknown=f"what {provider} runs is not in the capture", subject=short_name(provider))
    share = sum(row.nodes for row in rows) / max(1, sum(row.nodes for row in capture.placements))
    value = sum(row.pieces for row in rows) if name == "max_pieces" else share
    lost = next((node for border in borders(capture) if border.row in rows for node in border.cutting or border.left), None)
    first = f"{lost.target} does not run there: {lost.reason}" if lost else ""
    return _Found(float(value), first, place=lost, subject=short_name(provider))


_RULES: Mapping[LimitName, Callable[[Capture], _Found]] = {
    "max_breaks": _breaks,
    "max_recompiles": _recompiles,
    "max_skipped": _skipped,
    "min_coverage": _coverage,
    "max_abs_err": _abs_err,
    "min_sqnr": _sqnr,
}


def _against(result: Compared) -> Iterator[VerdictRow]:
    """Yield what got worse since the baseline, by kind; results only where the baseline verified them."""
    for kind, subject in _KINDS:
        worse = [row for row in result.changes if row.kind == kind and row.effect == "worse"]
        missing = kind == "result" and not any(row.ok is not None for row in result.after.numerics)
        if kind == "result" and not any(row.ok is not None for row in result.before.numerics):
            continue
        if kind == "function" and not (result.before.frames and result.after.frames):  # as in older captures
            continue
        first = worse[0] if worse else None
        detail = f"{first.subject}: {first.before or 'none'} -> {first.after}" if first else ""
        detail = "the results were not verified" if missing else detail
        yield VerdictRow(
            limit="baseline",
            subject=subject,
            verdict="failed" if worse else "unmeasured" if missing else "passed",
            value=None if missing else float(len(worse)),
            allowed=0.0,
            detail=detail,
            asked=not missing,
            **_place(first),
        )


def _times(result: Compared, allowed: float | None) -> VerdictRow:
    """Judge the worst slowdown outside the noise; without a limit of its own, any slowdown fails."""
    total = sum(row.before_ns or 0 for row in result.timings if row.scope == "partition")
    rows = [row for row in result.timings if row.scope != "partition" or (row.before_ns or 0) >= _SMALL * total]
    name: LimitName = "baseline" if allowed is None else "max_slowdown"
    most, subject = (1.0, "times") if allowed is None else (allowed, "")
    asked = allowed is not None
    slower = sorted((row for row in rows if row.verdict == "slower"), key=lambda row: -(row.ratio or 1.0))
    if all(row.verdict == "unmeasured" for row in rows) or (result.ends_moved and not slower):
        why = "too few calls were recorded, here or in the baseline, or the machine was too busy for calls this long"
        if result.ends_moved:
            why = "operators moved into or out of what is timed of a call, and no whole calls were measured on both sides"
        return VerdictRow(limit=name, subject=subject, verdict="unmeasured", allowed=most, detail=why, asked=asked)
    worst = slower[0].ratio or 1.0 if slower else 1.0
    named = ", ".join(_named(row) for row in slower if (row.ratio or 1.0) > most)
    return VerdictRow(
        limit=name,
        subject=subject,
        verdict="failed" if slower and worst > most else "passed",
        value=worst,
        allowed=most,
        detail=named + ("; the baseline is of another machine or number of threads" if named and result.machine_differs else ""),
        asked=asked,
    )


def _named(row: Timing) -> str:
    module = f" ({row.module})" if row.module else ""
    name = f"a {row.scope} of {row.subject}" if row.is_whole else f"{row.scope} {row.subject}{module}"
    return f"{name} {row.ratio or 1.0:.2f}x"
