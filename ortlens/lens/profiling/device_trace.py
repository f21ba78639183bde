"""Sources of the device's times, one per kind of device: what torch's profiler saw while a session ran.

Only a device whose work torch's profiler shows has one. Without a source, or where it fails, kernels have the times of ONNX Runtime's
profiler, which on a device are those of the launches; the lens says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ortlens import _torch
from ortlens.lens.profiling import profiles
from ortlens.lens.profiling.device_join import DeviceEvent, DeviceTimes, Launch, Trace, Window, device_times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    import onnxruntime

    from ortlens.lens.profiling.kernel_records import Turns

RUNS = 10
"""Runs of each session in a pass; the times of kernels vary little on a device."""
_MAX_PASSES = 3  # of one session: starting and ending the profiler takes longer than the runs
_ACTIVITIES = {"CUDAExecutionProvider": "CUDA"}
"""What torch's profiler calls the work of the device of a provider."""
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
            if _torch.profiler_is_enabled():
                self.missing = "another profiler of torch is running"
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
            self.missing = self.missing or "there was no time for it"
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
    launches: dict[int, Launch] = {}
    windows: dict[str, list[Window]] = {_PROFILED: [], _PLAIN: []}
    for event in events:
        name, start, end = event.name(), event.start_ns(), event.start_ns() + event.duration_ns()
        if event.device_type().name != "CPU":
            if not _NO_WORK.search(event.activity_type()):
                work.append(DeviceEvent(name, start, end, event.correlation_id()))
        elif name in windows:
            windows[name].append(Window(start, end, event.device_resource_id()))
        elif _LAUNCHES.match(name) and event.correlation_id():
            launches[event.correlation_id()] = Launch(start, end, event.device_resource_id())
    known = {item.correlation for item in work}
    return Trace(
        work=tuple(work),
        launches={key: launch for key, launch in launches.items() if key in known},
        profiled=tuple(sorted(windows[_PROFILED])),
        plain=tuple(sorted(windows[_PLAIN])),
    )
