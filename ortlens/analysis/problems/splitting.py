"""Rules about what splits a model: graph breaks, recompiles, what PyTorch gave up, and operators that stay in PyTorch."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ortlens.analysis.costs import fallback_groups
from ortlens.analysis.coverage import coverage_of, given_up, own_recompiles
from ortlens.analysis.ledger import ledger_totals, measured_call
from ortlens.analysis.problems.advice import advice_of, hint_for, settings_of_hint
from ortlens.analysis.problems.break_rules import DROPOUT, call_written, library_called, short_name, trains_always
from ortlens.analysis.problems.catalogue import Advice, advise, given_up_title, worded
from ortlens.analysis.problems.guards import guard_place
from ortlens.analysis.problems.problem import Problem, rule
from ortlens.analysis.speed import MUCH, WORTH_A_WARNING, WORTH_APART, call_pace, is_busy, is_crowded, loss_of_call
from ortlens.analysis.timing import costliest_breaks, recompile_times
from ortlens.trace.records import same
from ortlens.units import percent, time_from_ns

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence

    from ortlens.analysis.costs import FallbackGroup
    from ortlens.analysis.problems.problem import ProblemRule
    from ortlens.trace.records import Capture


_LIMIT = re.compile(r"recompile[_ ]limit|cache_size_limit", re.IGNORECASE)
_STORM = 4
_NUMBER = re.compile(r"\d+")


@rule(
    name="break",
    kind="break",
    looks_for="PyTorch stops tracing at this line: a graph break.",
    fires="At each, unless it was measured to cost nothing, or is PyTorch's rule and nobody's fault.",
    hazard="Each graph is entered and left anew, and nothing is optimised across the break.",
)
def graph_break(capture: Capture) -> Iterator[Problem]:
    """Report graph breaks, those that one change mends together."""
    yield from _merged(_breaks(capture))


def _breaks(capture: Capture) -> Iterator[tuple[Hashable, Problem]]:
    totals = ledger_totals(capture)
    whole = 0 if totals is None else totals.total_ns
    lost = {frame.break_id: frame for frame in reversed(given_up(capture)) if frame.break_id}
    for item in costliest_breaks(capture):
        advice = advice_of(capture)[item]
        is_free = not item.saved_ns and item.cost_ns == 0 and (item.between_ns or 0) <= MUCH * whole  # measured, and nothing to be saved
        frame = lost.get(item.break_id)
        if frame is None and (is_free or (advice is not None and advice.is_expected)):
            continue
        hint = "" if advice is not None else hint_for(item)
        traits = {
            "gave_up": is_limit(item.reason),
            "guarded": bool(item.overhead_ns),
            "function": frame is not None
            and (frame.operators is None or frame.operators >= MUCH * (coverage_of(capture).operator_count or 0)),
            "behind": library_called(item) is not None,
        }
        words = worded(advice) if advice is not None else {"mitigation": hint, "settings": settings_of_hint(hint)}
        found = graph_break.problem(
            subject=item.break_id,
            records=(item.break_id,),
            title=item.reason if frame is None else given_up_title(frame),
            count=item.occurrences,
            gain_ns=item.saved_ns,
            own_code_ns=item.between_ns or 0,
            measured=True,
            hazard=item.reason,
            traits=frozenset(name for name, holds in traits.items() if holds) | ({advice.kind} if advice is not None else set()),
            **same(item, "file", "line", "source", "cost_ns"),
            **words,
        )
        yield _cause(item.reason, advice), found


@rule(
    name="recompile",
    kind="recompile",
    looks_for="The code is compiled again, since something that its graph depends on changed between calls.",
    fires="At each, unless it is PyTorch's rule, as for sizes 0 and 1, or a graph break says the same.",
    hazard="Such a call takes as long as the first one; after a few of them PyTorch stops compiling the function.",
)
def recompile(capture: Capture) -> Iterator[Problem]:
    """Report recompiles, those that one change mends together."""
    yield from _merged(_recompiles(capture))


def _recompiles(capture: Capture) -> Iterator[tuple[Hashable, Problem]]:
    advice_of_each, spent = advice_of(capture), recompile_times(capture)
    given_up = {advice.change for item in capture.breaks if (advice := advice_of_each[item]) is not None}
    for item in own_recompiles(capture):
        advice = advice_of_each[item]
        if advice is not None and (advice.is_expected or advice.change in given_up):
            continue
        file, line = guard_place(item)
        guard = item.guard or item.reason
        about: dict[str, Any] = {"title": guard, "hazard": guard, "file": file, "line": line, "recompile_ns": spent[item.compile_id]}
        about["traits"] = frozenset(item.traits or ())
        found = recompile.problem(subject=item.compile_id, records=(item.compile_id,), measured=True, **{**about, **worded(advice)})
        yield _cause(guard, advice), found


def _cause(text: str, advice: Advice | None) -> Hashable:
    """Return what has to change: equal for what one change mends."""
    return _NUMBER.sub("#", text) if advice is None else (*advice.change, advice.params.get("last_guard"))


def _merged(problems: Iterable[tuple[Hashable, Problem]]) -> Iterator[Problem]:
    """Merge what one change mends into one: breaks of one line or with one cause, and recompiles whose advice is alike.

    The costliest stands for all, with their sum.
    """
    advised: dict[tuple[str | None, int | None], Hashable] = {}  # of a line with several breaks, the first advice speaks for all
    groups: dict[tuple[str | None, int | None, Hashable], list[Problem]] = {}
    for own_cause, item in problems:
        file, line, cause = item.file, item.line, own_cause
        if item.kind == "break" and line is not None:
            cause = advised.setdefault((file, line), item.advice and cause)
            file, line = (None, None) if cause else (file, line)
        elif item.kind == "recompile" and item.advice:
            line = None  # parts of one function recompile one after another
        groups.setdefault((file, line, cause), []).append(item)
    for group in groups.values():
        first = max(group, key=lambda item: (item.weight_ns, bool(item.settings)))
        gains = [item.gain_ns for item in group if item.gain_ns is not None]
        costs = [item.cost_ns for item in group if item.cost_ns is not None]
        count = sum(item.count for item in group)
        traits = frozenset.union(*(item.traits for item in group)) | ({"storm"} if first.kind == "recompile" and count >= _STORM else set())
        yield replace(
            first,
            records=tuple(name for item in group for name in item.records),
            traits=traits | ({"only"} if len(groups) == 1 else set()),
            count=count,
            other_lines=len({(item.file, item.line) for item in group}) - 1 if first.kind == "break" else 0,
            gain_ns=sum(gains) if len(gains) == len(group) else None,
            cost_ns=sum(costs) if costs else None,
            own_code_ns=sum(item.own_code_ns for item in group),
            recompile_ns=sum(item.recompile_ns for item in group),
        )


def is_limit(reason: str) -> bool:
    """Tell whether a break's reason is that PyTorch gave a function up because it had compiled it too often."""
    return bool(_LIMIT.search(reason))


