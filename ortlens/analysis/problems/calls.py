"""Rules about a measured call as a whole: slower than uncompiled, or mostly entering compiled code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ortlens.analysis.costs import splitting_costs
from ortlens.analysis.coverage import compiled_graphs
from ortlens.analysis.index import partitions_by_graph
from ortlens.analysis.ledger import measured_call
from ortlens.analysis.problems.catalogue import remedy
from ortlens.analysis.problems.guards import user_name
from ortlens.analysis.problems.problem import Problem, rule
from ortlens.analysis.problems.slower import cause_of, slower_than_torch
from ortlens.analysis.speed import MUCH, WORTH_A_WARNING, call_pace, loss_of_call
from ortlens.units import time_from_ns, times

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ortlens.analysis.ledger import LedgerTotals
    from ortlens.analysis.speed import Pace
    from ortlens.trace.records import Capture, Graph, LedgerPartName

HEAVY_GUARDS = "heavy_guards"
"""The recorded finding on what skipping guards saves, where a probe measured it."""

_LOSS_NS = 20_000
_LEAST_NS = 10_000
_ENTRY_SHARE = 0.25
_GUARDS_SHARE = 0.1
_STEPS_SHARE = 0.2
_LOCAL = re.compile(r"^L\['(?P<name>\w+)'\]")

_PARTS = {
    "guards": ("entering compiled code takes", "Compile a larger part of the program at once, so that it is entered less often"),
    "bind": ("passing inputs to ONNX Runtime takes", "Pass fewer, larger tensors, or compile a larger part of the program at once"),
    "output": ("returning outputs to PyTorch takes", "Return fewer, larger tensors, or compile a larger part of the program at once"),
    "run": ("ONNX Runtime takes", "Find its slow kernels in a profile"),
    "foreign": ("graphs of another backend take", "Compile them with ortlens too"),
    "eager": ("PyTorch operators and Python between graphs take", "Call what need not run each time outside of the function"),
    "residual": ("the rest of the call takes", "Compare with backend='aot_eager'"),
    "wait": ("waiting for the device takes", "Find the kernels that take its time in a profile"),
}
"""Parts of the ledger: what takes the time, and what to do about them."""


@rule(
    name="slower_call",
    looks_for="A call that takes longer than one in eager PyTorch, and graphs, operators and breaks do not explain it.",
    fires="When it takes at least 1.1 times as long, and `slower_than_torch`, `heavy_guards`, the graph breaks and the operators that "
    "split graphs explain less than half of the difference: as a warning from 1.3 times and 20 µs, as information from 10 µs.",
    hazard="The program would be faster uncompiled.",
)
def slower_call(capture: Capture) -> Iterator[Problem]:
    """Report a measured call that is slower as a whole than the uncompiled one."""
    slow = _slow_call(capture)
    if slow is None:
        return
    totals, part = slow.totals, slow.part
    takes, todo = _PARTS[part]
    parts = [part.partition_id for graph_id in totals.graph_ids for part in partitions_by_graph(capture).get(graph_id, [])]
    cause = cause_of(capture, parts) if part == "run" else None
    node = cause.node if cause is not None else None
    if node is not None and capture.kernels:  # they were found
        todo = "Write that line with other operators"
    what_to_do = remedy(f"{todo}; or leave the function uncompiled.")
    gain = slow.unexplained_ns  # leaving it uncompiled saves that, and what has prices of its own
    graph = _graph_of(capture, totals)
    if cause is not None and cause.remedy:
        what_to_do, gain = remedy(cause.remedy), min(gain, slow.part_ns)  # of which some may remain
    elif not parts:  # it is compiled in vain
        what_to_do, gain = remedy("Leave the function uncompiled."), slow.loss_ns
    elif part == "guards" and graph is not None and capture.figures.freeze_call and is_costly_to_enter(capture):
        what_to_do, gain = _freeze(capture), capture.figures.freeze_gain_ns or slow.part_ns
    yield slower_call.problem(
        node,
        graph,
        subject=totals.graph_ids[0],
        severity="warning" if slow.loss_ns >= _LOSS_NS and loss_of_call(slow.pace, WORTH_A_WARNING) else "info",
        title=f"a call takes {time_from_ns(totals.total_ns)}, eager {time_from_ns(slow.pace.eager_ns or 0)} "
        f"({times(slow.pace.ratio or 0)} as long): {takes} {time_from_ns(slow.part_ns)}"
        + (" besides what graph breaks and operators in PyTorch cost" if slow.part_ns < totals.ns.get(part, 0) else "")
        + (f", {'' if capture.kernels else 'perhaps because '}{cause.text}" if cause is not None and node is not None else ""),
        evidence="medians of calls in turns; by part: "
        + ", ".join(f"{_PARTS[key][0]} {time_from_ns(ns)}" for key, ns in totals.ns.items())
        + (_why_not_frozen(capture) if part == "guards" else ""),
        **what_to_do,
        gain_ns=gain,
        measured=not parts,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _SlowCall:
    """A call that takes longer than in eager PyTorch, and no other finding has the reason."""

    totals: LedgerTotals
    pace: Pace  # against one in eager PyTorch
    loss_ns: int  # the difference
    unexplained_ns: int  # what of that no break and no operator in PyTorch has as its price
    part: LedgerPartName  # that most of it goes into
    part_ns: int  # its time, without those prices


def _slow_call(capture: Capture) -> _SlowCall | None:
    totals, pace = measured_call(capture), call_pace(capture)
    loss = loss_of_call(pace)
    if totals is None or pace is None or loss is None:
        return None
    slower = [finding.gain_ns or 0 for finding in slower_than_torch.check(capture)]
    splitting = round(sum(ns for (graph_id, _), ns in splitting_costs(capture).items() if graph_id in totals.graph_ids))
    probed = [finding.gain_ns or 0 for finding in capture.findings if finding.rule == HEAVY_GUARDS]
    explained = sum(slower) + sum(probed) + sum(item.cost_ns or 0 for item in capture.breaks) + splitting
    if 2 * explained >= loss:
        return None
    broken = sum(item.overhead_ns or 0 for item in capture.breaks)
    known = _unpriced(totals.ns, broken, splitting + sum(item.entering_ns or 0 for item in capture.breaks))
    overhead = {name: ns for name, ns in known.items() if name not in ("run", "foreign", "eager", "wait")}
    parts = overhead if 2 * sum(overhead.values()) >= loss - explained else known  # what runs in the graphs has its counterpart uncompiled
    part = max(parts, key=lambda name: parts[name])
    if part == "eager" and (capture.fallbacks or any(item.cost_ns is not None for item in capture.breaks)):  # they have prices, and lines
        return None
    if part == "guards" and _is_explained_by_guards(capture):
        return None
    if part == "run" and slower:  # the reason, its price and its line are there
        return None
    return _SlowCall(totals=totals, pace=pace, loss_ns=loss, unexplained_ns=loss - explained, part=part, part_ns=known[part])


def _graph_of(capture: Capture, totals: LedgerTotals) -> Graph | None:
    """Return the first current graph of the measured call."""
    return next((graph for graph in compiled_graphs(capture) if graph.graph_id in totals.graph_ids), None)


def _is_explained_by_guards(capture: Capture) -> bool:
    """Tell whether a finding about single containers names what most of the guards are about."""
    named = [finding for finding in costly_guards.check(capture) if finding.severity == "warning"]
    return bool(named) and 2 * sum(finding.gain_ns or 0 for finding in named) >= capture.figures.guards[0].ns


def _unpriced(parts: Mapping[LedgerPartName, int], guards: int, crossing: int) -> dict[LedgerPartName, int]:
    """Take out of the parts of a call what breaks and operators in PyTorch have as their prices, on their own lines."""
    around = sum(parts.get(name, 0) for name in _CROSSING)
    left = max(1 - crossing / around, 0.0) if around else 0.0
    known = {name: round(ns * left) if name in _CROSSING else ns for name, ns in parts.items()}
    return {**known, "guards": max(parts.get("guards", 0) - guards, 0)}


_CROSSING: tuple[LedgerPartName, ...] = ("bind", "output", "residual")


@rule(
    name="costly_guards",
    looks_for="A container with many entries, or an attribute with many parts, that guards compare on every call.",
    fires="When checking them takes 10 µs and a tenth of a measured call, measured: as a warning from a quarter. Modules, which "
    "nobody would leave out, do not count.",
    hazard="Dynamo makes a guard of each entry that the code reads, and checks all of them before each call.",
)
def costly_guards(capture: Capture) -> Iterator[Problem]:
    """Report what the guards that take most of a call are about."""
    totals = measured_call(capture)
    if totals is None or capture.breaks:
        return
    whole, *parts = capture.figures.guards or (None,)
    graph = _graph_of(capture, totals)
    for part in sorted(parts, key=lambda part: -part.ns):
        name = user_name(_LOCAL.sub(r"\g<name>", part.source).replace(".__dict__", ""))
        if whole is None or part.ns < max(_LEAST_NS, _GUARDS_SHARE * totals.total_ns):
            continue
        yield costly_guards.problem(
            part,
            graph,
            subject=name,
            severity="warning" if part.ns >= _ENTRY_SHARE * totals.total_ns else "info",
            title=f"guards of `{name}` take {time_from_ns(part.ns)} of a call of {time_from_ns(totals.total_ns)}: "
            f"{part.count:,} of {whole.count:,} guards",
            evidence=f"checking all guards takes {time_from_ns(whole.ns)}, without those {time_from_ns(max(whole.ns - part.ns, 0))}",
            **remedy(f"Compute what the code needs of `{name}` before the compiled function, and keep or pass that alone."),
            gain_ns=part.ns,
            measured=True,
        )


@rule(
    name="costly_entry",
    looks_for="Calls of a model without gradients that spend much of their time entering compiled code.",
    fires="At a tenth of a measured call of one graph: `ortlens.freeze` was tried and works, or the evidence says why not; or a fifth of "
    "a generation of tokens without graph breaks. As information, unless `slower_call` or `heavy_guards` reports it.",
    hazard="Dynamo looks the code up and checks its guards before each call; the model itself gains nothing from that.",
)
def costly_entry(capture: Capture) -> Iterator[Problem]:
    """Report a function that would be faster frozen."""
    totals = measured_call(capture)
    if totals is not None and capture.steps:
        yield from _costly_steps(capture, totals)
        return
    figures = capture.figures
    if totals is None or not is_costly_to_enter(capture) or not (figures.freeze_call or _why_not_frozen(capture)):
        return
    slow, entering = _slow_call(capture), totals.ns["guards"]
    if _is_explained_by_guards(capture):
        return
    if (slow is not None and slow.part == "guards") or any(finding.rule == HEAVY_GUARDS for finding in capture.findings):
        return
    graph = next(graph for graph in compiled_graphs(capture) if graph.graph_id == totals.graph_ids[0])
    saved, is_open = figures.freeze_gain_ns, figures.freeze_call or figures.freeze_untried == "tracing"
    yield costly_entry.problem(
        graph,
        subject=graph.graph_id,
        severity="info",
        title=f"entering compiled code takes {time_from_ns(entering)} of a call of {time_from_ns(totals.total_ns)}",
        evidence="the time of a call, by part; a frozen callable does not check weights either, and checks its arguments instead"
        + _why_not_frozen(capture),
        **_freeze(capture),
        gain_ns=(entering if saved is None else saved) if is_open else None,
        measured=saved is not None,
    )


def _costly_steps(capture: Capture, totals: LedgerTotals) -> Iterator[Problem]:
    entering, is_probed = totals.ns.get("guards", 0), any(finding.rule == HEAVY_GUARDS for finding in capture.findings)
    if capture.breaks or is_probed or entering < _STEPS_SHARE * totals.total_ns:
        return
    calls = sum(step.calls for step in capture.steps)
    yield costly_entry.problem(  # of all graphs
        severity="info",
        title=f"entering compiled code takes {time_from_ns(entering)} of a generation of {time_from_ns(totals.total_ns)}, "
        f"{time_from_ns(entering / max(calls, 1))} for each call of the model",
        evidence="medians of the measured calls; guards are checked for each token",
        **UNGUARDED_STEPS,
        gain_ns=entering,
        at_most=True,
    )


_UNGUARDED = (
    'model.forward = torch.compile(model.forward, backend="ortlens", '
    'options={"guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe})'
)
UNGUARDED_STEPS: Mapping[str, Any] = remedy(
    "Compile the model in place with the option guard_filter_fn, without the guards of its modules.",
    "The mode, attributes and submodules of the model must stay as they are then: a change is not noticed, except of weights.",
) | {"settings": (_UNGUARDED,)}
"""What spares the steps of a generation most of their guards."""


def _freeze(capture: Capture) -> dict[str, Any]:
    larger = "ompile a larger part of the program at once, so that it is entered less often."
    if capture.figures.freeze_refused:
        return remedy(f"C{larger}")
    call = capture.figures.freeze_call or "ortlens.freeze"
    runs = "runs the same sessions without Dynamo; weights are constants from then on."
    return remedy(f"For deployment, {'' if capture.figures.freeze_call else 'try whether '}`{call}` {runs}", f"Otherwise c{larger}")


_UNTRIED = {"tracing": "tracing it took more than 2 s", "calls": "the number of calls was given"}


def _why_not_frozen(capture: Capture) -> str:
    """Say, behind a semicolon, why freezing is no option, or was not tried; empty where it works, or nobody asked."""
    if refused := capture.figures.freeze_refused:
        return f"; `ortlens.freeze` is no option: {refused}"
    untried = _UNTRIED.get(capture.figures.freeze_untried or "")
    return f"; `ortlens.freeze` was not tried, since {untried}" if untried and not capture.figures.freeze_call else ""


def is_costly_to_enter(capture: Capture) -> bool:
    """Tell whether a function is one graph without gradients, of which something runs, and much of its call goes into entering it."""
    totals = measured_call(capture)
    if totals is None or len(totals.graph_ids) != 1 or capture.breaks:
        return False
    parts = partitions_by_graph(capture).get(totals.graph_ids[0], [])
    changing = {session.partition_id for session in capture.sessions if session.cause == "weights"}
    if not parts or changing.intersection(part.partition_id for part in parts):
        return False
    phases = [graph.phase for graph in compiled_graphs(capture) if graph.graph_id == totals.graph_ids[0]]
    return phases == ["inference"] and totals.share.get("guards", 0.0) >= MUCH
