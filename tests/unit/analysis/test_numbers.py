"""What comparing came to; test_wording.py asserts the sentences about it."""

from dataclasses import replace

from ortlens.analysis.answers.verdict import correct_verdict, numbers_of
from ortlens.trace import records as r
from ortlens.views.sentences import numbers_sentence, verdict_sentence
from ortlens.views.tiles import tiles_of

RIGHT = r.Numeric(partition_id="p0", node="add", ok=True)
WRONG = r.Numeric(partition_id="p0", node="gelu", ok=False, first_divergence=True, file="model.py", line=12)
LEFT_OUT = r.Numeric(
    partition_id="p1",
    node="empty",
    ok=None,
    note="nobody wrote to this memory; in the model as converted",
    why="nobody wrote to this memory",
)
RESULT = r.Numeric(partition_id=None, scope="call", node="result", ok=True)
DIFFERS = r.Numeric(partition_id=None, scope="call", node="result[1]", ok=False, file="model.py", line=7)
OPEN = replace(RESULT, ok=None, max_abs=6.0, why="the order of equal values is undefined at topk", is_undecided=True)
ALONE = replace(RIGHT, scope="op", nonfinite="origin")
FAR = replace(RIGHT, node="mul", max_abs=3e-5, max_rel=1.5e-6, atol=1e-5, rtol=1e-4)
NEAR = replace(RIGHT, node="big", max_abs=0.5, max_rel=1e-7, atol=1.0, rtol=1e-4)
BEYOND = replace(FAR, max_rel=1e-2, max_abs=1.0)
GRAPH = r.Graph(graph_id="g0", phase="inference", op_count=1, node_count=1, partition_count=1, fallback_count=0)
PARTITION = r.Partition(partition_id="p0", graph_id="g0", node_count=1, input_count=1, output_count=1)
STAYING = tuple(r.Fallback(graph_id="g0", node=f"n{i}", target="t", reason_code="policy", reason="") for i in range(2))


def capture(*rows: r.Numeric, fallbacks: tuple[r.Fallback, ...] = ()) -> r.Capture:
    return r.Capture(graphs=(GRAPH,), partitions=(PARTITION,), numerics=rows, fallbacks=fallbacks)


WORDED: tuple[r.Capture, ...] = (
    capture(RIGHT, replace(RIGHT, node="mul"), replace(RIGHT, scope="output")),  # returned as it was computed, a value is one
    capture(RIGHT, WRONG, replace(WRONG, node="later", first_divergence=False), LEFT_OUT, fallbacks=STAYING),
    capture(LEFT_OUT, replace(LEFT_OUT, node="other", why="no verdict")),  # nothing is called right that was not compared
    *(
        capture(*rows)
        for rows in (
            (RIGHT, RESULT),
            (RESULT,),
            (RIGHT, RESULT, DIFFERS),
            (DIFFERS, replace(DIFFERS, node="result[2]")),
            (RIGHT, replace(RESULT, ok=None, why="why")),
            (RESULT, replace(RESULT, ok=None)),
            (RIGHT, OPEN),  # what PyTorch leaves open does not pass for the same
            (RIGHT, replace(OPEN, max_abs=0.0)),
            (RIGHT, DIFFERS),
            (WRONG,),
            (WRONG, DIFFERS),
            (LEFT_OUT, DIFFERS),
            (ALONE,),
            (ALONE, replace(RIGHT, node="mul", scope="op")),
            (FAR, NEAR),
            (NEAR, replace(FAR, max_rel=3e-4)),
            (replace(FAR, atol=None, rtol=None),),
            (replace(FAR, max_rel=None),),
            (RIGHT, replace(FAR, max_abs=0.0)),
            (replace(FAR, ok=None),),
            (replace(FAR, max_abs=float("nan")),),
            (replace(WRONG, first_divergence=False), DIFFERS),
            (BEYOND,),  # right for another reason, so that its tolerance says nothing
            (replace(BEYOND, ok=False),),
        )
    ),
)
"""Captures whose numbers are spoken of differently."""


def test_nothing_compared_is_no_verdict() -> None:
    assert numbers_of(r.Capture()) is None


def test_what_was_compared_is_counted() -> None:
    numbers = numbers_of(WORDED[1])
    assert numbers is not None
    assert (numbers.right, numbers.wrong, numbers.partitions, numbers.eager_nodes) == (1, 2, 2, 2)
    assert numbers.first == WRONG
    assert [count for *_, count in numbers.unchecked] == [1]


def test_all_views_give_one_verdict() -> None:
    for said in WORDED:
        numbers = numbers_of(said)
        verdict = correct_verdict(said)
        assert numbers is not None
        assert numbers.is_right is (verdict in ("verified", "partly") and not numbers.is_undecided)
        claims = ("all within tolerance" in numbers_sentence(numbers), "results match PyTorch" in verdict_sentence(said))
        assert all(not claim or numbers.is_right for claim in claims)
        assert verdict != "differs" or not any(claims)
        assert tiles_of(said)[-1].state == {"differs": "bad", "verified": "good"}.get(verdict, "unknown")


def test_an_onnx_model_is_verified_by_its_outputs() -> None:
    """Nothing inside it is compared, and nothing inside it is promised."""
    for rows, verdict in (((RESULT,), "verified"), ((RESULT, replace(RESULT, ok=None)), "partly"), ((RESULT, DIFFERS), "differs")):
        model = replace(capture(*rows), environment={"onnx_model": "file"})
        assert correct_verdict(model) == verdict


def test_a_result_that_differs_without_a_verdict_is_in_the_verdict_and_its_tile() -> None:
    for said, differs in ((WORDED[9], True), (WORDED[10], False)):
        assert ("results differ without a verdict" in verdict_sentence(said)) is differs
        assert ("results differ without a verdict" in tiles_of(said)[-1].detail) is differs
