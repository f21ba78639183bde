from __future__ import annotations

from ortlens.lens.explain_output import ExplainOutput, reason_from_break
from ortlens.trace import records as r

BREAK = r.Break(break_id="b0", reason="Call to `f`", user_stack=("a.py:1 outer", "a.py:9 inner"), occurrences=3)


def test_a_break_reads_as_in_pytorch() -> None:
    reason = reason_from_break(BREAK)
    assert (reason.reason, reason.graph_break, reason.occurrences) == ("Call to `f`", True, 3)
    assert reason.user_stack == BREAK.user_stack


def test_text() -> None:
    output = ExplainOutput(
        graphs=(), graph_count=4, graph_break_count=3, recompile_count=2, break_reasons=(reason_from_break(BREAK),), op_count=7
    )
    assert str(output) == (
        "Graph Count: 4\nGraph Break Count: 3\nRecompile Count: 2\nOp Count: 7\nBreak Reasons:\n"
        "  Break Reason 1 (x3):\n    Reason: Call to `f`\n    User Stack:\n      a.py:1 outer\n      a.py:9 inner"
    )


def test_text_of_nothing() -> None:
    output = ExplainOutput(graphs=(), graph_count=0, graph_break_count=0, recompile_count=0, break_reasons=(), op_count=0)
    assert str(output).splitlines()[-1] == "Break Reasons:"
