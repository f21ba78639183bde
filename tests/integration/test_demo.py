"""The demo shows every concept at once, and what it shows is really there."""

from pathlib import Path

import pytest
import torch

from ortlens import demo
from ortlens.analysis.answers.overview import graph_rows
from ortlens.analysis.coverage import coverage_of
from ortlens.demo import run_demo


@pytest.fixture(scope="module")
def result() -> demo.DemoResult:
    return run_demo()


def _line(file: str | None, line: int | None) -> str:
    assert file is not None
    assert line is not None
    return Path(file).read_text(encoding="utf-8").split("\n")[line - 1].strip()


def test_the_answers_match_and_a_wrong_one_does_not(result: demo.DemoResult, monkeypatch: pytest.MonkeyPatch) -> None:
    assert result.is_match
    assert 0 < result.max_abs_difference < 1e-4
    assert result.calls == 20
    assert not demo.DemoResult(lens=result.lens, max_abs_difference=float("nan"), calls=1).is_match

    def off_by_one(model: torch.nn.Module, **_: object) -> object:
        return lambda *args, **kwargs: model(*args, **kwargs) + 1

    monkeypatch.setattr(torch, "compile", off_by_one)
    before = torch.random.get_rng_state()
    wrong = run_demo()
    assert torch.equal(torch.random.get_rng_state(), before), "the random numbers of the caller are left alone"
    assert not wrong.is_match
    assert wrong.max_abs_difference == pytest.approx(1.0)


def test_a_break_a_recompile_and_an_operator_in_pytorch_are_there(result: demo.DemoResult) -> None:
    shown = result.lens.captured()
    (item,) = shown.breaks
    assert item.occurrences == 1
    assert item.hints
    assert item.cost_ns is not None
    assert _line(item.file, item.line) == "if x.abs().max() > self.limit:"
    (recompile,) = shown.recompiles
    assert "want_logits" in (recompile.guard or "")
    assert {recompile.compile_id, recompile.of_compile_id} <= {graph.compile_id for graph in shown.graphs}
    (fallback,) = shown.fallbacks
    assert (fallback.target, fallback.reason_code) == ("aten._linalg_svd.default", "no_converter")
    assert fallback.calls > 20  # those compared, and those of the ledger
    assert "linalg.svd(" in _line(fallback.file, fallback.line)


def test_graphs_partitions_sessions_and_ledger_of_the_demo(result: demo.DemoResult) -> None:
    shown = result.lens.captured()
    assert [row.is_current for row in graph_rows(shown)] == [True, False, True]
    assert [row.graph.partition_count for row in graph_rows(shown)] == [2, 1, 1]
    assert (coverage_of(shown).verdict, coverage_of(shown).partition_count, coverage_of(shown).whole_graph_count) == ("part", 3, 1)
    assert 0.9 < (coverage_of(shown).share or 0) < 1
    measured = shown.fallbacks[0].calls - 20
    assert sorted(session.calls for session in shown.sessions) == [10, 10 + measured, 20 + measured, 20 + measured]
    assert all(session.total_ns > 0 for session in shown.sessions)
    assert sum(part.share for part in shown.ledger) == pytest.approx(1.0)
    assert {part.part for part in shown.ledger} == {"guards", "bind", "run", "output", "eager", "residual"}
