import sys
import threading
import warnings
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from ortlens.trace import recorder as recorder_module
from ortlens.trace import records as r
from ortlens.trace.guard import lens_guard
from ortlens.trace.recorder import Recorder
from ortlens.trace.schema import TABLES
from tests.unit.trace.strategies import small_capture

GRAPH = r.Graph(graph_id="g0", phase="inference", op_count=1)


def _filled(*graphs: str) -> Recorder:
    """A recorder with a whole chain of records for each graph: node, partition, model, session, kernel and the rest."""
    recorder = Recorder()
    for number, graph in enumerate(graphs):
        partition, model, session = f"p{number}", f"m{number}", f"s{number}"
        recorder.add(
            r.Graph(graph_id=graph, phase="inference", op_count=1),
            r.Node(graph_id=graph, node="add", target="t", supported=True, partition_id=partition),
            r.Partition(partition_id=partition, graph_id=graph, node_count=1, input_count=1, output_count=1, model_id=model),
            r.Fallback(graph_id=graph, node="sort", target="t", reason_code="policy", reason="asked"),
            r.Model(model_id=model, partition_id=partition, node_count=1, path=f"dumps/{model}.onnx"),
            r.Session(session_id=session, partition_id=partition, model_id=model),
            r.Kernel(session_id=session, kernel="k", op_type="Add", provider="CPU"),
            r.Numeric(partition_id=partition, node="add"),
            r.LedgerPart(graph_id=graph, part="run", ns=1, share=1.0),
        )
        recorder.attach(f"dumps/{model}.onnx", b"dumped")
        recorder.attach(f"models/{model}.onnx", b"kept")
        recorder.run_log(session, graph).record(1, 2, 3, 4, 5)
        recorder.eager_log(graph, ("sort",)).calls[0] += 1
    return recorder


def test_what_another_thread_records_meanwhile_stays() -> None:
    recorder = _filled("g0")
    before = recorder.capture()

    def call() -> None:
        recorder.forget_graph("g0")
        recorder.replace_findings(("x",), ())
        recorder.note(explain_calls=3)
        other = threading.Thread(target=recorder.add, args=(replace(GRAPH, graph_id="g7"),))
        other.start()
        other.join()
        raise ValueError("of the call")

    with pytest.raises(ValueError, match="of the call"), recorder.undone_if_raised(lambda: None):
        call()
    after = recorder.capture()
    assert [row.graph_id for row in after.graphs] == ["g0", "g7"]
    assert (after.nodes, after.numerics, after.figures) == (before.nodes, before.numerics, before.figures)


def test_every_kind_of_record_comes_out_where_it_belongs() -> None:
    expected = small_capture()
    recorder = Recorder()
    for name in reversed(list(TABLES)):
        if name != "runs":  # those come from logs
            recorder.add(*getattr(expected, name))
    capture = recorder.capture(name="x", backend="eager", environment={"torch": "2.13"})
    assert {name: getattr(capture, name) for name in TABLES} == {name: getattr(expected, name) for name in TABLES if name != "runs"} | {
        "runs": ()
    }
    assert (capture.name, capture.backend, capture.environment) == ("x", "eager", {"torch": "2.13"})
    age = datetime.now(UTC) - datetime.fromisoformat(capture.created)
    assert 0 <= age.total_seconds() < 60


def test_a_record_with_the_same_id_replaces_the_earlier_one_in_place() -> None:
    recorder = Recorder()
    other = r.Graph(graph_id="g1", phase="inference", op_count=2)
    again = r.Graph(graph_id="g0", phase="backward", op_count=3)
    recorder.add(GRAPH, other, again)
    assert recorder.records(r.Graph) == (again, other)
    finding = r.Finding(rule="a", severity="info", title="t")
    recorder.add(finding, finding)
    assert recorder.records(r.Finding) == (finding, finding), "without an id"


def test_amend_changes_only_what_is_named() -> None:
    recorder = _filled("g0")
    recorder.amend(r.Graph, "g0", coverage=0.5)
    recorder.amend(r.Node, ("g0", "add"), flops=7)
    assert recorder.records(r.Graph)[0] == r.Graph(graph_id="g0", phase="inference", op_count=1, coverage=0.5)
    assert (recorder.records(r.Node)[0].flops, recorder.records(r.Node)[0].partition_id) == (7, "p0")


def test_amend_of_what_is_gone_is_ignored_and_of_no_field_refused() -> None:
    recorder = _filled("g0")
    before = recorder.capture()
    recorder.amend(r.Graph, "g9", coverage=0.5)
    recorder.amend(r.Break, "b0", cost_ns=1)
    assert recorder.capture().graphs == before.graphs
    with pytest.raises(TypeError, match="colour"):
        recorder.amend(r.Graph, "g0", colour="red")


def test_forgetting_a_graph_leaves_no_orphan() -> None:
    recorder = _filled("g0", "g1")
    kept = _filled("g1")
    recorder.attach("models/m01.onnx", b"its id begins alike")
    log = recorder.run_log("s0", "g0")
    recorder.forget_graph("g0")
    log.record(1, 2, 3, 4, 5)
    capture = recorder.capture()
    assert [graph.graph_id for graph in capture.graphs] == ["g0", "g1"]
    for name in set(TABLES) - {"graphs"}:
        rows = getattr(capture, name)
        assert len(rows) == len(getattr(kept.capture(), name)), name
        assert "'g0'" not in repr(rows), name
        assert not any(f"'{letter}0'" in repr(rows) for letter in "pms"), name
    assert set(capture.attachments) == {"dumps/m1.onnx", "models/m1.onnx", "models/m01.onnx"}


