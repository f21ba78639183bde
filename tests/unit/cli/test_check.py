import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

import ortlens
from ortlens import cli
from ortlens.analysis.answers.check import limits_from, verdicts_of
from ortlens.trace import store
from ortlens.trace.records import Break, Numeric
from ortlens.views.verdict_text import verdicts_junit, verdicts_markdown, verdicts_text
from tests.answers import answered
from tests.unit.views.sample_captures import HOSTILE, SAMPLES

DATA = Path(__file__).parents[2] / "data" / "compare"
PLAIN, PLANTED = str(DATA / "plain2.ortlens"), str(DATA / "planted2.ortlens")


def test_limits_that_hold_exit_with_0_and_others_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", PLAIN, "--max-breaks", "0", "--max-recompiles", "0", "--min-coverage", "90%", "--baseline", PLAIN]) == 0
    out = capsys.readouterr().out
    assert out.startswith("ok  max_breaks")
    assert out.endswith("Passed: 9 limits.\n")
    for limits in (["--min-coverage", "0.99"], ["--baseline", PLAIN, "--max-slowdown", "10%"], ["--max-abs-err", "1e-3"]):  # not measured
        assert cli.main(["check", PLANTED, *limits]) == 1
        assert "Failed: 1 of " in capsys.readouterr().out


def test_json_goes_to_stdout_or_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--max-abs-err", "1", PLAIN, "--json"], ["--max-abs-err", "1", "--json", PLAIN]):
        assert cli.main(["check", *arguments]) == 1
        found = answered(capsys.readouterr().out)
        assert not found["ok"]
        assert [(row["limit"], row["verdict"]) for row in found["verdicts"]] == [("max_abs_err", "unmeasured")]
        assert "--verify" in found["verdicts"][0]["to_do"]
    assert cli.main(["check", PLAIN, "--max-breaks", "0", "--json", str(tmp_path / "new" / "check.json")]) == 0
    assert "Passed: 1 limit." in capsys.readouterr().out
    assert answered((tmp_path / "new" / "check.json").read_text())["ok"]


def test_an_infinite_difference_is_still_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture = replace(SAMPLES["demo_like"], numerics=(Numeric(node="a", max_abs=float("nan"), ok=False),))
    assert cli.main(["check", str(store.save(capture, tmp_path / "x.ortlens")), "--max-abs-err", "1", "--json"]) == 1
    (row,) = answered(capsys.readouterr().out)["verdicts"]
    assert row["value"] is None
    assert "NaN, Inf or no comparable value" in row["message"]


def test_junit_counts_what_it_holds(tmp_path: Path) -> None:
    few = replace(store.load(PLAIN), runs=())
    path = tmp_path / "check.xml"
    arguments = ["--max-breaks", "0", "--min-coverage", "1", "--baseline", str(store.save(few, tmp_path / "few.ortlens"))]
    assert cli.main(["check", PLAIN, *arguments, "--junit", str(path)]) == 1
    suite = ET.parse(path).getroot().find("testsuite")  # noqa: S314 - our own file
    assert suite is not None
    assert suite.get("name") == "ortlens check towers"
    cases = {case.get("name"): [child.tag for child in case] for case in suite.iter("testcase")}
    assert cases["max_breaks"] == ["system-out"]
    assert cases["min_coverage"] == ["failure"]
    assert cases["baseline: times"] == ["skipped"]
    assert suite.get("tests") == str(len(cases))
    assert (suite.get("failures"), suite.get("skipped")) == ("1", "1")


def test_markdown_holds_the_table_and_the_comparison(tmp_path: Path) -> None:
    path = tmp_path / "check.md"
    assert cli.main(["check", PLANTED, "--baseline", PLAIN, "--max-slowdown", "1.1", "--markdown", str(path)]) == 1
    text = path.read_text(encoding="utf-8")
    assert "**Failed: 1 of 6 limits" in text
    assert "| ❌ | `max_slowdown` |" in text
    assert "<details><summary>" in text


def test_nothing_from_a_capture_works_in_what_is_written() -> None:
    capture = replace(SAMPLES["demo_like"], name=HOSTILE, breaks=(Break(break_id="b", reason=HOSTILE + " | a` @you", file=HOSTILE),))
    rows = verdicts_of(capture, limits_from(max_breaks=0))
    ET.fromstring(verdicts_junit(rows, HOSTILE))  # noqa: S314 - well-formed, whatever the names
    markdown = verdicts_markdown(rows, HOSTILE)
    assert "<img" not in markdown
    assert " | a" not in markdown
    assert "\x1b" not in verdicts_text(rows) + markdown


def test_the_lens_raises_or_returns_the_rows() -> None:
    view = ortlens.load(PLAIN)
    frame = view.check(max_breaks=0, baseline=PLAIN, max_slowdown=1.2)
    assert frame.verdict.eq("passed").all()
    assert (frame.limit.iloc[0], frame.limit.iloc[-1]) == ("max_breaks", "max_slowdown")
    with pytest.raises(ortlens.CheckFailed) as caught:
        view.check(min_coverage=0.99, max_abs_err=1e-3, max_breaks=0)
    first, second = str(caught.value).splitlines()
    assert re.match(r"min_coverage: 92\.9 % .*99\.0 % .*aten\.cummax\.default", first)
    assert second.startswith("max_abs_err: not measured")
    assert isinstance(caught.value, AssertionError)
    capture = store.load(PLAIN)
    assert len(view.check(baseline=capture)) == len(view.check(baseline=view))
