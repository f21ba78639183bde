from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import ortlens
from ortlens import cli
from ortlens.errors import CaptureError, UsageError
from ortlens.trace import store
from ortlens.trace.records import Break, Capture
from ortlens.views.capture_view import SavedCapture
from tests.unit.views.sample_captures import HOSTILE, SAMPLES

if TYPE_CHECKING:
    from collections.abc import Mapping

DATA = Path(__file__).parents[2] / "data" / "compare"
PLAIN, PLANTED = str(DATA / "plain2.ortlens"), str(DATA / "planted2.ortlens")


def test_two_captures_of_one_program(capsys: pytest.CaptureFixture[str]) -> None:
    comparison = ortlens.load(PLAIN).compare(str(DATA / "plain3.ortlens"))
    assert not comparison.is_worse
    assert repr(comparison) == "<Comparison: no difference outside the noise>"
    assert len(comparison.changes) == 0
    assert list(comparison.times.scope) == ["call", "partition", "partition", "partition"]
    assert str(comparison.times.before_ns.dtype) == "Int64"
    assert set(comparison.operators.match) == {"exact"}
    assert cli.main(["compare", PLAIN, str(DATA / "plain3.ortlens")]) == 0
    assert capsys.readouterr().out.splitlines()[2] == "Verdict       No difference outside the noise"


def test_a_slower_partition_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", PLAIN, PLANTED, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["is_worse"]
    (partition,) = (row for row in found["times"] if row["scope"] == "partition" and row["verdict"] == "slower")
    assert (partition["subject"], partition["module"]) == ("p1", "back")
    assert 1.15 < partition["ratio"] < 1.45
    text = ortlens.load(PLAIN).compare(ortlens.load(PLANTED)).summary()
    assert "partition p1 (back) takes 1." in text.splitlines()[2] + text.splitlines()[3]
    assert "pre_ort_model_transforms: default -> slow_down" in text


@pytest.mark.parametrize("other", [7, None, ["run.ortlens"]])
def test_what_is_no_capture_is_refused(other: object) -> None:
    view = ortlens.load(PLAIN)
    with pytest.raises(UsageError, match="expected a lens, a capture or the path of a saved one, not"):
        view.compare(other)  # type: ignore[arg-type]  # what the test is about


def test_a_missing_file_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    view = ortlens.load(PLAIN)
    with pytest.raises(CaptureError):
        view.compare(tmp_path / "none.ortlens")
    assert cli.main(["compare", PLAIN, str(tmp_path / "none.ortlens")]) == 2
    assert cli.main(["compare", PLAIN, str(store.save(SAMPLES["demo_like"], tmp_path / "other.ortlens"))]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2
    assert "they are of different models; compare captures of the same program" in errors[1]


def test_breaks_and_versions_in_words() -> None:
    before = SAMPLES["demo_like"]
    added = Break(break_id="b9", reason="Call to print", file="/a/model.py", line=3, source="print(x)")
    after = replace(before, breaks=(*before.breaks, added), environment={**before.environment, "version_torch": "99"})
    text = SavedCapture(before).compare(SavedCapture(after)).summary()
    assert "1 break worse" in text
    assert "new: Call to print (a/model.py:3): 1x" in text
    assert "99" in text
    back = SavedCapture(after).compare(before).summary()
    assert "1 break better" in back
    assert "gone: Call to print" in back


def test_too_few_calls_are_said_to_be_that() -> None:
    capture = SAMPLES["demo_like"]
    comparison = SavedCapture(capture).compare(capture)
    assert "times were not compared" in repr(comparison)


def test_nothing_from_a_capture_works_on_the_terminal_or_the_page() -> None:
    before = SAMPLES["demo_like"]
    nodes = tuple(replace(node, module=HOSTILE, target=HOSTILE) for node in before.nodes)
    after = replace(before, name=HOSTILE, nodes=nodes, breaks=(Break(break_id="b", reason=HOSTILE, file=HOSTILE),))
    comparison = SavedCapture(replace(before, name=HOSTILE)).compare(after)
    assert "\x1b" not in comparison.summary()
    assert "\u202e" not in comparison.summary()
    assert "<img" not in comparison._repr_html_()


@pytest.mark.parametrize("width", [10, 60, 100])
def test_lines_keep_to_the_width(width: int) -> None:
    text = ortlens.load(PLAIN).compare(PLANTED).summary(width=width)
    assert max(map(len, text.splitlines())) <= max(width, 60)


def test_the_plain_data_is_json() -> None:
    found: Mapping[str, object] = ortlens.load(PLAIN).compare(PLANTED).to_dict()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert list(found) == ["is_worse", "verdict", "before", "after", "times", "changes"]


def test_an_empty_capture_is_refused() -> None:
    view = ortlens.load(PLAIN)
    with pytest.raises(UsageError, match="has no graphs to compare; call the compiled function while the lens is recording"):
        view.compare(Capture())
