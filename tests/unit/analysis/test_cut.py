import itertools
from collections.abc import Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ortlens.analysis.cut import Cut, Dag, cut, earliest_levels, sink


def dag_of(sources: Sequence[Sequence[int]], sizes: Sequence[int] | None = None, **flags: Sequence[bool]) -> Dag:
    """A graph of compute nodes that returns whatever nothing reads."""
    readers = [[node for node, read in enumerate(sources) if place in read] for place in range(len(sources))]
    none = [False] * len(sources)
    plain: dict[str, Any] = {"counted": [True] * len(sources), "anchored": none, "roaming": none, "writes": none}
    weighed = [1] * len(sources) if sizes is None else sizes
    returned = [not read for read in readers]
    return Dag(sources=sources, readers=readers, size_of=weighed.__getitem__, **{**plain, "returned": returned, **flags})


@st.composite
def graphs(draw: st.DrawFn, *, most: int = 14) -> tuple[Dag, list[bool]]:
    """Any graph of nodes that read up to two earlier ones, and which of them are supported."""
    count = draw(st.integers(1, most))
    sources = [sorted(draw(st.sets(st.integers(0, node - 1), max_size=2))) if node else [] for node in range(count)]
    flags = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    return dag_of(sources, draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))), flags


def plainly(dag: Dag, supported: Sequence[bool], *, min_nodes: int = 1) -> Cut:
    return cut(dag, supported, [False] * len(supported), min_nodes=min_nodes)


def chain(signs: str) -> tuple[Dag, list[bool]]:
    """One operator after another, supported where there is a plus."""
    return dag_of([[node - 1] if node else [] for node in range(len(signs))]), [sign == "+" for sign in signs]


def count_of(signs: str) -> int:
    return plainly(*chain(signs)).count


def wave(made: Cut, node: int) -> tuple[int, bool]:
    """When a node runs: PyTorch's nodes of a level before the partition of that level."""
    return made.level[node], made.inside[node]


def can_run(dag: Dag, supported: Sequence[bool], labels: Sequence[int]) -> bool:
    """Whether partitions made by labelling the supported nodes can run one after another."""
    label = iter(labels)
    group: list[Any] = [("part", next(label)) if flag else ("torch", node) for node, flag in enumerate(supported)]
    before: dict[Any, set[Any]] = {name: set() for name in group}
    for node, sources in enumerate(dag.sources):
        before[group[node]].update(group[source] for source in sources if group[source] != group[node])
    try:
        TopologicalSorter(before).prepare()
    except CycleError:
        return False
    return True


@settings(max_examples=80, deadline=None)
@given(graphs(most=7))
def test_no_labelling_at_all_does_with_fewer(graph: tuple[Dag, list[bool]]) -> None:
    dag, supported = graph
    made = plainly(dag, supported)
    assert can_run(dag, supported, [made.level[node] for node, flag in enumerate(supported) if flag])
    if made.count > 1:
        fewer = itertools.product(range(made.count - 1), repeat=sum(supported))
        assert not any(can_run(dag, supported, labels) for labels in fewer)


def crossing_bytes(dag: Dag, inside: Sequence[bool], level: Sequence[int]) -> int:
    """Bytes of the values that leave the partition they are made in."""

    def leaves(node: int) -> bool:
        return dag.returned[node] or any(not inside[reader] or level[reader] != level[node] for reader in dag.readers[node])

    return sum(dag.size_of(node) for node, flag in enumerate(inside) if flag and leaves(node))


# A value used in two later partitions crosses a boundary wherever it is made; its input must not cross one as well.
USED_TWICE = (
    dag_of([[], [0], [1], [0], [3], [4, 2], [5], [6, 2]], [50, 5, 5, 1, 1, 1, 1, 1]),
    [True, True, True, True, False, True, False, True],
)


@settings(max_examples=200)
@example(USED_TWICE)
@given(graphs())
def test_no_node_runs_before_what_it_reads_and_sinking_brings_no_more_bytes_over_the_boundary(graph: tuple[Dag, list[bool]]) -> None:
    dag, supported = graph
    made = plainly(dag, supported)
    assert made.inside == supported
    for node, sources in enumerate(dag.sources):
        assert all(wave(made, source) <= wave(made, node) for source in sources)
    assert {made.level[node] for node, inside in enumerate(made.inside) if inside} == set(range(made.count))
    level = earliest_levels(dag, supported, [False] * len(supported))
    before = crossing_bytes(dag, supported, level)
    sink(dag, supported, level)
    assert crossing_bytes(dag, supported, level) <= before


