"""Rules about compiling and guarding: recompiles, breaks, cold starts, guards, graphs compiled for training."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from ortlens.analysis.advice import Adviser
from ortlens.analysis.catalogue import remedy
from ortlens.analysis.findings.facts import ENOUGH_CALLS, current, entries_per_call, measured_ledger
from ortlens.analysis.findings.rule import rule
from ortlens.analysis.identity import frame_of
from ortlens.analysis.index import grouped
from ortlens.analysis.timing import PHASES, call_time, compile_total_ns, graph_times, price_of, recompile_times
from ortlens.units import counted, time_from_ns

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from ortlens.trace.records import Break, Capture, Finding, Graph, Recompile, StepRole

STORM = 4
_OFTEN = 3
_COLD_NS = 1_000_000_000
_COLD_SHARE = 0.25
_LIMIT = re.compile(r"recompile[_ ]limit|cache_size_limit", re.IGNORECASE)


@rule(
    name="recompile_storm",
    looks_for="A function that is compiled again and again, or until PyTorch stops recompiling it.",
    fires="At 4 recompiles of one function, half of PyTorch's limit of 8, or when the limit was reached.",
    hazard="Each recompile stops the program for as long as the first compilation took; past the limit the function runs in plain Python.",
)
def recompile_storm(capture: Capture) -> Iterator[Finding]:
    """Report functions with many recompiles."""
    groups: dict[tuple[str | None, str | None, int | None, StepRole | None], list[Recompile]] = defaultdict(list)
    roles = {graph.compile_id: graph.role for graph in capture.graphs}
    for item in capture.recompiles:
        role = roles.get(item.compile_id)
        if role is None or role == roles.get(item.of_compile_id):  # decode is compiled after prefill, which is no recompile of it
            groups[item.function, item.file, item.line, role].append(item)
    spent, adviser = recompile_times(capture), Adviser(capture)
    for (function, file, line, role), rows in groups.items():
        if len(rows) < STORM:
            continue
        guards = _distinct([row.guard or row.reason for row in rows])
        values = _distinct([value for row in rows for value in row.values])
        compile_ns = sum(spent[row.compile_id] for row in rows)
        limit = next((item for item in capture.breaks if _is_limit(item) and (item.function, item.file) == (function, file)), None)
        yield recompile_storm.finding(
            subject=f"{function or 'unnamed function'} {file or ''}:{line or ''}".strip(" :"),
            title=f"{f'{role}: ' if role else ''}{function or 'a function'} was compiled again {len(rows)} times"
            + (f", {time_from_ns(compile_ns)}" if compile_ns else "")
            + ("; then PyTorch reached its limit, and runs what needs another version in plain Python" if limit is not None else ""),
            evidence=f"guards that failed: {'; '.join(guards[:3])}" + (f"; values seen: {', '.join(values[:8])}" if values else ""),
            mitigation=next((advice.sentence() for advice in map(adviser, rows) if advice is not None and not advice.is_expected), None)
            or _MARK,
            file=file,
            line=line,
        )
    yield from _given_up(capture, adviser, {(function, file) for (function, file, _, _), rows in groups.items() if len(rows) >= STORM})


def _is_limit(item: Break) -> bool:
    return is_limit(item.reason) or is_limit(item.explanation or "")


def is_limit(reason: str) -> bool:
    """Tell whether a break's reason is that PyTorch gave a function up because it had compiled it too often."""
    return bool(_LIMIT.search(reason))


_MARK = "Mark what changes as dynamic (torch._dynamo.mark_dynamic, dynamic=True), or pass changing Python numbers as tensors."


def _given_up(capture: Capture, adviser: Adviser, known: Container[tuple[str | None, str | None]]) -> Iterator[Finding]:
    for item in capture.breaks:
        if _is_limit(item) and (item.function, item.file) not in known:
            yield recompile_storm.finding(
                item,
                subject=item.break_id,
                title=f"PyTorch reached its recompile limit and runs {item.function or 'a function'} in plain Python from now on",
                evidence=item.reason,
                mitigation=_MARK if (advice := adviser(item)) is None else f"{advice.sentence()}.",
            )


def _distinct(texts: list[str]) -> list[str]:
    return list(dict.fromkeys(text.partition("  #")[0].strip() for text in texts))


