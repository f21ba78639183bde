"""The list of findings: merged, ranked, never doubled, and never broken by a rule."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import ortlens
from ortlens.analysis.problems import stream
from ortlens.analysis.problems.problem import Problem, ProblemRule
from ortlens.analysis.problems.stream import RECORDED, RULES, findings_of, problems_of
from ortlens.trace.records import Capture, Finding
from ortlens.views.actions import gain_text
from ortlens.views.capture_view import SavedCapture
from ortlens.views.payload import payload_from_capture
from tests.unit.analysis.hand_made import clean, graph, ledger, partition, session

ROOT = Path(__file__).resolve().parents[3]
CROWDED = clean(sessions=(session(threads=8),))


def rows_of(capture: Capture, *recorded: Finding) -> list[Finding]:
    """The rows of `lens.findings` of a capture with recorded findings."""
    return [item.record() for item in findings_of(replace(capture, findings=recorded))]


def test_nothing_is_found_in_a_clean_capture() -> None:
    assert findings_of(clean()) == ()
    assert findings_of(Capture()) == ()


def test_rules_and_recorded_findings_are_one_list() -> None:
    recorded = Finding(rule="provider_fallback", severity="info", title="CUDA is not in use")
    capture = replace(CROWDED, findings=(recorded,))
    assert [finding.rule for finding in findings_of(capture)] == ["too_many_threads", "provider_fallback"]
    assert SavedCapture(capture).findings.rule.tolist() == ["too_many_threads", "provider_fallback"]


@pytest.mark.parametrize("gain", [0, 7])
def test_a_measured_finding_stands_for_that_of_its_rule(gain: int) -> None:
    (estimated,) = rows_of(CROWDED)
    measured = replace(estimated, measured=True, gain_ns=gain, severity="info")
    assert rows_of(CROWDED, measured) == [measured]
    other = replace(measured, subject="s9")
    assert rows_of(CROWDED, other) == [estimated, other]


def test_a_measurement_stands_for_what_was_recorded_before_about_the_same() -> None:
    first, other = (Finding(rule="x", subject=subject, severity="info", title="") for subject in ("p0", "p1"))
    once, again = (replace(first, title=title, measured=True) for title in ("once", "again"))
    assert rows_of(Capture(), first, first, other) == [first, first, other]
    assert rows_of(Capture(), first, other, once) == [other, once]
    assert rows_of(Capture(), first, once, other, again) == [other, again]


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
    def broken(capture: Capture) -> Iterator[Problem]:
        nothing: dict[str, list[Problem]] = {}
        yield from nothing[capture.name]

    planted = ProblemRule(name="planted", looks_for="", fires="", hazard="", kind="rule", check=broken)
    monkeypatch.setattr(stream, "RULES", {"planted": planted, **RULES})
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


def test_every_rule_explains_itself() -> None:
    assert not RULES.keys() & RECORDED.keys()
    for rule in RULES.values():
        assert min(len(text) for text in (rule.looks_for, rule.fires, rule.hazard)) > 20
        assert rule.check.__doc__


def test_every_finding_that_is_recorded_is_in_the_list() -> None:
    sources = [
        path.read_text(encoding="utf-8") for room in ("backend", "lens", "trace") for path in (ROOT / "ortlens" / room).rglob("*.py")
    ]
    pattern = r'(?:\brule=|\.failure\(\s*|(?:report|on)_failure\(\s*)"(\w+)"'
    names = {name for source in sources for name in re.findall(pattern, source)}
    assert names - set(RECORDED) - RULES.keys() == set()
    assert {"layout_copy", "run_failed", "lens_failed", "provider_unavailable"} <= names


def _called(**parts: int) -> Capture:
    """A clean capture with a measured call."""
    return clean(ledger=ledger(**parts))


def _gain(rule: str, subject: str | None, gain: int) -> Finding:
    return Finding(rule=rule, subject=subject, severity="warning", title=rule, mitigation="Do.", gain_ns=gain, measured=True)


CALLED = _called(guards=60_000, bind=20_000, run=190_000, output=10_000, residual=12_000)


@pytest.mark.parametrize(
    ("rule", "subject", "limit"),
    [
        ("heavy_guards", "guards", 292_000),
        ("costly_entry", "g0", 80_000),
        ("float64_nodes", "s0:k", 190_000),
        ("layout_copy", "p0:x", 20_000),
        ("device_copy", "p0", 30_000),
        ("too_many_threads", "sessions", 292_000),
        ("slower_than_torch", "p0", 292_000),
    ],
)
def test_a_gain_is_never_more_than_the_part_of_a_call_that_it_is_about(rule: str, subject: str, limit: int) -> None:
    capture = replace(CALLED, findings=(_gain(rule, subject, 406_000),))
    (found,) = findings_of(capture)
    assert (found.gain_ns, found.at_most) == (limit, True)
    below = replace(capture, findings=(_gain(rule, subject, limit),))
    assert rows_of(below, *below.findings) == [*below.findings], "what fits is left as it is"


def test_every_view_says_that_a_gain_is_a_limit() -> None:
    capture = replace(CALLED, findings=(_gain("heavy_guards", "guards", 406_000),))
    assert SavedCapture(capture).findings[["gain_ns", "at_most"]].values.tolist() == [[292_000, True]]
    shown = payload_from_capture(capture)["overview"]
    assert shown["gains"] == ["at most 292 µs, measured"]
    assert [(item["gain"], item["gain_ns"]) for item in shown["actions"]] == [("saves at most 292 µs per call", 292_000)]


def test_guards_of_a_container_come_before_those_of_all() -> None:
    container = replace(_gain("costly_guards", "self.table", 150_000), line=7)
    capture = replace(CALLED, findings=(_gain("heavy_guards", "guards", 160_000), container))
    assert [(found.rule, found.gain_ns) for found in findings_of(capture)] == [("costly_guards", 150_000), ("heavy_guards", 142_000)]
    (look,) = problems_of(capture)
    assert [item.rule for item in (look, *look.consequences)] == ["costly_guards", "heavy_guards"]


def test_gains_together_are_never_more_than_a_call_takes() -> None:
    found = (
        _gain("heavy_guards", "guards", 90_000),
        _gain("float64_nodes", "s0:k", 140_000),
        _gain("too_many_threads", "sessions", 250_000),
    )
    capture = replace(_called(guards=60_000, run=220_000, residual=12_000), findings=(*found, _gain("float64_nodes", "s0:l", 30_000)))
    gains = {finding.subject: (finding.gain_ns, finding.at_most) for finding in findings_of(capture)}
    assert gains == {"sessions": (250_000, False), "s0:k": (42_000, True), "guards": (0, True), "s0:l": (0, True)}
    told = {look.title: gain_text(look) for look in problems_of(capture)}
    assert told["heavy_guards"] == "saves nothing beyond the gains of other findings"
    assert "gain unknown" not in str(payload_from_capture(capture)["overview"])


def test_a_gain_is_limited_by_what_was_measured() -> None:
    def gains(capture: Capture, *findings: Finding) -> list[int | None]:
        return [row.gain_ns for row in findings_of(replace(capture, findings=findings)) if row.rule == findings[0].rule]

    logged = _called(run=100_000, bind=1_000)  # without a measured call, only the parts inside the graphs are limits
    kernel = _gain("float64_nodes", "s0:k", 406_000)
    assert gains(logged, _gain("too_many_threads", "sessions", 406_000)) == [406_000]
    assert gains(logged, kernel) == [100_000]
    assert gains(replace(logged, ledger=()), kernel) == [406_000]
    forward = _called(run=100_000, residual=1_000)
    backward = graph("g1", phase="backward", compile_id="0/0")  # which has a time of its own
    sessions = (*forward.sessions, session(1, calls=100, total_ns=20_000_000))
    trained = replace(forward, graphs=(*forward.graphs, backward), partitions=(partition(), partition(1, "g1")), sessions=sessions)
    assert gains(trained, _gain("float64_nodes", "s1:k", 406_000)) == [200_000]
