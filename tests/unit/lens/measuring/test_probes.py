"""What the finding of a measured change says."""

from typing import Literal

import pytest

from ortlens.lens.measuring.probes import GuardedCalls, TimedChange, finding_of
from ortlens.trace.records import Finding

CHANGE = TimedChange(rule="unfrozen_weights", subject="p0", what="freezing the weights", remedy={"mitigation": "freeze"})
KNOWN = Finding(rule="unfrozen_weights", subject="p0", severity="warning", title="16 MiB are inputs", evidence="recorded")


def test_a_gain_is_told_with_what_was_known() -> None:
    finding = finding_of(CHANGE, "faster", (1000, 800), 8, KNOWN)
    assert (finding.title, finding.severity, finding.gain_ns, finding.measured) == ("16 MiB are inputs", "warning", 200, True)
    parts = ("recorded; ", "1.00 µs as it is", "800 ns with", "8 rounds")
    assert [part for part in parts if part not in finding.evidence] == []
    assert finding.mitigation == "freeze"


@pytest.mark.parametrize("verdict", ["slower", "same"])
def test_no_gain_withdraws_the_warning(verdict: Literal["slower", "same"]) -> None:
    finding = finding_of(CHANGE, verdict, (1000, 1100), 8, KNOWN)
    assert (finding.severity, finding.gain_ns, finding.measured) == ("info", 0, True)
    assert ("is slower" in finding.title) == (verdict == "slower")


@pytest.mark.parametrize(("gain", "severity"), [(99, "info"), (100, "warning")])
def test_a_gain_that_no_rule_expected_is_a_warning_from_a_tenth_on(gain: int, severity: str) -> None:
    finding = finding_of(CHANGE, "faster", (1000, 1000 - gain), 8, None)
    assert (finding.severity, finding.gain_ns) == (severity, gain)
    assert "freezing the weights makes calls faster" in finding.title
    assert finding.hazard


@pytest.mark.parametrize(
    ("several", "gain_ns", "severity"),
    [(False, 600_000, "warning"), (False, 499_999, "info"), (True, 250_000, "warning"), (True, 249_999, "info")],
)
def test_guards_of_one_graph_are_a_warning_where_they_are_half_of_a_call(several: bool, gain_ns: int, severity: str) -> None:  # noqa: FBT001
    entered = GuardedCalls(several=several, breaks=several, generates=False, freeze_call=None)
    made = finding_of(entered.change(), "faster", (1_000_000, 1_000_000 - gain_ns), 9, None)
    assert (made.rule, made.severity, made.gain_ns) == ("heavy_guards", severity, gain_ns)