_CHECK = "aten._assert_"
_OF_TYPE = ("bfloat16", "complex")
"""Causes that all operators of a data type share."""
_REFUSED = ("dtype", "session_refused")


@rule(
    name="nothing_runs",
    kind="nothing_runs",
    looks_for="ONNX Runtime runs no operator of the model.",
    fires="Where operators stay in PyTorch and none runs in ONNX Runtime.",
    hazard="Compiling it costs time at the first call and saves none later.",
)
def nothing_runs(capture: Capture) -> Iterator[Problem]:
    """Report why nothing runs in ONNX Runtime, by the operator with the most nodes."""
    groups = fallback_groups(capture)
    if coverage_of(capture).verdict != "none" or not groups:
        return
    # Of two times of waiting for cores, the difference says nothing.
    pace = None if is_crowded(capture) else call_pace(capture)
    ns = loss_of_call(pace, WORTH_A_WARNING if is_busy(capture) else WORTH_APART)
    yield replace(
        _about(nothing_runs, [max(groups, key=lambda group: group.node_count)], capture), gain_ns=ns, cost_ns=None, splitting_ns=0
    )


@rule(
    name="fallback",
    kind="fallback",
    looks_for="An operator of this line stays in PyTorch.",
    fires="At each, unless no measured call ran it, a rule of the backend keeps it where it is faster, or it is a check that takes little.",
    hazard="The model is split around it, and what it needs and makes crosses from one runtime to the other.",
)
def fallback(capture: Capture) -> Iterator[Problem]:
    """Report operators that stay in PyTorch, those of one cause together."""
    if coverage_of(capture).verdict == "none":  # `nothing_runs` names the cause
        return
    causes: dict[Hashable, list[FallbackGroup]] = {}
    for group in fallback_groups(capture):
        cause: Hashable = group.cause if group.cause in _OF_TYPE else group.reason if group.reason_code == "policy" else None
        causes.setdefault(cause or (group.target, group.reason_code), []).append(group)
    for groups in causes.values():
        if not _is_beside_the_point(groups, capture):
            yield _about(fallback, groups, capture)


