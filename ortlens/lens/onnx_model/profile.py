"""Profiles an ONNX model in a second session beside the one that runs, in turns with it."""

from __future__ import annotations

import copy
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortlens import _ort
from ortlens._shell import progress
from ortlens.backend.basis.node_provenance import FX_NODE_KEY, iter_nodes
from ortlens.errors import SessionError, UsageError
from ortlens.lens.onnx_model.graph_records import MODEL, record_kernel_placement
from ortlens.lens.onnx_model.sessions import FATAL, new_session, runner_of
from ortlens.lens.onnx_model.signature import inputs_from_session
from ortlens.lens.profiling import kernel_origins, profiles
from ortlens.lens.profiling.device_trace import DevicePasses, device_provider
from ortlens.lens.profiling.kernel_records import MAX_EVENTS, Turns, bodies_of, note_launch_times, record_profile, without_weights
from ortlens.trace import records as r

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnx
    import onnxruntime

    from ortlens.lens.observing.time_budget import Repeats
    from ortlens.lens.onnx_model.sessions import SessionChoice
    from ortlens.lens.onnx_model.signature import Feed
    from ortlens.lens.onnx_model.source import ModelSource
    from ortlens.trace.recorder import Recorder

_SESSION = "s0"


def profile(  # noqa: PLR0913, PLR0917 - one call site
    session: onnxruntime.InferenceSession,
    source: ModelSource,
    structure: onnx.ModelProto | None,
    choice: SessionChoice,
    recorder: Recorder,
    feed: Feed,
    repeats: Repeats,
) -> None:
    """Fill the table of kernels, from a second session; raise SessionError if ONNX Runtime cannot make or run it."""
    if source.loadable is None:
        raise UsageError("neither the path nor the bytes of the session's model are known, so that no second session can profile it")
    nodes = 0 if structure is None else len(structure.graph.node)
    affordable = max(MAX_EVENTS // max(nodes, 1) - 2, 1)
    with tempfile.TemporaryDirectory(prefix="ortlens-profile-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        twin = _twin(source, choice, folder)
        inputs, turns = inputs_from_session(session), Turns()
        device: DevicePasses | None = None
        try:
            repeats.restart()
            with progress("profiling", min(repeats.most, affordable) + 1, "run") as step:
                plain, profiled = (runner_of(each, inputs, feed) for each in (session, twin))
                turns.make(_timed(plain, turns.plain_ns), _timed(profiled, turns.profiled_ns), repeats, affordable, step)
                if (provider := device_provider(twin)) is not None:
                    device = DevicePasses(provider=provider)
                    device.make(_timed(plain, turns.plain_ns), _timed(profiled, turns.profiled_ns), turns, min(repeats.most, affordable))
            began_ns = twin.get_profiling_start_time_ns()
            written = Path(twin.end_profiling())
            optimized, cost = without_weights(folder / "optimized.onnx", structure), profiles.measure_cost()
            shown = optimized if optimized is not None else structure
            read = profiles.read_profile(written, turns.groups, {} if shown is None else bodies_of(shown), cost.after_event)
            known = _origins(structure, optimized, {kernel.name: kernel.op_type for kernel in read.kernels})
            named = {node.node: node for node in recorder.records(r.Node)}
            times = None if device is None else device.times(written, began_ns)
            record_profile(recorder, _SESSION, MODEL, twin, turns, read, optimized, known, named, cost.in_event, times)
            note_launch_times(recorder, _SESSION, "" if device is None else device.missing)
        except Exception as error:
            said = " ".join(str(error).split())[:600]
            if isinstance(error, profiles.ProfileIncomplete):
                said = f"the profile is incomplete: {said}; call profile() again with a smaller repeat"
            raise SessionError(f"profiling {source.name} failed: {said}. It writes files into {folder.parent}, which needs room") from error
    record_kernel_placement(recorder, session, structure)


def _twin(source: ModelSource, choice: SessionChoice, folder: Path) -> onnxruntime.InferenceSession:
    ours = choice.options is None
    try:
        return _watched(source, choice, folder, ours=ours, with_model=True)
    except SessionError:  # providers that compile graphs cannot write the model
        return _watched(source, choice, folder, ours=ours, with_model=False)


def _watched(source: ModelSource, choice: SessionChoice, folder: Path, *, ours: bool, with_model: bool) -> onnxruntime.InferenceSession:
    options = choice.made_options()
    severity, options.log_severity_level = options.log_severity_level, FATAL  # it would warn that the optimised model is written
    try:
        with _ort.watched(options, folder, ours=ours, with_model=with_model):
            return new_session(source, choice, options)
    finally:
        options.log_severity_level = severity


def _timed(call: Callable[[], Any], taken: list[int]) -> Callable[[], None]:
    """Append the time of each call to a list."""

    def run() -> None:
        started = time.perf_counter_ns()
        call()
        taken.append(time.perf_counter_ns() - started)

    return run


def _origins(
    structure: onnx.ModelProto | None, optimized: onnx.ModelProto | None, kernels: Mapping[str, str]
) -> dict[str, kernel_origins.Origin]:
    """Trace kernels back to nodes. The nodes of the model are their own origins, where a converted one has FX nodes."""
    if structure is None:
        return {}
    before = copy.deepcopy(structure)
    compute = []
    for node in iter_nodes(before.graph):
        del node.metadata_props[:]
        node.metadata_props.add(key=FX_NODE_KEY, value=node.name)
        compute.append(node.name)
    makers = {value: node for node in iter_nodes(before.graph) for value in node.output if value}
    for node in iter_nodes(optimized.graph) if optimized is not None else ():
        maker = next((makers[value] for value in node.output if value in makers), None)
        if not node.name and maker is not None and maker.op_type == node.op_type:
            node.name = maker.name
    return kernel_origins.origins(before, optimized, kernels, compute)
