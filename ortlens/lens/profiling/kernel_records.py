"""A session in turns with its twin under the profiler, and records of its kernels from that profile. Nothing here needs torch."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ortlens import _ort
from ortlens.analysis.index import grouped
from ortlens.analysis.roofline import CPU
from ortlens.backend.basis import node_provenance
from ortlens.lens.profiling import kernel_origins, profiles
from ortlens.lens.profiling.device_times import NO_TIME, OTHER_PROFILER, DevicePasses, device_provider
from ortlens.trace import records as r
from ortlens.trace.records import same

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from contextlib import AbstractContextManager

    import onnx
    import onnxruntime

    from ortlens.lens.observing.time_budget import Repeats
    from ortlens.lens.profiling.device_times import DeviceTimes, DeviceWork
    from ortlens.trace.recorder import Recorder

_MAX_EVENTS = 100_000  # most kernel events of one session; each takes some 700 bytes in the file, and more when read
LARGE = 1024  # bytes; larger constants are left out of models. Shapes, axes and scales are smaller, and shape inference reads them
_COPY = "Memcpy"  # how the operators begin that ONNX Runtime inserts between devices
_LEAST = 0.1  # share of its profiled time that a kernel keeps whatever the profiler costs: a kernel that ran took some time


@dataclass(slots=True)
class Turns:
    """Runs of a session in turns with and without the profiler."""

    plain_ns: list[int] = field(default_factory=list)
    profiled_ns: list[int] = field(default_factory=list)
    groups: list[int | None] = field(default_factory=list)  # the call of each pair of runs; None for those that warm up

    def make(
        self, plain: Callable[[], Any], profiled: Callable[[], Any], repeats: Repeats, affordable: int, step: Callable[[int], None]
    ) -> None:
        """Make runs on the same inputs, after one of each that warms up; both append their times themselves."""
        group, number = len(self.groups), 0
        while number <= affordable and not repeats.are_enough(number - 1):
            for run in (plain, profiled) if number % 2 else (profiled, plain):
                run()
            self.groups.append(group if number else None)
            step(1)
            number += 1
        step(repeats.most + 1 - number)

    def uncounted(self) -> int:
        """Note a pair of runs that were made elsewhere and count in no time; return its place."""
        self.groups.append(None)
        return len(self.groups) - 1

    def settle(self) -> None:
        """Make up for a pair that failed between its runs: what was made of it counts in no time."""
        made = len(self.profiled_ns)
        self.groups += [None] * (made - len(self.groups))
        self.plain_ns[:] = [*self.plain_ns, *[0] * made][:made]


_Twin = TypeVar("_Twin")
Watched: TypeAlias = "Callable[[onnxruntime.SessionOptions], AbstractContextManager[None]]"
"""Sets options for a session that is created inside the context."""


def with_profiler(make: Callable[[Watched], _Twin], folder: Path, *, ours: bool) -> _Twin:
    """Make a session that writes its profile and its optimised model into a folder.

    `make` creates it inside the context that its argument returns for the options, `ours` or the user's. Where a provider compiles parts
    of the graph, which cannot be written as a model, the profile alone is written.
    """
    watched = functools.partial(_ort.watched, folder=folder, ours=ours)
    try:
        return make(functools.partial(watched, with_model=True))
    except Exception:  # noqa: BLE001 - one class of ours, or another; whatever else is wrong is so without the model too
        return make(functools.partial(watched, with_model=False))


@dataclass(slots=True)
class ProfilerTwin:
    """A second session, with the profiler, and its runs in turns with the session in use."""

    session: onnxruntime.InferenceSession
    node_count: int  # about how many events a run adds to the profile
    turns: Turns = field(default_factory=Turns)
    device: DevicePasses | None = field(init=False)  # None for a session on the CPU

    def __post_init__(self) -> None:
        """Look for a device whose work torch's profiler sees."""
        provider = device_provider(self.session)
        self.device = None if provider is None else DevicePasses(provider=provider)

    def measure(self, plain: Callable[[], Any], profiled: Callable[[], Any], repeats: Repeats, step: Callable[[int], None]) -> None:
        """Run both on the same inputs in turns; fewer repeats if the profile would grow too large, at least one."""
        self.turns.make(plain, profiled, repeats, max(min(repeats.most, self._affordable()), 1), step)
        if self.device is not None and not repeats.budget.is_over():
            self.device.make(plain, profiled, self.turns, min(repeats.most, self._affordable()))

    def _affordable(self) -> int:
        return _MAX_EVENTS // max(self.node_count, 1) - len(self.turns.groups) - 1


