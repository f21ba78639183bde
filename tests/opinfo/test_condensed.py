"""Every class of outcome is counted, and a part of a run is condensed as well."""

from __future__ import annotations

from tests.opinfo.condensed import condensed


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
