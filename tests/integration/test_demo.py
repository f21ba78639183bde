"""The demo shows every concept at once, and what it shows is really there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from ortlens import cli, demo
from ortlens.analysis.overview import overview_of
from ortlens.demo import run_demo
from ortlens.trace import store

if TYPE_CHECKING:
    from pathlib import Path

    from ortlens.trace.records import Capture


@pytest.fixture(scope="module")
def result() -> demo.DemoResult:
    return run_demo()


@pytest.fixture(scope="module")
def shown(result: demo.DemoResult) -> Capture:
    return result.lens.captured()


def _line(capture_file: str | None, line: int | None) -> str:
    assert capture_file is not None
    assert line is not None
    with open(capture_file, encoding="utf-8") as file:  # noqa: PTH123 - a path from a record
        return file.read().split("\n")[line - 1].strip()


def test_the_answers_match(result: demo.DemoResult) -> None:
    assert result.is_match
    assert 0 < result.max_abs_difference < 1e-4
    assert result.calls == 20


def test_a_wrong_answer_is_no_match(monkeypatch: pytest.MonkeyPatch) -> None:
    def off_by_one(model: torch.nn.Module, **_: object) -> object:
        return lambda *args, **kwargs: model(*args, **kwargs) + 1

    monkeypatch.setattr(torch, "compile", off_by_one)
    wrong = run_demo()
    assert not wrong.is_match
    assert wrong.max_abs_difference == pytest.approx(1.0)


@pytest.mark.parametrize("difference", [float("nan"), float("inf"), 1.0])
def test_nan_is_no_match(result: demo.DemoResult, difference: float) -> None:
    assert not demo.DemoResult(lens=result.lens, max_abs_difference=difference, calls=1).is_match


def test_one_distinct_graph_break_at_the_branch(shown: Capture) -> None:
    (item,) = shown.breaks
    assert item.occurrences == 1
    assert item.hints
    assert _line(item.file, item.line) == "if x.abs().max() > self.limit:"


def test_one_recompile_for_the_flag(shown: Capture) -> None:
    (item,) = shown.recompiles
    assert "want_logits" in (item.guard or "")
    assert {item.compile_id, item.of_compile_id} <= {graph.compile_id for graph in shown.graphs}


def test_three_graphs_of_which_one_is_another_version(shown: Capture) -> None:
    rows = overview_of(shown).graphs
    assert [row.is_current for row in rows] == [True, False, True]
    assert [row.graph.partition_count for row in rows] == [2, 1, 1]


def test_one_operator_stays_in_pytorch_between_two_partitions(shown: Capture) -> None:
    (item,) = shown.fallbacks
    assert (item.target, item.reason_code) == ("aten._linalg_svd.default", "no_converter")
    assert item.calls > 20  # those compared, and those of the ledger
    assert "linalg.svd(" in _line(item.file, item.line)
    nodes = [node for node in shown.nodes if node.graph_id == item.graph_id]
    at = next(number for number, node in enumerate(nodes) if node.node == item.node)
    before = {node.partition_id for node in nodes[:at] if node.partition_id}
    after = {node.partition_id for node in nodes[at:] if node.partition_id}
    assert len(before) == len(after) == 1
    assert before.isdisjoint(after)


def test_the_second_half_runs_whole_in_onnx_runtime(shown: Capture) -> None:
    coverage = overview_of(shown).coverage
    assert (coverage.verdict, coverage.partition_count, coverage.whole_graph_count) == ("part", 3, 1)
    assert coverage.share is not None
    assert 0.9 < coverage.share < 1


def test_every_session_ran_and_was_timed(shown: Capture) -> None:
    first, *others = sorted(session.calls for session in shown.sessions)
    measured = shown.fallbacks[0].calls - 20
    assert (first, others) == (10, [10 + measured, 20 + measured, 20 + measured])


def test_the_ledger_says_where_the_time_of_a_call_goes(shown: Capture) -> None:
    assert sum(part.share for part in shown.ledger) == pytest.approx(1.0)
    assert {part.part for part in shown.ledger} == {"guards", "bind", "run", "output", "eager", "residual"}
    assert shown.breaks[0].cost_ns is not None
    assert all(session.total_ns > 0 for session in shown.sessions)


def test_the_random_numbers_of_the_caller_are_left_alone() -> None:
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    model, tokens = demo._model_and_tokens()
    again, same_tokens = demo._model_and_tokens()
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(tokens, same_tokens)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_the_command_prints_the_verdict_the_summary_and_what_is_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "demo.ortlens"
    assert cli.main(["demo", "--save", str(path)]) == 0
    out = capsys.readouterr().out
    for fact in (
        "Results match",
        "demo.py:",
        "aten._linalg_svd.default",
        "1 place where PyTorch had to stop",
        "want_logits == False",
        "ortlens.explain",
    ):
        assert fact in out
    assert max(map(len, out.replace(str(path), "demo.ortlens").split("\n"))) <= 100
    assert len(store.load(path).sessions) == 4