def without_weights(path: Path, source: onnx.ModelProto | None) -> onnx.ModelProto | None:
    """Read the model as optimised by ONNX Runtime, with no other constants than its `source` has; None if the provider cannot write it."""
    import onnx

    if not path.is_file():
        return None
    model = onnx.load(path, load_external_data=False)
    known = set() if source is None else {tensor.name for tensor in _inline(source)}
    if source is not None:
        known |= {name for node in node_provenance.iter_nodes(source.graph) if node.op_type == "Constant" for name in node.output}
    for tensor in _inline(model):  # small weights, and with the user's session options all; what ONNX Runtime made of them has another name
        if tensor.name not in known or len(tensor.raw_data) > LARGE:
            leave_out(tensor)
    return model


def leave_out(tensor: onnx.TensorProto) -> None:
    """Drop the data of a constant, and mark it as external: the structure stays a valid model."""
    for name in ("raw_data", "float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data", "external_data"):
        tensor.ClearField(name)
    tensor.data_location = tensor.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")


def with_outside_values(model: Any, names: Collection[str]) -> tuple[onnx.ModelProto, list[str]]:
    """Turn some inputs of a model, in place, into constants whose bytes are passed separately; return it and the names of these."""
    frozen = [value.name for value in model.graph.input if value.name in names]
    for value in [value for value in model.graph.input if value.name in names]:
        kind = value.type.tensor_type
        tensor = model.graph.initializer.add(name=value.name, data_type=kind.elem_type, dims=[dim.dim_value for dim in kind.shape.dim])
        tensor.data_location = tensor.EXTERNAL
        for key, text in (("location", "weights"), ("offset", "0"), ("length", str(size_of(tensor)))):
            tensor.external_data.add(key=key, value=text)
        model.graph.input.remove(value)
    return model, frozen


