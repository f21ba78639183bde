"""Rules about sessions: how many, with which weights and threads, and what surrounds their runs; and about what compiling them takes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ortlens.analysis.costs import ENOUGH_CALLS, entries_per_call, sessions_and_graphs
from ortlens.analysis.coverage import compiled_graphs, current_ids
from ortlens.analysis.ledger import measured_call
from ortlens.analysis.onnx_model import is_onnx_model
from ortlens.analysis.problems.catalogue import remedy
from ortlens.analysis.problems.problem import Problem, rule
from ortlens.analysis.roofline import usable_cores
from ortlens.analysis.timing import PHASES, call_time, compile_total_ns, graph_times
from ortlens.units import counted, size_from_bytes, time_from_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ortlens.trace.records import Capture, Graph, Session, WeightsChange


SESSIONS = "sessions"
"""Subject of findings about the settings that all sessions share."""

_MANY_SIZES = 4
_SEVERAL = 2
_WORTH_FREEZING = 1 << 16
_MUCH_PACKED = 4 << 20
_UNPACKED = 2


@rule(
    name="session_churn",
    looks_for="A partition with a session for each combination of input sizes.",
    fires="At 4 sessions created for sizes: more than a few fixed batch sizes, so further sizes are likely.",
    hazard="Each new size waits for a new session, and each session holds its own packed copies of weights.",
)
def session_churn(capture: Capture) -> Iterator[Problem]:
    """Report partitions that get a session per size."""
    for partition_id, sessions, _, graph in sessions_and_graphs(capture):
        made = [session for session in sessions if session.cause in ("first", "sizes")]
        if len(made) < _MANY_SIZES or not any(session.cause == "sizes" for session in made):
            continue
        held = sum(session.held_bytes or 0 for session in made)
        yield session_churn.problem(
            graph,
            subject=partition_id,
            title=f"{partition_id} has {len(made)} sessions, one per combination of input sizes",
            evidence=f"creating them took {time_from_ns(sum(session.create_ns for session in made))}"
            + (f" and {size_from_bytes(held)} of heap" if held else "")
            + f"; inputs {made[-1].input_signature or 'unknown'}",
            mitigation="Remove ExportOptions(dynamic_shapes=False), so that one session serves all sizes, or pad inputs to a few sizes.",
        )


@rule(
    name="weights_changed",
    looks_for="Sessions recreated because a frozen weight changed, or because another module that shares the code has other weights.",
    fires="At the first one: a model that is loaded and then called changes no weight, and one graph of a whole model has one set of them.",
    hazard="Each change creates a new session; after the third change in a partition, its weights are no longer frozen.",
)
def weights_changed(capture: Capture) -> Iterator[Problem]:
    """Report partitions whose weights change between calls, or that run for several modules."""
    entries = entries_per_call(capture)
    for partition_id, sessions, part, graph in sessions_and_graphs(capture):
        anew = [session for session in sessions if session.cause == "weights"]
        if not anew:
            continue
        spent = sum(session.create_ns for session in anew)
        runs = entries.get(part.graph_id, 1.0) if part is not None else 1.0
        changes = _changes(anew, runs)
        given_up = sessions[-1].frozen_bytes == 0 and part is not None and bool(part.weight_bytes)
        calls, left = sum(session.calls for session in sessions), max(sessions[-1].calls - 1, 0)  # it was made for the first of its calls
        is_every = given_up and calls - left == len(anew) + 1
        yield weights_changed.problem(
            graph,
            subject=partition_id,
            traits=frozenset({"several_modules"} if any(session.weights_change == "other_module" for session in anew) else ()),
            title=_changed_title(partition_id, changes, anew, is_every=is_every)
            + ("; its weights are no longer frozen" if given_up else ""),
            evidence=f"recreating its sessions took {time_from_ns(spent)}; they ran {counted(calls, 'time')} in total"
            + (f". The partition runs {runs:.3g} times per call" if runs >= _SEVERAL else "")
            + (f". Weights were watched in the first {calls - left:,} of these; later changes are not counted" if given_up else "")
            + "".join(f". {_CHANGE_EVIDENCE[kind]}" for kind in changes if kind in _CHANGE_EVIDENCE),
            **_line_of_change(anew),
            **_change_remedy(changes, given_up=given_up, is_split=bool(capture.breaks)),
        )


def _line_of_change(anew: list[Session]) -> dict[str, Any]:
    """Return the line that changed weights, if it was the same one every time."""
    (file, line), *others = {(session.changed_file, session.changed_line) for session in anew}
    return {} if file is None or others else {"file": file, "line": line}


def _change_remedy(changes: dict[WeightsChange, int], *, given_up: bool, is_split: bool) -> dict[str, Any]:
    """Advise one thing: weights that go on changing are better inputs from the start, others are set before the first call."""
    if given_up and "other_module" not in changes:
        return remedy(_NOT_FROZEN, freeze_weights=False)
    if "other_module" in changes:
        return remedy(_UNBROKEN if is_split else _UNSHARED, "Where that is not possible, set freeze_weights=False.", freeze_weights=False)
    return remedy(*(_CHANGE_REMEDIES[kind] for kind in changes))


def _changes(anew: list[Session], runs: float) -> dict[WeightsChange, int]:
    """Count how often weights changed in which way, commonest first.

    Captures of earlier versions do not say it. There, a partition that runs several times per call is taken for one of several modules.
    """
    assumed: WeightsChange = "other_module" if runs >= _SEVERAL else "written"
    return dict(Counter(session.weights_change or assumed for session in anew).most_common())


def _changed_title(partition_id: str, changes: dict[WeightsChange, int], anew: list[Session], *, is_every: bool) -> str:
    names = list(dict.fromkeys(name for session in anew for name in session.changed_weights))
    others = f" and {counted(len(names) - 1, 'other weight')}" if len(names) > 1 else ""
    which = f"`{names[0]}`{others} of {partition_id}" if names else f"the weights of {partition_id}"
    was = "was" if len(names) == 1 else "were"
    often = "before every call that was watched, {}" if is_every and len(changes) == 1 else "{}"
    texts: dict[WeightsChange, Callable[[str], str]] = {
        "written": lambda times: f"{which} {was} written to {often.format(times)}",
        "replaced": lambda times: f"{which} {was} replaced by another tensor {often.format(times)}",
    }
    shared = "several modules share {}: {} created for the weights of another one"
    return "; ".join(
        texts[kind](counted(times, "time"))
        if kind in texts
        else shared.format(partition_id, counted(times, "session was", "sessions were"))
        for kind, times in changes.items()
    )


_CHANGE_EVIDENCE: dict[WeightsChange, str] = {
    "replaced": "No weight was written to: other parameters or buffers were assigned, or several modules share its code",
    "other_module": "No weight had to change for this: several modules share its code, each with its own weights",
}
_CHANGE_REMEDIES: dict[WeightsChange, str] = {
    "written": "Change weights before the first compiled call, or keep what changes out of parameters and buffers.",
    "replaced": "Assign parameters and buffers before the first compiled call, or, if several modules share the code, compile them as one "
    "graph.",
}
_NOT_FROZEN = (
    "Keep what changes on every call out of parameters and buffers, or set freeze_weights=False, so that no session is created in vain."
)
_UNSHARED = "Compile the model that contains these modules instead of each by itself: one graph with all of them can freeze their weights."
_UNBROKEN = f"Remove the graph break that gives each of these modules a frame of its own, or c{_UNSHARED[1:]}"


@rule(
    name="unfrozen_weights",
    looks_for="Weights that are inputs of a session on every call instead of constants, in inference.",
    fires="At 64 KiB of weights of which less than half are constants: binding smaller ones takes 1 µs. Not where `weights_changed` fires.",
    hazard="ONNX Runtime can neither pack nor fold them: a BERT of four layers took 1.16 times as long on 64 tokens, a linear layer of "
    "2048 on 4 rows 1.6 times (measured on two cores).",
)
def unfrozen_weights(capture: Capture) -> Iterator[Problem]:
    """Report inference partitions whose weights are inputs."""
    for partition_id, own, part, graph in sessions_and_graphs(capture):
        if part is None or graph is None or graph.graph_id not in current_ids(capture) or graph.phase != "inference":
            continue
        frozen, weights = own[-1].frozen_bytes, (part.weight_bytes or 0) - (own[-1].table_bytes or 0)
        changed = any(session.cause == "weights" for session in own)
        if frozen is None or weights < _WORTH_FREEZING or 2 * frozen >= weights or changed:
            continue
        yield unfrozen_weights.problem(
            graph,
            subject=partition_id,
            title=f"{size_from_bytes((part.weight_bytes or 0) - frozen)} of weights are inputs of {partition_id}, not constants",
            evidence=f"{size_from_bytes(frozen)} of {size_from_bytes(part.weight_bytes or 0)} are frozen in {own[-1].session_id}; "
            "freezing is off, or they could not be watched (made in inference mode, on a GPU)",
            **remedy('Set freeze_weights="auto", and change weights only before the first compiled call.', freeze_weights="auto"),
        )


@rule(
    name="unpacked_weights",
    looks_for="Quantised weights that a session holds as floats.",
    fires="When 8-bit integers of 4 MiB or more take twice their size; kept as integers, they take 1.1 times their size. Of fewer, the "
    "1.5 MB that the first session of a process loads would be too large a part.",
    hazard="ONNX Runtime computes the floats when it loads the model and keeps them: four bytes per weight, as without quantisation.",
)
def unpacked_weights(capture: Capture) -> Iterator[Problem]:
    """Report sessions in which quantisation saves no memory."""
    for partition_id, sessions, _, graph in sessions_and_graphs(capture):
        session = sessions[-1]
        packed = session.integer_bytes or 0
        held = (session.held_bytes or 0) - (session.frozen_bytes or 0) + packed  # others are packed into copies of the same size
        if packed < _MUCH_PACKED or held < _UNPACKED * packed:
            continue
        yield unpacked_weights.problem(
            graph,
            subject=partition_id,
            title=f"packed weights of {size_from_bytes(packed)} are held as {size_from_bytes(held)}",
            evidence=f"{session.session_id} took {size_from_bytes(session.held_bytes or 0)} for "
            f"{size_from_bytes(session.frozen_bytes or 0)} of constants",
            **remedy(
                "Integers stay packed in linear layers of float32 on the CPU, whose width is a multiple of 16 and whose scales are for "
                "whole rows or for groups of a multiple of 16, without ort_session_options.",
                "Or set freeze_weights=False: the session then reads PyTorch's integers, and converts them in every call.",
                freeze_weights=False,
            ),
        )


@rule(
    name="too_many_threads",
    looks_for="Sessions with more threads than the process has cores.",
    fires="When there are more threads than cores that the process may use: two threads on one core take turns.",
    hazard="A thread that waits for a core delays the whole operator, and a spinning thread takes the core from one with work.",
)
def too_many_threads(capture: Capture) -> Iterator[Problem]:
    """Report sessions with more threads than there are cores."""
    cores, figures = usable_cores(capture), capture.figures
    crowded = [session for session in capture.sessions if cores and (session.threads or 0) > cores]
    if crowded and cores:
        most, quota = max(session.threads or 0 for session in crowded), figures.cpu_quota
        limit = counted(cores, "core") + ("" if quota is None else f" (quota {quota:.3g})")
        if figures.throttled:
            stopped = throttled_times(figures.throttled, figures.throttled_ns or 0)
            limit += f"; since recording began, the kernel stopped it {stopped}"
        line, is_file = f"options.intra_op_num_threads = {cores}", is_onnx_model(capture)
        how = "that the session is made with" if is_file else "passed as ort_session_options"
        yield too_many_threads.problem(
            subject=SESSIONS,
            title=f"{counted(len(crowded), 'session')} with up to {most} threads on {counted(cores, 'core')}",
            evidence=f"{_ids(crowded)}: {crowded[0].threads_reason or 'reason not recorded'}; the process may use {limit}",
            mitigation=f"Set {line} in the onnxruntime.SessionOptions {how}.",
            settings=(line,) if is_file else (),  # `tune` tries no object of ONNX Runtime by a line
        )


def throttled_times(times: int, ns: int) -> str:
    """Write how often a quota was used up, and what all cores lost by that."""
    return f"{counted(times, 'time')} (cores lost {time_from_ns(ns)})"


def _ids(sessions: list[Session], limit: int = 6) -> str:
    shown = ", ".join(session.session_id for session in sessions[:limit])
    return shown + (f" and {len(sessions) - limit} more" if len(sessions) > limit else "")


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
    is_whole = len(compiled_graphs(capture)) == len(capture.partitions) == 1 and not (capture.fallbacks or capture.breaks)
    call_ns = (measured_call(capture) or call_time(capture)).total_ns  # as on the first screen
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
    forward = [graph for graph in compiled_graphs(capture) if graph.phase == "forward"]
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
