"""Memory of graphs and partitions, from records alone."""

from typing import Any

from ortlens.analysis.memory import memory, peak_of
from ortlens.trace import records as r
from tests.unit.analysis import hand_made


def node(name: str, inputs: tuple[str, ...], size: int, target: str = "aten.add.Tensor", **more: Any) -> r.Node:  # noqa: ANN401 - fields
    return hand_made.node(name, target=target, inputs=inputs, output_bytes=size, **more)


def test_a_value_lives_from_its_maker_to_its_last_reader() -> None:
    nodes = (node("a", ("x",), 100), node("b", ("a",), 10), node("c", ("a", "b"), 1), node("d", ("c",), 50))
    assert peak_of(nodes, {"d"}) == (111, "c")
    assert peak_of(nodes, {"a", "d"}) == (151, "d"), "a value that outlives the partition is held to the end"


def test_another_shape_of_the_same_memory_takes_none_and_keeps_it_alive() -> None:
    view = "aten.view.default"
    nodes = (node("a", ("x",), 100), node("v", ("a",), 100, view), node("w", ("v",), 100, view), node("b", ("w",), 7))
    assert peak_of(nodes, {"b"}) == (107, "b")
    assert peak_of((), set()) == (0, None)
    assert peak_of((node("v", ("x",), 100, view),), {"v"}) == (0, None), "an input seen under another shape is the caller's"


def test_rows_tell_who_holds_weights() -> None:
    capture = r.Capture(
        graphs=(hand_made.graph(inputs=("w", "x"), input_sizes=(1000, 8), weights=("w",)), hand_made.graph("g1")),
        nodes=(
            node("a", ("x", "w"), 100),
            node("b", ("a",), 60, partition_id=None),
            node("c", ("b",), 5, partition_id="p1", is_output=True),
        ),
        partitions=(hand_made.partition(weight_bytes=1000), hand_made.partition(1)),
        sessions=(
            r.Session(session_id="s0", partition_id="p0", frozen_bytes=900, copied_bytes=300, held_bytes=950, arena_bytes=90),
            r.Session(session_id="s1", partition_id="p0"),
        ),
    )
    whole, first, second, unused = memory(capture)
    assert (whole.partition_id, whole.weight_bytes, whole.input_bytes, whole.output_bytes) == (None, 1000, 8, 5)
    assert (whole.live_bytes, whole.live_at) == (160, "b")
    assert (first.session_id, first.weight_bytes, first.shared_bytes, first.copied_bytes) == ("s0", 1000, 600, 300)
    assert (first.held_bytes, first.arena_bytes, first.live_bytes) == (950, 90, 100)
    assert (second.session_id, second.shared_bytes, second.arena_bytes) == ("s1", None, None)
    assert (unused.partition_id, unused.session_id) == ("p1", None)
