"""Everything that can be done about a capture, ranked by what it brings: breaks, operators in PyTorch, recompiles and findings."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ortlens.analysis.advice import hint_for, settings_of_hint
from ortlens.analysis.catalogue import Advice, advise
from ortlens.analysis.consequences import SHOWN_OTHERWISE, gathered
from ortlens.analysis.findings.calls import loss_of_call, slower_call
from ortlens.analysis.findings.compiling import STORM, is_limit, training_forward
from ortlens.analysis.findings.registry import RULE_NAMES
from ortlens.analysis.findings.slower import slower_than_torch
from ortlens.analysis.guards import guard_place
from ortlens.analysis.rewrites import line_after
from ortlens.analysis.speed import WORTH_A_WARNING, WORTH_APART
from ortlens.analysis.timing import own_code_ns, price_of
from ortlens.trace.records import column, optional, same

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    from ortlens.analysis.overview import FallbackGroup, Overview
    from ortlens.trace.records import Break, Capture, Fallback, Finding, Node, ReasonCode

GainConfidence: TypeAlias = Literal["measured", "estimated", "unknown"]
Subject: TypeAlias = Literal["finding", "for_training", "slower", "nothing_runs", "break", "fallback", "recompile", "rule"]

_SUBJECTS: tuple[Subject, ...] = ("finding", "for_training", "slower", "nothing_runs", "break", "fallback", "recompile", "rule")
_URGENT: tuple[Subject, ...] = ("finding", "for_training", "slower", "nothing_runs")
"""Before what has a price. Without gradients, weights are constants and nothing is kept for a backward: every time below changes."""
_MAX_LOOKS = 3
MAX_ACTIONS = 100
_MUCH = 0.1  # share of a call from which what rules found for information, and the program's own code between graphs, are worth a look
_MUCH_MEASURED = 0.05  # where the gain was measured in turns
_REST = 4  # what a call loses besides the causes that have prices counts so many times less: it shrinks when these are mended
_CHECK = "aten._assert_"
_OF_TYPE = ("bfloat16", "complex")
"""Causes that all operators of a data type share."""
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """One thing to do."""

    subject: Subject  # what kind of thing it is about
    index: int  # place of its record, the costliest of several, among the breaks, fallbacks, recompiles or findings of the overview
    rule: str | None = None  # name of its rule, for a finding
    what: str  # the operator, the reason of the break, the guard of the recompile, or the title of the finding
    why: str  # the reason of the break, why an operator stays in PyTorch, the guard that failed, or the hazard of the finding
    file: str | None
    line: int | None
    module: str | None = None  # nn.Module that it is in, for an operator
    reason_code: ReasonCode | None = None  # why it stays in PyTorch, for an operator
    count: int  # nodes, graph boundaries or recompiles behind it
    other_lines: int = 0  # that need the same change, for breaks and operators; `line` is the costliest of all
    ns_per_call: int | None  # None where it was not measured
    is_saving: bool = False  # whether that is what the change of a break saves, else what the break costs
    is_measured: bool = True  # else it is an estimate
    at_most: bool = False  # whether that is a limit, as in `Finding.at_most`
    is_busy: bool = False  # whether other work ran beside the calls, so that its time is less certain
    own_code_ns: int = 0  # besides, what the program itself does there between graphs, which stays when the break goes
    splitting_ns: int = 0  # besides, about what entering ONNX Runtime again behind an operator costs
    recompile_ns: int = 0  # what compiling again took in all
    advice: Advice | None = None  # what to change; None where nothing is known, and for a finding
    todo: str = ""  # the same in a sentence without a full stop; of a finding the first of `do`
    do: str = ""  # all that there is to change
    settings: tuple[str, ...] = ()  # lines that make the change as an option of the backend or a setting of PyTorch
    source: str | None = None  # the user's line
    patch: str | None = None  # the line as it would be; empty text to delete it, None where no rule can write it
    consequences: tuple[Recommendation, ...] = ()  # what has the same cause: it follows from this, or is alike

    @property
    def confidence(self) -> GainConfidence:
        """How the price or gain is known."""
        if self.ns_per_call is None and not self.recompile_ns:  # a measured 0 is a figure
            return "unknown"
        return "measured" if self.is_measured else "estimated"

    @property
    def cause(self) -> Hashable:
        """What has to change: equal for what one change mends."""
        return _NUMBER.sub("#", self.what) if self.advice is None else (*self.advice.change, self.advice.params.get("last_guard"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRow:
    """What to do about one cause, as a row of `lens.actions`."""

    rank: int = column("Place in the order of usefulness, from 1.")
    kind: Subject = column(
        "What it is about: a `break`, a `fallback` (`nothing_runs` where no operator runs in ONNX Runtime), a `recompile`; a `finding` of "
        "the lens itself, graphs compiled `for_training`, what is `slower` than PyTorch, or what another `rule` reports."
    )
    subject: str = column("The reason of the break, the operator, the guard that failed, or the title of the finding.")
    subject_id: str | None = optional("What to select for it: `lens.show(selected=...)`.")
    file: str | None = optional("File of the user line; of several lines, the costliest.")
    line: int | None = optional("Number of the user line.")
    do: str = column("What to change.")
    gain_ns: int | None = optional(
        "Time per call that it costs now: what a break or a finding takes away, and what an operator takes in PyTorch; of a break whose "
        "change was timed, what that saves.",
        unit="ns",
    )
    confidence: GainConfidence = column("How that is known: `measured`, `estimated`, or `unknown`.")
    tried: bool = column(
        "Whether the change was made: `explain` traced the call with it and the graph did not break there, or `lens.probe()` timed it.",
        default=False,
    )
    settings: tuple[str, ...] = column("Lines of Python that make the change as a setting, one per item.", default=())
    patch: str | None = column("The line as it would be; empty text deletes it, and a missing value says that no rule can write it.")
    consequences: tuple[str, ...] = column("What follows from it, or is alike: titles of findings, and operators.", default=())


def recommendations_of(capture: Capture, overview: Overview) -> tuple[Recommendation, ...]:
    """List what can be done, the most useful first, at most `MAX_ACTIONS`, with the user's lines; what one change mends is one item."""
    sources = _sources(capture)
    return tuple(_with_source(item, sources) for item in ranked_looks(overview)[:MAX_ACTIONS])


