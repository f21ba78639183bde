"""What comparing came to, and the sentence about it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ortlens.analysis.numbers import numbers_of
from ortlens.analysis.overview import overview_of
from ortlens.trace import records as r
from ortlens.views.payload import verdict_sentence
from ortlens.views.sentences import numbers_sentence, wrong_sentence
from ortlens.views.tiles import tiles_of
from ortlens.views.wording import farthest_words

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


def test_a_result_that_differs_where_pytorch_leaves_it_open_does_not_pass_for_the_same() -> None:
    graph = r.Graph(graph_id="g0", phase="inference", op_count=1, node_count=1, partition_count=1, fallback_count=0)
    result = replace(RESULT, ok=None, max_abs=6.0, note="no verdict: the order of equal values is undefined at topk")
    partition = r.Partition(partition_id="p0", graph_id="g0", node_count=1, input_count=1, output_count=1)
    capture = r.Capture(graphs=(graph,), partitions=(partition,), numerics=(RIGHT, result))
    said = "the call as a whole differs from PyTorch's by up to 6, without a verdict (the order of equal values is undefined at topk)"
    assert sentence(RIGHT, result).startswith(said)
    assert (
        tiles_of(capture, overview_of(capture))[-1].detail
        == "1 value compared with PyTorch, all match; the results differ without a verdict"
    )
    assert "results differ without a verdict" in verdict_sentence(overview_of(capture), capture)
    same = replace(capture, numerics=(RIGHT, replace(result, max_abs=0.0)))
    assert "results differ" not in verdict_sentence(overview_of(same), same)


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


FAR = replace(RIGHT, node="mul", max_abs=3e-5, max_rel=1.5e-6, atol=1e-5, rtol=1e-4)
NEAR = replace(RIGHT, node="big", max_abs=0.5, max_rel=1e-7, atol=1.0, rtol=1e-4)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ((FAR, NEAR), "3.0e-05, 1.5e-06 of its size and 1.5 % of the tolerance"),
        ((NEAR, replace(FAR, max_rel=3e-4)), "3.0e-05, 3.0e-04 of its size and 3.0 times the tolerance"),
        ((replace(FAR, atol=None, rtol=None),), "3.0e-05, 1.5e-06 of its size"),
        ((replace(FAR, max_rel=None),), "3.0e-05"),
        ((RIGHT, replace(FAR, max_abs=0.0)), ""),
        ((replace(FAR, ok=None),), ""),
        ((replace(FAR, max_abs=float("nan")),), ""),
    ],
)
def test_a_difference_is_said_with_what_it_is_measured_against(rows: tuple[r.Numeric, ...], said: str) -> None:
    numbers = numbers_of(r.Capture(numerics=rows))
    assert numbers is not None
    assert farthest_words(numbers.farthest) == said


def test_the_summary_names_the_largest_difference_and_the_tile_that_of_wrong_values() -> None:
    capture = r.Capture(graphs=(r.Graph(graph_id="g0", phase="inference", op_count=1, node_count=1),), numerics=(NEAR, FAR))
    assert "all within tolerance; the largest difference is 3.0e-05, 1.5e-06 of its size" in sentence(NEAR, FAR)
    tile = tiles_of(capture, overview_of(capture))[-1]
    assert tile.detail == "2 values compared with PyTorch, all match"
    beyond = sentence(replace(FAR, max_rel=1e-2, max_abs=1.0))  # right for another reason, so that its tolerance says nothing
    assert "the largest difference is 1.0e+00, 1.0e-02 of its size" in beyond
    assert "times the tolerance" not in beyond
    wrong = replace(capture, numerics=(replace(FAR, max_rel=1e-2, max_abs=1.0, ok=False),))
    tile = tiles_of(wrong, overview_of(wrong))[-1]
    assert tile.detail == "1 of 1 value compared with PyTorch differs, by up to 1.0e+00, 1.0e-02 of its size and 100 times the tolerance"
