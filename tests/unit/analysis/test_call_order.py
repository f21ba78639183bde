"""The order of a call: versions in the place of the first, breaks before the graph behind them."""

from ortlens.trace.records import Break, Capture, Graph, LedgerPart, Phase
from ortlens.views.flame import breaks_ahead, current_in_call_order, graphs_in_call_order


def graph(graph_id: str, compile_id: str, phase: Phase = "inference") -> Graph:
    return Graph(graph_id=graph_id, compile_id=compile_id, phase=phase, op_count=1, name=f"f{compile_id.rpartition('/')[0]}")


def measured(*graph_ids: str) -> tuple[LedgerPart, ...]:
    return tuple(LedgerPart(graph_id=name, part=part, ns=1, share=0.1) for name in graph_ids for part in ("run", "residual"))


def broken(break_id: str, *compile_ids: str) -> Break:
    return Break(break_id=break_id, reason="r", compile_ids=compile_ids)


def test_a_version_compiled_last_is_entered_where_the_first_was() -> None:
    graphs = (graph("g0", "0/0"), graph("g1", "4/0"), graph("g2", "5/0"), graph("g3", "4/1"))
    breaks = (broken("b0", "0/0"), broken("b1", "1/0", "2/0"), broken("b2", "3/0"), broken("b3", "4/0", "4/1"))
    for ledger in ((), measured("g0", "g3", "g2")):
        capture = Capture(graphs=graphs, breaks=breaks, ledger=ledger)
        assert [item.graph_id for item in current_in_call_order(capture)] == ["g0", "g3", "g2"]
        assert breaks_ahead(capture) == ({"g3": [0, 1, 2], "g2": [3]}, [])


def test_the_measured_call_shows_the_order_itself() -> None:
    graphs = (graph("g0", "0/0"), graph("g1", "1/0"), graph("g2", "2/0"))
    capture = Capture(graphs=graphs, ledger=measured("g2", "g0"))
    assert [item.graph_id for item in graphs_in_call_order(capture)] == ["g2", "g1", "g0"]


def test_a_break_at_backward_lies_before_it_and_one_at_the_end_behind_all() -> None:
    graphs = (graph("g0", "0/0", "forward"), graph("g1", "0/0", "backward"), graph("g2", "2/0"))
    capture = Capture(graphs=graphs, breaks=(broken("b0", "0/0"), broken("b1", "2/0")))
    assert breaks_ahead(capture) == ({"g1": [0]}, [1])


def test_compiled_autograd_counts_its_frames_apart_and_odd_ids_do_no_harm() -> None:
    graphs = (graph("g0", "0/0"), graph("g1", "1/0"), graph("g2", "!0/0/0"), graph("g3", "!0/1/0"), graph("x", "odd"))
    capture = Capture(graphs=graphs, breaks=(broken("b0", "!0/0/0"), broken("b1", "0/0"), broken("b2"), broken("b3", "strange")))
    assert breaks_ahead(capture) == ({"g1": [1], "g3": [0]}, [2, 3])
