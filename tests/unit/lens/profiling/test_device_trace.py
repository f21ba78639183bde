"""What is read of torch's profiler: events of CUDA as Kineto tells them, and a real profile of the CPU."""

import itertools
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ortlens._torch.dynamo import profiler_is_enabled
from ortlens.lens.profiling import device_times as device_module
from ortlens.lens.profiling.device_times import (
    ClocksDisagree,
    DeviceEvent,
    DevicePasses,
    DeviceTimes,
    HostSpan,
    Trace,
    device_provider,
    device_times,
    offset_between,
    trace_from_events,
)
from ortlens.lens.profiling.kernel_records import Turns, on_device
from ortlens.lens.profiling.profiles import NodeSpan, SessionRun
from ortlens.trace import records as r


def event(  # noqa: PLR0913, PLR0917 - what torch's profiler tells
    name: str, start: int, duration: int, device: str = "CPU", correlation: int = 0, thread: int = 1, kind: str = ""
) -> SimpleNamespace:
    """Make an event of torch's profiler, whose figures are methods."""
    figures = {"name": name, "start_ns": start, "duration_ns": duration, "device_type": SimpleNamespace(name=device)}
    figures |= {"correlation_id": correlation, "device_resource_id": thread, "activity_type": kind}
    return SimpleNamespace(**{key: lambda value=value: value for key, value in figures.items()})


RANGE = "ortlens: profiled run"


def test_work_launches_and_ranges_are_told_apart() -> None:
    seen = trace_from_events(
        [
            event(RANGE, 100, 900, thread=42, kind="user_annotation"),
            event("ortlens: plain run", 1100, 900, thread=42, kind="user_annotation"),
            event(RANGE, 150, 500, "CUDA", 3, 7, kind="gpu_user_annotation"),  # the same range on the device
            event("cudaLaunchKernel", 200, 5, "CPU", 31, 42),
            event("cuLaunchKernelEx", 220, 5, "CPU", 32, 42),
            event("cudaStreamSynchronize", 700, 200, "CPU", 33, 42),
            event("aten::add", 210, 5, "CPU", 32, 42),  # torch numbers its own events otherwise
            event("sgemm", 300, 40, "CUDA", 31, 7),
            event("nvjet", 340, 50, "CUDA", 32, 7),
            event("Memset (Device)", 400, 2, "CUDA", 99, 7, kind="gpu_memset"),
            event("Stream Sync", 400, 300, "CUDA", 98, 7, kind="cuda_sync"),
            event("somebody's range", 100, 900, "CUDA", 97, 7, kind="gpu_user_annotation"),
        ]
    )
    assert seen.profiled == (HostSpan(100, 1000, 42),)
    assert seen.plain == (HostSpan(1100, 2000, 42),)
    assert seen.work == (
        DeviceEvent("sgemm", 300, 340, 31),
        DeviceEvent("nvjet", 340, 390, 32),
        DeviceEvent("Memset (Device)", 400, 402, 99),
    )
    assert seen.launches == {31: HostSpan(200, 205, 42), 32: HostSpan(220, 225, 42)}


def test_only_devices_that_torchs_profiler_sees_have_a_source() -> None:
    def of(*names: str) -> Any:  # noqa: ANN401 - stands for a session
        return SimpleNamespace(get_providers=lambda: list(names))

    assert device_provider(of("CPUExecutionProvider")) is None
    assert device_provider(of("TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider")) == "CUDAExecutionProvider"


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> DevicePasses:
    """Passes on a provider whose activity this torch has: the CPU's."""
    monkeypatch.setitem(device_module._ACTIVITIES, "Fake", "CPU")
    return DevicePasses(provider="Fake")


def test_both_sessions_run_in_ranges_of_their_own_and_count_in_no_time(passes: DevicePasses, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Trace] = []
    read = device_module.trace_from_events

    def noted(events: Any) -> Trace:  # noqa: ANN401 - of torch
        seen.append(read(events))
        return seen[-1]

    monkeypatch.setattr(device_module, "trace_from_events", noted)
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


