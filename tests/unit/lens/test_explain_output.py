from ortlens.lens.observing.compilations import BreakReason, ExplainOutput, reason_from_break
from ortlens.trace import records as r

BREAK = r.Break(break_id="b0", reason="Call to `f`", user_stack=("a.py:1 outer", "a.py:9 inner"), occurrences=3)


def test_text() -> None:
    output = ExplainOutput(
        graphs=(), graph_count=4, graph_break_count=3, recompile_count=2, break_reasons=(reason_from_break(BREAK),), op_count=7
    )
    assert str(output) == (
        "Graph Count: 4\nGraph Break Count: 3\nRecompile Count: 2\nOp Count: 7\nBreak Reasons:\n"
        "  Break Reason 1 (x3):\n    Reason: Call to `f`\n    User Stack:\n      a.py:1 outer\n      a.py:9 inner"
    )


HOSTILE = "<script>alert(1)</script>\u202e" + "x" * 10_000


def many(count: int, text: str) -> ExplainOutput:
    reason = BreakReason(reason=text, user_stack=(f"a.py:1 {text}", f"b.py:2 {text}"), occurrences=3)
    return ExplainOutput(
        graphs=(), graph_count=count + 1, graph_break_count=count, recompile_count=1, break_reasons=(reason,) * count, op_count=5
    )


def test_a_notebook_gets_a_table_in_which_hostile_names_stay_text_and_many_rows_stay_few() -> None:
    html = many(1, "a reason")._repr_html_()
    assert [
        part for part in ("2 graphs, 1 graph break, 1 recompile, 5 operations", "<td>a reason</td>", "b.py:2 a reason") if part not in html
    ] == []
    assert "<table>" not in many(0, "")._repr_html_()
    assert repr(many(2, "a reason")) == "<ExplainOutput 3 graphs, 2 graph breaks, 1 recompile, 5 operations>"
    html = many(1000, HOSTILE)._repr_html_()
    assert "<script" not in html
    assert "\u202e" not in html
    assert "more rows in <code>.break_reasons</code>" in html
    assert len(html) < 20_000


def test_drawing_never_raises() -> None:
    broken = ExplainOutput(graphs=(), graph_count=1, graph_break_count=1, recompile_count=0, break_reasons=(None,), op_count=1)  # type: ignore[arg-type]
    assert "could not draw this: AttributeError" in broken._repr_html_()
