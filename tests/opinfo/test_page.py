"""The page of operators: every class of outcome is counted, and a part of a run makes a page as well."""

from __future__ import annotations

from tests.opinfo.page import page


def outcome(operator: str, verdict: str, detail: str = "") -> dict[str, object]:
    return {"operator": operator, "dtype": "float32", "road": "static", "sample": 0, "verdict": verdict, "detail": detail}


def test_every_class_is_counted() -> None:
    outcomes = {
        "add": [outcome("add", "whole"), outcome("add", "part", "aten.cos.default: no function"), outcome("add", "control", "a < b | c")],
        "sub": [outcome("sub", "wrong", "off by 1"), outcome("sub", "torch"), outcome("sub", "refused")],
        "mul": [],
    }
    lines = page(outcomes, ["add", "sub", "mul", "div"]).splitlines()
    assert "| **6** | cases of 3 operators |" in lines
    assert "| float32 | static | 6 | 1 | 1 | 1 | 2 | 1 | 0 |" in lines
    assert "| `add` | 3 | 1 | 1 | 0 | 1 | 0 | 0 | aten.cos.default: no function |" in lines
    assert "| `sub` | 3 | 0 | 0 | 1 | 1 | 1 | 0 | off by 1 |" in lines
    assert "| `add` | 1 | `torch.compile` with the backend `aot_eager` differs from eager too | a &lt; b \\| c |" in lines
    assert lines[-1].endswith("`div`, `mul`.")


def test_a_difference_for_a_stated_reason_is_excluded_with_it() -> None:
    lines = page({"sort": [outcome("sort", "wrong", "value 1 differs"), outcome("sort", "crash", "exit 1")]}, ["sort"]).splitlines()
    assert "| float32 | static | 2 | 0 | 0 | 0 | 1 | 0 | 1 |" in lines
    assert any(line.startswith("| `sort` | 1 | [which of equal elements") and line.endswith("| value 1 differs |") for line in lines)


def test_a_page_of_nothing() -> None:
    assert "| **0** | cases of 0 operators |" in page({}, [])