def _inline(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    """List the initializers whose data is in the model."""
    return [tensor for graph in node_provenance.graphs_of(model) for tensor in graph.initializer if not tensor.data_location]


def bodies_of(model: onnx.ModelProto) -> dict[str, str]:
    """Map each kernel in a body of control flow to the kernel that runs the body."""
    return {
        inner.name: outer.name
        for outer in node_provenance.iter_nodes(model.graph)
        for _, body in node_provenance.subgraphs_of(outer)
        for inner in body.node
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledSession:
    """A session whose twin has made its runs, and what its kernels are traced back to."""

    session_id: str
    model_id: str | None  # the model that ran is recorded under it
    twin: ProfilerTwin
    model: onnx.ModelProto | None  # whose nodes have provenance; None if it is unknown
    optimized: onnx.ModelProto | None  # the same as optimised by ONNX Runtime; None where the provider cannot write it
    compute: Sequence[str]  # the names of the nodes that provenance may name, in order
    nodes: Mapping[str, r.Node]  # their records


def record_profile(recorder: Recorder, profiled: ProfiledSession, cost: profiles.Cost) -> None:
    """End the profile of a session, and record its kernels, with the device's times if there are any, and the model that ran."""
    session, turns, device, optimized = profiled.twin.session, profiled.twin.turns, profiled.twin.device, profiled.optimized
    began_ns, written = session.get_profiling_start_time_ns(), Path(session.end_profiling())
    shown = optimized if optimized is not None else profiled.model
    read = profiles.read_profile(written, turns.groups, {} if shown is None else bodies_of(shown), cost.after_event)
    times = None if device is None else device.times(written, began_ns)
    rows = _kernels(profiled, read, cost.in_event)
    rows = with_refusals(rows, read.kernels, session.get_providers()[0], optimized)
    runs = sum(group is not None for group in turns.groups)
    if times is not None:
        host = [max(kernel.total_ns - cost.in_event * kernel.calls, _LEAST * kernel.total_ns) / kernel.calls for kernel in read.kernels]
        rows = on_device(rows, host, runs, times)
    rows = with_copies(rows, optimized)
    rows = [*(kernel for kernel in recorder.records(r.Kernel) if kernel.session_id != profiled.session_id), *rows]
    order = {known.session_id: place for place, known in enumerate(recorder.records(r.Session))}
    recorder.replace_all(r.Kernel, sorted(rows, key=lambda row: order.get(row.session_id, -1)))
    use = {} if times is None else _use(times, _quiet_ns(turns) / max(runs, 1))
    recorder.amend(r.Session, profiled.session_id, arena_bytes=read.arena_bytes, **use)
    if optimized is not None and profiled.model_id is not None:
        graphs = {node.graph_id for node in profiled.nodes.values()}
        names = {row.input: row.name for row in recorder.records(r.GraphInput) if row.graph_id in graphs}
        readable = node_provenance.with_input_names(optimized, names)
        recorder.attach(f"models/{profiled.model_id}.optimized.onnx", readable.SerializeToString())
        recorder.amend(r.Model, profiled.model_id, optimized_node_count=len(optimized.graph.node))
    _note_launch_times(recorder, profiled.session_id, "" if device is None else device.missing)


def _kernels(profiled: ProfiledSession, read: profiles.Profile, cost_ns: float) -> list[r.Kernel]:
    """Make the records of kernels; `cost_ns` is what the profiler adds to a kernel's call."""
    total_ns = _quiet_ns(profiled.twin.turns)
    origins: Mapping[str, kernel_origins.Origin] = {}
    if profiled.model is not None:
        names = {kernel.name: kernel.op_type for kernel in read.kernels}
        origins = kernel_origins.origins(profiled.model, profiled.optimized, names, profiled.compute)
    assigned = {name: each.provider for each in _ort.assignments(profiled.twin.session) for name in each.nodes}
    times = divided([kernel.total_ns for kernel in read.kernels], [kernel.calls for kernel in read.kernels], total_ns, cost_ns)
    rows = []
    for kernel, own_ns in zip(_with_packed_weights(read.kernels, profiled.optimized), times, strict=True):
        found = origins.get(kernel.name) or kernel_origins.Origin(kernel=kernel.name, op_type=kernel.op_type)
        origin = _charged(found, profiled.nodes)
        place = _place(origin, profiled.nodes)
        rows.append(
            r.Kernel(
                session_id=profiled.session_id,
                kernel=kernel.name,
                provider=kernel.provider or assigned.get(kernel.name, ""),
                total_ns=own_ns,
                mean_ns=round(own_ns / kernel.calls),
                low_ns=_scaled(kernel.low_ns, kernel, own_ns),
                high_ns=_scaled(kernel.high_ns, kernel, own_ns),
                share=own_ns / total_ns if total_ns else None,
                **same(kernel, "op_type", "calls", "bytes"),
                **same(origin, "node", "nodes", "onnx_nodes", "onnx_ops"),
                **({} if place is None else same(place, "module", "file", "line")),
                confidence="inferred" if origin.candidates and place is not None else origin.confidence,
            )
        )
    return rows


def _quiet_ns(turns: Turns) -> int:
    """Sum up all counted runs, at the mean of the faster half of the runs of each call."""
    calls = grouped((group, time) for group, time in zip(turns.groups, turns.plain_ns, strict=True) if group is not None)
    return round(sum(profiles.quiet_mean(times) * len(times) for times in calls.values()))


def with_refusals(
    rows: Sequence[r.Kernel], kernels: Sequence[profiles.ProfiledKernel], preferred: str, model: onnx.ModelProto | None
) -> list[r.Kernel]:
    """Add to kernels on the CPU why the preferred provider does not run them; `model` is the optimised one, if it is known."""
    nodes = {} if model is None else {node.name: node for node in node_provenance.iter_nodes(model.graph)}
    opsets = {} if model is None else node_provenance.opsets_of(model)
    found = list(rows)
    for place, (row, kernel) in enumerate(zip(rows, kernels, strict=True)):
        node = nodes.get(row.kernel)
        if preferred == CPU or row.provider != CPU or row.op_type.startswith(_COPY) or (node is None and _ort.listed_kernels(preferred)):
            continue
        domain = "" if node is None or node.domain == "ai.onnx" else node.domain
        cause, about = _ort.refusal(preferred, domain, row.op_type, opsets.get(domain, 1), kernel.types)
        found[place] = replace(row, refusal=cause, refused=about)
    return found


def with_copies(rows: Sequence[r.Kernel], model: onnx.ModelProto | None) -> list[r.Kernel]:
    """Add to kernels with a refusal the time of the copies that they read from and are read by."""
    copies = {row.kernel: row.mean_ns or 0 for row in rows if row.op_type.startswith(_COPY)}
    nodes = [] if model is None else list(node_provenance.iter_nodes(model.graph))
    ends = {node.name: {*node.input, *node.output} - {""} for node in nodes}

    def next_to(kernel: str) -> int:
        return sum(time for copy, time in copies.items() if not ends.get(copy, set()).isdisjoint(ends.get(kernel, ())))

    return [replace(row, copies_ns=next_to(row.kernel)) if row.refusal and copies else row for row in rows]


def on_device(rows: Sequence[r.Kernel], host_ns: Sequence[float], runs: int, device: DeviceTimes) -> list[r.Kernel]:
    """Give the kernels of a session the time that they took on its device, and add what no node launched.

    `host_ns` is the time of a call on the host, which is that of a kernel of the CPU. `runs` are those that count.
    """
    found = []
    for row, own_ns in zip(rows, host_ns, strict=True):
        work = device.nodes.get(row.kernel)
        if work is None and row.provider == CPU:
            found.append(replace(row, total_ns=round(own_ns * row.calls), mean_ns=round(own_ns)))
        else:  # a node of a device that launches nothing, such as a reshape, takes no time there
            found.append(_timed_on_device(row, work, runs))
    for name, work in device.outside.items():
        row = r.Kernel(session_id=rows[0].session_id, kernel=name, op_type=r.OUTSIDE, provider=device.provider, calls=runs)
        found.append(_timed_on_device(row, work, runs))
    whole = sum(row.total_ns for row in found)
    return [replace(row, share=row.total_ns / whole if whole else None) for row in found]


def _timed_on_device(row: r.Kernel, work: DeviceWork | None, runs: int) -> r.Kernel:
    if work is None:
        return replace(row, total_ns=0, mean_ns=0, low_ns=None, high_ns=None)
    each = runs / row.calls  # runs per call: a node in the body of a loop has several calls in a run
    return replace(
        row,
        total_ns=round(work.run_ns * runs),
        mean_ns=round(work.run_ns * each),
        low_ns=round(work.low_ns * each),
        high_ns=round(work.high_ns * each),
        device_kernels=work.names,
    )


def _use(device: DeviceTimes, run_ns: float) -> dict[str, int]:
    """Return the fields of a session; idle is at most what a run without torch's profiler, which makes launches slower, leaves."""
    use = device.use
    idle_ns = min(use.idle_ns, max(round(run_ns) - use.busy_ns, 0))
    return {"device_busy_ns": use.busy_ns, "device_idle_ns": idle_ns, "launch_ns": use.launch_ns, "launches": use.launches}


_REMEDIES = {OTHER_PROFILER: "Profile again, without another profiler around it.", NO_TIME: "Profile again, with a larger budget_s."}


def _note_launch_times(recorder: Recorder, session_id: str, missing: str) -> None:
    """Record that the kernels of a session have the times of launches, if it is said why; that of an earlier profile goes."""
    found = r.Finding(
        rule="launch_times",
        subject=session_id,
        severity="warning",
        title=f"kernels of {session_id} have the times of their launches, not those of the device",
        evidence=missing[:2000],
        hazard="A kernel that takes long on the device does not stand out.",
        mitigation=_REMEDIES.get(missing, "See what torch.profiler shows of this device without ortlens."),
    )
    recorder.replace_findings((found.rule,), [found] if missing else [], subject=session_id)


def _with_packed_weights(kernels: Sequence[profiles.ProfiledKernel], model: onnx.ModelProto | None) -> list[profiles.ProfiledKernel]:
    """Count the weights that kernels packed when they were created, in the model's size: the profile does not list them as read."""
    nodes = {} if model is None else {node.name: node for node in model.graph.node if node.name}
    sizes = {} if model is None else {tensor.name: size_of(tensor) for tensor in model.graph.initializer}
    found = list(kernels)
    for place, kernel in enumerate(kernels):
        if kernel.bytes is not None and kernel.name in nodes and kernel.op_type not in profiles.LOOKUPS:
            constants = sum(sizes.get(name, 0) for name in set(nodes[kernel.name].input))
            found[place] = replace(kernel, bytes=kernel.bytes + max(constants - kernel.parameter_bytes, 0))
    return found


def size_of(tensor: onnx.TensorProto) -> int:
    """Compute the bytes of a constant from its type and dimensions, with or without its data; of text, those of its characters."""
    import onnx

    if tensor.data_type == onnx.TensorProto.STRING:
        return sum(len(text) for text in tensor.string_data)
    count: int = math.prod(tensor.dims)
    return math.ceil(count * bits_of(tensor.data_type) / 8)


def bits_of(element_type: int) -> int:
    """Return the bits of one element; 0 for text and unknown types."""
    import onnx

    name = onnx.TensorProto.DataType.Name(element_type) if element_type in onnx.TensorProto.DataType.values() else ""
    known = {"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2, "STRING": 0, "UNDEFINED": 0, "": 0}
    return known[name] if name in known else 8 * int(onnx.helper.tensor_dtype_to_np_dtype(element_type).itemsize)


def _scaled(profiled_ns: float | None, kernel: profiles.ProfiledKernel, own_ns: int) -> int | None:
    """Scale a time of one call by the same factor as its mean."""
    if profiled_ns is None or kernel.total_ns <= 0:
        return None
    return round(profiled_ns * (own_ns / kernel.total_ns) / kernel.calls)


def _charged(origin: kernel_origins.Origin, nodes: Mapping[str, r.Node]) -> kernel_origins.Origin:
    """Charge a kernel's time to its node with the most operations, the last of equals; to the output's node where none are counted."""
    flops = [(nodes[name].flops or 0, name) for name in origin.nodes if name in nodes]
    most = max((count for count, _ in flops), default=0)
    return replace(origin, node=[name for count, name in flops if count == most][-1]) if most else origin


def _place(origin: kernel_origins.Origin, nodes: Mapping[str, r.Node]) -> r.Node | None:
    """Find the node whose line a kernel gets: the one charged with its time, else one with a known line, or what candidates share."""
    names = (origin.node or "", *reversed(origin.nodes))
    known = [nodes[name] for name in names if name in nodes]
    maybe = [nodes[name] for name in origin.candidates if name in nodes]
    if maybe and len({(node.file, node.line) for node in maybe}) == 1:
        return replace(maybe[0], module=maybe[0].module if len({node.module for node in maybe}) == 1 else None)
    return next((node for node in known if node.line is not None), known[0] if known else None)


def divided(profiled_ns: Sequence[float], calls: Sequence[int], total_ns: int, cost_ns: float = 0.0) -> list[int]:
    """Divide the time of as many unprofiled runs, in ns, among kernels; the results add up to `total_ns`.

    The profiler adds about the same to each call, so `cost_ns` is taken from each, down to a tenth of its time. If the rest still exceeds
    the total, the excess is taken from each call alike; what is then left over or missing changes all in proportion.
    """
    least = [_LEAST * time for time in profiled_ns]
    times = [max(time - cost_ns * count, low) for time, count, low in zip(profiled_ns, calls, least, strict=True)]
    times = _without_excess(times, calls, least, float(total_ns))
    whole = sum(times)
    if not whole:
        times, whole = [float(count) for count in calls], float(sum(calls))
    ends = [round(total_ns * upto / whole) for upto in accumulate(times)] if whole else []
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def _without_excess(given: Sequence[float], calls: Sequence[int], least: Sequence[float], total_ns: float) -> list[float]:
    """Subtract the same from every call until the sum fits; entries already at the minimum are skipped."""
    times = list(given)
    giving = {place for place, time in enumerate(times) if time > least[place]}
    while giving and (excess := sum(times) - total_ns) > 1e-9 * total_ns:
        each = excess / sum(calls[place] for place in giving)
        bottom = {place for place in giving if times[place] - each * calls[place] <= least[place]}
        for place in bottom or giving:
            times[place] = least[place] if place in bottom else times[place] - each * calls[place]
        giving = giving - bottom if bottom else set()
    return times
