"""What comparing came to, and the sentence about it."""

from __future__ import annotations

from dataclasses import replace

from ortlens.analysis.numbers import numbers_of
from ortlens.trace import records as r
from ortlens.views.sentences import numbers_sentence, wrong_sentence

RIGHT = r.Numeric(partition_id="p0", node="add", ok=True)
WRONG = r.Numeric(partition_id="p0", node="gelu", ok=False, first_divergence=True, file="model.py", line=12)
LEFT_OUT = r.Numeric(partition_id="p1", node="empty", ok=None, note="nobody wrote to this memory; in the model as converted")


def sentence(*rows: r.Numeric, fallbacks: int = 0) -> str:
    left = tuple(r.Fallback(graph_id="g0", node=f"n{i}", target="t", reason_code="policy", reason="") for i in range(fallbacks))
    numbers = numbers_of(r.Capture(numerics=rows, fallbacks=left))
    assert numbers is not None
    return numbers_sentence(numbers)


def test_nothing_compared_is_no_verdict() -> None:
    assert numbers_of(r.Capture()) is None


def test_all_right() -> None:
    assert sentence(RIGHT, RIGHT) == "2 values of 1 partition compared with PyTorch; all within tolerance"


def test_what_is_wrong_first_and_what_was_not_compared_is_said() -> None:
    assert sentence(RIGHT, WRONG, replace(WRONG, node="later", first_divergence=False), LEFT_OUT, fallbacks=2) == (
        "3 values of 2 partitions compared with PyTorch; 2 out of tolerance, first at gelu (model.py:12); "
        "1 not compared (nobody wrote to this memory); 2 nodes in PyTorch, not compared"
    )


def test_nothing_is_called_right_that_was_not_compared() -> None:
    said = sentence(LEFT_OUT, replace(LEFT_OUT, note="no verdict"))
    assert said == "0 values of 1 partition compared with PyTorch; 1 not compared (nobody wrote to this memory) and 1 for other reasons"


RESULT = r.Numeric(partition_id=None, scope="call", node="result", ok=True)
DIFFERS = r.Numeric(partition_id=None, scope="call", node="result[1]", ok=False, file="model.py", line=7)


def test_the_call_comes_first() -> None:
    assert (
        sentence(RIGHT, RESULT) == "the call gives what PyTorch gives; 1 value of 1 partition compared with PyTorch; all within tolerance"
    )
    assert sentence(RESULT) == "the call gives what PyTorch gives"
    assert sentence(RIGHT, RESULT, DIFFERS).startswith("result[1] differs from PyTorch's (model.py:7); 1 value of 1 partition")
    assert sentence(DIFFERS, DIFFERS).startswith("result[1] and 1 more part of the call differ from PyTorch's")
    assert sentence(RIGHT, replace(RESULT, ok=None, note="why; more")).startswith("the call as a whole was not compared (why)")
    assert sentence(RESULT, replace(RESULT, ok=None)) == "the call gives what PyTorch gives, as far as compared"


def test_wrong_results_name_the_first_wrong_value_or_the_code_around_the_partitions() -> None:
    def said(*rows: r.Numeric) -> str:
        return wrong_sentence(numbers_of(r.Capture(numerics=rows)))

    assert said(RIGHT, RESULT) == said(WRONG) == wrong_sentence(None) == ""
    assert said(RIGHT, DIFFERS).endswith("no value inside a partition differs, so the fault is in the code around the partitions")
    assert said(WRONG, DIFFERS).endswith("the first wrong value inside is gelu (model.py:12)")
    assert said(LEFT_OUT, DIFFERS).endswith("no value inside a partition was compared")


def test_operators_on_their_own_and_origins() -> None:
    one = replace(RIGHT, scope="op", nonfinite="origin")
    assert (
        sentence(one) == "1 operator on its own of 1 partition compared with PyTorch; all within tolerance; NaN or Inf first appears at add"
    )
    assert sentence(one, replace(RIGHT, scope="op")).startswith("2 operators one by one of 1 partition")
