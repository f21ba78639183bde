"""What to look at first: the few things that, changed, would help most."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from ortlens.analysis.findings.calls import HEAVY_GUARDS, loss_of_call, slower_call
from ortlens.analysis.findings.compiling import STORM, is_limit, training_forward
from ortlens.analysis.findings.registry import RULE_NAMES
from ortlens.analysis.findings.slower import slower_than_torch
from ortlens.analysis.guards import guard_place, is_expected
from ortlens.analysis.speed import WORTH_A_WARNING, WORTH_APART
from ortlens.analysis.timing import own_code_ns, price_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from ortlens.analysis.overview import FallbackGroup, Overview
    from ortlens.trace.records import Finding, ReasonCode

Subject: TypeAlias = Literal["finding", "for_training", "slower", "nothing_runs", "break", "fallback", "recompile", "rule"]

_SUBJECTS: tuple[Subject, ...] = ("finding", "for_training", "slower", "nothing_runs", "break", "fallback", "recompile", "rule")
_URGENT: tuple[Subject, ...] = ("finding", "for_training", "slower", "nothing_runs")
"""Before what has a price. Without gradients, weights are constants and nothing is kept for a backward: every time below changes."""
_MAX_LOOKS = 3
_MUCH = 0.1  # share of a call from which what rules found for information, and the program's own code between graphs, are worth a look
_SENTENCES = re.compile(r"(?<=\.)\s+")
_CHECK = "aten._assert_"
_NUMBER = re.compile(r"\d+")
_SHOWN_OTHERWISE = ("hot_break", "hot_fallback", "recompile_storm")
"""Rules about breaks, fallbacks and recompiles, which are listed separately."""
_CONSEQUENCES = ("small_partitions", "random_splits")
"""Rules about what an operator that stays in PyTorch leads to: removing it mends both."""
_BETWEEN = "boundary_copies"
"""The rule about boundaries between partitions, which are there for the operators in PyTorch between them."""
_WHOLE_CALL, _INSIDE = "call_differs", ("numbers_differ", "loses_accuracy", "fusion_changes_numbers", "nonfinite_origin")
"""Findings about a wrong result, and about the value inside that makes it wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One thing to look at.

    Attributes:
        subject: What kind of thing it is.
        index: Place of its record, the costliest of several, among the breaks, fallbacks, recompiles or findings of the overview.
        what: The operator, the reason of the break, the guard of the recompile, or the title of the finding.
        file: File of the user line.
        line: Number of the user line.
        module: nn.Module that it is in, for an operator; None for the rest.
        reason_code: Why it stays in PyTorch, for an operator; None for the rest.
        reason: The same in words.
        count: Nodes, graph boundaries or recompiles behind it.
        other_lines: Further lines that need the same change, for breaks and operators; the line above is the costliest of them.
        ns_per_call: Its time per call; None where it was not measured.
        is_measured: Whether that was measured; else it is an estimate.
        at_most: Whether it is a limit, as in `Finding.at_most`.
        is_busy: Whether other work ran beside the calls, so that its time is less certain.
        own_code_ns: Besides, what the program itself does there between graphs, which stays when the break goes; 0 elsewhere.
        recompile_ns: What compiling again took in all, for a recompile; 0 elsewhere.
        splitting_ns: Besides, about what entering ONNX Runtime again behind it costs, for an operator that splits a graph; 0 elsewhere.
        advice: What to change, where the capture says it.
    """

    subject: Subject
    index: int
    what: str
    file: str | None
    line: int | None
    module: str | None = None
    reason_code: ReasonCode | None = None
    reason: str = ""
    count: int
    other_lines: int = 0
    ns_per_call: int | None
    is_measured: bool = True
    at_most: bool = False
    is_busy: bool = False
    own_code_ns: int = 0
    splitting_ns: int = 0
    recompile_ns: int = 0
    advice: str | None = None


def looks_of(overview: Overview) -> tuple[Look, ...]:
    """Return what to look at first, the most important first; empty when nothing stands out."""
    return ranked_looks(overview)[:_MAX_LOOKS]


def ranked_looks(overview: Overview) -> tuple[Look, ...]:
    """Rank everything that can be done, the most important first; what one change mends is one look.

    First what the lens itself reports, since the rest may be incomplete; then graphs compiled for training in vain, what PyTorch runs
    faster, and why nothing runs. If a call was measured, what has a price follows, the most expensive first; then a recompile storm, and
    the most expensive of each kind before the second of any.
    """
    split = (*_merged(_breaks(overview)), *_fallbacks(overview), *_merged(_recompiles(overview)))
    fallen = {(group.file, group.line) for group in overview.fallbacks} if overview.coverage.verdict != "none" else set()
    looks = [*_findings(overview, fallen), *_nothing_runs(overview), *split]
    seen: dict[Subject, int] = dict.fromkeys(_SUBJECTS, 0)
    is_measured = overview.ledger is not None and overview.ledger.is_measured  # else breaks have no price to compare with
    ranked: list[tuple[tuple[int, int], Look]] = []
    for look in looks:
        priced = is_measured and look.ns_per_call is not None
        # A call that compiles takes a hundred times as long.
        is_storm = (look.subject == "recompile" and look.count >= STORM) or (look.subject == "break" and is_limit(look.what))
        place = (
            (1, -(look.ns_per_call or 0) - look.own_code_ns - look.splitting_ns)
            if priced
            else ((2, -1) if is_storm else (2 + seen[look.subject], _SUBJECTS.index(look.subject)))
        )
        if look.subject in _URGENT:
            place = (0, _URGENT.index(look.subject))
        ranked.append((place, look))
        seen[look.subject] += 1
    return tuple(replace(look, is_busy=overview.is_busy) for _, look in sorted(ranked, key=lambda item: item[0]))


def _merged(looks: Iterator[Look]) -> list[Look]:
    """Merge what one change mends into one look: breaks of one line or with one advice, and recompiles whose advice is alike.

    The advice may differ in a number, which may be a layer's. The costliest stands for all, with their sum.
    """
    advised: dict[tuple[str | None, int | None], str] = {}  # of a line with several breaks, the first advice speaks for all
    groups: dict[tuple[str | None, int | None, str], list[Look]] = {}
    for look in looks:
        file, line, cause = look.file, look.line, _NUMBER.sub("#", look.advice or look.what)
        if look.subject == "break" and line is not None:
            cause = advised.setdefault((file, line), look.advice or "")
            file, line = (None, None) if cause else (file, line)
        elif look.subject == "recompile" and look.advice:
            line = None  # parts of one function recompile one after another
        groups.setdefault((file, line, cause), []).append(look)
    merged = []
    for group in groups.values():
        first = max(group, key=lambda look: (look.ns_per_call or 0) + look.own_code_ns)
        costs = [look.ns_per_call for look in group if look.ns_per_call is not None]
        own = sum(look.own_code_ns for look in group)
        merged.append(
            replace(
                first,
                count=sum(look.count for look in group),
                other_lines=len({(look.file, look.line) for look in group}) - 1 if first.subject == "break" else 0,
                ns_per_call=sum(costs) if costs else None,
                own_code_ns=own,
                recompile_ns=sum(look.recompile_ns for look in group),
            )
        )
    return merged


def _findings(overview: Overview, fallen: Collection[tuple[str | None, int | None]]) -> Iterator[Look]:
    is_located = any(finding.rule in _INSIDE for finding in overview.findings)
    for index, finding in enumerate(overview.findings):
        is_known = finding.rule in _CONSEQUENCES and (finding.file, finding.line) in fallen
        is_known |= (finding.rule == _BETWEEN and bool(fallen)) or (finding.rule == _WHOLE_CALL and is_located)
        is_known |= finding.rule == HEAVY_GUARDS and any(item.overhead_ns for item in overview.breaks)  # the price of each break has them
        is_known |= finding.rule == slower_call.name and overview.coverage.verdict == "none"  # `nothing_runs` says it
        if _is_worth_a_look(finding, overview) and finding.rule not in _SHOWN_OTHERWISE and not is_known:
            yield Look(
                subject=_subject(finding),
                index=index,
                what=finding.title,
                file=finding.file,
                line=finding.line,
                count=1,
                ns_per_call=finding.gain_ns,
                is_measured=finding.measured,
                at_most=finding.at_most,
                advice=_first_sentence(finding.mitigation),
            )


def _is_worth_a_look(finding: Finding, overview: Overview) -> bool:
    """Tell whether a finding is a warning, or information about a slow call or about much of one."""
    if finding.severity != "info":
        return True
    if finding.rule == slower_call.name:  # no program is slower without a word about it, but for what other work explains
        return not overview.is_busy
    whole = overview.ledger.total_ns if overview.ledger is not None and overview.ledger.is_measured else 0
    return whole > 0 and (finding.gain_ns or 0) >= _MUCH * whole


def _first_sentence(text: str) -> str | None:
    return _SENTENCES.split(text.strip(), maxsplit=1)[0].rstrip(".") or None


def _subject(finding: Finding) -> Subject:
    if finding.rule == training_forward.name:
        return "for_training"
    if finding.rule == slower_than_torch.name:  # `slower_call` has the price of one part, which others may exceed
        return "slower"
    return "rule" if finding.rule in RULE_NAMES or finding.measured else "finding"


def _nothing_runs(overview: Overview) -> Iterator[Look]:
    if overview.coverage.verdict == "none" and overview.fallbacks:
        index, most = max(enumerate(overview.fallbacks), key=lambda item: item[1].node_count)
        yield Look(
            subject="nothing_runs",
            index=index,
            what=most.target,
            file=most.file,
            line=most.line,
            module=most.module,
            reason_code=most.reason_code,
            reason=most.reason,
            count=most.node_count,
            ns_per_call=None  # of two times of waiting for cores, the difference says nothing
            if overview.is_crowded
            else loss_of_call(overview.ledger, overview.uncompiled_ns, WORTH_A_WARNING if overview.is_busy else WORTH_APART),
            advice=most.advice,
        )


def _breaks(overview: Overview) -> Iterator[Look]:
    whole = overview.ledger.total_ns if overview.ledger is not None else 0
    for index, item in enumerate(overview.breaks):
        if price_of(item) == 0 and own_code_ns(item) <= _MUCH * whole:  # measured, and nothing to be saved
            continue
        yield Look(
            subject="break",
            index=index,
            what=item.reason,
            file=item.file,
            line=item.line,
            count=item.occurrences,
            ns_per_call=price_of(item),
            own_code_ns=own_code_ns(item),
            advice=item.advice,
        )


def _fallbacks(overview: Overview) -> Iterator[Look]:
    if overview.coverage.verdict == "none":  # `nothing_runs` already names the cause
        return
    causes: dict[str, list[FallbackGroup]] = {}
    for group in overview.fallbacks:
        cause = group.reason if group.reason_code == "policy" else f"{group.target} {group.reason_code}"
        causes.setdefault(group.advice or cause, []).append(group)
    for groups in causes.values():
        if _is_beside_the_point(groups, overview):
            continue
        most, priced = groups[0], [group.ns_per_call for group in groups if group.ns_per_call is not None]
        yield Look(
            subject="fallback",
            index=overview.fallbacks.index(most),
            what=most.target,
            file=most.file,
            line=most.line,
            module=most.module,
            reason_code=most.reason_code,
            reason=most.reason,
            count=sum(group.node_count for group in groups),
            other_lines=len({(group.file, group.line) for group in groups}) - 1,
            ns_per_call=sum(priced) if priced else None,
            splitting_ns=sum(group.splitting_ns for group in groups),
            advice=most.advice,
        )


def _is_beside_the_point(groups: Sequence[FallbackGroup], overview: Overview) -> bool:
    """Tell whether no measured call ran these, or nobody can do much about them and they take little of a measured call.

    A rule of the backend keeps them in PyTorch, or PyTorch itself added them as checks.
    """
    totals = overview.ledger
    if totals is None or not totals.is_measured:
        return False
    is_kept = all((group.reason_code == "policy" and group.advice is None) or _CHECK in group.target for group in groups)
    cost = sum((group.ns_per_call or 0) + group.splitting_ns for group in groups)
    return not any(group.calls for group in groups) or (is_kept and cost < _MUCH * totals.total_ns)


def _recompiles(overview: Overview) -> Iterator[Look]:
    given_up = [item.advice for item in overview.breaks if item.advice is not None]  # advice for the limit begins with that for the guard
    for index, item in enumerate(overview.recompiles):
        if is_expected(item) or (item.advice and any(advice.startswith(f"{item.advice};") for advice in given_up)):
            continue
        guard, (file, line) = item.guard or item.reason, guard_place(item)
        spent = overview.recompile_ns[item.compile_id]
        yield Look(
            subject="recompile",
            index=index,
            what=guard,
            file=file,
            line=line,
            count=1,
            ns_per_call=None,
            recompile_ns=spent,
            advice=item.advice,
        )
