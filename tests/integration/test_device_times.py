"""Times of a device, on a machine without one: the CPU's provider stands in, and what torch's profiler would see of it is made up."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import onnx
import pytest
import torch

import ortlens
from ortlens.backend.basis import ab_timing
from ortlens.lens.measuring import ledger_pass, measurement, probes
from ortlens.lens.observing import environment
from ortlens.lens.profiling import device_times, kernels
from ortlens.lens.profiling.device_times import DeviceEvent, HostSpan, Trace
from ortlens.studies import bench as bench_study
from ortlens.studies import engine
from ortlens.trace.records import OUTSIDE
from tests.onnx_models import onnx_model

CPU = "CPUExecutionProvider"
MICRO = 1000


@pytest.fixture(autouse=True)
def _device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(device_times._ACTIVITIES, CPU, "CPU")


def net() -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)).eval(), torch.randn(4, 64)


def profiled(repeat: int = 4) -> ortlens.Lens:
    model, x = net()
    with torch.no_grad():
        lens = ortlens.Lens()
        torch.compile(model, backend=lens)(x)
        lens.profile(x, repeat=repeat)
    return lens


def test_without_work_on_the_device_kernels_have_their_launches_and_the_lens_says_why() -> None:
    lens = profiled()
    (finding,) = (row for row in lens.captured().findings if row.rule == "launch_times")
    assert finding.evidence == "torch's profiler saw no work on the device"
    assert finding.mitigation == "See what torch.profiler shows of this device without ortlens."
    kernels, (session,) = lens.captured().kernels, lens.captured().sessions
    assert all(kernel.mean_ns for kernel in kernels)
    assert not any(kernel.device_kernels for kernel in kernels)
    assert session.device_busy_ns is None


def made_up(trace: Trace) -> Trace:
    """Put a copy at the start of each run, a kernel into the middle, which is in a node or between two, and a late one of 70 µs."""
    work: list[DeviceEvent] = []
    launches: dict[int, HostSpan] = {}
    for window in (*trace.profiled, *trace.plain):
        for at, name, length in ((window.start, "copy", 5), ((window.start + window.end) // 2, "middle", 11), (window.end, "late", 70)):
            key = len(work) + 1
            launches[key] = HostSpan(at, at + MICRO, window.thread)
            start = window.end + MICRO * {"copy": 0, "middle": 5, "late": 36}[name]
            work.append(DeviceEvent(name, start, start + length * MICRO, key))
    return replace(trace, work=tuple(work), launches=launches)


def test_a_profile_joins_what_the_device_did_to_the_nodes_of_onnx_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    read = device_times.trace_from_events
    monkeypatch.setattr(device_times, "trace_from_events", lambda events: made_up(read(events)))
    lens = profiled()
    capture = lens.captured()
    (session,) = capture.sessions
    assert not [row for row in capture.findings if row.rule == "launch_times"]
    assert {row.kernel for row in capture.kernels if row.op_type == OUTSIDE} >= {"copy", "late"}
    # Nodes of the CPU that launched nothing keep their time on the host: only rows with work are the device's.
    on_device = sum(row.mean_ns or 0 for row in capture.kernels if row.device_kernels)
    assert on_device == pytest.approx((5 + 11 + 70) * MICRO, rel=0.3), "the middle may lie in one node or another"
    assert (session.device_busy_ns, session.launches, session.launch_ns) == (86 * MICRO, 3, 3 * MICRO)
    assert sum(row.share or 0 for row in capture.kernels) == pytest.approx(1)
    assert "device_kernels" in lens.kernels.columns


def test_the_lens_of_an_onnx_model_does_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    read = device_times.trace_from_events
    monkeypatch.setattr(device_times, "trace_from_events", lambda events: made_up(read(events)))
    x, y = ([(name, onnx.TensorProto.FLOAT, [8])] for name in "xy")
    lens = ortlens.explain(onnx_model([onnx.helper.make_node("Relu", ["x"], ["y"])], x, y), calls=1)(x=torch.ones(8).numpy())
    lens.profile(x=torch.ones(8).numpy(), repeat=2)
    assert {"copy", "late"} <= set(lens.kernels.kernel)


class FakeDevice:
    """Counts waits, whatever the values are on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        for module in (ab_timing, ledger_pass, measurement, probes, kernels, engine):
            monkeypatch.setattr(module, "waiting_for", lambda *_values: self.wait)

    def wait(self) -> None:
        self.events.append("wait")

    def call(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any) -> Any:  # noqa: ANN401 - any function
            self.events.append("call")
            return function(*args)

        return called


def test_observed_graphs_and_partitions_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice(monkeypatch)
    item = probes.Ran[Any](subject=None)
    probes._noting(item, lambda inner, values: inner(*values))(device.call(torch.sin), (torch.ones(2),))
    assert device.events == ["wait", "call", "wait"]
    device.events.clear()
    probes.timed(device.call(torch.sin), (torch.ones(2),))()
    assert device.events == ["wait", "call", "wait"]


def test_bench_waits_for_devices_that_only_results_are_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []
    device = FakeDevice(monkeypatch)

    def waiting_for(*values: Any) -> Callable[[], None]:  # noqa: ANN401 - any value
        asked.append(values)
        return device.wait

    monkeypatch.setattr(engine, "waiting_for", waiting_for)
    result = torch.full((2,), 3.0)
    bench_study.bench(device.call(lambda: result), (), {}, ways=["eager"], seconds=0.01)
    assert any(value is result for value in asked[0])
    assert device.events[:2] == ["call", "wait"], "the first call"
    assert device.events[2:5] == ["wait", "call", "wait"]
    assert device.events[-1] == "wait"


def test_the_ledger_has_the_wait_as_a_part_and_still_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_pass, "waiting_for", lambda *_values: partial(time.sleep, 0.01))
    model, x = net()
    with torch.no_grad():
        lens = ortlens.Lens()
        torch.compile(model, backend=lens)(x)
        lens.measure(x)
    parts = {row.part: row.ns for row in lens.captured().ledger}
    assert 10_000_000 <= parts["wait"] < 100_000_000
    assert parts["run"] < parts["wait"]
    assert parts["residual"] < 5_000_000
    assert sum(row.share for row in lens.captured().ledger) == pytest.approx(1)


def test_peaks_of_a_device_are_measured_by_torch_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice(monkeypatch)
    monkeypatch.setitem(environment._DEVICES, "Fake", "cpu")
    monkeypatch.setattr(environment, "_MEASURED", {})
    monkeypatch.setattr(environment, "_PRECISIONS", {})
    monkeypatch.setattr(environment, "_DEVICE_SIZE", 64)
    monkeypatch.setattr(environment, "_DEVICE_LENGTH", 1 << 12)
    environment.measure_device("Fake", {"float32", "int64"})
    first = environment.known_peaks()
    assert {(peak.dtype, peak.threads, peak.provider) for peak in first} == {("float32", 0, "Fake"), (None, 0, "Fake")}
    assert all(peak.per_s > 0 for peak in first)
    assert len(device.events) >= 2 * 2 * 4, "before and after each run"
    environment.measure_device("Fake", {"float32"})
    assert environment.known_peaks() == first, "once"
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        environment.measure_device("Fake", {"float32"})
    finally:
        torch.set_float32_matmul_precision(before)
    assert sum(now is not then for now, then in zip(sorted(environment.known_peaks(), key=str), sorted(first, key=str), strict=True)) == 1
