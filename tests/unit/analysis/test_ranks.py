"""Merged captures of ranks, and what the rules find in them. Equal ranks must give nothing."""

from dataclasses import replace

import pytest

from ortlens.analysis.answers.overview import overview_of
from ortlens.analysis.ledger import ledger_totals
from ortlens.analysis.problems.stream import findings_of
from ortlens.analysis.ranks import merged, rank_rows
from ortlens.analysis.timing import call_time, call_times
from ortlens.errors import UsageError
from ortlens.trace import store
from ortlens.trace.records import Break, Capture, Finding, Model, Recompile, Run
from ortlens.trace.schema import TABLES, facts_of
from tests.facts import head
from tests.unit.analysis.hand_made import graph, ledger, node, partition, session
from tests.unit.views.sample_captures import SAMPLES

MS = 1_000_000
RANK_RULES = {"rank_break", "rank_recompiles", "rank_graphs", "rank_sessions", "straggler"}


def one(rank: int, *, delay_ms: float = 0, slow: float = 1, calls: int = 30, ops: tuple[str, ...] = ("aten.mm", "aten.add")) -> Capture:
    """A rank that trains: forward and backward in a session each, all ranks starting a step together."""
    forward = graph(phase="forward", op_count=2, file="/job/net.py", line=7)
    graphs = [forward, replace(forward, graph_id="g1", phase="backward")]
    nodes = [node(f"n{n}", graph_id=each.graph_id, target=op) for each in graphs for n, op in enumerate(ops)]
    runs = []
    for call in range(calls):
        start = 50 * MS * call + round(delay_ms * MS) + rank * 1000 * (call % 3)
        took = round(5 * MS * slow)
        runs.append(Run(session_id="s0", call=call, start_ns=start, run_ns=took, total_ns=took))
        runs.append(Run(session_id="s1", call=call, start_ns=start + took, run_ns=took, total_ns=took))
    return Capture(
        name=f"train rank{rank}-{100 + rank}",
        **head({"rank": str(rank), "boot": "abc", "torch_threads": "1", "pid": str(rank)}),
        graphs=tuple(graphs),
        nodes=tuple(nodes),
        partitions=(partition(), partition(1, "g1")),
        models=tuple(Model(model_id=f"m{n}", partition_id=f"p{n}", node_count=2, path=f"models/m{n}.onnx") for n in (0, 1)),
        sessions=tuple(session(n, calls=calls) for n in (0, 1)),
        runs=tuple(runs),
        attachments={"models/m0.onnx": b"0", "models/m1.onnx": b"1", "notes.txt": b"n"},
    )


def found(*captures: Capture) -> dict[str, Finding]:
    return {item.rule: item for item in findings_of(merged(captures)) if item.rule in RANK_RULES}


def test_records_and_ids_of_all_ranks() -> None:
    capture = merged([one(1), one(0)])
    assert capture.figures.ranks == (0, 1)
    assert capture.name == "train (2 ranks)"
    assert [(graph.graph_id, graph.compile_id, graph.rank) for graph in capture.graphs] == [
        ("r0.g0", "r0.0/0", 0),
        ("r0.g1", "r0.0/0", 0),
        ("r1.g0", "r1.0/0", 1),
        ("r1.g1", "r1.0/0", 1),
    ]
    assert [model.path for model in capture.models[:1]] == ["models/r0.m0.onnx"]
    assert sorted(capture.attachments)[:2] == ["models/r0.m0.onnx", "models/r0.m1.onnx"]
    assert capture.environment == {"boot": "abc", "rank0_pid": "0", "rank1_pid": "1"}
    assert (capture.figures.torch_threads, capture.figures.rank, capture.figures.ranks) == (1, None, (0, 1))
    assert [(row.rank, row.graphs, row.runs, row.run_ns) for row in rank_rows(capture)] == [(0, 2, 60, 5 * MS), (1, 2, 60, 5 * MS)]


def test_a_call_is_not_longer_for_being_recorded_on_two_ranks() -> None:
    both = merged([one(0), one(1)])
    assert [call.total_ns for call in call_times(both)] == [call_time(one(0)).total_ns] * 2
    timed = merged([replace(one(rank), ledger=ledger(run=80, residual=20)) for rank in (0, 1)])
    totals = ledger_totals(timed)
    assert totals is not None
    assert totals.total_ns == 100


