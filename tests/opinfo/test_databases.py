"""A part of PyTorch's databases of operators, modules and optimisers, and the figures of the whole; `make sweep-opinfo` judges all."""

import random

import pytest
import torch

from tests.opinfo import corners, layouts, sweep
from tests.opinfo.condensed import condensed
from tests.opinfo.exceptions import CORNERS, EXCEPTIONS, reason_for
from tests.opinfo.modules import cases, verdict_of

_PAIRS = 20
_DTYPES = (torch.float32, torch.int64)


def _chosen() -> list[tuple[str, torch.dtype]]:
    known = sweep.operators()
    pairs = [(name, dtype) for name, op in sorted(known.items()) for dtype in _DTYPES if dtype in op.supported_dtypes("cpu")]
    return sorted(random.Random(0).sample(pairs, _PAIRS), key=str)  # noqa: S311 - which operators are tested


def test_every_exception_is_an_operator_with_a_reason_and_a_link() -> None:
    assert not (EXCEPTIONS.keys() | CORNERS.keys()) - sweep.operators().keys()
    stated = (*EXCEPTIONS.items(), *CORNERS.items())
    assert not [name for name, reason in stated if not reason.text or not reason.link.startswith("https://")]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # operators warn of what they will deprecate
def test_a_part_of_the_database_is_right() -> None:
    wrong = []
    for name, dtype in _chosen():
        for outcome in sweep.outcomes_of(name, [dtype], ["static"], 1):
            torch.compiler.reset()
            if outcome.verdict in ("wrong", "crash") and reason_for(name, outcome.dtype) is None:
                wrong.append(f"{outcome.verdict} {name} {outcome.dtype} sample {outcome.sample}: {outcome.detail}")
    assert not wrong, "\n".join(wrong)


_MENDED = ("nn.functional.hardtanh", "nn.functional.hardswish", "nn.functional.elu", "nn.functional.selu", "lerp")


def _wrong_corners(name: str, *dtypes: torch.dtype) -> list[str]:
    outcomes = [outcome for outcome in corners.outcomes_of(name, *dtypes) if reason_for(name, outcome.dtype, CORNERS) is None]
    assert outcomes
    return [f"{name} {row.dtype} {row.road} sample {row.sample}: {row.detail}" for row in outcomes if row.verdict == "wrong"]


@pytest.mark.parametrize("name", _MENDED)
def test_activations_are_right_at_their_corners(name: str) -> None:
    assert _wrong_corners(name, torch.float32) == []


_LAID_OUT = ("nn.functional.adaptive_avg_pool2d", "nn.functional.pad.replicate_negative", "masked_fill", "add", "cat")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["nn.functional.cross_entropy", "nn.functional.smooth_l1_loss", "nn.functional.relu6", "clamp"])
def test_operators_are_right_at_their_corners(name: str) -> None:
    assert _wrong_corners(name) == []


def test_what_differs_at_a_corner_is_seen() -> None:
    theirs = [torch.tensor([0.0, 1.0, torch.inf, torch.nan])]
    for ours, said in (([1e-9, 1.0, torch.inf, torch.nan], "1e-09 for 0 at [0]"), ([0.0, 1.0, torch.inf, 1.0], "1 for nan at [3]")):
        assert said in corners.difference([torch.tensor(ours)], theirs, exactly=True)
    assert not corners.difference([torch.tensor([1e-9, 1.0001, torch.inf, torch.nan])], theirs, exactly=False)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", _LAID_OUT)
def test_results_lie_as_in_eager(name: str) -> None:
    found = list(layouts.outcomes_of(name, 1))
    assert found
    assert [outcome for outcome in found if outcome.verdict == "wrong"] == []


_EVERY = 40


@pytest.mark.slow
def test_modules_and_optimisers_answer_as_in_eager() -> None:
    found = {}
    for name, case in list(cases().items())[::_EVERY]:
        verdict, said = verdict_of(case)
        if verdict == "wrong":
            found[name] = said
    assert found == {}


def test_a_wrong_answer_and_a_warning_are_told() -> None:
    right = {"eager": [1.0], "other": [2.0]}
    assert verdict_of(lambda backend: right["other" if backend == "ortlens" else "eager"]) == ("wrong", "value 0: 2.0 instead of 1.0")
    assert verdict_of(lambda backend: right["eager" if backend is None else "other"])[0] == "control"
    assert verdict_of(lambda _: right["eager"]) == ("right", "")


def outcome(operator: str, verdict: str, detail: str = "") -> dict[str, object]:
    return {"operator": operator, "dtype": "float32", "road": "static", "sample": 0, "verdict": verdict, "detail": detail}


def test_every_class_is_counted() -> None:
    outcomes = {
        "add": [outcome("add", "whole"), outcome("add", "part", "aten.cos.default: no function"), outcome("add", "control", "a < b | c")],
        "sub": [outcome("sub", "wrong", "off by 1"), outcome("sub", "torch"), outcome("sub", "refused")],
        "mul": [],
    }
    figures = condensed(outcomes, ["add", "sub", "mul", "div"])
    assert figures["by_type"] == [{"dtype": "float32", "road": "static", "whole": 1, "part": 1, "torch": 1, "excluded": 2, "wrong": 1}]
    assert figures["operators"] == {
        "add": {"whole": 1, "part": 1, "excluded": 1, "reasons": ["aten.cos.default: no function"]},
        "sub": {"torch": 1, "excluded": 1, "wrong": 1, "reasons": ["off by 1"]},
    }
    assert figures["excluded"][0] == {"operator": "add", "cases": 1, "why": "control", "detail": "a < b | c"}
    assert figures["missing"] == ["div", "mul"]


def test_a_difference_for_a_stated_reason_is_excluded_with_it() -> None:
    figures = condensed({"sort": [outcome("sort", "wrong", "value 1 differs"), outcome("sort", "crash", "exit 1")]}, ["sort"])
    assert figures["operators"] == {"sort": {"excluded": 1, "crash": 1, "reasons": ["exit 1"]}}
    (excluded,) = figures["excluded"]
    assert excluded["why"].startswith("which of equal elements")
    assert excluded["link"].startswith("https://")
