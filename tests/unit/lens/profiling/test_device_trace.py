"""What is read of torch's profiler: events of CUDA as Kineto tells them, and a real profile of the CPU."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ortlens._torch import profiler_is_enabled
from ortlens.lens.profiling import device_times
from ortlens.lens.profiling.device_times import DeviceEvent, DevicePasses, Launch, Trace, Window, device_provider, trace_from_events
from ortlens.lens.profiling.kernel_records import Turns


@dataclass(frozen=True)
class Event:
    _name: str
    _start: int
    _duration: int
    _device: str = "CPU"
    _correlation: int = 0
    _thread: int = 1
    _kind: str = ""

    def name(self) -> str:
        return self._name

    def start_ns(self) -> int:
        return self._start

    def duration_ns(self) -> int:
        return self._duration

    def device_type(self) -> Any:  # noqa: ANN401 - an enum of torch
        return SimpleNamespace(name=self._device)

    def correlation_id(self) -> int:
        return self._correlation

    def device_resource_id(self) -> int:
        return self._thread

    def activity_type(self) -> str:
        return self._kind


RANGE = "ortlens: profiled run"


def test_work_launches_and_ranges_are_told_apart() -> None:
    seen = trace_from_events(
        [
            Event(RANGE, 100, 900, _thread=42, _kind="user_annotation"),
            Event("ortlens: plain run", 1100, 900, _thread=42, _kind="user_annotation"),
            Event(RANGE, 150, 500, "CUDA", 3, 7, _kind="gpu_user_annotation"),  # the same range on the device
            Event("cudaLaunchKernel", 200, 5, "CPU", 31, 42),
            Event("cuLaunchKernelEx", 220, 5, "CPU", 32, 42),
            Event("cudaStreamSynchronize", 700, 200, "CPU", 33, 42),
            Event("aten::add", 210, 5, "CPU", 32, 42),  # torch numbers its own events otherwise
            Event("sgemm", 300, 40, "CUDA", 31, 7),
            Event("nvjet", 340, 50, "CUDA", 32, 7),
            Event("Memset (Device)", 400, 2, "CUDA", 99, 7, _kind="gpu_memset"),
            Event("Stream Sync", 400, 300, "CUDA", 98, 7, _kind="cuda_sync"),
            Event("somebody's range", 100, 900, "CUDA", 97, 7, _kind="gpu_user_annotation"),
        ]
    )
    assert seen.profiled == (Window(100, 1000, 42),)
    assert seen.plain == (Window(1100, 2000, 42),)
    assert seen.work == (
        DeviceEvent("sgemm", 300, 340, 31),
        DeviceEvent("nvjet", 340, 390, 32),
        DeviceEvent("Memset (Device)", 400, 402, 99),
    )
    assert seen.launches == {31: Launch(200, 205, 42), 32: Launch(220, 225, 42)}


def test_only_devices_that_torchs_profiler_sees_have_a_source() -> None:
    def of(*names: str) -> Any:  # noqa: ANN401 - stands for a session
        return SimpleNamespace(get_providers=lambda: list(names))

    assert device_provider(of("CPUExecutionProvider")) is None
    assert device_provider(of("TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider")) == "CUDAExecutionProvider"


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> DevicePasses:
    """Passes on a provider whose activity this torch has: the CPU's."""
    monkeypatch.setitem(device_times._ACTIVITIES, "Fake", "CPU")
    return DevicePasses(provider="Fake")


def test_both_sessions_run_in_ranges_of_their_own_and_count_in_no_time(passes: DevicePasses, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Trace] = []
    read = device_times.trace_from_events

    def noted(events: Any) -> Trace:  # noqa: ANN401 - of torch
        seen.append(read(events))
        return seen[-1]

    monkeypatch.setattr(device_times, "trace_from_events", noted)
    ran: list[str] = []
    turns = Turns(groups=[None, 0])
    passes.make(lambda: ran.append("plain"), lambda: ran.append("profiled"), turns, 3)
    assert sorted(ran) == ["plain"] * 3 + ["profiled"] * 3
    assert turns.groups == [None, 0, None, None, None]
    (trace,) = seen
    windows = sorted([*trace.profiled, *trace.plain])
    assert (len(trace.profiled), len(trace.plain)) == (3, 3)
    assert {window.thread for window in windows} == {threading.get_native_id()}
    assert all(before.end <= after.start for before, after in itertools.pairwise(windows))
    assert passes.missing == "torch's profiler saw no work on the device", "the CPU has none"


def test_a_profiler_that_runs_already_is_left_alone(passes: DevicePasses) -> None:
    turns = Turns()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        passes.make(lambda: None, lambda: None, turns, 3)
    assert passes.missing == "another profiler of torch is running"
    assert not turns.groups


def test_a_run_that_fails_under_the_profiler_is_said(passes: DevicePasses) -> None:
    turns = Turns(plain_ns=[3, 3], profiled_ns=[5, 5], groups=[None, 0])

    def fails() -> None:
        raise RuntimeError("CUPTI is in use")

    passes.make(fails, lambda: turns.profiled_ns.append(5), turns, 3)
    assert (turns.plain_ns, turns.profiled_ns, turns.groups) == ([3, 3, 0], [5, 5, 5], [None, 0, None]), "as many of each"
    assert passes.missing == "RuntimeError: CUPTI is in use"
    assert not profiler_is_enabled(), "it was ended"
