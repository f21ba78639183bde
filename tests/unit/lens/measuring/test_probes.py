"""What the finding of a measured change says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ortlens.analysis.speed import AbTiming
from ortlens.lens.measuring.probes import finding_of
from ortlens.lens.measuring.trials import ChangeTrial
from ortlens.trace.records import Finding

TRIAL = ChangeTrial(
    rule="unfrozen_weights", subject="p0", change="freezing the weights", remedy={"mitigation": "freeze"}, pair=lambda: None, per_call=3
)
KNOWN = Finding(rule="unfrozen_weights", subject="p0", severity="warning", title="16 MiB are inputs", evidence="recorded")


def compared(gain: int, *, base: int = 1000) -> AbTiming:
    return AbTiming((base,) * 8, (base - gain,) * 8)


def test_a_gain_is_told_per_call_of_the_model_and_with_what_was_known() -> None:
    finding = finding_of(TRIAL, compared(200), KNOWN)
    assert (finding.title, finding.severity, finding.gain_ns, finding.measured) == ("16 MiB are inputs", "warning", 600, True)
    parts = ("recorded; ", "1.00 µs as it is", "800 ns with", "8 pairs", "3 runs per call")
    assert [part for part in parts if part not in finding.evidence] == []
    assert finding.mitigation == "freeze"


@pytest.mark.parametrize("gain", [-200, 0])
def test_no_gain_withdraws_the_warning(gain: int) -> None:
    finding = finding_of(TRIAL, compared(gain), KNOWN)
    assert (finding.severity, finding.gain_ns, finding.measured) == ("info", 0, True)
    assert ("is slower" in finding.title) == (gain < 0)


@pytest.mark.parametrize(("gain", "severity"), [(99, "info"), (100, "warning")])
def test_a_gain_that_no_rule_expected_is_a_warning_from_a_tenth_on(gain: int, severity: str) -> None:
    finding = finding_of(replace(TRIAL, per_call=1), compared(gain), None)
    assert (finding.severity, finding.gain_ns) == (severity, gain)
    assert "freezing the weights makes calls faster" in finding.title
    assert finding.hazard
