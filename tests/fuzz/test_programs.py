"""A few random programs, and what the judge makes of single ones. `make sweep-fuzz` goes beyond them."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ortlens.backend.basis.error_text import LEFT_TO_TORCH
from tests.fuzz.oracle import Difference, Verdict, judge
from tests.fuzz.plants import planted
from tests.fuzz.program import Program, program
from tests.fuzz.sweep import rows_of, touched_parts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "flags"), [(40046, ()), (40008, ()), (40023, ()), (1000, ("graphs",)), (103, ("reshapes",)), (104, ("graphs", "reshapes"))]
)
def test_random_programs(seed: int, flags: tuple[str, ...], tmp_path: Path) -> None:
    """Plain ones, frozen and raising ones, graphs, written reshapes. The seeds are the same in each run: what fails is what was changed."""
    for row in rows_of(seed, cache_dir=str(tmp_path), seconds=0, **dict.fromkeys(flags, True)):
        if row["verdict"] == "wrong":
            pytest.fail(f"wrong: {row['differences']}\n{row['script']}")


def test_a_graph_that_differs_is_printed_as_a_program(tmp_path: Path) -> None:
    with planted("outputs share memory between calls"):
        (row,) = rows_of(32, cache_dir=str(tmp_path), seconds=1, graphs=True)
    assert row["verdict"] == "wrong"
    assert f"print(judge(Program.from_json({json.dumps(row['program'])!r}" in str(row["script"])


def test_rounding_that_pytorch_makes_is_no_difference() -> None:
    """Of two equal numbers, PyTorch's normalisation is off by 0.014, ONNX Runtime's by nothing."""
    normalised = "F.batch_norm(torch.expm1(a), None, None, training=True)"
    assert judge(program(normalised, a="values(3, 1, n, dtype=torch.int64).movedim(0, -1)", steps=("call(2)",))).word == "rounding"


TENTHS = "torch.full((10,), 0.1).cumsum(0)[-1].to(torch.int32) + a.int() * 0"
"""The sum is above 1 in float32, and below 1 in float64."""


@pytest.mark.parametrize(
    ("returned", "change", "word"),
    [
        ("torch.special.ndtri(a - 0.25)", lambda value: value.where(value != -torch.inf, torch.nan), "rounding"),
        ("torch.special.ndtri(a - 0.25)", lambda value: value.where(value != -torch.inf, 1.0), "wrong"),
        (TENTHS, lambda value: value - 1, "rounding"),
        (TENTHS, lambda value: value + 1, "wrong"),
        ("a.to(torch.int32)", lambda value: value - (value == 1).int(), "wrong"),
    ],
)
def test_a_jump_is_rounding_where_pytorch_gives_the_same_for_rounded_arguments(
    returned: str, change: Callable[[torch.Tensor], torch.Tensor], word: str
) -> None:
    def backend(module: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:  # noqa: ANN401 - example inputs
        return lambda *given: [change(value) for value in module(*given)]

    assert judge(program(returned, a="values(5, 30)"), backend=backend).word == word


def test_a_graph_that_could_not_be_prepared_is_counted() -> None:
    def backend(module: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:  # noqa: ANN401 - example inputs
        warnings.warn(f"ortlens: {LEFT_TO_TORCH}: ValueError: no", RuntimeWarning, stacklevel=2)
        return module.forward

    verdict = judge(program("a + 1", a="values(5, 3)"), backend=backend)
    assert (verdict.word, [item.kind for item in verdict.differences]) == ("unprepared", ["warning"])


def test_what_raises_is_said_of_the_part_whose_argument_was_spoilt() -> None:
    program = Program(seed=1, inputs=(("i_0", "places(1, 3)"), ("i_1", "places(2, 3)")), returns=("i_0", "i_1"))
    program = program.replace(steps=("call(5)", 'given(5, i_1="spoilt(i_1, -1)")'))
    found = [Difference(1, "raised", "plain", ""), Difference(1, "outs[1]", "value", "")]
    assert touched_parts(program, Verdict("torch", tuple(found))) == {1}
    assert touched_parts(program, Verdict("torch", (*found, Difference(1, "outs[0]", "error", "")))) == set()
