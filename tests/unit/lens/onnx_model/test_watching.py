"""`watch(session)`: calls are recorded, answers stay the same, and nothing is left behind."""

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import ortlens
from ortlens.errors import UsageError
from tests.onnx_models import product
from tests.threads import in_threads

X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture
def session() -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(product(4, 3).SerializeToString(), providers=["CPUExecutionProvider"])


def calls(lens: ortlens.OnnxLens) -> int:
    return int(lens.sessions.calls.iloc[0])


def test_every_way_of_running_is_recorded_and_answers_the_same(session: onnxruntime.InferenceSession) -> None:
    expected = session.run(None, {"x": X})[0]
    with ortlens.watch(session) as lens:
        results = [session.run(None, {"x": X})[0], session.run(["y"], input_feed={"x": X})[0]]
        results.append(session.run_with_ort_values(None, {"x": onnxruntime.OrtValue.ortvalue_from_numpy(X)})[0].numpy())
        binding = session.io_binding()
        binding.bind_cpu_input("x", X)
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        results.append(binding.copy_outputs_to_cpu()[0])
        assert calls(lens) == 4
    for result in results:
        np.testing.assert_array_equal(result, expected)
    assert lens.runs.run_ns.gt(0).all()


def test_closing_leaves_the_session_as_it_was(session: onnxruntime.InferenceSession) -> None:
    kind, attributes = type(session), dict(vars(session))
    lens = ortlens.watch(session)
    assert isinstance(session, onnxruntime.InferenceSession)
    session.run(None, {"x": X})
    lens.close()
    lens.close()
    assert type(session) is kind
    assert vars(session).keys() == attributes.keys()
    session.run(None, {"x": X})
    assert calls(lens) == 1
    forgotten = ortlens.watch(session)
    del forgotten
    gc.collect()
    assert type(session) is kind


def test_a_session_is_freed_with_its_last_reference() -> None:
    other = onnxruntime.InferenceSession(product(4, 3).SerializeToString())
    lens = ortlens.watch(other)
    lens.close()
    lens.session = None
    gone = weakref.ref(other)
    gc.disable()
    try:
        del other
        assert gone() is None
    finally:
        gc.enable()


def test_two_lenses_watch_one_session_and_close_in_any_order(session: onnxruntime.InferenceSession) -> None:
    kind = type(session)
    first, second = ortlens.watch(session), ortlens.watch(session)
    session.run(None, {"x": X})
    first.close()
    session.run(None, {"x": X})
    second.close()
    session.run(None, {"x": X})
    assert (calls(first), calls(second)) == (1, 2)
    assert type(session).run is kind.run


def test_errors_reach_the_caller_and_are_no_calls(session: onnxruntime.InferenceSession) -> None:
    with ortlens.watch(session) as lens:
        with pytest.raises(ValueError, match="Required inputs"):
            session.run(None, {})
        with pytest.raises(Exception, match="Unexpected input data type"):
            session.run(None, {"x": X.astype(np.float64)})
        assert calls(lens) == 0


def test_a_failure_to_record_costs_no_answer(session: onnxruntime.InferenceSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr("ortlens.trace.runlog.RunLog.record", broken)
    with pytest.warns(RuntimeWarning, match="planted"), ortlens.watch(session) as lens:
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], X @ np.ones((4, 3), np.float32))
    assert [finding.rule for finding in lens.captured().findings if "planted" in finding.evidence] == ["lens_failed"]


def test_threads_are_recorded_apart(session: onnxruntime.InferenceSession) -> None:
    with ortlens.watch(session) as lens:
        in_threads(lambda _: [session.run(None, {"x": X}) for _ in range(20)])
    assert calls(lens) == 80
    assert lens.runs.thread.nunique() <= 4
    assert len(lens.runs) == 80


def test_the_model_of_a_session_from_bytes_is_known_and_a_journal_holds_its_calls(
    session: onnxruntime.InferenceSession, tmp_path: Path
) -> None:
    with ortlens.watch(session, name="service", journal=tmp_path / "run.journal") as lens:
        session.run(None, {"x": X})
    assert lens.nodes.node.tolist() == ["product", "relu"]
    assert lens.nodes.flops.tolist() == [2 * 2 * 4 * 3, 0]
    text = lens.summary()
    assert text.startswith("service: running session in onnxruntime")
    assert "x=f32[2,4]" in text
    del lens
    gc.collect()
    read = ortlens.load(tmp_path / "run.journal")
    assert (read.nodes.node.tolist(), len(read.runs)) == (["product", "relu"], 1)


def test_profiling_a_watched_session_is_no_call_of_it(session: onnxruntime.InferenceSession) -> None:
    with ortlens.watch(session) as lens:
        session.run(None, {"x": X})
        kernels = lens.profile(repeat=2)
        assert calls(lens) == 1
    assert {name for nodes in kernels.nodes for name in nodes} >= {"product"}
    assert not session.get_session_options().enable_profiling


@pytest.mark.parametrize("gone", ["deleted", "replaced", "damaged"])
def test_a_session_whose_file_is_gone_is_watched_all_the_same(gone: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(product(4, 3), path)
    session = onnxruntime.InferenceSession(str(path))
    if gone == "deleted":
        path.unlink()
    elif gone == "damaged":
        path.write_bytes(b"something else")
    else:
        other = product(4, 3)
        other.graph.input[0].name = other.graph.node[0].input[0] = "z"
        onnx.save(other, path)
    with ortlens.watch(session) as lens:
        session.run(None, {"x": X})
    assert calls(lens) == 1
    assert lens.nodes.empty
    assert "its structure is not known" in lens.summary()
    with pytest.raises(UsageError, match="neither the path nor the bytes"):
        lens.profile()
    assert lens.report(tmp_path / "report.html").is_file()


def test_what_is_no_session_is_refused() -> None:
    not_a_session: Any = "model.onnx"
    with pytest.raises(UsageError, match="not str; explain"):
        ortlens.watch(not_a_session)
