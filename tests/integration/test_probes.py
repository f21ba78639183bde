"""Probes: the change is really made and timed, the answer stays, and what was found is told as measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnxruntime
import pytest
import torch
from torch import nn

import ortlens
from ortlens.analysis.problems import compiling
from ortlens.analysis.problems.stream import findings_of
from ortlens.analysis.speed import AbTiming
from ortlens.lens.measuring import probes, trials
from ortlens.lens.measuring.probes import finding_of
from ortlens.lens.measuring.trials import CallTrials, GuardedCalls

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from typing import Any

    from ortlens import Lens
    from ortlens.backend.runtime.runner import PartitionRunner
    from ortlens.trace.records import Finding

# Measures what a change would gain.
pytestmark = [pytest.mark.serial, pytest.mark.timed]


@pytest.fixture(autouse=True)
def _short_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of a second each: the faults that are planted here are large."""
    monkeypatch.setattr(probes, "_TRIAL_NS", 100_000_000)


def explained(target: Callable[..., Any], *args: torch.Tensor, options: Mapping[str, Any] | None = None) -> Lens:
    with torch.no_grad():
        return ortlens.explain(target, calls=5, options=options)(*args)


def probed(lens: Lens, *args: torch.Tensor) -> dict[str, Finding]:
    with torch.no_grad():
        lens.probe(*args)
    return {finding.rule: finding for finding in findings_of(lens.captured())}


class Derived(nn.Module):
    """What it computes from its weight alone, ONNX Runtime folds once it may know the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(512, 512))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.sin().exp().tanh()


def test_frozen_weights_are_measured_to_be_faster_and_a_saved_capture_keeps_it(tmp_path: Path) -> None:
    model, x = Derived(), torch.randn(4, 512)
    lens = explained(model, x, options={"freeze_weights": False})
    before = {finding.rule: finding for finding in findings_of(lens.captured())}["unfrozen_weights"]
    finding = probed(lens, x)["unfrozen_weights"]
    assert (before.measured, before.gain_ns) == (False, None)
    assert (finding.measured, finding.severity, finding.title) == (True, "warning", before.title)
    assert (finding.gain_ns or 0) > 0
    peaks, threads = lens.captured().figures.peaks, lens.captured().sessions[0].threads
    assert any((peak.dtype, peak.threads) == ("float32", threads) and peak.per_s > 0 for peak in peaks)
    again = ortlens.load(lens.save(tmp_path / "run.ortlens"))
    assert again.findings.equals(lens.findings)
    assert again.findings.set_index("rule").loc["unfrozen_weights", "measured"]
    assert "unfrozen_weights" not in probed(explained(model, x), x)


def rows(x: torch.Tensor) -> torch.Tensor:
    return x.exp().sum(-1)


@pytest.mark.slow
def test_a_copied_input_is_measured_against_a_dense_one() -> None:
    x = torch.rand(1, 512, 512).expand(32, 512, 512)
    lens = explained(rows, x)
    recorded = {finding.rule: finding for finding in findings_of(lens.captured())}["layout_copy"]
    finding = probed(lens, x)["layout_copy"]
    assert finding.subject == recorded.subject
    assert finding.measured
    assert (finding.gain_ns or 0) > 0
    assert len([row for row in lens.captured().findings if row.rule == "layout_copy"]) == 2
    assert (lens.findings.rule == "layout_copy").sum() == 1


def chopped(x: torch.Tensor) -> torch.Tensor:
    for _ in range(4):
        x = torch.special.bessel_j0(x.sin() + 1)
    return x


def test_threads_are_measured_and_nothing_is_counted_or_changed() -> None:
    x = torch.randn(16)
    lens = explained(chopped, x)
    compiled = torch.compile(chopped, backend=lens)
    before = lens.captured()
    finding = probed(lens, x)["thread_count"]
    assert finding.measured
    assert (finding.severity == "info") == (finding.gain_ns == 0)
    after = lens.captured()
    # Observing takes two calls; the trials are not counted, neither in sessions nor in operators.
    assert [session.calls for session in after.sessions] == [session.calls + 2 for session in before.sessions]
    assert [row.calls for row in after.fallbacks] == [row.calls + 2 for row in before.fallbacks]
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), chopped(x))
        torch.testing.assert_close(compiled(x + 1), chopped(x + 1))


@pytest.mark.slow
def test_threads_of_the_users_options_are_measured_in_whole_calls() -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2 + (ortlens.Lens().captured().figures.cpu_usable or 0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))

    def target(x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(model(torch.special.bessel_j0(model(x))))

    x = torch.randn(8, 64)
    lens = explained(target, x, options={"ort_session_options": options})
    found = probed(lens, x)
    for rule in ("too_many_threads", "spinning_threads"):
        assert (found[rule].measured, found[rule].subject) == (True, "sessions")
    assert len(lens.findings[lens.findings.rule == "spinning_threads"]) == 1
    assert options.intra_op_num_threads > 2
    with torch.no_grad():
        torch.testing.assert_close(lens.call_target((x,), {}), target(x))


def test_guards_are_measured_and_stand_as_before_afterwards() -> None:
    lens = ortlens.Lens()
    compiled = torch.compile(torch.nn.functional.gelu, backend=lens, dynamic=False)
    with torch.no_grad():
        compiled(torch.ones(3))
        assert probed(lens, torch.ones(3))["heavy_guards"].measured
        torch.testing.assert_close(compiled(torch.ones(5)), torch.nn.functional.gelu(torch.ones(5)))
    assert len(lens.recompiles) == 1


@pytest.mark.parametrize(
    ("several", "gain_ns", "severity"),
    [(False, 600_000, "warning"), (False, 499_999, "info"), (True, 250_000, "warning"), (True, 249_999, "info")],
)
def test_guards_of_one_graph_are_a_warning_where_they_are_half_of_a_call(several: bool, gain_ns: int, severity: str) -> None:  # noqa: FBT001
    (trial,) = CallTrials([], lambda: None, lambda: None).guards(
        GuardedCalls(several=several, breaks=several, generates=False, freeze_call=None)
    )
    made = finding_of(trial, AbTiming((1_000_000,) * 9, (1_000_000 - gain_ns,) * 9), None)
    assert (made.rule, made.severity, made.gain_ns) == ("heavy_guards", severity, gain_ns)


def test_the_start_with_a_filled_cache_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_COLD_NS", 1)
    monkeypatch.setattr(compiling, "_COLD_SHARE", 0.0)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)), torch.ones(2, 8)
    finding = probed(explained(model, x), x)["cold_start"]
    assert (finding.measured, finding.gain_ns) == (True, None)


def test_a_trial_that_fails_is_told_and_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(runner: PartitionRunner, **_settings: object) -> PartitionRunner:
        raise RuntimeError(f"no variant of {len(runner.partition.nodes)} nodes")

    model, x = nn.Linear(256, 256), torch.ones(1, 256)
    lens = explained(model, x, options={"freeze_weights": False})
    monkeypatch.setattr(trials, "variant_of", refused)
    with pytest.warns(RuntimeWarning, match="failed while probing"):
        found = probed(lens, x)
    assert found["lens_failed"].evidence.startswith("RuntimeError: no variant of")
    assert found["heavy_guards"].measured
    assert not found["unfrozen_weights"].measured


def test_nothing_to_probe_is_said_and_what_the_target_raises_reaches_the_caller() -> None:
    with pytest.raises(ortlens.UsageError, match="nothing was compiled"):
        ortlens.Lens().probe(torch.ones(1))
    with pytest.raises(TypeError):
        explained(torch.sin, torch.ones(2)).probe("no tensor")
