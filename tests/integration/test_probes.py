"""Probes: the change is really made and timed, the answer stays, and what was found is told as measured."""

from collections.abc import Callable, Mapping
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
from ortlens.trace.records import Finding

# Measures what a change would gain.
pytestmark = [pytest.mark.serial, pytest.mark.timed]


def explained(target: Callable[..., Any], *args: torch.Tensor, calls: int | None = 5, options: Mapping[str, Any] | None = None) -> Lens:
    with torch.no_grad():
        return ortlens.explain(target, calls=calls, options=options)(*args)


def findings(lens: Lens) -> dict[str, Finding]:
    return {finding.rule: finding.record() for finding in findings_of(lens.captured())}


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
    assert found["too_many_threads"].subject == "sessions"
    assert (found["too_many_threads"].measured, found["too_many_threads"].gain_ns) == (True, 500)
    assert f"{options.intra_op_num_threads - 2} thread" in found["too_many_threads"].evidence
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