US = 1000
THREAD = 7
CUDA = "CUDAExecutionProvider"


def run(start: int, *nodes: tuple[str, int, int], thread: int = THREAD, length: int = 100) -> SessionRun:
    """A run in ONNX Runtime's profile, in µs, with nodes as offsets from its start."""
    spans = [NodeSpan(name, US * (start + begin), US * (start + end), thread) for name, begin, end in nodes]
    return SessionRun(US * start, US * (start + length), THREAD, spans)


def trace(*windows: tuple[int, int], plain: tuple[tuple[int, int], ...] = (), thread: int = THREAD) -> Trace:
    profiled, others = ([HostSpan(US * start, US * end, thread) for start, end in some] for some in (windows, plain))
    return Trace(work=(), launches={}, profiled=tuple(profiled), plain=tuple(others))


def launched(  # noqa: PLR0913 - what there is to say of an event
    seen: Trace, name: str, at: int, start: int, end: int, *, key: int = 0, thread: int = THREAD
) -> Trace:
    """Add a launch at a time of the host, and its work on the device; a key that is known adds work to that launch."""
    key = key or len(seen.work) + 1000
    launches = {key: HostSpan(US * at, US * (at + 3), thread), **seen.launches}
    return replace(seen, work=(*seen.work, DeviceEvent(name, US * start, US * end, key)), launches=launches)


def joined(*passes: tuple[Trace, list[SessionRun]], nominal: int = 0) -> DeviceTimes:
    return device_times(CUDA, passes, nominal)


def ns_by(times: DeviceTimes) -> tuple[dict[str, float], dict[str, float]]:
    nodes, outside = ({name: work.run_ns / US for name, work in some.items()} for some in (times.nodes, times.outside))
    return nodes, outside


TWO = (("gemm", 10, 20), ("relu", 30, 35))


def test_work_belongs_to_the_node_that_launched_it_whenever_it_runs() -> None:
    seen = trace((990, 1500))
    seen = launched(seen, "Memcpy HtoD", 1002, 1010, 1014)
    seen = launched(seen, "nvjet", 1012, 1100, 1180)
    seen = launched(seen, "splitk", 1016, 1180, 1190)
    seen = launched(seen, "unary", 1032, 1150, 1200)  # on another stream: overlaps
    times = joined((seen, [run(1000, *TWO)]))
    assert ns_by(times) == ({"gemm": 90, "relu": 50}, {"Memcpy HtoD": 4})
    assert times.nodes["gemm"].names == ("nvjet", "splitk")


def test_a_launch_within_the_rounding_of_an_end_is_still_the_nodes() -> None:
    seen = launched(launched(trace((990, 1500)), "a", 1021, 1100, 1110), "b", 1025, 1110, 1120)
    assert ns_by(joined((seen, [run(1000, *TWO)]))) == ({"gemm": 10}, {"b": 10})


def test_nodes_of_a_body_have_their_own_work_and_the_loop_the_rest() -> None:
    seen = launched(launched(trace((990, 1500)), "inner", 1022, 1100, 1110), "rest", 1045, 1110, 1113)
    times = joined((seen, [run(1000, ("loop", 10, 60), ("inner", 20, 25), ("inner", 30, 35))]))
    assert ns_by(times) == ({"inner": 10, "loop": 3}, {})


def test_a_replayed_graph_is_work_outside_of_nodes_and_one_launch() -> None:
    seen = trace((990, 1500), plain=((2000, 2500),))
    for at in (1000, 2010):
        for place in range(3):
            seen = launched(seen, "nvjet", at, at + 50 + 10 * place, at + 58 + 10 * place, key=at)
    times = joined((seen, [run(1000)]))
    assert ns_by(times) == ({}, {"nvjet": 24})
    assert (times.use.launches, times.use.busy_ns, times.use.idle_ns) == (1, 24 * US, 4 * US)


