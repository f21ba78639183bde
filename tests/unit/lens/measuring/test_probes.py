"""What the finding of a measured change says."""

import pytest

from ortlens.analysis.speed import AbTiming
from ortlens.lens.measuring.probes import GuardedCalls, TimedChange, finding_of
from ortlens.trace.records import Finding

CHANGE = TimedChange(rule="unfrozen_weights", subject="p0", what="freezing the weights", remedy={"mitigation": "freeze"})
KNOWN = Finding(rule="unfrozen_weights", subject="p0", severity="warning", title="16 MiB are inputs", evidence="recorded")


def turns(before: int, after: int) -> AbTiming:
    return AbTiming((before,) * 8, (after,) * 8)


def test_a_gain_is_told_with_what_was_known() -> None:
    finding = finding_of(CHANGE, turns(1000, 800), KNOWN)
    assert finding is not None
    assert (finding.title, finding.severity, finding.gain_ns, finding.measured) == ("16 MiB are inputs", "warning", 200, True)
    parts = ("recorded; ", "1.00 µs as it is", "800 ns with", "8 rounds")
    assert [part for part in parts if part not in finding.evidence] == []
    assert finding.mitigation == "freeze"


@pytest.mark.parametrize("after", [1000, 1100])
def test_what_gains_nothing_is_information_at_most(after: int) -> None:
    assert finding_of(CHANGE, turns(1000, after), None) is None
    finding = finding_of(CHANGE, turns(1000, after), KNOWN) or KNOWN
    assert (finding.severity, finding.measured, finding.gain_ns) == ("info", True, None)


@pytest.mark.parametrize(("gain", "severity"), [(99, "info"), (100, "warning")])
def test_a_gain_that_no_rule_expected_is_a_warning_from_a_tenth_on(gain: int, severity: str) -> None:
    finding = finding_of(CHANGE, turns(1000, 1000 - gain), None)
    assert finding is not None
    assert (finding.severity, finding.gain_ns) == (severity, gain)
    assert "freezing the weights makes calls faster" in finding.title
    assert finding.hazard


@pytest.mark.parametrize(
    ("several", "gain_ns", "severity"),
    [(False, 600_000, "warning"), (False, 499_999, "info"), (True, 250_000, "warning"), (True, 249_999, "info")],
)
def test_guards_of_one_graph_are_a_warning_where_they_are_half_of_a_call(several: bool, gain_ns: int, severity: str) -> None:  # noqa: FBT001
    entered = GuardedCalls(several=several, breaks=several, generates=False, freeze_call=None)
    made = finding_of(entered.change(), turns(1_000_000, 1_000_000 - gain_ns), None)
    assert made is not None
    assert (made.rule, made.severity, made.gain_ns) == ("heavy_guards", severity, gain_ns)
