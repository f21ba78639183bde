"""Rules about compiling: cold starts, and graphs compiled for training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortlens.analysis.costs import ENOUGH_CALLS, current, measured_ledger
from ortlens.analysis.problems.catalogue import remedy
from ortlens.analysis.problems.problem import Problem, rule
from ortlens.analysis.timing import PHASES, call_time, compile_total_ns, graph_times
from ortlens.units import counted, time_from_ns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ortlens.trace.records import Capture, Graph

_COLD_NS = 1_000_000_000
_COLD_SHARE = 0.25


@rule(
    name="cold_start",
    looks_for="A cold start dominated by work that could be cached on disk.",
    fires="When converting and optimising ONNX models without a cache takes at least 1 s and 25 % of all compile time.",
    hazard="Every new process waits for it before its first result.",
)
def cold_start(capture: Capture) -> Iterator[Problem]:
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
    yield cold_start.problem(
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
    name="training_forward",
    kind="for_training",
    looks_for="Graphs compiled for training whose backward is never called.",
    fires="At 3 calls of forward graphs without a single call of a backward graph in the capture.",
    hazard="A training graph keeps its activations and takes weights as inputs, so neither freezing nor constant folding applies.",
)
def training_forward(capture: Capture) -> Iterator[Problem]:
    """Report forward graphs whose backward never runs."""
    times = graph_times(capture)
    forward = [graph for graph in current(capture) if graph.phase == "forward"]
    called = sum(times[graph.graph_id].calls for graph in forward)
    backward = sum(times[graph.graph_id].calls for graph in capture.graphs if graph.phase == "backward")
    if called < ENOUGH_CALLS or backward:
        return
    most: Graph = max(forward, key=lambda graph: times[graph.graph_id].calls)
    yield training_forward.problem(
        most,
        subject=most.graph_id,
        title=f"{most.name or most.graph_id} was compiled for training, and no backward ran",
        evidence=f"{counted(len(forward), 'forward graph')}, {counted(called, 'call')}, those of measurements included; no backward graph "
        "was called",
        mitigation="For inference call it under torch.no_grad() (or torch.inference_mode()), or model.requires_grad_(False).",
    )