@rule(
    name="cold_start",
    looks_for="A cold start dominated by work that could be cached on disk.",
    fires="When converting and optimising ONNX models without a cache takes at least 1 s and 25 % of all compile time.",
    hazard="Every new process waits for it before its first result.",
    probed="The backend's share of compile time with a filled `cache_dir`.",
)
def cold_start(capture: Capture) -> Iterator[Finding]:
    """Report compilations that a cache would shorten."""
    total = compile_total_ns(capture)
    spent = {phase: sum(getattr(graph, f"{phase}_ns") or 0 for graph in capture.graphs) for phase in PHASES}
    saved = spent["convert"] + spent["optimize"]
    is_cached = any(model.cached for model in capture.models) or "option_cache_dir" in capture.environment
    if saved < _COLD_NS or saved < _COLD_SHARE * total or is_cached:
        return
    is_whole = len(current(capture)) == len(capture.partitions) == 1 and not (capture.fallbacks or capture.breaks)
    call_ns = sum(part.ns for part in measured_ledger(capture)) or call_time(capture).total_ns  # that of the first screen
    as_calls = f", as long as {total // call_ns:,} calls" if call_ns else ""
    yield cold_start.finding(
        subject="compile",
        severity="info",
        title=f"compiling took {time_from_ns(total)}{as_calls}; {time_from_ns(saved)} of it can be cached on disk",
        evidence="; ".join(f"{phase} {time_from_ns(ns)}" for phase, ns in spent.items() if ns)
        + f". Dynamo's {time_from_ns(spent['dynamo'])} and creating the sessions are spent in every process regardless",
        **remedy(
            'Set cache_dir="..." in the options: the next process reads the converted models.',
            "For a process without tracing, export the model: one partition covers it." if is_whole else "",
            cache_dir="...",
        ),
    )


@rule(
    name="hot_break",
    looks_for="A graph break that is hit several times per call, for example inside a layer that is used repeatedly.",
    fires="At 3 hits per call, or 3 graph boundaries: a single break costs a few tens of microseconds.",
    hazard="Each time, the compiled code is left, guards are checked and the next graph is entered, and nothing is fused across the break.",
)
def hot_break(capture: Capture) -> Iterator[Finding]:
    """Report breaks that happen several times per call."""
    entered, adviser = _entered_per_call(capture), Adviser(capture)
    for item in capture.breaks:
        times = max((entered.get(frame_of(compile_id), 0) for compile_id in item.compile_ids), default=0)
        if _is_limit(item) or (times < _OFTEN and item.occurrences < _OFTEN):  # `recompile_storm` reports the limit
            continue
        seen = f"the graphs that it ends ({', '.join(item.compile_ids[:4])}) are entered {times:.3g} times per call"
        cost = "; the gain is the recorded overhead of the break" if price_of(item) is not None else ""
        often = f"is hit {times:.3g} times per call" if times >= _OFTEN else f"makes {item.occurrences} graph boundaries"
        yield hot_break.finding(
            item,
            subject=item.break_id,
            title=f"a graph break in {item.function or 'a function'} {often}",
            evidence=f"{item.reason}; {seen}; {counted(item.occurrences, 'graph boundary', 'graph boundaries')}{cost}",
            mitigation=advice.sentence()
            if (advice := adviser(item)) is not None
            else item.hints[0]
            if item.hints
            else "Rewrite the line as the reason suggests.",
            gain_ns=price_of(item),
        )


def _entered_per_call(capture: Capture) -> dict[str, float]:
    """Count how often the graphs of each of Dynamo's frames are entered per call of the model, at least.

    Where no call was measured, versions of one code may each belong to another call, as when every call compiles again.
    """
    entries = entries_per_call(capture)
    is_counted = any(graph.entries_per_call is not None for graph in capture.graphs)
    graphs = (graph for graph in capture.graphs if graph.compile_id is not None and graph.phase != "backward")
    versions = grouped((frame_of(graph.compile_id), entries.get(graph.graph_id, 0.0)) for graph in graphs)
    return {frame: sum(found) if is_counted else max(found) for frame, found in versions.items()}


@rule(
    name="training_forward",
    looks_for="Graphs compiled for training whose backward is never called.",
    fires="At 3 calls of forward graphs without a single call of a backward graph in the capture.",
    hazard="A training graph keeps its activations and takes weights as inputs, so neither freezing nor constant folding applies.",
)
def training_forward(capture: Capture) -> Iterator[Finding]:
    """Report forward graphs whose backward never runs."""
    times = graph_times(capture)
    forward = [graph for graph in current(capture) if graph.phase == "forward"]
    called = sum(times[graph.graph_id].calls for graph in forward)
    backward = sum(times[graph.graph_id].calls for graph in capture.graphs if graph.phase == "backward")
    if called < ENOUGH_CALLS or backward:
        return
    most: Graph = max(forward, key=lambda graph: times[graph.graph_id].calls)
    yield training_forward.finding(
        most,
        subject=most.graph_id,
        title=f"{most.name or most.graph_id} was compiled for training, and no backward ran",
        evidence=f"{counted(len(forward), 'forward graph')}, {counted(called, 'call')}, those of measurements included; no backward graph "
        "was called",
        mitigation="For inference call it under torch.no_grad() (or torch.inference_mode()), or model.requires_grad_(False).",
    )