@pytest.mark.parametrize("name", sorted(set(SAMPLES) - {"huge"}))  # whose breaks would not fit into a file twice
def test_any_captures_merge_and_are_saved_and_shown(name: str, tmp_path: object) -> None:
    capture = merged([SAMPLES[name], SAMPLES[name]])
    assert all(len(getattr(capture, table)) == 2 * len(getattr(SAMPLES[name], table)) for table in TABLES)
    assert {record.rank for table in TABLES for record in getattr(capture, table)} <= {0, 1}
    assert store.load(store.save(capture, f"{tmp_path}/m.ortlens")) == capture
    overview_of(capture)
    assert not {item.rule for item in findings_of(capture)} & (RANK_RULES | {"rule_failed"})


@pytest.mark.parametrize(
    ("captures", "message"),
    [
        ([one(0)], "two ranks or more, not 1"),
        ([one(0), one(0)], "two captures are of rank 0"),
        ([one(0), replace(one(1), **head({}))], "some did not: 0, none"),
        ([one(0), merged([one(0), one(1)])], "merged already"),
    ],
)
def test_what_cannot_be_merged(captures: list[Capture], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        merged(captures)


def test_equal_ranks_have_no_finding() -> None:
    assert found(*(one(rank) for rank in range(4))) == {}
    assert found(one(0, delay_ms=2), one(1), one(2, slow=1.2), one(3)) == {}


BREAK = Break(break_id="b0", reason="print", file="/job/net.py", line=9, compile_ids=("0/0",), source="print(x)", advice="Delete it")
AGAIN = Recompile(compile_id="0/1", of_compile_id="0/0", function="forward", file="/job/net.py", line=7, guard="size 4", reason="r")
BROKEN = (one(0), one(1), replace(one(2, ops=("aten.mm",)), breaks=(BREAK,)), one(3))
OTHER_GRAPH = (one(0), one(1, ops=("aten.mm", "aten.add", "aten.tanh")), one(2))
RECOMPILED = (one(0), replace(one(1), recompiles=(AGAIN, AGAIN)), replace(one(2), recompiles=(AGAIN,)))
ON_CUDA = replace(one(1).sessions[0], session_id="s9", providers=("CUDAExecutionProvider",))
DELAYED = (one(0), one(1), one(2, delay_ms=30), one(3))
SLOW = (one(0), one(1, slow=4), one(2), one(3))

WORDED: tuple[tuple[str, Capture], ...] = tuple(
    (rule, merged(ranks))
    for rule, ranks in (
        ("rank_break", BROKEN),
        ("rank_graphs", OTHER_GRAPH),
        ("rank_graphs", (one(0), one(1), replace(one(2), graphs=one(2).graphs[:1]))),
        ("rank_recompiles", RECOMPILED),
        ("rank_sessions", (one(0), replace(one(1), sessions=(*one(1).sessions, ON_CUDA)), one(2))),
        ("straggler", DELAYED),
        ("straggler", SLOW),
    )
)
"""Rules and captures that they report on."""


@pytest.mark.parametrize(
    ("ranks", "rule", "subject", "line"),
    [(BROKEN, "rank_break", "r2.b0", 9), (OTHER_GRAPH, "rank_graphs", "r1.g0", 7), (RECOMPILED, "rank_recompiles", "r1.0/1", 7)],
)
def test_what_differs_on_one_rank_is_named_with_its_line(ranks: tuple[Capture, ...], rule: str, subject: str, line: int) -> None:
    finding = found(*ranks)[rule]
    assert (finding.file, finding.line, finding.subject) == ("/job/net.py", line, subject)


def test_a_break_on_one_rank_explains_its_other_graphs() -> None:
    assert set(found(*BROKEN)) == {"rank_break"}
    assert found(*(replace(one(rank), breaks=(BREAK,)) for rank in range(3))) == {}


def test_a_rank_that_is_slow_inside_or_outside_of_its_graphs() -> None:
    assert found(*SLOW)["straggler"].subject == "rank 1"
    finding = found(*DELAYED)["straggler"]
    assert (finding.subject, round((finding.gain_ns or 0) / MS)) == ("rank 2", 30)
    elsewhere = replace(one(2, delay_ms=30), **head({"rank": "2", "boot": "other"}))
    assert found(one(0), one(1), elsewhere, one(3)) == {}, "clocks of two machines tell nothing"
    assert found(one(0, calls=9), one(1, calls=9), one(2, delay_ms=30, calls=9)) == {}


def test_a_few_milliseconds_are_the_schedulers_where_ranks_share_cores() -> None:
    def on(cores: str, slow: float) -> set[str]:
        ranks = (one(0), one(1), one(2, slow=slow), one(3))
        return set(found(*(replace(rank, **head({**facts_of(rank), "cpu_usable": cores})) for rank in ranks)))

    assert on("4", 1.8) == on("2", 2.2) == on("", 1.8) == {"straggler"}
    assert on("2", 1.8) == set(), "8 ms behind the others"