def _with_source(item: Recommendation, sources: Mapping[tuple[str | None, int | None], str]) -> Recommendation:
    source = item.source if item.subject == "break" else sources.get((item.file, item.line))
    return replace(
        item,
        source=source.strip() if source else None,
        patch=line_after(source or "", item.advice) if item.subject in ("break", "finding") else None,
    )


def _sources(capture: Capture) -> dict[tuple[str | None, int | None], str]:
    placed: tuple[Node | Fallback | Break, ...] = (*capture.nodes, *capture.fallbacks, *capture.breaks)
    return {(item.file, item.line): item.source for item in reversed(placed) if item.source and item.file}


def looks_of(overview: Overview) -> tuple[Recommendation, ...]:
    """Return what to look at first, the most important first; empty when nothing stands out."""
    return ranked_looks(overview)[:_MAX_LOOKS]


def ranked_looks(overview: Overview) -> tuple[Recommendation, ...]:
    """Rank everything that can be done, the most important first; what one change mends is one look, with what follows under it.

    First what the lens itself reports, since the rest may be incomplete; then graphs compiled for training in vain, what PyTorch runs
    faster, and why nothing runs. If a call was measured, what has a price follows, the most expensive first; then a recompile storm, and
    the most expensive of each kind before the second of any.
    """
    split = (*_merged(_breaks(overview)), *_fallbacks(overview), *_merged(_recompiles(overview)))
    looks = gathered([*_findings(overview), *_nothing_runs(overview), *split], overview)
    seen: dict[Subject, int] = dict.fromkeys(_SUBJECTS, 0)
    is_measured = overview.ledger is not None and overview.ledger.is_measured  # else breaks have no price to compare with
    ranked: list[tuple[tuple[int, int], Recommendation]] = []
    for look in looks:
        priced = is_measured and look.ns_per_call is not None
        # A call that compiles takes a hundred times as long.
        is_storm = (look.subject == "recompile" and look.count >= STORM) or (look.subject == "break" and is_limit(look.what))
        place = (
            (1, -((look.ns_per_call or 0) + look.own_code_ns + look.splitting_ns) // (_REST if look.rule == slower_call.name else 1))
            if priced
            else ((2, -1) if is_storm else (2 + seen[look.subject], _SUBJECTS.index(look.subject)))
        )
        if urgent := [_URGENT.index(item.subject) for item in (look, *look.consequences) if item.subject in _URGENT]:
            place = (0, min(urgent))
        ranked.append((place, look))
        seen[look.subject] += 1
    return tuple(_timed_beside(look, overview) for _, look in sorted(ranked, key=lambda item: item[0]))


def _timed_beside(look: Recommendation, overview: Overview) -> Recommendation:
    inner = tuple(replace(item, is_busy=overview.is_busy) for item in look.consequences)
    return replace(look, is_busy=overview.is_busy, consequences=inner)


def _merged(looks: Iterator[Recommendation]) -> list[Recommendation]:
    """Merge what one change mends into one: breaks of one line or with one advice, and recompiles whose advice is alike.

    The costliest stands for all, with their sum.
    """
    advised: dict[tuple[str | None, int | None], Hashable] = {}  # of a line with several breaks, the first advice speaks for all
    groups: dict[tuple[str | None, int | None, Hashable], list[Recommendation]] = {}
    for look in looks:
        file, line, cause = look.file, look.line, look.cause
        if look.subject == "break" and line is not None:
            cause = advised.setdefault((file, line), look.advice and cause)
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
                is_saving=all(look.is_saving for look in group),
                own_code_ns=own,
                recompile_ns=sum(look.recompile_ns for look in group),
            )
        )
    return merged


