"""Rules about what stays in PyTorch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ortlens.analysis.costs import fallback_groups
from ortlens.analysis.coverage import coverage_of
from ortlens.analysis.ledger import ledger_totals
from ortlens.analysis.problems.break_rules import DROPOUT, trains_always
from ortlens.analysis.problems.catalogue import Advice, advise, worded
from ortlens.analysis.problems.problem import rule
from ortlens.analysis.speed import MUCH, WORTH_A_WARNING, WORTH_APART, call_pace, is_busy, is_crowded, loss_of_call
from ortlens.trace.records import same

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from ortlens.analysis.costs import FallbackGroup
    from ortlens.analysis.problems.problem import Problem, ProblemRule
    from ortlens.trace.records import Capture

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
    pace = None if is_crowded(capture.figures) else call_pace(capture)
    ns = loss_of_call(pace, WORTH_A_WARNING if is_busy(capture.figures) else WORTH_APART)
    yield replace(_about(nothing_runs, [max(groups, key=lambda group: group.node_count)], capture), gain_ns=ns, splitting_ns=0)


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
    advice = _advice(most, has_instructions=capture.figures.cpu_bfloat16)
    stays = advice.kind == "policy" or (advice.kind == "bfloat16" and "lacking" not in advice.params)
    traits = {"stays": stays, "float64": most.dtype == "float64", "refused": most.reason_code in _REFUSED}
    return by.problem(
        subject=most.target,
        title=most.target,
        hazard=most.reason,
        count=sum(group.node_count for group in groups),
        other_lines=len({(group.file, group.line) for group in groups}) - 1,
        gain_ns=sum(priced) if priced else None,
        measured=True,
        splitting_ns=sum(group.splitting_ns for group in groups),
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
        return advise(f"draw_{drawn}", target=item.target, dropout=trains is False, always=trains)
    return advise("check_assertion" if _CHECK in item.target else item.reason_code, target=item.target)


def _is_beside_the_point(groups: Sequence[FallbackGroup], capture: Capture) -> bool:
    """Tell whether no measured call ran these, or nobody can do much about them.

    A rule of the backend keeps them in PyTorch, where they are faster; or PyTorch itself added them as checks, and they take little.
    """
    totals = ledger_totals(capture)
    if totals is None or not totals.is_measured:
        return False
    is_kept = all(group.reason_code == "policy" and group.cause is None for group in groups)
    is_check = all(_CHECK in group.target for group in groups)
    cost = sum((group.call_ns or 0) + group.splitting_ns for group in groups)
    return not any(group.calls for group in groups) or is_kept or (is_check and cost < MUCH * totals.total_ns)