def _about(by: ProblemRule, groups: Sequence[FallbackGroup], capture: Capture) -> Problem:
    most, priced = groups[0], [group.call_ns for group in groups if group.call_ns is not None]
    call, splitting_ns = measured_call(capture), sum(group.splitting_ns for group in groups)
    advice = _advice(most, has_instructions=capture.figures.cpu_bfloat16)
    if advice.kind == "no_converter" and call is not None and splitting_ns:
        share = percent(splitting_ns / call.total_ns) if call.total_ns else ""
        advice = advise(advice.kind, **advice.params, cost=f"{time_from_ns(splitting_ns)} per call ({share})")
    stays = advice.kind == "policy" or (advice.kind == "bfloat16" and "lacking" not in advice.params)
    traits = {"stays": stays, "float64": most.dtype == "float64", "refused": most.reason_code in _REFUSED}
    return by.problem(
        subject=most.target,
        title=most.target,
        hazard=most.reason,
        count=sum(group.node_count for group in groups),
        other_lines=len({(group.file, group.line) for group in groups}) - 1,
        cost_ns=sum(priced) if priced else None,
        measured=True,
        splitting_ns=splitting_ns,
        traits=frozenset(name for name, holds in traits.items() if holds),
        **same(most, "file", "line", "module", "reason_code", "graph_ids"),
        **worded(advice),
    )


def _advice(item: FallbackGroup, *, has_instructions: bool | None) -> Advice:
    """Advise on an operator in PyTorch, given whether the CPU has bfloat16 instructions."""
    if item.cause == "bfloat16":
        return advise("bfloat16", **{{True: "instructions", False: "lacking", None: "unknown"}[has_instructions]: True})
    if item.cause == "complex":
        return advise("complex_numbers")
    if item.cause == "random":
        drawn = next((name for name in ("multinomial", "bernoulli") if name in item.target), "outside")
        trains = trains_always(item.source or "") if DROPOUT in f"{item.target}{item.source}" else None
        return advise(f"draw_{drawn}", target=_users_name(item), dropout=trains is False, always=trains)
    kind = "pass_bounds" if item.target.startswith("aten.histc.") and item.reason_code == "no_converter" else item.reason_code
    return advise("check_assertion" if _CHECK in item.target else kind, target=_users_name(item))


def _users_name(item: FallbackGroup) -> str:
    """Name an operator as the user's line calls it, in backticks; else as torch does, or as PyTorch calls it inside.

    `aten._linalg_svd` is `torch.linalg.svd`, `aten._cdist_forward` `torch.cdist`, and `prims.bessel_i0` `torch.special.i0`.
    """
    parts = item.target.split(".")[:2][-1].strip("_").split("_")
    cuts = [*range(len(parts) - 1, 0, -1)]
    names = ("_".join(parts), *("_".join(parts[:end]) for end in cuts), *("_".join(parts[-end:]) for end in cuts), short_name(item.target))
    written = next((found for name in names if len(name) > 1 and (found := call_written(item.source, name))), None)
    if written is None and parts[0] in ("linalg", "special", "fft") and len(parts) > 1:
        written = f"torch.{parts[0]}.{'_'.join(parts[1:])}"
    return item.target if written is None else f"`{written}`"


def _is_beside_the_point(groups: Sequence[FallbackGroup], capture: Capture) -> bool:
    """Tell whether no measured call ran these, or nobody can do much about them.

    A rule of the backend keeps them in PyTorch, where they are faster; or PyTorch itself added them as checks, and they take little.
    """
    call = measured_call(capture)
    if call is None:
        return False
    is_kept = all(group.reason_code == "policy" and group.cause is None for group in groups)
    is_check = all(_CHECK in group.target for group in groups)
    cost = sum((group.call_ns or 0) + group.splitting_ns for group in groups)
    return not any(group.calls for group in groups) or is_kept or (is_check and cost < MUCH * call.total_ns)
