from __future__ import annotations

import pytest

from ortlens.trace.records import Break, Graph, Numeric, Session
from ortlens.trace.schema import TABLES
from ortlens.views.table import table
from tests.unit.views.sample_captures import SAMPLES


@pytest.mark.parametrize("sample", SAMPLES)
def test_every_table_keeps_to_the_width(sample: str) -> None:
    for name in TABLES:
        shown = table(getattr(SAMPLES[sample], name), width=100)
        assert max(len(line) for line in shown.split("\n") if not line.startswith("...")) <= 100, name
        shown.encode("utf-8")


def test_columns_are_aligned_numbers_to_the_right() -> None:
    rows = [Session(session_id="s0", partition_id="p", calls=9, total_ns=1500), Session(session_id="s10", partition_id="p", calls=1234)]
    assert table(rows, ("session_id", "calls", "total_ns")).split("\n") == [
        "session_id  calls    total",
        "----------  -----  -------",
        "s0              9  1.50 µs",
        "s10         1,234     0 ns",
    ]


def test_values_are_shown_as_people_read_them() -> None:
    row = Graph(graph_id="g", phase="inference", op_count=1, coverage=0.5, dynamic_shapes=True, line=2000, file="/a/b/c.py")
    shown = table([row], ("coverage", "dynamic_shapes", "line", "file", "node_count")).split("\n")[2]
    assert shown.split() == ["50.0", "%", "yes", "2000", "b/c.py"]
    number = table([Numeric(partition_id="p", node="n", max_abs=1.23456e-7, ok=False)], ("max_abs", "ok"))
    assert number.split("\n")[2].split() == ["1.23e-07", "no"]
    assert [text for text in ("2.00 KiB", "MatMul:2") if text not in table(SAMPLES["demo_like"].models)] == []
    assert table(()) == "no rows"


def test_rows_and_columns_left_out_are_counted() -> None:
    shown = table(SAMPLES["demo_like"].graphs, width=40, limit=2)
    assert "... and 1 more row" in shown
    assert "not enough room for" in shown
    assert "compile_ns" in shown.split("\n")[-1]


ADVICE = "Move `.item()` out of the compiled function, or keep the value as a tensor and select with torch.where, which stays in one graph."
BREAKS = tuple(
    Break(
        break_id=f"b{at}",
        reason="Attempted to call Tensor.item() with config.capture_scalar_outputs=False",
        file="/home/ada/project/attention.py",
        line=71 + at,
        source="if x.abs().max().item() > self.limit:",
        cost_ns=1_234_000,
        compile_ids=("0/0",),
        advice=ADVICE,
    )
    for at in range(2)
)


@pytest.mark.parametrize("width", [80, 120])
def test_breaks_say_reason_place_cost_and_the_whole_advice(width: int) -> None:
    lines = table(BREAKS, width=width).split("\n")
    head, rule, *body = [line for line in lines if not line.startswith("...")]
    assert head.split()[:4] == ["reason", "place", "cost", "advice"]
    assert max(map(len, lines[:-1])) <= width
    assert "project/attention.py:71  1.23 ms" in body[0]
    ends = [len(rule) - len(rest) for rest in (rule, *(rule.split("  ", at)[at] for at in range(1, 4)))]
    column = [line[ends[3] :].split("  ")[0].strip() for line in body]
    assert " ".join(filter(None, column)) == f"{ADVICE} {ADVICE}"
    assert lines[-1].startswith("... not enough room for")


def test_wide_shows_every_column_on_one_line_per_row() -> None:
    head, rule, *body = table(BREAKS, width=None).split("\n")
    assert len(body) == 2
    assert all(ADVICE in line and "if x.abs().max().item() > self.limit:" in line for line in body)
    assert set(head.split()) >= {"break_id", "compile_ids", "occurrences", "source"}
    assert len(rule) == max(map(len, (head, *body)))


def test_one_column_is_shown_however_narrow() -> None:
    assert table(SAMPLES["demo_like"].graphs, width=1).startswith("graph_id\n")
