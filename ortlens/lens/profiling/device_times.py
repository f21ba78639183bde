"""The device's own time of each kernel: from what ran on a device to the node of ONNX Runtime whose host code launched it.

torch's profiler sees all work of the process on a device, also ONNX Runtime's, and the calls on the host that launched it. ONNX Runtime's
profiler has when each node ran on the host: for a device, that is the time of its launches. A launch within a node is the node's. What no
node launched, such as copies of inputs and replays of a recorded graph, is kept beside the nodes, so that sums stay true.

Only a device whose work torch's profiler shows has such times. Without them, or where they cannot be had, kernels have the times of ONNX
Runtime's profiler, those of the launches; the lens says so. All times are in ns.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple

from ortlens.lens.profiling import profiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    import onnxruntime

    from ortlens.lens.profiling.kernel_records import Turns
    from ortlens.lens.profiling.profiles import SessionRun


_ROUNDED_NS = 2000
"""ONNX Runtime writes starts and durations in whole microseconds, each rounded down: an end may be that much later."""
_TRIED = 400
"""How many offsets between two clocks are tried at most."""


class ClocksDisagree(Exception):  # noqa: N818 - describes two profiles
    """No offset between the clocks puts each run of one profile into its window in the other."""


class DeviceEvent(NamedTuple):
    """A kernel, a copy or a fill that ran on a device."""

    name: str
    start: int
    end: int
    correlation: int  # that of the call that launched it; all work of one replayed graph has the same


class HostSpan(NamedTuple):
    """On the host: a call that starts work on a device, or one run of a session until its device was done."""

    start: int
    end: int
    thread: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What torch's profiler saw, on one clock, while two sessions ran in turns."""

    work: tuple[DeviceEvent, ...]
    launches: Mapping[int, HostSpan]  # by correlation
    profiled: tuple[HostSpan, ...]  # runs of the session that ONNX Runtime's profiler watched
    plain: tuple[HostSpan, ...]  # runs of the session in use


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWork:
    """What one node launched, or what was launched under one name outside of nodes."""

    run_ns: float  # time on the device per run: the median of a pass, the mean of the passes
    low_ns: int  # the shortest run
    high_ns: int  # the longest
    names: tuple[str, ...]  # of the work, in the order of the launches


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUse:
    """What a run of the session in use does to device and host, in ns: medians."""

    busy_ns: int  # the device works
    idle_ns: int  # it waits, between its first and its last work
    launch_ns: int  # the host is in calls that launch
    launches: int  # number of these calls


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTimes:
    """Times of a session on its device."""

    provider: str  # execution provider of that device
    nodes: Mapping[str, DeviceWork]  # by the name of a node of the optimised model; nodes that launched nothing are absent
    outside: Mapping[str, DeviceWork]  # what no node launched, by its own name
    use: DeviceUse


def device_times(provider: str, passes: Sequence[tuple[Trace, Sequence[SessionRun]]], nominal_ns: int) -> DeviceTimes:
    """Join passes of a session; each comes with the runs in ONNX Runtime's profile that its windows `profiled` are, in order.

    ONNX Runtime's times plus `nominal_ns` are the profiler's, if both read the clock that they should. Raises ClocksDisagree.
    """
    sizes = [len(runs) for _, runs in passes]
    inside, outside = _TimesByName(sizes), _TimesByName(sizes)
    uses: list[DeviceUse] = []
    number = 0
    for given, runs in passes:
        trace = _with_known_threads(given)
        # ONNX Runtime's parallel executor runs nodes in threads of its own; else what other threads launch is the program's.
        from_all = any(span.thread != run.thread for run in runs for span in run.nodes)
        by_window = _by_window(trace, trace.profiled, from_all=from_all)
        launches = [[launch.start for _, launch in own if launch is not None] for own in by_window]
        offset = offset_between(trace.profiled, runs, launches, nominal_ns)
        for run, own in zip(runs, by_window, strict=True):
            spans = _Spans(run, offset)
            for work, launch in own:
                node = None if launch is None else spans.around(launch.start)
                if node is None:
                    outside.add(number, work.name, work)
                else:
                    inside.add(number, node, work)
            number += 1
        uses += [_use_of(own) for own in _by_window(trace, trace.plain, from_all=from_all)]
    use = DeviceUse(**{name: round(median([getattr(use, name) for use in uses] or [0])) for name in DeviceUse.__slots__})
    return DeviceTimes(provider=provider, nodes=inside.rows(), outside=outside.rows(), use=use)


