"""What calls of a session do to the memory of the process: kept in vain, leaked, in pieces, or nothing."""

import os
import re
from collections.abc import Callable

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import ortlens
from ortlens._process import ProcessMemory, resident_bytes
from ortlens.lens.observing.session_memory import SessionMemory
from ortlens.trace.recorder import Recorder
from ortlens.trace.records import Finding
from tests.onnx_models import onnx_model

pytestmark = pytest.mark.skipif(resident_bytes(os.getpid()) is None, reason="the system does not tell the memory of a process")
MIB, WAYS, POOL = 1 << 20, ("shrinking", "no arena", "smaller batches"), "s0 and 1 other session of its model"


def new_session(scale: float = 1.0, *, with_arena: bool = True) -> onnxruntime.InferenceSession:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Softmax", ["m"], ["s"])]
    nodes.append(helper.make_node("ReduceMax", ["s", "axes"], ["y"], keepdims=0))
    ends = [("x", TensorProto.FLOAT, ["rows", 8])], [("y", TensorProto.FLOAT, ["rows"])]
    model = onnx_model(nodes, *ends, {"w": np.full((8, 4096), scale, np.float32), "axes": np.array([1])})
    options = onnxruntime.SessionOptions()
    options.enable_cpu_mem_arena = with_arena
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def call(session: onnxruntime.InferenceSession, rows: int = 8, times: int = 1, options: object = None) -> None:
    for _ in range(times):
        session.run(None, {"x": np.ones((rows, 8), np.float32)}, options)


def found(lens: ortlens.OnnxLens) -> dict[str, Finding]:
    return {each.rule: each for each in lens.captured().findings if each.rule.startswith("memory_")}


def serve(session: onnxruntime.InferenceSession, options: onnxruntime.RunOptions | None = None) -> tuple[ortlens.OnnxLens, int]:
    """Watch a service with one large call; return what it kept."""
    lens = ortlens.watch(session)
    call(session, times=20)
    before = resident_bytes(os.getpid()) or 0
    call(session, 8192, options=options)  # activations of 128 MiB
    call(session, times=20)
    return lens, (resident_bytes(os.getpid()) or 0) - before


def test_a_ratchet_has_its_size_and_its_call_and_what_frees_it_does() -> None:
    lens, kept = serve(new_session())
    assert int(lens.sessions.kept_bytes.iloc[0]) == pytest.approx(kept, rel=0.1)
    assert [kept > 100 * MIB, *found(lens)] == [True, "memory_ratchet"]
    assert found(lens)["memory_ratchet"].title.endswith(" that a call of x[8192,8] needed, call 20")
    assert [line.partition(",")[0] for line in lens.sessions.calls_by_sizes.iloc[0]] == ["x[8192", "x[8"]
    lens.profile(repeat=1)
    freed = re.findall(r"(\w[a-z ]+): ([\d.]+) MiB freed", found(lens)["memory_ratchet"].evidence)
    assert {way: float(each) * MIB for way, each in freed} == pytest.approx(dict.fromkeys(WAYS, kept), rel=0.2)
    shrinking = onnxruntime.RunOptions()
    shrinking.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    for other, left in (serve(new_session(), shrinking), serve(new_session(with_arena=False))):
        assert (left < 0.2 * kept, found(other)) == (True, {})


def test_sessions_of_one_model_are_one_pool_and_those_with_other_weights_are_not() -> None:
    lenses = [serve(new_session(scale))[0] for scale in (1.0, 1.0, 2.0)]
    lenses[0].profile(repeat=1)
    shared = re.findall(r"(?:one session|a shared arena): ([\d.]+) MiB", found(lenses[0])["memory_ratchet"].evidence)
    assert [float(each) for each in shared] == [pytest.approx(128, rel=0.2)] * 2
    assert [found(lens)["memory_ratchet"].title.partition(" keep")[0] for lens in lenses] == [POOL, POOL, "s0"]


@pytest.mark.parametrize(("dropped_after", "rule"), [(100, {"memory_leak"}), (25, set()), (1, set())])
def test_what_is_kept_from_call_to_call_is_a_leak_within_100_calls_unless_it_is_collected(dropped_after: int, rule: set[str]) -> None:
    session, kept = new_session(), list[object]()
    lens = ortlens.watch(session)
    for number in range(100):
        kept = [*(kept if number % dropped_after else []), np.ones(MIB // 4, np.float32)]
        call(session)
    leaks = [(each.title, each.evidence.partition("; ")[2]) for each in found(lens).values()]
    assert leaks == [("memory grows by 1.00 MiB with each call of s0, from call 3 on", "it grows between its runs")] * len(rule)


@pytest.mark.parametrize(
    ("look", "rules"),
    [
        (lambda _: (500, 300, 5), set()),
        (lambda call: (500 + call // 20, 300, 5), {"memory_leak"}),  # mapped by other means than `malloc`
        (lambda call: (500 + max(call - 1023, 0) // 16, 300, 5), {"memory_leak"}),  # that begins late
        (lambda call: (500 + call % 12_000 // 100, 300, 5), set()),  # collected now and then
        (lambda call: (500 + 200 * (call >= 32), 300, 5), set()),  # once
        (lambda call: (500 + 200 * (call >= 32), 300 + 100 * (call >= 32), 5 + 100 * (call >= 32)), {"memory_fragmented"}),
        (lambda call: (500, 300 + 100 * (call >= 32), 5 + 100 * (call >= 32)), set()),  # was trimmed
    ],
)
def test_sessions_of_unknown_sizes(look: Callable[[int], tuple[int, ...]], rules: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of compiled models: their logs have them looked at, ever more rarely. A look has MiB that are resident, in use, and free."""
    recorder, calls = Recorder(), iter((31, 63, 127, 255, 511, 1023, 2047, *range(3071, 20_000, 1024)))
    memory, log = SessionMemory("s0", recorder), recorder.run_log("s0", None)
    log.on_room = memory.look
    monkeypatch.setattr(f"{SessionMemory.__module__}.process_memory", lambda: ProcessMemory(*(part * MIB for part in look(next(calls)))))
    for _ in range(20_000):
        log.record(0, 0, 0, 0, 1)
    memory.report()
    assert (next(calls, None), {each.rule for each in recorder.records(Finding)}) == (None, rules)
    assert all(" call 63 " in each.evidence for each in recorder.records(Finding) if each.rule == "memory_fragmented")


def test_memory_is_bounded_whatever_the_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{SessionMemory.__module__}.process_memory", lambda: ProcessMemory(MIB, MIB, 0))
    memory = SessionMemory("s0", Recorder())
    looks = sum(memory.before({"x": np.empty((1 + number % 1000, 1))}) is not None for number in range(20_000))
    assert (looks < 3 * 100 + 20_000 / 4, len(memory._sizes) < 100) == (True, True)