def test_what_is_made_of_nothing_is_made_where_it_is_used() -> None:
    dag = dag_of([[], [], [1], [0, 2]], [9, 1, 1, 1])  # node 0 is a mask; 2 stays in PyTorch
    assert plainly(dag, [True, True, False, True]).level == [1, 0, 1, 1]
    anchored = replace(dag, anchored=[True, False, False, False])
    assert plainly(anchored, [True, True, False, True]).level == [0, 0, 1, 1]
    returned = replace(dag, returned=[True, False, False, True])
    assert plainly(returned, [True, True, False, True]).level == [0, 0, 1, 1]


def test_a_large_input_holds_a_node_back_unless_it_leaves_anyway() -> None:
    sources, supported = [[], [0], [0], [1, 2]], [True, True, False, True]
    assert plainly(dag_of(sources, [50, 5, 1, 1]), supported).level == [0, 1, 1, 1]  # node 0 leaves for node 2
    lonely: list[list[int]] = [[], [0], [], [2], [1, 3]]
    assert plainly(dag_of(lonely, [50, 5, 1, 1, 1]), [True, True, True, False, True]).level == [0, 0, 0, 1, 1]
    assert plainly(dag_of(lonely, [5, 5, 1, 1, 1]), [True, True, True, False, True]).level == [1, 1, 0, 1, 1]


def test_alternation_is_what_costs() -> None:
    signs = ("", "-", "+", "+++", "+-+", "-+-", "+-+-+", "+--+", "+++-", "+---+", "+++++")
    assert [count_of(each) for each in signs] == [0, 0, 1, 1, 2, 1, 3, 2, 1, 2, 1]
    assert plainly(*chain("+-++-+")).level == [0, 1, 1, 1, 2, 2]
    side_by_side = dag_of([[], [0], [0], [1], [2], [3, 4]])
    assert plainly(side_by_side, [True, False, False, True, True, True]).count == 2


def test_a_partition_of_numbers_alone_is_none() -> None:
    dag, supported = chain("+-+")
    assert plainly(replace(dag, counted=[False, True, True]), supported).count == 1
    assert plainly(replace(dag, counted=[False, True, True]), supported).too_small == {0: 0}
    assert plainly(replace(dag, counted=[True, True, True]), supported, min_nodes=0).count == 2
    roaming = plainly(replace(chain("+++")[0], roaming=[True, False, False]), [True] * 3)
    assert (roaming.inside, roaming.count, roaming.too_small) == ([False, True, True], 1, {})


@settings(max_examples=200)
@given(graphs(), st.sampled_from([2, 3, 50]))
def test_no_partition_is_under_the_limit_and_what_has_an_order_keeps_it(graph: tuple[Dag, list[bool]], least: int) -> None:
    dag, supported = graph
    made = plainly(dag, supported, min_nodes=least)
    sizes = [sum(inside and made.level[node] == number for node, inside in enumerate(made.inside)) for number in range(made.count)]
    assert all(size >= least for size in sizes)
    given_back = {node for node, flag in enumerate(supported) if flag and not made.inside[node]}
    assert given_back == set(made.too_small)
    assert all(1 <= would_have < least for would_have in made.too_small.values())
    stays = [not flag for flag in supported]
    ordered = cut(dag, supported, stays)
    waves = [wave(ordered, node) for node, flag in enumerate(stays) if flag]
    assert waves == sorted(waves)
    assert all(wave(ordered, source) <= wave(ordered, node) for node, sources in enumerate(dag.sources) for source in sources)


def test_a_write_comes_after_every_earlier_node_and_before_every_later_one() -> None:
    dag = dag_of([[], [], []], writes=[False, True, False])
    made = plainly(dag, [True, False, True])
    assert wave(made, 0) < wave(made, 1) < wave(made, 2)
    assert made.count == 2
    assert plainly(replace(dag, writes=[False] * 3), [True, False, True]).count == 1


def test_nothing_sinks_past_a_write_of_what_it_read() -> None:
    dag = dag_of([[], [], [0, 1]], [9, 1, 1], writes=[False, True, False])  # node 2 reads node 0 after the write
    assert plainly(dag, [True, False, True]).level == [0, 1, 1]
    assert plainly(replace(dag, writes=[False] * 3), [True, False, True]).level == [0, 0, 0]