class _TimesByName:
    """Time on the device in each run, by name."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._edges = [0, *accumulate(sizes)]
        self._ns: defaultdict[str, list[int]] = defaultdict(lambda: [0] * self._edges[-1])
        self._names: defaultdict[str, dict[str, None]] = defaultdict(dict)

    def add(self, run: int, name: str, work: DeviceEvent) -> None:
        self._ns[name][run] += work.end - work.start
        self._names[name].setdefault(work.name)

    def rows(self) -> dict[str, DeviceWork]:
        return {
            name: DeviceWork(
                # Medians: a run that lost events looks like a fast one.
                run_ns=fmean(median(ns[start:end]) for start, end in pairwise(self._edges)),
                low_ns=min(ns),
                high_ns=max(ns),
                names=tuple(self._names[name]),
            )
            for name, ns in self._ns.items()
        }


def _with_known_threads(trace: Trace) -> Trace:
    """Count all launches as those of the windows where none is: the profiler may not know the system's number of their thread."""
    threads = {window.thread for window in (*trace.profiled, *trace.plain)}
    if not threads or any(launch.thread in threads for launch in trace.launches.values()):
        return trace
    thread = next(iter(threads))
    return replace(trace, launches={key: launch._replace(thread=thread) for key, launch in trace.launches.items()})


def _by_window(trace: Trace, windows: Sequence[HostSpan], *, from_all: bool) -> list[list[tuple[DeviceEvent, HostSpan | None]]]:
    """Collect the work of each window with its launch, in the order of the launches; `from_all` threads, or that of the window.

    Work without a known launch belongs to the run that began last before it: the device is waited for in between.
    """
    found: list[list[tuple[DeviceEvent, HostSpan | None]]] = [[] for _ in windows]
    all_windows = sorted({*trace.profiled, *trace.plain})
    starts, places = [window.start for window in all_windows], {window: place for place, window in enumerate(windows)}
    for work in trace.work:
        launch = trace.launches.get(work.correlation)
        at = bisect_right(starts, work.start if launch is None else launch.start) - 1
        if at < 0 or all_windows[at] not in places:
            continue
        window = all_windows[at]
        if launch is None or (launch.start <= window.end and (from_all or launch.thread == window.thread)):
            found[places[window]].append((work, launch))
    return [sorted(own, key=lambda pair: (pair[0] if pair[1] is None else pair[1]).start) for own in found]


class _Spans:
    """The nodes of a run, on the clock of the trace."""

    def __init__(self, run: SessionRun, offset: int) -> None:
        self._spans = sorted((span.start + offset, span.end + offset + _ROUNDED_NS, span.name) for span in run.nodes)
        self._starts = [start for start, _, _ in self._spans]
        self._longest = max((end - start for start, end, _ in self._spans), default=0)

    def around(self, at: int) -> str | None:
        """Return the innermost node at a time: a body's nodes begin after the node that runs the body."""
        for place in range(bisect_right(self._starts, at) - 1, -1, -1):
            start, end, name = self._spans[place]
            if at <= end:
                return name
            if start + self._longest < at:
                return None
        return None


