# ruff: noqa: ANN401 - fields of any record

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortlens.analysis.cut import partitions_of, recorded_graphs
from ortlens.analysis.whatif import Candidate, PlannedPartition, boundary_cost, partitions_if, ranking
from ortlens.errors import CaptureError, UsageError
from ortlens.trace import records as r
from ortlens.trace.schema import table_from_record
from tests.unit.analysis import hand_made

GRAPH = r.Graph(graph_id="g0", phase="inference", op_count=0, inputs=("x", "w"), input_sizes=(8, 400), weights=("w",))


def node(name: str, op: str, *inputs: str, **facts: Any) -> r.Node:
    """A node that makes four bytes; an operator in capitals stays in PyTorch."""
    stays = op.isupper()
    code = {"supported": not stays, "reason_code": "no_converter" if stays else None, "partition_id": None if stays else "p0"}
    return hand_made.node(name, **{"target": f"aten.{op}.default", "inputs": inputs, "output_bytes": 4, **code, **facts})


def capture_of(*nodes: r.Node, graph: r.Graph = GRAPH, **tables: Any) -> r.Capture:
    stays = [
        hand_made.fallback(n.node, graph_id=n.graph_id, target=n.target, reason_code=n.reason_code or "policy", calls=2, total_ns=60)
        for n in nodes
        if not n.supported
    ]
    return r.Capture(graphs=(graph,), nodes=nodes, fallbacks=tuple(stays), **tables)


def chain(ops: str, **tables: Any) -> r.Capture:
    """One operator of one letter after another; the last is returned."""
    nodes = [node(f"n{k}", op, f"n{k - 1}" if k else "x") for k, op in enumerate(ops)]
    nodes[-1] = replace(nodes[-1], is_output=True)
    return capture_of(*nodes, **tables)


def savings(rows: Iterable[Candidate]) -> dict[str, int]:
    return {row.target.split(".")[1]: row.partitions_saved for row in rows}


def test_support_joins_what_it_lay_between() -> None:
    (row,) = partitions_if(chain("aAb"), ["aten.A.default"])
    assert (row.node_count, row.gained_nodes) == (3, ("n1",))
    assert (row.partitions_now, row.partitions_then, row.note) == (2, 1, "")
    assert (row.input_count, row.output_count, row.input_bytes, row.output_bytes) == (1, 1, 8, 4)
    (row,) = partitions_if(chain("aABb"), ["aten.A.default", "aten.B"])
    assert (row.gained_nodes, row.partitions_now, row.partitions_then) == (("n1", "n2"), 2, 1)


@pytest.mark.parametrize(
    ("ops", "saved"),
    [
        ("aABb", {"A": 0, "B": 0}),  # one of two in a row saves nothing
        ("aAbBcC", {"A": 1, "B": 1, "C": 0}),
        ("aABAb", {"A": 0, "B": -1}),  # support may cost a partition
    ],
)
def test_what_support_of_an_operator_saves(ops: str, saved: dict[str, int]) -> None:
    assert list(savings(ranking(chain(ops))).items()) == list(saved.items())


def test_what_the_best_ones_come_to() -> None:
    nodes = [node("a", "a", "x", "w"), node("A", "A", "a"), node("b", "b", "A", is_output=True), node("B", "B", "b", is_output=True)]
    first, second = ranking(capture_of(*nodes))
    assert (first.target, first.node_count, first.partitions) == ("aten.A.default", 1, 1)
    assert first.bytes_saved == 8  # the output of a and what A makes of it, four bytes each; the weight is none of it
    assert first.coverage_gained == second.coverage_gained == 0.25
    assert (second.partitions_saved, second.bytes_saved) == (0, -4)  # what it makes is returned, over the boundary
    assert (first.saved_ns, first.saved_at_most_ns, first.eager_ns) == (None, None, 30)


def sessions(*points: tuple[int, int]) -> dict[str, Any]:
    """A session for each of (bytes over its boundary, ns of binding and handing back)."""
    partitions = (hand_made.partition(k, input_bytes=size, output_bytes=0) for k, (size, _) in enumerate(points))
    runs = [run for k, (_, ns) in enumerate(points) for run in hand_made.runs(k, 3, bind=ns - 1, run=7, output=1)]
    runs += [replace(run, bind_ns=10**9, call=9) for run in runs[:1]]  # the first call of all is no measure
    made = (hand_made.session(k, calls=0, total_ns=0) for k in range(len(points)))
    return {"partitions": tuple(partitions), "sessions": tuple(made), "runs": tuple(runs)}


