"""Probes: the change is really made and timed, the answer stays, and what was found is told as measured."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import nn

import ortlens
from ortlens import Lens
from ortlens.analysis.problems import sessions
from ortlens.analysis.problems.stream import findings_of
from ortlens.analysis.speed import AbTiming
from ortlens.lens.measuring import probes
from ortlens.studies import tune as tune_module
from ortlens.trace.records import Finding

# Measures what a change would gain.
pytestmark = [pytest.mark.serial, pytest.mark.timed]


@pytest.fixture(autouse=True)
def _one_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try frozen weights alone, and other ways of calling: compiling for each option takes time."""
    every = tune_module._candidates
    monkeypatch.setattr(tune_module, "_candidates", lambda *given: [item for item in every(*given) if item.option == "freeze_weights"])


def explained(target: Callable[..., Any], *args: torch.Tensor, calls: int | None = 5, options: Mapping[str, Any] | None = None) -> Lens:
    with torch.no_grad():
        return ortlens.explain(target, calls=calls, options=options)(*args)


def findings(lens: Lens) -> dict[str, Finding]:
    return {finding.rule: finding.record() for finding in findings_of(lens.captured())}


def probed(lens: Lens, *args: torch.Tensor) -> dict[str, Finding]:
    with torch.no_grad():
        lens.probe(*args)
    return findings(lens)


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
    before = findings(lens)["unfrozen_weights"]
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
    recorded = findings(lens)["layout_copy"]
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


def test_what_is_faster_is_a_finding_and_nothing_is_counted_or_changed() -> None:
    x = torch.randn(16)
    lens = explained(chopped, x)
    compiled = torch.compile(chopped, backend=lens)
    before = lens.captured()
    finding = probed(lens, x)["faster_option"]
    assert (finding.measured, finding.subject, (finding.gain_ns or 0) > 0) == (True, "ortlens.freeze", True)
    after = lens.captured()
    assert [session.calls for session in after.sessions] == [session.calls + 1 for session in before.sessions], "of the call that checks it"
    assert [row.calls for row in after.fallbacks] == [row.calls + 1 for row in before.fallbacks]
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), chopped(x))
        torch.testing.assert_close(compiled(x + 1), chopped(x + 1))


@pytest.mark.slow
def test_threads_of_the_users_options_are_findings_and_fewer_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def compared(base: Callable[[], int], other: Callable[[], int], _budget_ns: int) -> AbTiming:
        assert min(base(), other()) > 0
        return AbTiming((1_000,) * 8, (500,) * 8)

    monkeypatch.setattr(probes, "compare", compared)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2 + (ortlens.Lens().captured().figures.cpu_usable or 0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))

    def target(x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(model(torch.special.bessel_j0(model(x))))

    x = torch.randn(8, 64)
    lens = explained(target, x, calls=None, options={"ort_session_options": options})
    found = findings(lens)
    assert {found[rule].subject for rule in ("too_many_threads", "spinning_threads")} == {"sessions"}
    assert (found["too_many_threads"].measured, found["too_many_threads"].gain_ns) == (True, 500)
    assert f"giving each session {options.intra_op_num_threads - 2} thread" in found["too_many_threads"].evidence
    assert options.intra_op_num_threads > 2
    with torch.no_grad():
        torch.testing.assert_close(lens.call_target((x,), {}), target(x))


def test_guards_stand_as_before_afterwards() -> None:
    lens = ortlens.Lens()
    compiled = torch.compile(torch.nn.functional.gelu, backend=lens, dynamic=False)
    entered = probes.GuardedCalls(several=True, breaks=False, generates=False, freeze_call=None)
    with torch.no_grad():
        compiled(torch.ones(3))
        probes.try_without_guards(lens.compilations.recorder, lambda: compiled(torch.ones(3)), lambda: None, 10_000_000, entered)
        torch.testing.assert_close(compiled(torch.ones(5)), torch.nn.functional.gelu(torch.ones(5)))
    assert len(lens.recompiles) == 1


def test_a_start_that_a_cache_would_shorten_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_COLD_NS", 1)
    monkeypatch.setattr(sessions, "_COLD_SHARE", 0.0)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)), torch.ones(2, 8)
    assert not findings(explained(model, x))["cold_start"].measured


def test_nothing_to_probe_is_said_and_what_the_target_raises_reaches_the_caller() -> None:
    with pytest.raises(ortlens.UsageError, match="nothing was compiled"):
        ortlens.Lens().probe(torch.ones(1))
    with pytest.raises(TypeError):
        explained(torch.sin, torch.ones(2)).probe("no tensor")