def _findings(overview: Overview) -> Iterator[Recommendation]:
    for index, finding in enumerate(overview.findings):
        if _is_worth_a_look(finding, overview) or finding.rule in SHOWN_OTHERWISE:
            yield Recommendation(
                subject=_subject(finding),
                index=index,
                what=finding.title,
                why=finding.hazard or finding.title,
                count=1,
                ns_per_call=finding.gain_ns,
                is_measured=finding.measured,
                advice=advise("choose_with_where") if finding.rule == "dry_run_ended" else None,
                todo=finding.todo or finding.mitigation.rstrip("."),
                do=finding.mitigation,
                **same(finding, "rule", "file", "line", "at_most", "settings"),
            )


def _is_worth_a_look(finding: Finding, overview: Overview) -> bool:
    """Tell whether a finding is a warning, or information about a slow call or about much of one."""
    if finding.severity != "info":
        return True
    if finding.rule == slower_call.name:  # no program is slower without a word about it, but for what other work explains
        return not overview.is_busy
    whole = overview.ledger.total_ns if overview.ledger is not None and overview.ledger.is_measured else 0
    return whole > 0 and (finding.gain_ns or 0) >= (_MUCH_MEASURED if finding.measured else _MUCH) * whole


def _subject(finding: Finding) -> Subject:
    if finding.rule == training_forward.name:
        return "for_training"
    if finding.rule == slower_than_torch.name:  # `slower_call` has the price of one part, which others may exceed
        return "slower"
    return "rule" if finding.rule in RULE_NAMES or finding.measured else "finding"


def _nothing_runs(overview: Overview) -> Iterator[Recommendation]:
    if overview.coverage.verdict == "none" and overview.fallbacks:
        index, most = max(enumerate(overview.fallbacks), key=lambda item: item[1].node_count)
        # Of two times of waiting for cores, the difference says nothing.
        lost = WORTH_A_WARNING if overview.is_busy else WORTH_APART
        ns = None if overview.is_crowded else loss_of_call(overview.pace, lost)
        yield replace(_of_operators([most], overview), subject="nothing_runs", index=index, ns_per_call=ns, splitting_ns=0)