def test_work_without_its_launch_is_kept_with_the_run_that_it_ran_in() -> None:
    seen = trace((990, 1500), (2990, 3500), plain=((1990, 2500),))
    lost = DeviceEvent("lost", 3100 * US, 3120 * US, 0)
    of_the_plain_run = DeviceEvent("elsewhere", 2100 * US, 2150 * US, 5)
    times = joined((replace(seen, work=(lost, of_the_plain_run)), [run(1000, *TWO), run(3000, *TWO)]))
    assert times.outside["lost"].high_ns == 20 * US
    assert "elsewhere" not in times.outside
    assert times.use.busy_ns == 50 * US


def test_what_other_threads_launch_meanwhile_is_not_the_sessions() -> None:
    seen = launched(trace((990, 1500)), "ours", 1012, 1100, 1110)
    seen = launched(seen, "theirs", 1013, 1110, 1140, thread=8)
    assert ns_by(joined((seen, [run(1000, *TWO)]))) == ({"gemm": 10}, {})


def test_nodes_that_ran_in_threads_of_onnx_runtime_have_their_launches() -> None:
    seen = launched(trace((990, 1500)), "a", 1012, 1100, 1110, thread=91)
    assert ns_by(joined((seen, [run(1000, *TWO, thread=11)]))) == ({"gemm": 10}, {})


def test_threads_that_the_profiler_numbers_otherwise_hide_nothing() -> None:
    seen = launched(trace((990, 1500)), "a", 1012, 1100, 1110, thread=-123)
    assert ns_by(joined((seen, [run(1000, *TWO)]))) == ({"gemm": 10}, {})


def test_work_before_and_after_the_runs_is_nobodys() -> None:
    seen = launched(launched(trace((990, 1500)), "before", 900, 950, 960), "after", 1600, 1700, 1710)
    assert ns_by(joined((seen, [run(1000, *TWO)]))) == ({}, {})


def test_a_run_that_lost_its_events_does_not_make_a_kernel_faster() -> None:
    seen, runs = trace(*((1000 * n - 10, 1000 * n + 900) for n in range(1, 6))), [run(1000 * n, *TWO) for n in range(1, 6)]
    for n in (1, 2, 4, 5):
        seen = launched(seen, "nvjet", 1000 * n + 12, 1000 * n + 100, 1000 * n + 100 + 10 * n)
    times = joined((seen, runs), (launched(trace((990, 1500)), "nvjet", 1012, 1100, 1150), [run(1000, *TWO)]))
    work = times.nodes["gemm"]
    assert work.run_ns == (20 + 50) / 2 * US, "the median of each pass, and their mean"
    assert (work.low_ns, work.high_ns) == (0, 50 * US)


def test_the_nominal_clock_is_used_where_the_runs_lie_in_their_windows() -> None:
    assert offset_between([HostSpan(990 * US, 1500 * US, 0)], [run(1000)], [[]], 0) == 0
    assert offset_between([HostSpan(5990 * US, 6500 * US, 0)], [run(1000)], [[]], 5_000_123) == 5_000_123


@pytest.mark.parametrize("true", [10**15, -(10**15)])
def test_another_clock_is_found_from_the_launches(true: int) -> None:
    nodes = [("a", 10, 14), ("b", 20, 24), ("c", 30, 34), ("d", 40, 44)]
    runs = [run(1000 * n, *nodes) for n in (1, 2, 3)]
    seen = trace(*((1000 * n - 40, 1000 * n + 160) for n in (1, 2, 3)))
    for n in (1, 2, 3):
        for place, (name, begin, _) in enumerate(nodes):
            seen = launched(seen, f"kernel of {name}", 1000 * n + begin + 1, 1000 * n + 200 + 10 * place, 1000 * n + 205 + 10 * place)
    moved = Trace(
        work=tuple(item._replace(start=item.start + true, end=item.end + true) for item in seen.work),
        launches={key: item._replace(start=item.start + true, end=item.end + true) for key, item in seen.launches.items()},
        profiled=tuple(item._replace(start=item.start + true, end=item.end + true) for item in seen.profiled),
        plain=(),
    )
    times = joined((moved, runs))
    assert {name: work.names for name, work in times.nodes.items()} == {name: (f"kernel of {name}",) for name, _, _ in nodes}
    assert not times.outside