def test_a_graph_can_be_recorded_again_after_it_was_forgotten() -> None:
    recorder = _filled("g0", "g1")
    before = recorder.capture()
    recorder.forget_graph("g0")
    recorder.add(*(row for row in before.ledger if row.graph_id == "g0"), *(row for row in before.kernels if row.session_id == "s0"))
    # The rows that were kept are not overwritten by those that came back.
    assert sorted(row.graph_id for row in recorder.records(r.LedgerPart)) == ["g0", "g1"]
    assert sorted(row.session_id for row in recorder.records(r.Kernel)) == ["s0", "s1"]
    recorder.add(r.Fallback(graph_id="g0", node="sort", target="t", reason_code="policy", reason="asked"))
    assert [(row.graph_id, row.calls) for row in recorder.capture().fallbacks] == [("g1", 1), ("g0", 0)]  # nothing is left of its calls
    recorder.forget_graph("g7")
    assert len(recorder.records(r.Graph)) == 2


def test_a_session_has_one_log_and_a_foreign_backend_as_many_as_it_asks_for() -> None:
    recorder = Recorder()
    assert recorder.run_log("s0", "g0") is recorder.run_log("s0", "g0")
    assert recorder.run_log("s0", "g0") is not recorder.run_log("s1", "g0")
    assert recorder.run_log(None, "g0") is not recorder.run_log(None, "g0")


def test_runs_come_in_order_of_start_with_their_parts() -> None:
    recorder = Recorder()
    recorder.run_log("s0", "g0").record(100, 110, 130, 160, 5)
    recorder.run_log(None, "g1").record(50, 50, 90, 90, 6)
    assert recorder.capture().runs == (
        r.Run(session_id=None, graph_id="g1", call=0, start_ns=50, bind_ns=0, run_ns=40, output_ns=0, total_ns=40, thread=6),
        r.Run(session_id="s0", graph_id="g0", call=0, start_ns=100, bind_ns=10, run_ns=20, output_ns=30, total_ns=60, thread=5),
    )


def test_runs_are_bounded_and_the_latest_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "MAX_RUNS", 3)
    recorder = _filled("g0")
    for start in range(10, 20):
        recorder.run_log("s0", "g0").record(start, start, start, start + 1, 5)
    capture = recorder.capture()
    assert [run.start_ns for run in capture.runs] == [17, 18, 19]
    session = capture.sessions[0]
    assert (session.calls, session.total_ns, session.mean_ns, session.max_ns) == (11, 13, 1, 3)


def test_fallbacks_carry_what_pytorch_spent() -> None:
    recorder = Recorder()
    recorder.add(*(r.Fallback(graph_id=g, node=n, target="t", reason_code="dtype", reason="x") for g in ("g0", "g1") for n in ("a", "b")))
    recorder.eager_log("g0", ("b",))
    log = recorder.eager_log("g0", ("c", "b"))  # replaces the first
    log.calls[1] += 4
    log.total_ns[1] += 800
    spent = {(row.graph_id, row.node): (row.calls, row.total_ns) for row in recorder.capture().fallbacks}
    assert spent == {("g0", "a"): (0, 0), ("g0", "b"): (4, 800), ("g1", "a"): (0, 0), ("g1", "b"): (0, 0)}


def test_a_snapshot_in_the_middle_stays_as_it_was() -> None:
    recorder = _filled("g0")
    first = recorder.capture()
    recorder.run_log("s0", "g0").record(5, 6, 7, 8, 5)
    recorder.attach("models/m0.onnx", b"changed")
    recorder.amend(r.Graph, "g0", coverage=1.0)
    assert (len(first.runs), first.sessions[0].calls, first.graphs[0].coverage) == (1, 1, None)
    assert first.attachments["models/m0.onnx"] == b"kept"
    second = recorder.capture()
    assert (len(second.runs), second.sessions[0].calls, second.graphs[0].coverage) == (2, 2, 1.0)


def test_an_activity_that_fails_warns_once_and_each_of_its_failures_is_kept() -> None:
    recorder = Recorder()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for doing, text in (("reading", "one"), ("reading", "other"), ("reading", "one"), ("writing", "one")):
            with lens_guard(recorder, doing):
                raise ValueError(text)
    assert [str(item.message).split()[3] for item in warned] == ["reading:", "writing:"]
    assert [finding.evidence for finding in recorder.records(r.Finding)] == ["ValueError: one", "ValueError: other", "ValueError: one"]


def test_threads_add_and_take_ids_while_snapshots_are_made() -> None:
    recorder, threads, each = Recorder(), 8, 200
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work() -> None:
        for _ in range(each):
            graph_id = recorder.next_id("g")
            recorder.add(r.Graph(graph_id=graph_id, phase="inference", op_count=1), r.Finding(rule=graph_id, severity="info", title="t"))

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    sizes = []
    while any(worker.is_alive() for worker in workers):
        capture = recorder.capture()
        assert [graph.graph_id for graph in capture.graphs] == [finding.rule for finding in capture.findings]
        sizes.append(len(capture.graphs))
    sys.setswitchinterval(before)
    assert sizes == sorted(sizes)
    assert {graph.graph_id for graph in recorder.records(r.Graph)} == {f"g{n}" for n in range(threads * each)}
    assert len(recorder.records(r.Finding)) == threads * each