def offset_between(windows: Sequence[HostSpan], runs: Sequence[SessionRun], launches: Sequence[Sequence[int]], nominal_ns: int) -> int:
    """Return what to add to ONNX Runtime's times to get the profiler's: the nominal number where each run then lies in its window.

    Where it does not, the clocks differ: of the numbers with which all runs lie in their windows, the one that puts most launches into
    nodes, and the middle of several. Raises ClocksDisagree where no number does.
    """
    low = max(window.start - run.start - _ROUNDED_NS // 2 for window, run in zip(windows, runs, strict=True))
    high = min(window.end - run.end for window, run in zip(windows, runs, strict=True))
    if low > high:
        raise ClocksDisagree(f"the runs of the two profiles cannot be aligned: they differ by {low - high} ns")
    if low <= nominal_ns <= high:
        return nominal_ns
    step = max((high - low) // _TRIED, 1)
    tried = range(low, high + 1, step)
    held = [
        sum(_Spans(run, offset).around(at) is not None for run, own in zip(runs, launches, strict=True) for at in own) for offset in tried
    ]
    best = [offset for offset, count in zip(tried, held, strict=True) if count == max(held)]
    return best[len(best) // 2]


def _use_of(own: Sequence[tuple[DeviceEvent, HostSpan | None]]) -> DeviceUse:
    """Compute how busy the device was in one run, and how long it was idle between its first and its last work."""
    intervals = sorted((work.start, work.end) for work, _ in own)
    busy, done = 0, intervals[0][0] if intervals else 0
    for start, end in intervals:
        busy += max(end - max(start, done), 0)
        done = max(done, end)
    launches = {launch for _, launch in own if launch is not None}  # a replayed graph is one
    return DeviceUse(
        busy_ns=busy,
        idle_ns=done - intervals[0][0] - busy if intervals else 0,
        launch_ns=sum(launch.end - launch.start for launch in launches),
        launches=len(launches),
    )


RUNS = 10
"""Runs of each session in a pass; the times of kernels vary little on a device."""
_MAX_PASSES = 3  # of one session: starting and ending the profiler takes longer than the runs
_ACTIVITIES = {"CUDAExecutionProvider": "CUDA"}
"""What torch's profiler calls the work of the device of a provider."""
OTHER_PROFILER, NO_TIME = "another profiler of torch is running", "there was no time for it"
_PROFILED, _PLAIN = "ortlens: profiled run", "ortlens: plain run"
_LAUNCHES = re.compile("cuda|cu[A-Z]")
"""Names of calls of the CUDA runtime and driver: their ids are CUPTI's, while those of torch's own events are other numbers."""
_NO_WORK = re.compile("annotation|sync", re.IGNORECASE)
"""Kinds of events on the device that are no work: ranges of the program, and waiting."""


def device_provider(session: onnxruntime.InferenceSession) -> str | None:
    """Return the provider of a session whose device torch's profiler sees; None without one."""
    return next((name for name in session.get_providers() if name in _ACTIVITIES), None)


@dataclass(slots=True)
class DevicePasses:
    """Passes of one session and its twin under torch's profiler."""

    provider: str
    missing: str = ""  # why there are no times of the device; empty while nothing failed
    _passes: list[tuple[Trace, list[int]]] = field(default_factory=list)  # with the places of the profiled runs among all of the twin

    def make(self, plain: Callable[[], Any], profiled: Callable[[], Any], turns: Turns, count: int) -> None:
        """Run both in turns, up to `RUNS` and `count` times; both wait for the device. A failure is kept in `missing`."""
        if self.missing or len(self._passes) >= _MAX_PASSES or count < 1:
            return
        places: list[int] = []
        try:
            from ortlens import _torch  # which imports torch; an ONNX model needs none

            if _torch.profiler_is_enabled():
                self.missing = OTHER_PROFILER
                return
            trace = self._traced(plain, profiled, turns, places, min(RUNS, count))
        except Exception as error:  # noqa: BLE001 - as of any profile: what is observed goes on, with times of launches
            turns.settle()
            self.missing = f"{type(error).__name__}: {error}"
            return
        if not trace.work:
            self.missing = "torch's profiler saw no work on the device"
        elif len(trace.profiled) != len(places):
            self.missing = f"torch's profiler saw {len(trace.profiled)} of {len(places)} runs"
        else:
            self._passes.append((trace, places))

    def _traced(self, plain: Callable[[], Any], profiled: Callable[[], Any], turns: Turns, places: list[int], count: int) -> Trace:
        from torch.profiler import ProfilerActivity, profile, record_function

        # The CPU's activities are there for the ranges, which both profilers see, and for the numbers of threads.
        activities = {ProfilerActivity.CPU, getattr(ProfilerActivity, _ACTIVITIES[self.provider])}
        with profile(activities=activities) as watched:
            for number in range(count):
                ways = ((_PLAIN, plain), (_PROFILED, profiled))
                for name, run in ways if number % 2 else ways[::-1]:
                    with record_function(name):
                        run()
                places.append(turns.uncounted())
        return trace_from_events(watched.profiler.kineto_results.events())

    def times(self, written: Path, start_ns: int) -> DeviceTimes | None:
        """Join with ONNX Runtime's profile, which began at a reading of the system's clock; None where `missing` tells why."""
        if self.missing or not self._passes:
            self.missing = self.missing or NO_TIME
            return None
        try:
            passes = [(trace, profiles.read_spans(written, places)) for trace, places in self._passes]
            return device_times(self.provider, passes, start_ns)
        except Exception as error:  # noqa: BLE001 - as in `make`
            self.missing = f"{type(error).__name__}: {error}"
            return None


def trace_from_events(events: Iterable[Any]) -> Trace:
    """Read the events of torch's profiler (Kineto): work on devices, the calls that launch it, and our ranges. Times are Unix ns."""
    work: list[DeviceEvent] = []
    launches: dict[int, HostSpan] = {}
    windows: dict[str, list[HostSpan]] = {_PROFILED: [], _PLAIN: []}
    for event in events:
        name, start, end = event.name(), event.start_ns(), event.start_ns() + event.duration_ns()
        if event.device_type().name != "CPU":
            if not _NO_WORK.search(event.activity_type()):
                work.append(DeviceEvent(name, start, end, event.correlation_id()))
        elif name in windows:
            windows[name].append(HostSpan(start, end, event.device_resource_id()))
        elif _LAUNCHES.match(name) and event.correlation_id():
            launches[event.correlation_id()] = HostSpan(start, end, event.device_resource_id())
    known = {item.correlation for item in work}
    return Trace(
        work=tuple(work),
        launches={key: launch for key, launch in launches.items() if key in known},
        profiled=tuple(sorted(windows[_PROFILED])),
        plain=tuple(sorted(windows[_PLAIN])),
    )
