"""Reads a profile of ONNX Runtime, which has how long each kernel took in the counted runs, and measures what the profiler itself costs.

The file has one event per line for each session, run and kernel, in microseconds. The event of a control flow kernel includes the
kernels of its body; here a time is the kernel's own. The faster half of the runs is averaged: the others were interrupted more, and a
median would be limited to whole microseconds.
"""

from __future__ import annotations

import bisect
import json
import math
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ortlens.analysis.index import grouped
from ortlens.errors import SessionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


_SUFFIX = "_kernel_time"
_STRETCHES, _IN_A_STRETCH = 4, 4
"""Into how many stretches repeats are divided, and how many it takes for each. By chance alone, those of two profiles lie apart in 3 of 100
comparisons, so a difference has to be a tenth as well, and has to explain a part of one of its partition."""

LOOKUPS = frozenset({"Gather", "GatherElements", "GatherND", "GatherBlockQuantized"})
"""Operators that read of their first input what they write."""

_ITEM_BYTES = dict.fromkeys(("double", "int64", "uint64"), 8) | dict.fromkeys(("float", "int32", "uint32"), 4)
_ITEM_BYTES |= dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2) | dict.fromkeys(("int8", "uint8", "bool"), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledKernel:
    """Times of one kernel."""

    name: str  # name of the node in the optimised model
    op_type: str
    provider: str  # execution provider that ran it; empty if the profile does not report it
    calls: int  # how often it ran in the counted runs
    total_ns: float  # its own time in them, under the profiler
    # bytes that a call reads and writes, without weights that the kernel packed when it was created; None if the profile does not report it
    bytes: int | None
    parameter_bytes: int = 0  # of these, constants of the model
    types: tuple[str, ...] = ()  # element types that it reads, in ONNX Runtime's words, in the order of its inputs
    # what `total_ns` would be by the fastest stretch of the repeats alone; None where there are too few of them
    low_ns: float | None = None
    high_ns: float | None = None  # the same by the slowest


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The content of a profile."""

    kernels: tuple[ProfiledKernel, ...]  # in the order in which they first ran
    arena_bytes: int | None  # most bytes that the allocator held for activations at a time; None if the profile does not report it


class ProfileIncomplete(Exception):  # noqa: N818 - describes a file
    """The profile ends before the last run: ONNX Runtime keeps a million events and drops the rest."""


def read_profile(path: Path, groups: Sequence[int | None], bodies: Mapping[str, str], nested_ns: float = 0.0) -> Profile:
    """Read the kernels of a session with their own times; raises ProfileIncomplete if the profile has fewer runs than were made.

    A run with the group None does not count. The event of a kernel that runs a body includes `nested_ns` of overhead per inner event.
    """
    starts = sorted(int(event["ts"]) for event in _events(path, "model_run") if event.get("name") == "model_run")
    if len(starts) != len(groups):
        raise ProfileIncomplete(f"the profile holds {len(starts)} of {len(groups)} runs")
    reader = _Reader(starts, groups)
    for event in _events(path, _SUFFIX):
        if event.get("cat") == "Node" and str(event.get("name", "")).endswith(_SUFFIX):
            reader.take(event)
    return reader.profile(bodies, nested_ns / 1000)


def _events(path: Path, marker: str) -> Iterator[Mapping[str, Any]]:
    """Yield the events on lines that contain a text, line by line: ONNX Runtime writes one per line, and files may be large."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if marker in line:
                yield json.loads(line.strip().removesuffix(","))


class NodeSpan(NamedTuple):
    """When a node ran on the host, in ns since the profile began; start and end are whole microseconds, rounded down."""

    name: str
    start: int
    end: int
    thread: int


class SessionRun(NamedTuple):
    """When a session ran, likewise, and its nodes."""

    start: int
    end: int
    thread: int
    nodes: list[NodeSpan]


def read_spans(path: Path, wanted: Sequence[int]) -> list[SessionRun]:
    """Read when the nodes of some runs ran; runs are counted from 0, and a profile without one of them raises ProfileIncomplete."""
    runs = sorted(_span(event) for event in _events(path, "model_run") if event.get("name") == "model_run")
    if max(wanted, default=-1) >= len(runs):
        raise ProfileIncomplete(f"the profile holds {len(runs)} runs")
    starts, nodes = [start for start, _, _ in runs], {run: list[NodeSpan]() for run in wanted}
    for event in _events(path, _SUFFIX):
        name = str(event.get("name", ""))
        if event.get("cat") == "Node" and name.endswith(_SUFFIX):
            start, end, thread = _span(event)
            run = bisect.bisect_right(starts, start) - 1
            if run in nodes:
                nodes[run].append(NodeSpan(name.removesuffix(_SUFFIX), start, end, thread))
    return [SessionRun(*runs[run], nodes[run]) for run in wanted]


def _span(event: Mapping[str, Any]) -> tuple[int, int, int]:
    start = 1000 * int(event["ts"])
    return start, start + 1000 * int(event["dur"]), int(event.get("tid", 0))


class _Reader:
    """Collects events, run by run."""

    def __init__(self, starts: Sequence[int], groups: Sequence[int | None]) -> None:
        self._starts = starts
        self._groups = groups
        self._runs_of = grouped((group, run) for run, group in enumerate(groups) if group is not None)
        self._micros: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self._times: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self._calls: dict[str, int] = defaultdict(int)
        self._bytes: dict[str, int | None] = defaultdict(int)
        self._parameters: dict[str, int] = defaultdict(int)
        self._facts: dict[str, tuple[str, str, tuple[str, ...]]] = {}
        self._before: int | None = None  # bytes that the allocator held before the first kernel: packed weights, which do not count
        self._most: int | None = None

    def take(self, event: Mapping[str, Any]) -> None:
        run = bisect.bisect_right(self._starts, int(event["ts"])) - 1
        args = event.get("args") or {}
        self._take_memory(args)
        if run < 0:
            return
        name = str(event["name"]).removesuffix(_SUFFIX)
        types = tuple(kind for item in args.get("input_type_shape") or () for kind in item)
        self._facts.setdefault(name, (str(args.get("op_name", "")), str(args.get("provider", "")), types))
        self._micros[name][run] += int(event["dur"])
        self._times[name][run] += 1
        if self._groups[run] is not None:
            self._calls[name] += 1
            known, size = self._bytes[name], _touched(args)
            self._bytes[name] = None if known is None or size is None else known + size
            self._parameters[name] += int(args.get("parameter_size") or 0)

    def profile(self, bodies: Mapping[str, str], nested: float) -> Profile:
        own: dict[str, dict[int, float]] = {name: dict(runs) for name, runs in self._micros.items()}
        for name, parent in bodies.items():
            if name in self._micros and parent in own:
                for run, micros in self._micros[name].items():  # the whole kernel, including its own bodies
                    own[parent][run] = own[parent].get(run, 0) - micros - nested * self._times[name][run]
        return Profile(
            kernels=tuple(self._kernel(name, own[name]) for name in self._facts if self._calls[name]),
            arena_bytes=None if self._most is None or self._before is None else max(self._most - self._before, 0),
        )

    def _take_memory(self, args: Mapping[str, Any]) -> None:
        in_use, delta = args.get("mem_bytes_in_use"), args.get("mem_in_use_delta")
        if in_use is None or delta is None:
            return
        now, peak = int(in_use), int(args.get("mem_in_use_peak", in_use))
        if self._before is None:
            self._before = now - int(delta)
        self._most = max(self._most or 0, now, peak)

    def _kernel(self, name: str, micros: Mapping[int, float]) -> ProfiledKernel:
        op_type, provider, types = self._facts[name]
        total = sum(quiet_mean([micros.get(run, 0) for run in runs]) * len(runs) for runs in self._runs_of.values())
        size, calls = self._bytes[name], self._calls[name]
        low, high = self._band(micros) or (None, None)
        if low is not None and high is not None:  # the mean is that of the faster half of all, which may be faster than any stretch
            low, high = min(low, 1000.0 * max(total, 0.0)), max(high, 1000.0 * total)
        return ProfiledKernel(
            name=name,
            op_type=op_type,
            provider=provider,
            calls=calls,
            total_ns=1000.0 * max(total, 0.0),
            bytes=None if size is None else round(size / calls),
            parameter_bytes=round(self._parameters[name] / calls),
            types=types,
            low_ns=low,
            high_ns=high,
        )

    def _band(self, micros: Mapping[int, float]) -> tuple[float, float] | None:
        """Bound the sum by a few stretches of the repeats, a microsecond per run wider: what lies between is no difference."""
        fewest = min(map(len, self._runs_of.values()), default=0)
        count = min(_STRETCHES, fewest // _IN_A_STRETCH)
        if count < _STRETCHES // 2:
            return None
        sums = [0.0] * count
        for runs in self._runs_of.values():
            edges = [len(runs) * number // count for number in range(count + 1)]
            for number, (start, stop) in enumerate(pairwise(edges)):
                sums[number] += quiet_mean([micros.get(run, 0) for run in runs[start:stop]]) * len(runs)
        step = sum(map(len, self._runs_of.values()))
        return 1000.0 * max(min(sums) - step, 0.0), 1000.0 * (max(sums) + step)


def quiet_mean(values: Sequence[float]) -> float:
    """Average the faster half, the middle included: other load can only make a run longer."""
    faster = sorted(values)[: (len(values) + 1) // 2]
    return sum(faster) / len(faster)


def _touched(args: Mapping[str, Any]) -> int | None:
    sizes = [args.get(key) for key in ("activation_size", "parameter_size", "output_size")]
    if None in sizes:
        return None
    touched = sum(int(size) for size in sizes if size is not None)
    if args.get("op_name") in LOOKUPS:  # of the table only what goes into the result
        touched += int(args["output_size"]) - _first_input(args)
    return touched


def _first_input(args: Mapping[str, Any]) -> int:
    """Return the bytes of the first input; 0 for an element type that the profile names otherwise than PyTorch and numpy."""
    ((name, shape),) = next(iter(args.get("input_type_shape") or [{"": []}])).items()
    size: int = math.prod(shape) * _ITEM_BYTES.get(name, 0)
    return min(size, int(args["activation_size"]) + int(args["parameter_size"]))


_SHORT, _LONG = 16, 80  # kernels
_ROUNDS = 40
_WARM = 5


class Cost(NamedTuple):
    """What the profiler costs per call of a kernel, in ns."""

    in_event: float  # what it adds to the reported time of the kernel
    # what it takes after its second reading of the clock: reported as part of the kernel of control flow, if the kernel runs in the body of
    # one
    after_event: float


def measure_cost() -> Cost:
    """Measure the overhead of the profiler, about 1800 and 2500 ns on common machines; takes about 0.15 s.

    It records sizes and shapes between its two readings of the clock, so that it reports 2 us for a kernel of 0.2 us. The difference
    between two models of such kernels, run without it, is the true time of the additional kernels, without the overhead of a run.

    Raises SessionError if there is no room for the profile.
    """
    import numpy as np

    with tempfile.TemporaryDirectory(prefix="ortlens-profile-", ignore_cleanup_errors=True) as folder:
        sessions = _session(_SHORT, None), _session(_LONG, None), _session(_LONG, folder)
        times: tuple[list[int], ...] = [], [], []
        feed = {"v0": np.ones(8, dtype=np.float32)}
        for _ in range(_ROUNDS):  # in turns, so that other load affects all of them alike
            for session, taken in zip(sessions, times, strict=True):
                started = time.perf_counter_ns()
                session.run(None, feed)
                taken.append(time.perf_counter_ns() - started)
        written = Path(sessions[-1].end_profiling())
        try:
            events = json.loads(written.read_bytes())
        except ValueError as error:
            raise SessionError(
                f"ONNX Runtime's profiler could not write {written} to its end; free some space there, or set TMPDIR to another folder"
            ) from error
    reported = [1000 * int(event["dur"]) for event in events if event.get("cat") == "Node"][_LONG * _WARM :]
    short, long, watched = (quiet_mean(taken[_WARM:]) for taken in times)
    true = (long - short) / (_LONG - _SHORT)
    if not reported:
        return Cost(0.0, 0.0)
    inside = max(quiet_mean(reported) - max(true, 0.0), 0.0)
    return Cost(in_event=inside, after_event=max((watched - long) / _LONG - inside, 0.0))


def _session(length: int, folder: str | None) -> Any:
    import onnx
    import onnxruntime

    nodes = [onnx.helper.make_node("Add" if i % 2 else "Mul", [f"v{i}", "c"], [f"v{i + 1}"]) for i in range(length)]
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [8]) for name in ("v0", f"v{length}")]
    constant = onnx.helper.make_tensor("c", onnx.TensorProto.FLOAT, [8], [1.5] * 8)
    graph = onnx.helper.make_graph(nodes, "cost", ends[:1], ends[1:], [constant])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if folder is not None:
        options.enable_profiling, options.profile_file_prefix = True, str(Path(folder) / "cost")
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