def _breaks(overview: Overview) -> Iterator[Recommendation]:
    whole = overview.ledger.total_ns if overview.ledger is not None else 0
    for index, (item, advice) in enumerate(zip(overview.breaks, overview.break_advice, strict=True)):
        is_free = not item.saved_ns and price_of(item) == 0 and own_code_ns(item) <= _MUCH * whole  # measured, and nothing to be saved
        if is_free or (advice is not None and advice.is_expected):
            continue
        hint = hint_for(item)
        yield Recommendation(
            subject="break",
            index=index,
            what=item.reason,
            why=item.reason,
            count=item.occurrences,
            ns_per_call=price_of(item) if item.saved_ns is None else item.saved_ns,
            own_code_ns=own_code_ns(item) if item.saved_ns is None else 0,
            is_saving=item.saved_ns is not None,
            **same(item, "file", "line", "source"),
            **_todo(advice, settings_of_hint(hint)) | ({} if advice else {"do": hint}),
        )


def _fallbacks(overview: Overview) -> Iterator[Recommendation]:
    if overview.coverage.verdict == "none":  # `nothing_runs` already names the cause
        return
    causes: dict[Hashable, list[FallbackGroup]] = {}
    for group in overview.fallbacks:
        cause: Hashable = group.cause if group.cause in _OF_TYPE else group.reason if group.reason_code == "policy" else None
        causes.setdefault(cause or (group.target, group.reason_code), []).append(group)
    for groups in causes.values():
        if not _is_beside_the_point(groups, overview):
            yield _of_operators(groups, overview)


def _of_operators(groups: Sequence[FallbackGroup], overview: Overview) -> Recommendation:
    most, priced = groups[0], [group.ns_per_call for group in groups if group.ns_per_call is not None]
    return Recommendation(
        subject="fallback",
        index=overview.fallbacks.index(most),
        what=most.target,
        why=most.reason,
        **same(most, "file", "line", "module", "reason_code"),
        count=sum(group.node_count for group in groups),
        other_lines=len({(group.file, group.line) for group in groups}) - 1,
        ns_per_call=sum(priced) if priced else None,
        splitting_ns=sum(group.splitting_ns for group in groups),
        **_todo(most.advice),
    )


def _todo(advice: Advice | None, settings: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the fields that say what to do."""
    said = "" if advice is None else advice.sentence()
    return {"advice": advice, "todo": said, "do": said, "settings": settings if advice is None else advice.settings}


def _is_beside_the_point(groups: Sequence[FallbackGroup], overview: Overview) -> bool:
    """Tell whether no measured call ran these, or nobody can do much about them.

    A rule of the backend keeps them in PyTorch, where they are faster; or PyTorch itself added them as checks, and they take little.
    """
    totals = overview.ledger
    if totals is None or not totals.is_measured:
        return False
    is_kept = all(group.reason_code == "policy" and group.cause is None for group in groups)
    is_check = all(_CHECK in group.target for group in groups)
    cost = sum((group.ns_per_call or 0) + group.splitting_ns for group in groups)
    return not any(group.calls for group in groups) or is_kept or (is_check and cost < _MUCH * totals.total_ns)


def _recompiles(overview: Overview) -> Iterator[Recommendation]:
    given_up = {advice.change for advice in overview.break_advice if advice is not None}
    for index, (item, advice) in enumerate(zip(overview.recompiles, overview.recompile_advice, strict=True)):
        if advice is not None and (advice.is_expected or advice.change in given_up):
            continue
        guard, (file, line) = item.guard or item.reason, guard_place(item)
        yield Recommendation(
            subject="recompile",
            index=index,
            what=guard,
            why=guard,
            file=file,
            line=line,
            count=1,
            ns_per_call=None,
            recompile_ns=overview.recompile_ns[item.compile_id],
            **_todo(advice),
        )
