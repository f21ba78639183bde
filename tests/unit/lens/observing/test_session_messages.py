"""What is taken from the log of a session that was made in a process of its own."""

from datetime import datetime
from pathlib import Path

import pytest

from ortlens import _ort
from ortlens.analysis.roofline import CPU
from ortlens.lens.observing.session_messages import SessionMessages, messages_from, parts_from
from ortlens.trace import records as r
from ortlens.trace.recorder import Recorder
from tests.onnx_models import product

W = "\x1b[0;93m2026-11-30 15:47:25.88 [W:onnxruntime:Default, some-provider:0 ep] {}\x1b[m"
E = "2026-11-30 15:47:25.88 [E:onnxruntime:, session.cc:33 operator()] {}"
OWN = "2026-11-30T15:47:25Z  WARN capability: claiming nothing"


@pytest.mark.parametrize(
    ("lines", "outcome", "expected"),
    [
        ([W.format("Asinh x1"), W.format("Asinh x1"), OWN, "[I: nothing"], "made", ("Asinh x1",)),
        ([OWN, "INFO fine", "[ERROR] no \x07library"], "made", ("capability: claiming nothing", "no library")),
        ([W.format("declined"), E.format("no such operator")], "made", ("declined", "no such operator")),
        ([W.format("declined"), E.format("no such operator")], "refused", ("declined",)),
        (["", "assertion failed"], "ended", ("assertion failed",)),
        ([E.format("x" * 500)], "made", ("x" * 397 + "...",)),
        ([W.format(number) for number in range(30)], "made", tuple(map(str, range(20)))),
        ([E.format("").replace("[E", "[V")], "made", ()),
    ],
)
def test_messages_are_warnings_and_errors_each_once(lines: list[str], outcome: str, expected: tuple[str, ...]) -> None:
    assert messages_from(_ort.SessionLog(lines, outcome)) == expected  # type: ignore[arg-type]  # a literal


def test_a_provider_that_ends_the_process_is_one_log_and_the_next_session_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(product().SerializeToString())
    crash = 'if each["sizes"]:\n            import os; os.write(2, b"assertion failed"); os.abort()\n        clock[:] = ['
    monkeypatch.setattr(_ort, "_MAKE_IN_CHILD", _ort._MAKE_IN_CHILD.replace("clock[:] = [", crash, 1))
    plain = _ort.SessionRequest("m0", [(CPU, {})], None, lambda _: (str(tmp_path / "model.onnx"), []))
    logs = _ort.session_logs([plain, plain._replace(sizes={"n": 1}), plain._replace(written=lambda _: ("no such file", []))])
    assert [log.outcome for log in logs] == ["made", "ended", "refused"]
    assert messages_from(logs[1])[0] == "assertion failed"


@pytest.mark.parametrize(
    ("providers", "placed", "expected"),
    [
        *(([CPU], {CPU: 3}, []), (["P", CPU], {}, []), (["P", CPU], {"P": 2, CPU: 0}, []), (["P", CPU], {"P": 2, CPU: 1}, ["m0"])),
        *((["listed", CPU], {"listed": 2, CPU: 1}, []), (["listed", CPU], {"listed": 0, CPU: 1}, ["m0"])),
    ],
)
def test_sessions_are_made_again_where_nothing_else_says_why_a_provider_left_nodes(
    providers: list[str], placed: dict[str, int], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def logs(requests: list[_ort.SessionRequest]) -> list[_ort.SessionLog]:
        asked.extend(each.model_id for each in requests)
        return [_ort.SessionLog([W.format("said password")], "made")]

    monkeypatch.setattr(_ort, "session_logs", logs)
    monkeypatch.setattr(_ort, "listed_kernels", lambda name: name == "listed")
    recorder = Recorder()
    recorder.add(r.Session(session_id="s0", partition_id="p0", model_id="m0", providers=(), input_signature="", create_ns=1))
    recorder.add(*(r.Placement(session_id="s0", provider=name, nodes=nodes, pieces=1) for name, nodes in placed.items()))
    messages = SessionMessages(recorder)
    for _ in range(2):
        messages.note([None, _ort.SessionRequest("m0", [(name, {"key": "password"}) for name in providers], None, lambda _: ("", []))])
    assert asked == expected
    assert recorder.records(r.Session)[0].messages == ("said …",) * len(expected)


def test_the_parts_of_a_start_add_up_whatever_the_time_zone_of_the_log() -> None:
    stages = ["Initializing session.", "GraphTransformer A", "GraphTransformer A", "Running graph optimizations", "GraphTransformer C"]
    times = zip([3, 5, 6, 9, 10, 12], [*stages, "Use DeviceBasedPartition as default"], strict=True)
    lines = [f"2026-11-30 15:47:{second:02}.5 [I:onnxruntime:, graph.cc:1 Apply] {text}" for second, text in times]
    began = round(datetime.fromisoformat("2026-11-30 17:47:00.5").timestamp() * 1e9)
    log = _ort.SessionLog(lines, "made", [began + second * 10**9 for second in (0, 2, 20)])
    parts = {"load_ns": 2, "provider_ns": 1 + 3, "optimize_ns": 3 + 3, "kernels_ns": 8}
    assert parts_from(log, 0) == {name: second * 10**9 for name, second in parts.items()}
    assert parts_from(log, 10) == {name: second / 2 for name, second in parts.items()}
    assert parts_from(log._replace(lines=lines[:-1]), 0) == parts_from(log._replace(clock=()), 0) == {}


@pytest.mark.parametrize(("size", "fault", "told"), [(30, 0, "saved.onnx"), (30, 1, "ctx.onnx"), (16, 1, "")])
def test_what_shortens_a_start_is_advised(size: int, fault: int, told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Making a session takes as many ns as the name of its file has letters; the provider writes the model as it is."""
    (path := tmp_path / ("m" * size)).write_bytes(product().SerializeToString())
    timed = _ort._MAKE_IN_CHILD.replace("time.time_ns())", 'clock[0] + len(each["model"].rpartition("/")[2]))')
    write = 'any(open(name, "wb").write(open(each["model"], "rb").read()) for key, name in each["entries"].items() if "path" in key)'
    fails = f"assert not ({fault} and each['settings'].get('optimized_model_filepath')); {write}"
    monkeypatch.setattr(_ort, "_MAKE_IN_CHILD", timed.replace("session =", f"{fails}; session ="))
    monkeypatch.setattr("ortlens.lens.observing.session_messages.parts_from", lambda *_: {"provider_ns": 1})
    (recorder := Recorder()).add(r.Session(session_id="s0", partition_id="p0", model_id="m0", create_ns=10**9))
    request = _ort.SessionRequest("m0", [("AzureExecutionProvider", {}), (CPU, {})], None, lambda _: (str(path), []))
    SessionMessages(recorder).time_starts([request], try_s=60)
    assert [told in finding.mitigation for finding in recorder.records(r.Finding)] == [True] * bool(told)