def test_clocks_that_cannot_be_aligned_raise() -> None:
    windows = [HostSpan(0, 200 * US, 0), HostSpan(10_000 * US, 10_200 * US, 0)]
    with pytest.raises(ClocksDisagree, match="cannot be aligned"):
        offset_between(windows, [run(0), run(5000)], [[], []], 0)


def test_busy_is_the_union_and_idle_the_gaps_of_plain_runs_alone() -> None:
    seen = trace((990, 1500), plain=((2000, 2500),))
    seen = launched(seen, "profiled", 1010, 1100, 1400)
    for at, start, end in ((2010, 2050, 2060), (2015, 2055, 2080), (2020, 2100, 2110)):
        seen = launched(seen, "k", at, start, end)
    use = joined((seen, [run(1000, *TWO)])).use
    assert (use.busy_ns, use.idle_ns) == ((30 + 10) * US, 20 * US)
    assert (use.launches, use.launch_ns) == (3, 9 * US)


@given(
    work=st.lists(st.tuples(st.integers(0, 130), st.integers(130, 400), st.integers(1, 60), st.booleans()), max_size=25),
    shift=st.integers(-(10**9), 10**9),
)
def test_nothing_that_a_run_launched_is_lost(work: list[tuple[int, int, int, bool]], shift: int) -> None:
    seen = trace((1000 - 10, 1000 + 140))
    for at, start, length, has_launch in work:
        seen = launched(seen, f"k{at}", 995 + at, 1000 + start, 1000 + start + length)
        if not has_launch:
            seen = replace(seen, launches={key: item for key, item in seen.launches.items() if key != seen.work[-1].correlation})
    runs = [run(1000 + shift, ("a", 5, 40), ("b", 45, 90))]
    nodes, outside = ns_by(joined((seen, runs), nominal=-shift * US))
    assert sum(nodes.values()) + sum(outside.values()) == pytest.approx(sum(length for _, _, length, _ in work))


def kernel(name: str, provider: str = CUDA, calls: int = 4) -> r.Kernel:
    return r.Kernel(
        session_id="s0", kernel=name, op_type="Gemm", provider=provider, calls=calls, total_ns=5, mean_ns=1, low_ns=1, high_ns=2
    )


def test_rows_have_the_devices_time_and_their_means_add_up_to_a_run() -> None:
    seen = launched(launched(trace((990, 1500)), "nvjet", 1012, 1100, 1180), "Memcpy DtoH", 1050, 1200, 1220)
    seen = launched(seen, "Memcpy DtoH", 1060, 1220, 1240)
    times = joined((seen, [run(1000, *TWO)]))
    given = [kernel("gemm"), kernel("shape", "CPUExecutionProvider"), kernel("reshape")]
    gemm, shape, reshape, copy = on_device(given, [9_000.0, 2_000.0, 4_000.0], 4, times)
    assert (gemm.mean_ns, gemm.total_ns, gemm.device_kernels) == (80 * US, 4 * 80 * US, ("nvjet",))
    assert (shape.mean_ns, shape.device_kernels) == (2_000, ()), "a node of the CPU keeps its time there"
    assert reshape.mean_ns == 0
    assert (copy.kernel, copy.op_type, copy.provider, copy.calls, copy.mean_ns) == ("Memcpy DtoH", r.OUTSIDE, CUDA, 4, 40 * US)
    assert sum(row.share or 0 for row in (gemm, shape, reshape, copy)) == pytest.approx(1)


def test_a_kernel_that_runs_several_times_a_run_has_the_time_of_a_call() -> None:
    seen = launched(launched(trace((990, 1500)), "k", 1022, 1100, 1110), "k", 1032, 1110, 1130)
    times = joined((seen, [run(1000, ("inner", 20, 25), ("inner", 30, 35))]))
    (row,) = on_device([kernel("inner", calls=8)], [1.0], 4, times)
    assert (row.mean_ns, row.total_ns) == (15 * US, 4 * 30 * US)
