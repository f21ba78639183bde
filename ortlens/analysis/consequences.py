"""What has one cause is one entry: findings that are alike, and what follows from a break, an operator in PyTorch or a data type."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ortlens.analysis.findings.calls import HEAVY_GUARDS, costly_guards, slower_call
from ortlens.analysis.findings.compiling import hot_break, is_limit, recompile_storm
from ortlens.analysis.findings.kernels import float64_nodes
from ortlens.analysis.findings.sessions import weights_changed
from ortlens.analysis.findings.slower import slower_than_torch
from ortlens.analysis.findings.splitting import boundary_copies, hot_fallback, random_splits, small_partitions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ortlens.analysis.overview import FallbackGroup, Overview
    from ortlens.analysis.recommendations import Recommendation, Subject
    from ortlens.trace.records import Finding

OF_FINDINGS: tuple[Subject, ...] = ("finding", "for_training", "slower", "rule")
"""Subjects of entries whose record is a finding."""

SHOWN_OTHERWISE = (hot_break.name, hot_fallback.name, recompile_storm.name)
"""Rules about breaks, operators in PyTorch and recompiles, which have entries of their own that say the same."""

_BETWEEN_PARTITIONS = tuple(rule.name for rule in (small_partitions, boundary_copies))
_WHOLE_CALL, _INSIDE = "call_differs", ("numbers_differ", "loses_accuracy", "fusion_changes_numbers", "nonfinite_origin")
_NEVER_ALONE = (*SHOWN_OTHERWISE, boundary_copies.name)
_REFUSED = ("dtype", "session_refused")


def gathered(looks: Sequence[Recommendation], overview: Overview) -> list[Recommendation]:
    """Put each entry under the one that is its cause, or is alike and comes first; those that nothing causes keep their order."""
    causes: dict[int, int] = {}
    for place in range(len(looks)):
        cause = next(_causes(place, looks, overview), None)
        if cause is not None and place not in _path(cause, causes):
            causes[place] = cause
    under: dict[int, list[Recommendation]] = {}
    for place in sorted(causes, key=lambda place: -(looks[place].ns_per_call or 0)):
        under.setdefault(_path(place, causes)[-1], []).append(looks[place])
    alone = [place for place in range(len(looks)) if place not in causes and not _needs_cause(looks[place], overview)]
    return [replace(looks[place], consequences=tuple(under.get(place, ()))) for place in alone]


def finding_of(look: Recommendation, overview: Overview) -> Finding | None:
    """Return the finding that an entry is about; None where it is about something else."""
    return overview.findings[look.index] if look.subject in OF_FINDINGS else None


def _path(place: int, causes: dict[int, int]) -> list[int]:
    path = [place]
    while path[-1] in causes:
        path.append(causes[path[-1]])
    return path


def _needs_cause(look: Recommendation, overview: Overview) -> bool:
    """Tell whether an entry says nothing by itself: its cause is not worth one, or is said elsewhere."""
    finding = finding_of(look, overview)
    return finding is not None and finding.rule in _NEVER_ALONE and (finding.rule != boundary_copies.name or bool(overview.fallbacks))


def _causes(place: int, looks: Sequence[Recommendation], overview: Overview) -> Iterator[int]:
    """Yield the places of what causes an entry, the surest first."""
    look = looks[place]
    finding = finding_of(look, overview)
    if finding is not None:
        yield from _of_finding(finding, looks, overview)
        yield from (before for before in range(place) if _is_alike(finding, finding_of(looks[before], overview)))
    elif look.subject in ("fallback", "nothing_runs"):
        group = overview.fallbacks[look.index]
        if group.dtype == "float64" and (group.reason_code in _REFUSED or look.subject == "nothing_runs"):
            yield from _by_rule(float64_nodes.name, looks, overview, group.graph_ids)
        if _stays_for_good(group):
            yield from _by_rule(slower_than_torch.name, looks, overview, group.graph_ids)


def _stays_for_good(group: FallbackGroup) -> bool:
    """Tell whether nothing is known to be gained by bringing an operator into ONNX Runtime."""
    return group.advice.kind == "policy" or (group.advice.kind == "bfloat16" and "lacking" not in group.advice.params)


def _is_alike(finding: Finding, other: Finding | None) -> bool:
    """Tell whether one change mends both: two findings of one rule that say the same to do, with nothing of their own in it."""
    if other is None or other.severity == "error":
        return False
    return (finding.rule, finding.mitigation, finding.severity) == (other.rule, other.mitigation, other.severity)


def _of_finding(finding: Finding, looks: Sequence[Recommendation], overview: Overview) -> Iterator[int]:
    rule, subject = finding.rule, finding.subject or ""
    yield from _of_operators(finding, looks, overview)
    if rule in (hot_break.name, HEAVY_GUARDS, recompile_storm.name):
        yield from _breaks(finding, looks, overview)
        yield from _by_rule(costly_guards.name, looks, overview) if rule == HEAVY_GUARDS else ()
    elif rule == weights_changed.name:
        breaks = [at for at, look in enumerate(looks) if look.subject == "break"]
        yield from breaks if subject in _shared(overview) and len(breaks) == 1 else ()
    elif rule == slower_call.name:
        steps = (at for at, look in enumerate(looks) if look.advice is not None and look.advice.kind == "compile_forward_alone")
        yield from (*(at for at, look in enumerate(looks) if look.subject in ("for_training", "nothing_runs")), *steps)
    elif rule == _WHOLE_CALL:
        yield from (at for inside in _INSIDE for at in _by_rule(inside, looks, overview))


def _of_operators(finding: Finding, looks: Sequence[Recommendation], overview: Overview) -> Iterator[int]:
    """Yield what stays in PyTorch and causes a finding."""
    rule, subject = finding.rule, finding.subject or ""
    inside = _fallbacks(looks, overview, subject)
    if rule in _BETWEEN_PARTITIONS:
        yield from inside
    elif rule == slower_than_torch.name:  # of a graph: partitions have ids of their own
        enough = (finding.gain_ns or 0) / 2  # else other things make it slower
        for at in inside:
            if (looks[at].ns_per_call or 0) + looks[at].splitting_ns >= enough and not _stays_for_good(overview.fallbacks[looks[at].index]):
                yield at
    elif rule == random_splits.name:
        yield from (at for at in inside if overview.fallbacks[looks[at].index].cause == "random")
    elif rule == hot_fallback.name:
        yield from (at for at, look in enumerate(looks) if look.subject in ("fallback", "nothing_runs") and look.what == subject)


def _fallbacks(looks: Sequence[Recommendation], overview: Overview, graph_id: str) -> list[int]:
    """Find what PyTorch runs in a graph, the costliest first."""
    found = [at for at, look in enumerate(looks) if look.subject == "fallback" and graph_id in overview.fallbacks[look.index].graph_ids]
    return sorted(found, key=lambda at: -(looks[at].ns_per_call or 0))


def _breaks(finding: Finding, looks: Sequence[Recommendation], overview: Overview) -> Iterator[int]:
    """Find the breaks that guards, or hits of a break, come from; and the recompiles of a function that is compiled again and again."""
    found = [at for at, look in enumerate(looks) if look.subject == "break"]
    if finding.rule == HEAVY_GUARDS:  # the price of each break has them
        yield from found if any(item.overhead_ns for item in overview.breaks) else ()
        return
    advised = zip(overview.breaks, overview.break_advice, strict=True)
    own = next((advice for item, advice in advised if item.break_id == finding.subject), None)
    for at in found:
        advice = looks[at].advice
        is_own = own is not None and advice is not None and advice.change == own.change
        is_there = looks[at].file == finding.file and (looks[at].line == finding.line or is_limit(looks[at].what))
        if is_own or (is_there and (finding.rule == hot_break.name or is_limit(looks[at].what))):
            yield at
    if finding.rule == recompile_storm.name:
        yield from (at for at, look in enumerate(looks) if look.subject == "recompile" and look.file == finding.file)


def _by_rule(rule: str, looks: Sequence[Recommendation], overview: Overview, subjects: Sequence[str] | None = None) -> Iterator[int]:
    for at, look in enumerate(looks):
        finding = finding_of(look, overview)
        if finding is not None and finding.rule == rule and (subjects is None or finding.subject in subjects):
            yield at


def _shared(overview: Overview) -> set[str]:
    """Return the partitions that ran for several modules, as after a break in a loop over them."""
    return {cost.session.partition_id for cost in overview.sessions if cost.session.weights_change == "other_module"}
