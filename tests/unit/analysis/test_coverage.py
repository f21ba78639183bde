from __future__ import annotations

from dataclasses import replace

import pytest

from ortlens.analysis.coverage import coverage_of, current_graphs, ort_node_count
from ortlens.trace.records import Capture, Graph, Partition
from tests.unit.views.sample_captures import SAMPLES


def _graph(graph_id: str, compile_id: str | None, nodes: int | None = 10, coverage: float | None = None, name: str = "f") -> Graph:
    return Graph(graph_id=graph_id, compile_id=compile_id, phase="inference", name=name, node_count=nodes, op_count=1, coverage=coverage)


@pytest.mark.parametrize(
    ("graphs", "current"),
    [
        ((_graph("a", "0/0"), _graph("b", "1/0"), _graph("c", "0/2"), _graph("d", "0/1"), _graph("e", "0/10")), "be"),
        ((_graph("a", "0/0", name="f"), _graph("b", "0/1", name="g")), "ab"),
        *(((_graph("a", odd), _graph("b", odd)), "ab") for odd in (None, "odd", "!1/x/y")),
    ],
)
def test_current_graphs_are_the_newest_attempts_of_each_function(graphs: tuple[Graph, ...], current: str) -> None:
    assert "".join(graph.graph_id for graph in current_graphs(Capture(graphs=graphs))) == current


def test_coverage_counts_recompiled_code_once() -> None:
    capture = Capture(graphs=(_graph("a", "0/0", 10, 1.0), _graph("b", "1/0", 10, 0.0), _graph("c", "1/1", 10, 0.5)))
    coverage = coverage_of(capture)
    assert (coverage.node_count, coverage.ort_node_count) == (20, 15)


def test_coverage_counts_partitions_of_current_graphs_only() -> None:
    parts = tuple(Partition(partition_id=f"p{g}", graph_id=g, node_count=10, input_count=1, output_count=1) for g in ("a", "b"))
    capture = Capture(graphs=(_graph("a", "0/0", 10, 1.0), _graph("b", "0/1", 10, 1.0)), partitions=parts)
    coverage = coverage_of(capture)
    assert (coverage.partition_count, coverage.whole_graph_count, coverage.verdict) == (1, 1, "whole")
    in_two = replace(capture, partitions=(parts[1], replace(parts[1], partition_id="p2")))
    assert coverage_of(in_two).whole_graph_count == 0


def test_ort_node_count_falls_back_on_the_partitions() -> None:
    assert ort_node_count(_graph("a", "0/0"), {"a": 7}) == 7
    assert ort_node_count(_graph("a", "0/0"), {}) == 0
    assert ort_node_count(_graph("a", "0/0", None), {"a": 7}) is None


@pytest.mark.parametrize(
    ("sample", "verdict", "share"),
    [
        ("empty", "empty", None),
        ("foreign", "foreign", None),
        ("no_compute", "no_compute", None),
        ("nothing_runs", "none", 0.0),
        ("whole", "whole", 1.0),
        ("demo_like", "part", 27 / 28),
        ("training", "whole", 1.0),
    ],
)
def test_verdict(sample: str, verdict: str, share: float | None) -> None:
    coverage = coverage_of(SAMPLES[sample])
    assert coverage.verdict == verdict
    assert coverage.share == (None if share is None else pytest.approx(share))