def test_the_cost_of_a_boundary_is_read_off_the_calls() -> None:
    fitted = boundary_cost(chain("aAb", **sessions((1000, 3000), (2000, 5000), (3000, 7000))))
    assert fitted is not None
    assert fitted.call_ns == pytest.approx(1000)
    assert fitted.byte_ns == pytest.approx(2)
    assert "3 sessions: 1.0 us per session call and 2e+06 ns per MB" in fitted.basis
    falling = boundary_cost(chain("aAb", **sessions((1000, 5000), (2000, 3000))))
    assert falling is not None
    assert (falling.call_ns, falling.byte_ns) == (4000, 0)
    assert "not separated" in falling.basis
    one = boundary_cost(chain("aAb", **sessions((1000, 5000))))
    assert one is not None
    assert (one.call_ns, one.byte_ns) == (5000, 0)
    assert boundary_cost(chain("aAb")) is None


def test_the_estimate_is_calls_and_bytes_and_at_most_the_eager_time_and_the_shortest_runs_more() -> None:
    made = sessions((1000, 3000), (2000, 5000))
    (row,) = ranking(chain("aAb", **made))
    assert row.saved_ns == 1000 + 2 * 8  # one partition fewer, and eight bytes that do not cross
    assert row.saved_at_most_ns == row.saved_ns + 30
    assert row.note.startswith("estimate: median bind_ns + output_ns of 2 sessions")
    made["runs"] = tuple(replace(run, graph_id="g0", run_ns=400 if run.session_id == "s0" else 90) for run in made["runs"])
    (row,) = ranking(chain("aAb", **made))
    assert row.saved_at_most_ns == (row.saved_ns or 0) + 30 + 90  # one partition fewer: as if the shorter of the two took no time
    uncalled = replace(chain("aAb"), fallbacks=tuple(replace(f, calls=0, total_ns=0) for f in chain("aAb").fallbacks))
    (row,) = ranking(uncalled)
    assert (row.eager_ns, row.saved_ns, row.saved_at_most_ns, row.note) == (None, None, None, "")


def test_recompiled_graphs_are_not_weighed_twice() -> None:
    nodes = chain("aAb").nodes
    graphs = (replace(GRAPH, compile_id="0/0"), replace(GRAPH, graph_id="g1", compile_id="0/1"))
    both = capture_of(*nodes, *(replace(n, graph_id="g1") for n in nodes))
    rows = ranking(replace(both, graphs=graphs))
    assert [(row.node_count, row.partitions_saved) for row in rows] == [(1, 1)]
    assert [row.graph_id for row in partitions_if(replace(both, graphs=graphs), ["aten.A"])] == ["g0", "g1"]


def test_names_of_operators() -> None:
    for asked in ("aten.A.default", "aten.A"):
        assert len(partitions_if(chain("aAbAc"), [asked])) == 1
    alone = r.Fallback(graph_id="g1", node="sin", target="sin", reason_code="policy", reason="it was left alone")
    left_alone = replace(chain("aAb"), fallbacks=(*chain("aAb").fallbacks, alone))
    assert savings(ranking(left_alone)) == {"A": 1}
    for capture, asked, message in (
        (chain("aAbAc"), "aten.AA", r"no node of aten\.AA stays .* operators that do: aten\.A\.default"),
        (chain("aAbAc"), "aten.b", r"no node of aten\.b stays .*it runs in ONNX Runtime"),
        (chain("ab"), "aten.A", "no node of this capture does"),
        (chain("ABCDEFGHIJKLMNOPQRSTUVWXY"), "prims.zzz", "and 5 more"),
        (left_alone, "sin", "PyTorch runs entirely.*it was left alone"),
    ):
        with pytest.raises(UsageError, match=message):
            partitions_if(capture, [asked])


