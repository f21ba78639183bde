"""The list of findings: merged, ranked, never doubled, and never broken by a rule."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import ortlens
from ortlens.analysis.findings import registry
from ortlens.analysis.findings.catalogue import markdown
from ortlens.analysis.findings.registry import RECORDED, RULES, findings_of
from ortlens.analysis.findings.rule import Rule
from ortlens.analysis.first_look import looks_of
from ortlens.analysis.overview import overview_of
from ortlens.trace.records import Capture, Finding
from ortlens.views.capture_view import SavedCapture
from tests.unit.analysis.hand_made import clean, session

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]
CROWDED = clean(sessions=(session(threads=8),))


def test_nothing_is_found_in_a_clean_capture() -> None:
    assert findings_of(clean()) == ()
    assert findings_of(Capture()) == ()


def test_rules_and_recorded_findings_are_one_list() -> None:
    recorded = Finding(rule="provider_fallback", severity="info", title="CUDA is not in use")
    capture = replace(CROWDED, findings=(recorded,))
    assert [finding.rule for finding in findings_of(capture)] == ["too_many_threads", "provider_fallback"]
    assert SavedCapture(capture).findings.rule.tolist() == ["too_many_threads", "provider_fallback"]
    assert overview_of(capture).findings == findings_of(capture)


@pytest.mark.parametrize("gain", [0, 7])
def test_a_measured_finding_stands_for_that_of_its_rule(gain: int) -> None:
    (estimated,) = findings_of(CROWDED)
    measured = replace(estimated, measured=True, gain_ns=gain, severity="info")
    assert findings_of(replace(CROWDED, findings=(measured,))) == (measured,)
    other = replace(measured, subject="s9")
    assert findings_of(replace(CROWDED, findings=(other,))) == (estimated, other)


def test_a_measurement_stands_for_what_was_recorded_before_about_the_same() -> None:
    first, other = (Finding(rule="x", subject=subject, severity="info", title="") for subject in ("p0", "p1"))
    once, again = (replace(first, title=title, measured=True) for title in ("once", "again"))
    assert findings_of(Capture(findings=(first, first, other))) == (first, first, other)
    assert findings_of(Capture(findings=(first, other, once))) == (other, once)
    assert findings_of(Capture(findings=(first, once, other, again))) == (other, again)


def test_the_most_expensive_come_first_after_errors() -> None:
    rows = [
        Finding(rule="a", severity="info", title="dear information", gain_ns=99),
        Finding(rule="b", severity="warning", title="unknown"),
        Finding(rule="c", severity="warning", title="cheap", gain_ns=1),
        Finding(rule="d", severity="warning", title="dear", gain_ns=5),
        Finding(rule="e", severity="error", title="broken"),
    ]
    assert [finding.rule for finding in findings_of(Capture(findings=tuple(rows)))] == ["e", "d", "c", "b", "a"]


def test_a_rule_that_raises_becomes_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(capture: Capture) -> Iterator[Finding]:
        nothing: dict[str, list[Finding]] = {}
        yield from nothing[capture.name]

    planted = Rule(name="planted", looks_for="", fires="", hazard="", probed="", check=broken)
    monkeypatch.setattr(registry, "RULES", (planted, *RULES))
    told = findings_of(replace(CROWDED, name="thing"))
    assert [finding.rule for finding in told] == ["rule_failed", "too_many_threads"]
    assert (told[0].subject, told[0].evidence) == ("planted", "KeyError: 'thing'")
    assert "planted" in SavedCapture(CROWDED).summary()


def test_a_saved_capture_holds_the_recorded_ones_and_finds_the_others_anew(tmp_path: Path) -> None:
    recorded = Finding(rule="layout_copy", subject="p0:x", severity="info", title="copied", measured=True, gain_ns=3)
    capture = replace(CROWDED, findings=(recorded,))
    path = SavedCapture(capture).save(tmp_path / "run.ortlens")
    again = ortlens.load(path)
    assert again.captured().findings == (recorded,)
    assert findings_of(again.captured()) == findings_of(capture)
    twice = ortlens.load(again.save(tmp_path / "again.ortlens"))
    assert twice.findings.rule.tolist() == ["too_many_threads", "layout_copy"]


def test_the_summary_shows_the_three_most_expensive_with_their_gain() -> None:
    rows = tuple(
        Finding(rule=f"r{n}", severity="warning", title=f"fault number {n}", gain_ns=n * 1000, measured=n == 5) for n in range(1, 6)
    )
    text = SavedCapture(replace(clean(), findings=rows)).summary()
    section = text[text.index("Findings") : text.index("Look first at")]
    assert re.findall(r"fault number \d", section) == ["fault number 5", "fault number 4", "fault number 3"]
    assert "saves 5.00 µs per call, measured" in " ".join(section.split())
    assert "about 4.00 µs per call, estimated" in " ".join(section.split())
    assert "and 2 more" in section


def test_looks_name_a_rule_once_and_leave_breaks_to_themselves() -> None:
    (look,) = looks_of(overview_of(CROWDED))
    assert (look.subject, look.what) == ("rule", findings_of(CROWDED)[0].title)


def test_names_are_unique_and_every_rule_explains_itself() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    assert not set(names) & set(RECORDED)
    for rule in RULES:
        assert min(len(text) for text in (rule.looks_for, rule.fires, rule.hazard)) > 20
        assert rule.check.__doc__


def test_the_catalogue_in_the_docs_names_every_rule_and_no_other() -> None:
    page = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    assert re.findall(r"^### `(\w+)`$", page, flags=re.MULTILINE) == [rule.name for rule in RULES]
    assert re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE) == list(RECORDED)
    assert page == markdown()


def test_every_finding_that_is_recorded_is_in_the_catalogue() -> None:
    sources = [
        path.read_text(encoding="utf-8") for room in ("backend", "lens", "trace") for path in (ROOT / "ortlens" / room).rglob("*.py")
    ]
    pattern = r'(?:\brule=|\.failure\(\s*|(?:report|on)_failure\(\s*)"(\w+)"'
    names = {name for source in sources for name in re.findall(pattern, source)}
    assert names - set(RECORDED) - {rule.name for rule in RULES} == set()
    assert {"layout_copy", "run_failed", "lens_failed", "provider_unavailable"} <= names
