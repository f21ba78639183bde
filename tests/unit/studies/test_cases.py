import json
import sys
from functools import partial
from pathlib import Path

import pytest

from ortlens.errors import UsageError
from ortlens.studies.cases import Case, cases_from, cases_from_text
from tests.unit.studies import small_cases

HERE = small_cases.__name__


def test_every_way_to_write_a_case() -> None:
    cases = cases_from(
        {
            "text": "mymodels:net",
            "function": small_cases.doubled,
            "class": small_cases.Model,
            "one argument": (small_cases.doubled, 3),
            "arguments": (small_cases.doubled, (3,)),
            "by name": (small_cases.doubled, (), {"number": 3}),
            "partial": partial(small_cases.doubled, number=3),
            "case": Case(target=small_cases.doubled, args=[3], options={"min_partition_nodes": 2}),
            "mapping": {"target": "mymodels:net", "inputs": ["f32[2]"], "time_limit": 3},
        }
    )
    assert [(case.name, case.target, case.args, dict(case.kwargs)) for case in cases] == [
        ("text", "mymodels:net", (), {}),
        ("function", f"{HERE}:doubled", (), {}),
        ("class", f"{HERE}:Model", (), {}),
        ("one argument", f"{HERE}:doubled", (3,), {}),
        ("arguments", f"{HERE}:doubled", (3,), {}),
        ("by name", f"{HERE}:doubled", (), {"number": 3}),
        ("partial", f"{HERE}:doubled", (), {"number": 3}),
        ("case", f"{HERE}:doubled", (3,), {}),
        ("mapping", "mymodels:net", (), {}),
    ]
    assert cases[-1].inputs == ("f32[2]",)
    assert cases[-1].time_limit == 3
    listed = cases_from(["a.b:net", small_cases.doubled, Case(target="a:b", name="mine")])
    assert [case.name for case in listed] == ["net", "doubled", "mine"], "names are those of targets"


def test_options_multiply_the_cases_and_those_of_a_case_win() -> None:
    given = {"a": "m:a", "b": Case(target="m:b", options={"min_partition_nodes": 9})}
    cases = cases_from(given, [{}, {"min_partition_nodes": 2}])
    assert [(case.name, dict(case.options)) for case in cases] == [
        ("a", {}),
        ("a", {"min_partition_nodes": 2}),
        ("b", {"min_partition_nodes": 9}),
    ]
    assert cases_from(cases) == cases
    assert [dict(case.options) for case in cases_from(["m:a"], {"on_error": "raise"})] == [{"on_error": "raise"}]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "there are no cases"),
        ({}, "there are no cases"),
        (3, "a mapping from names to cases, or a list of cases, not int"),
        ((small_cases.doubled, (1,)), "survey.. takes several cases"),
        ([lambda: 1], "cannot be imported by its name"),
        ([small_cases.Model()], "an object of type Model: write a function"),
        ([3], "3 is no case; a case is"),
        ([{"inputs": []}], "a case needs a target"),
        ([{"target": "m:a", "input": []}], "a case has no field 'input'; the fields are: target, name"),
        (["m:net", "n:net"], "two cases are named 'net'"),
        ([Case(target="m:net", inputs="f32[2]")], "inputs must be a list of texts"),
    ],
)
def test_what_is_no_case(given: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        cases_from(given)


def test_python_files_and_attributes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "survey_of_mine.py").write_text(
        "def net():\n    return 1\n\nCASES = {'net': net}\nFEW = [net]\n\ndef many():\n    return {'x': net}\n", encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert cases_from(["models.py:net"])[0].target == f"{tmp_path}/models.py:net"
    for text, names in (("survey_of_mine.py", ["net"]), ("survey_of_mine.py:FEW", ["net"]), ("survey_of_mine:many", ["x"])):
        cases = cases_from_text(text)
        assert [case.name for case in cases] == names
        assert cases[0].target == f"{tmp_path}/survey_of_mine.py:net"
    assert [case.name for case in cases_from(f"{HERE}:CASES")] == ["a", "b"]
    with pytest.raises(UsageError, match="has no 'CASES'"):
        cases_from_text("json")


def test_tables_name_targets_from_their_own_folder(tmp_path: Path) -> None:
    toml = tmp_path / "cases.toml"
    toml.write_text(
        'options = [{}, {min_partition_nodes = 2}]\n[cases]\nnet = "models.py:net"\n[cases.wide]\ntarget = "models.py:make"\nargs = [32]\n'
        'inputs = ["f32[1,32]"]\n',
        encoding="utf-8",
    )
    table = {"cases": {"net": "models.py:net", "wide": {"target": "models.py:make", "args": [32], "inputs": ["f32[1,32]"]}}}
    (tmp_path / "cases.json").write_text(json.dumps({**table, "options": [{}, {"min_partition_nodes": 2}]}), encoding="utf-8")
    assert cases_from_text(str(toml)) == cases_from_text(str(tmp_path / "cases.json"))
    cases = cases_from_text(str(toml))
    assert [(case.name, case.target, case.args, dict(case.options)) for case in cases[1:3]] == [
        ("net", f"{tmp_path}/models.py:net", (), {"min_partition_nodes": 2}),
        ("wide", f"{tmp_path}/models.py:make", (32,), {}),
    ]
    assert len(cases_from_text(str(toml), [{}])) == 2


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("none.toml", None, "cannot be read"),
        ("bad.json", "{", "is no JSON"),
        ("bad.toml", "= 3", "is no TOML"),
        ("list.json", "[]", "not a table"),
        ("odd.json", '{"case": {}}', "unknown entry 'case'"),
        ("flat.json", '{"cases": [1]}', "cases must be a table"),
    ],
)
def test_tables_that_are_none(name: str, text: str | None, message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        cases_from_text(str(tmp_path / name))