@pytest.mark.parametrize(
    ("code", "said"), [("device", "(device)"), ("converter_raised", "raised"), ("policy", "by choice"), ("no_converter", "")]
)
def test_what_support_alone_would_not_change_is_said(code: r.ReasonCode, said: str) -> None:
    nodes = [node("a", "a", "x"), node("A", "A", "a", reason_code=code), node("b", "b", "A", is_output=True)]
    (row,), (ranked,) = partitions_if(capture_of(*nodes), ["aten.A"]), ranking(capture_of(*nodes))
    assert said in row.note
    assert row.note == ranked.note
    assert bool(row.note) == bool(said)
    recorded = replace(capture_of(*nodes), graphs=(replace(GRAPH, partition_count=5),))
    assert "5 partitions are recorded" in partitions_if(recorded, ["aten.A"])[0].note


def test_partitions_that_were_too_small_come_back_with_their_neighbours() -> None:
    nodes = [*chain("aAbc").nodes]
    nodes[0] = replace(nodes[0], supported=False, reason_code="too_small", partition_id=None)
    capture = capture_of(*nodes, graph=replace(GRAPH, min_partition_nodes=2))
    (row,) = partitions_if(capture, ["aten.A"])
    assert (row.node_count, row.partitions_now, row.gained_nodes) == (4, 1, ("n0", "n1"))
    with pytest.raises(UsageError, match=r"operators that do: aten\.A\.default$"):
        partitions_if(capture, ["aten.a"])


def test_items_of_tuples_cross_boundaries_one_by_one() -> None:
    nodes = [
        node("split", "split", "x", items=("one", "two"), item_sizes=(100, 30), output_bytes=130),
        node("A", "A", "split", item_inputs=("one",)),
        node("b", "b", "A", "split", item_inputs=("two",), is_output=True),
    ]
    (graph,) = recorded_graphs(capture_of(*nodes))
    made = graph.cut()
    first, second = partitions_of(graph, made)
    assert (first.places, first.outputs, second.places, second.sources) == ([0, 1, 2], [1, 2], [4], {2, 3})
    (row,) = partitions_if(capture_of(*nodes), ["aten.A"])
    assert (row.node_count, row.input_bytes, row.output_bytes) == (3, 8, 4)
    returned = replace(nodes[0], item_outputs=("two",), is_output=True)
    assert partitions_if(capture_of(returned, *nodes[1:]), ["aten.A"])[0].output_bytes == 34


def test_numbers_that_roam_bring_what_they_are_made_of() -> None:
    nodes = [
        node("size", "size", "x", kind="size", roaming=True, output_bytes=0),
        node("a", "a", "x"),
        node("A", "A", "a"),
        node("b", "b", "A", "size", is_output=True),
    ]
    (graph,) = recorded_graphs(capture_of(*nodes))
    _, second = partitions_of(graph, graph.cut())
    assert (second.sources, second.inputs) == ({2}, {"x"})


def test_a_capture_whose_nodes_are_out_of_order_is_refused() -> None:
    with pytest.raises(CaptureError, match="graph g0: node a reads b, which comes after it"):
        ranking(capture_of(node("a", "a", "b"), node("b", "B", "x")))


@st.composite
def captures(draw: st.DrawFn) -> r.Capture:
    count = draw(st.integers(1, 14))
    nodes = []
    for number in range(count):
        sources = draw(st.sets(st.integers(0, number - 1), max_size=2)) if number else set()
        facts: dict[str, Any] = {"mutates": draw(st.integers(0, 9)) == 0}
        op = draw(st.sampled_from("abABCD"))
        if op.isupper() and draw(st.integers(0, 3)) == 0:
            facts["reason_code"] = "side_effect"
        nodes.append(node(f"n{number}", op, *(f"n{source}" for source in sorted(sources)), **facts))
    return capture_of(*nodes)


@settings(max_examples=100, deadline=None)
@given(captures())
def test_a_ranking_says_what_asking_says(capture: r.Capture) -> None:
    for row in ranking(capture):
        assert row.partitions == len(partitions_if(capture, [row.target]))


@pytest.mark.parametrize("record", [PlannedPartition, Candidate])
def test_the_reference_page_lists_the_columns_with_their_meanings(record: type) -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "times.md").read_text(encoding="utf-8")
    for column in table_from_record("what_if", record).columns:
        assert f"| `{column.name}` | {column.dtype} | {column.unit} |" in page
        assert column.meaning in page
