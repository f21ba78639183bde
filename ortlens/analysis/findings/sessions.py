"""Rules about sessions: how many there are, with which weights and threads, and what surrounds their runs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ortlens.analysis.catalogue import remedy
from ortlens.analysis.findings.facts import ENOUGH_CALLS, crossings, current, entries_per_call, run_times, sessions_and_graphs
from ortlens.analysis.findings.rule import rule
from ortlens.analysis.index import fallbacks_by_graph, latest_sessions, partitions_by_graph, sessions_by_partition
from ortlens.analysis.onnx_model import is_onnx_model
from ortlens.analysis.roofline import usable_cores
from ortlens.analysis.timing import calls_by_graph, graph_times
from ortlens.units import counted, size_from_bytes, time_from_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ortlens.trace.records import Capture, Finding, Session, WeightsChange

SESSIONS = "sessions"
"""Subject of findings about the settings that all sessions share."""

_MANY_SIZES = 4
_SEVERAL = 2
_WORTH_FREEZING = 1 << 16
_MUCH_PACKED = 4 << 20
_MANY_PACKED = 256 << 20
_MUCH_IN_ARENAS = 256 << 20
_UNPACKED = 2
_TINY_NS = 100_000
_TINY_SHARE = 0.4
_TINY_CALLS = 10
_HANDED_SHARE = 0.1
_HANDED_NS = 5_000


@rule(
    name="session_churn",
    looks_for="A partition with a session for each combination of input sizes.",
    fires="At 4 sessions created for sizes: more than a few fixed batch sizes, so further sizes are likely.",
    hazard="Each new size waits for a new session, and each session holds its own packed copies of weights.",
)
def session_churn(capture: Capture) -> Iterator[Finding]:
    """Report partitions that get a session per size."""
    for partition_id, sessions, _, graph in sessions_and_graphs(capture):
        made = [session for session in sessions if session.cause in ("first", "sizes")]
        if len(made) < _MANY_SIZES or not any(session.cause == "sizes" for session in made):
            continue
        held = sum(session.held_bytes or 0 for session in made)
        yield session_churn.finding(
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
def weights_changed(capture: Capture) -> Iterator[Finding]:
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
        yield weights_changed.finding(
            graph,
            subject=partition_id,
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


_UNWRITTEN = "Change weights before the first compiled call, or keep what changes out of parameters and buffers."
_UNREPLACED = (
    "Assign parameters and buffers before the first compiled call, or, if several modules share the code, compile them as one graph."
)
_NOT_FROZEN = (
    "Keep what changes on every call out of parameters and buffers, or set freeze_weights=False, so that no session is created in vain."
)
_UNSHARED = "Compile the model that contains these modules instead of each by itself: one graph with all of them can freeze their weights."
_UNBROKEN = f"Remove the graph break that gives each of these modules a frame of its own, or c{_UNSHARED[1:]}"
_CHANGE_REMEDIES: dict[WeightsChange, str] = {"written": _UNWRITTEN, "replaced": _UNREPLACED}


@rule(
    name="unfrozen_weights",
    looks_for="Weights that are inputs of a session on every call instead of constants, in inference.",
    fires="At 64 KiB of weights of which less than half are constants: binding smaller ones takes about a microsecond. Where they changed, "
    "`weights_changed` reports it.",
    hazard="ONNX Runtime can neither pack nor fold them: a BERT of four layers took 1.16 times as long on 64 tokens, a linear layer of "
    "2048 on 4 rows 1.6 times (measured on two cores).",
    probed="A session with the weights as constants against the one in use, on the same inputs.",
)
def unfrozen_weights(capture: Capture) -> Iterator[Finding]:
    """Report inference partitions whose weights are inputs."""
    sessions, partitions = sessions_by_partition(capture), partitions_by_graph(capture)
    for graph in current(capture):
        if graph.phase != "inference":
            continue
        for part in partitions.get(graph.graph_id, []):
            own = sessions.get(part.partition_id, [])
            latest = own[-1:]
            weights = part.weight_bytes or 0
            frozen = latest[0].frozen_bytes if latest else None
            weights -= (latest[0].table_bytes or 0) if latest else 0
            changed = any(session.cause == "weights" for session in own)
            if frozen is None or weights < _WORTH_FREEZING or 2 * frozen >= weights or changed:
                continue
            yield unfrozen_weights.finding(
                graph,
                subject=part.partition_id,
                title=f"{size_from_bytes((part.weight_bytes or 0) - frozen)} of weights are inputs of {part.partition_id}, not constants",
                evidence=f"{size_from_bytes(frozen)} of {size_from_bytes(part.weight_bytes or 0)} are frozen in {latest[0].session_id}; "
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
def unpacked_weights(capture: Capture) -> Iterator[Finding]:
    """Report sessions in which quantisation saves no memory."""
    for partition_id, sessions, _, graph in sessions_and_graphs(capture):
        session = sessions[-1]
        packed = session.integer_bytes or 0
        held = (session.held_bytes or 0) - (session.frozen_bytes or 0) + packed  # others are packed into copies of the same size
        if packed < _MUCH_PACKED or held < _UNPACKED * packed:
            continue
        yield unpacked_weights.finding(
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
    name="session_arenas",
    looks_for="Sessions that each keep memory for their activations, of which a call uses one after the other.",
    fires="At 256 MiB beyond what the largest of them needs, by a profile: of less, the rest of the process is the larger part.",
    hazard="A graph in several partitions holds activations several times: no session uses the memory of another.",
)
def session_arenas(capture: Capture) -> Iterator[Finding]:
    """Report graphs whose sessions keep much memory side by side."""
    for graph in current(capture):
        latest = latest_sessions(capture, graph)
        peaks = sorted(session.arena_bytes or 0 for session in latest)
        if sum(peaks[:-1]) < _MUCH_IN_ARENAS:
            continue
        yield session_arenas.finding(
            graph,
            subject=graph.graph_id,
            severity="info",
            title=f"the {len(latest)} sessions of {graph.graph_id} keep {size_from_bytes(sum(peaks))} for activations, each its own",
            evidence=f"the largest of them needs {size_from_bytes(peaks[-1])} at a time",
            mitigation="Where memory matters, have fewer partitions: "
            + ("bring the operators between them into ONNX Runtime, or " if fallbacks_by_graph(capture).get(graph.graph_id) else "")
            + "keep small partitions in PyTorch with min_partition_nodes.",
        )


@rule(
    name="packed_copies",
    looks_for="Large weights of matrix products that a session holds once more, packed for its kernels.",
    fires="At 256 MiB that reading PyTorch's own memory would save: of less, the rest of the process is the larger part.",
    hazard="The weights are in memory twice: as PyTorch's, and as ONNX Runtime's packed copies.",
)
def packed_copies(capture: Capture) -> Iterator[Finding]:
    """Report sessions whose packed weights take much memory."""
    for partition_id, sessions, _, graph in sessions_and_graphs(capture):
        session = sessions[-1]
        shared = (session.frozen_bytes or 0) - (session.copied_bytes or 0)
        saved = (session.shareable_bytes or 0) - shared
        if saved < _MANY_PACKED:
            continue
        yield packed_copies.finding(
            graph,
            subject=partition_id,
            severity="info",
            title=f"{session.session_id} holds packed copies of {size_from_bytes(saved)} of weights",
            evidence=f"creating it took {size_from_bytes(session.held_bytes or 0)} of heap and {time_from_ns(session.create_ns)}; "
            f"{size_from_bytes(session.shareable_bytes or 0)} of its {size_from_bytes(session.frozen_bytes or 0)} of constants are read "
            "by matrix products alone, which can read PyTorch's memory",
            **remedy(
                f"Where memory matters more than time, set prepack_weights=False: it saves about {size_from_bytes(saved)}, and sessions "
                "are created faster, but products of several rows get slower; ortlens.tune measures by how much.",
                prepack_weights=False,
            ),
        )


@rule(
    name="too_many_threads",
    looks_for="Sessions with more threads than the process has cores.",
    fires="When there are more threads than cores that the process may use: two threads on one core take turns.",
    hazard="A thread that waits for a core delays the whole operator, and a spinning thread takes the core from one with work.",
    probed="A call with as many threads as cores, or one fewer, against a normal call.",
)
def too_many_threads(capture: Capture) -> Iterator[Finding]:
    """Report sessions that ask for more threads than there are cores."""
    cores = usable_cores(capture)
    crowded = [session for session in capture.sessions if cores and (session.threads or 0) > cores]
    if crowded and cores:
        most = max(session.threads or 0 for session in crowded)
        yield too_many_threads.finding(
            subject=SESSIONS,
            title=f"{counted(len(crowded), 'session')} with up to {most} threads on {cores} cores",
            evidence=f"{_ids(crowded)}: {crowded[0].threads_reason or 'reason not recorded'}; the process may use {cores} cores",
            mitigation=f"{'Set' if is_onnx_model(capture) else f'torch.set_num_threads({cores}), or'} intra_op_num_threads={cores} in "
            "ort_session_options.",
        )


@rule(
    name="spinning_threads",
    looks_for="Sessions whose threads wait actively while PyTorch computes in the same call.",
    fires="At the first such session with more than one thread in a graph that alternates with PyTorch; by default, sessions sleep there.",
    hazard="A spinning thread takes a core from PyTorch's next operator: a matrix product right after a run took 16.0 ms alone and "
    "19.6 to 23.6 ms with spinning (measured on two cores).",
    probed="A call with sleeping threads against a normal call.",
)
def spinning_threads(capture: Capture) -> Iterator[Finding]:
    """Report sessions that spin while PyTorch wants the cores."""
    alternating = {graph.graph_id for graph in current(capture) if graph.fallback_count or (graph.partition_count or 0) > 1}
    inside = {part.partition_id for part in capture.partitions if part.graph_id in alternating}
    spinning = [s for s in capture.sessions if s.spinning and s.threads != 1 and s.partition_id in inside]
    if spinning:
        yield spinning_threads.finding(
            subject=SESSIONS,
            title=f"the threads of {counted(len(spinning), 'session')} spin while PyTorch computes between the runs",
            evidence=f"{_ids(spinning)}: {spinning[0].threads_reason or 'reason not recorded'}; "
            f"{counted(len(alternating), 'graph alternates', 'graphs alternate')} with PyTorch",
            mitigation='Leave ort_session_options out, or add the entry "session.intra_op.allow_spinning" = "0" to it.',
        )


def _ids(sessions: list[Session], limit: int = 6) -> str:
    shown = ", ".join(session.session_id for session in sessions[:limit])
    return shown + (f" and {len(sessions) - limit} more" if len(sessions) > limit else "")


@rule(
    name="tiny_graph",
    looks_for="A graph so small that calling ONNX Runtime costs about as much as running it.",
    fires="When binding and returning outputs take 40 % of the session time, in a graph that is one partition, takes at most 100 µs and "
    "was called at least 10 times.",
    hazard="Overhead dominates, not compute; a faster kernel would change nothing.",
    probed="A call with the graph left to PyTorch against a normal call.",
)
def tiny_graph(capture: Capture) -> Iterator[Finding]:
    """Report graphs in which crossing dominates."""
    times, partitions = run_times(capture), partitions_by_graph(capture)
    costs, per_graph = crossings(capture), graph_times(capture)
    for graph in current(capture):
        latest = latest_sessions(capture, graph)
        timed = [times[session.session_id] for session in latest if session.session_id in times]
        crossing, running = sum(time.crossing_ns for time in timed), sum(time.run_ns for time in timed)
        is_whole = graph.partition_count == 1 and not graph.fallback_count
        is_short = bool(timed) and crossing + running <= _TINY_NS and per_graph[graph.graph_id].calls >= _TINY_CALLS
        if not is_whole or not is_short or crossing < _TINY_SHARE * (crossing + running):
            continue
        flops = sum(part.flops or 0 for part in partitions[graph.graph_id])
        added = sum(costs.get(part.partition_id, 0) for part in partitions[graph.graph_id])
        yield tiny_graph.finding(
            graph,
            subject=graph.graph_id,
            severity="info",
            title=f"{graph.graph_id}: {time_from_ns(crossing)} of overhead for {time_from_ns(running)} of compute",
            evidence=f"medians of bind plus output and of run; {counted(graph.node_count or 0, 'compute node')}, "
            f"{flops:,} floating-point operations; the overhead adds {time_from_ns(added)} to a call of the model",
            **remedy(
                "Use larger batches, compile a larger part of the program as one function, or leave such graphs to PyTorch: "
                f"min_partition_nodes={(graph.node_count or 0) + 1}.",
                min_partition_nodes=(graph.node_count or 0) + 1,
            ),
        )


@rule(
    name="output_allocations",
    looks_for="Sessions with symbolic sizes whose outputs ONNX Runtime allocates on every call.",
    fires="When returning outputs takes 10 % of the session's time and 5 µs per run.",
    hazard="Outputs whose sizes are known only after the run are allocated by ONNX Runtime and wrapped for PyTorch one by one.",
    probed="A session whose outputs PyTorch allocates before the run, against the one in use, on the same inputs.",
)
def output_allocations(capture: Capture) -> Iterator[Finding]:
    """Report sessions that spend their time returning outputs of symbolic size."""
    dynamic = {graph.graph_id for graph in current(capture) if graph.dynamic_shapes}
    times, calls = run_times(capture), calls_by_graph(capture)
    for _, sessions, part, graph in sessions_and_graphs(capture):
        session = sessions[-1]  # those before it ended, or were made for other sizes
        time = times.get(session.session_id)
        if part is None or time is None or part.graph_id not in dynamic or session.calls < ENOUGH_CALLS:
            continue
        whole = time.crossing_ns + time.run_ns
        if time.output_ns < _HANDED_NS or time.output_ns < _HANDED_SHARE * whole:
            continue
        yield output_allocations.finding(
            graph,
            subject=session.session_id,
            severity="info",
            title=f"{session.session_id} spends {time_from_ns(time.output_ns)} of {time_from_ns(whole)} per run on returning "
            f"{counted(part.output_count, 'output')}",
            evidence=f"median of output_ns over the kept runs of {counted(session.calls, 'call')} "
            f"({calls.get(part.graph_id, 0):,} of the model); sizes are symbolic: {session.input_signature or 'signature not recorded'}",
            **remedy("Try preallocate_output=True, and let the graph return no more than is used.", preallocate_output=True),
        )
