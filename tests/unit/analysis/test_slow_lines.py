"""The slowest lines of a call: kernels and operators in PyTorch, by line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ortlens.analysis.costs import runs_per_call, slow_lines
from ortlens.trace.records import Capture, Kernel
from ortlens.views.rendering import summary
from tests.unit.analysis.hand_made import FILE, fallback, graph, kernel, ledger, node, partition, session


def timed(name: str, line: int | None, ns: int) -> Kernel:
    return kernel(name, calls=2, total_ns=2 * ns, mean_ns=ns, file=FILE if line else None, line=line, confidence="exact")


def capture() -> Capture:
    return Capture(
        graphs=(graph(entries_per_call=1.0),),
        nodes=(node("sort", target="aten.sort", file=FILE, line=7, source="  y = x.sort()"),),
        partitions=(partition(),),
        sessions=(session(calls=10, total_ns=6000),),
        kernels=(timed("TopK", 7, 500), timed("Cast", 7, 100), timed("Add", 8, 30), timed("Reorder", None, 900)),
        fallbacks=(fallback("svd", line=9, call_ns=200, calls=10),),
        ledger=ledger(run=700, eager=250, residual=50),
    )


def test_kernels_and_operators_of_a_line_add_up() -> None:
    first, second = slow_lines(capture())
    assert (first.line, first.ns, first.is_torch, first.source) == (7, 600, False, "  y = x.sort()")
    assert first.share == pytest.approx(0.6)
    assert (second.line, second.ns, second.is_torch, second.source) == (9, 200, True, None)
    assert 8 not in {line.line for line in slow_lines(capture())}, "it takes little"
    assert slow_lines(replace(capture(), ledger=())) == slow_lines(replace(capture(), kernels=())) == (), "a line may have no time there"


def test_a_line_counts_as_often_as_a_call_runs_it() -> None:
    made = capture()
    twice = replace(made, graphs=(replace(made.graphs[0], entries_per_call=2.0),))
    assert runs_per_call(twice) == {"s0": 2.0}
    assert slow_lines(twice)[0].ns == 1200
    assert slow_lines(twice)[0].share == 1.0


def test_the_summary_names_the_slowest_lines_in_onnx_runtime_once() -> None:
    text = summary(capture(), width=80)
    assert text.count("model.py:7") == 1
    assert "600 ns, 60.0 % y = x.sort()" in " ".join(text.split())
    assert "Slowest in ORT" not in summary(replace(capture(), kernels=()), width=80)
