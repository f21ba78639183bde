"""One model in several ways, in turns. Times are not asserted on: only that they are there, and that results match."""

from pathlib import Path

import pytest
import torch

import ortlens
from ortlens import cli
from ortlens.errors import UsageError
from ortlens.studies import bench as bench_module
from ortlens.studies.bench import bench
from ortlens.studies.engine import difference
from tests.answers import answered


def two(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.softmax(-1).masked_fill(mask, 0.0), x.sum()


@pytest.mark.slow
def test_a_function_with_a_keyword_argument(tmp_path: Path) -> None:
    x, mask = torch.randn(4, 8), torch.rand(4, 8) > 0.5
    with torch.no_grad():
        rows, capture = bench(two, (x,), {"mask": mask}, ways=("exported", "ortlens", "frozen"), seconds=0.01, name="two")
    assert [row.way for row in rows] == ["eager", "ortlens", "frozen", "exported"]
    assert all(row.rounds >= 10 and row.call_ns and row.first_ns for row in rows)
    assert all(row.max_abs is not None and row.max_abs < 1e-5 for row in rows)
    assert (capture.figures.ways, rows[0].verdict) == (rows, "reference")
    saved = ortlens.load(ortlens.SavedCapture(capture).save(tmp_path / "two.ortlens"))
    assert saved.captured().figures == capture.figures
    assert len(saved.sessions) == 1


@pytest.mark.slow
def test_a_way_that_fails_is_a_row_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise RuntimeError("no export today\nand a trace")

    monkeypatch.setattr(bench_module, "_exported", refuses)
    rows, _ = bench(torch.sin, (torch.ones(3),), {}, ways=("exported",), seconds=0.01)
    assert [(row.way, row.verdict) for row in rows] == [("eager", "reference"), ("exported", "unmeasured")]
    assert rows[1].note.startswith(f"RuntimeError: no export today at {__file__}:{refuses.__code__.co_firstlineno + 1}: ")


def test_what_the_target_raises_is_raised_and_an_unknown_way_refused() -> None:
    def broken(_: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("of the target")

    with pytest.raises(ZeroDivisionError, match="of the target"):
        bench(broken, (torch.ones(1),), {}, ways=("ortlens",))
    with pytest.raises(UsageError, match="the ways are: eager, inductor, ortlens, frozen, exported"):
        bench(torch.sin, (), {}, ways=("onnx",))


@pytest.mark.parametrize("wrong", [torch.ones(2), torch.tensor([1.0, float("nan"), 1.0])])
def test_results_that_cannot_be_compared_differ_without_bound(wrong: torch.Tensor) -> None:
    assert difference([torch.ones(3)], [wrong]) == (float("inf"), False)
    assert difference([wrong], [wrong]) == (0.0, True)


@pytest.mark.slow
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "benched.py").write_text("import torch\nnet = torch.nn.Linear(8, 4)\n")
    monkeypatch.chdir(tmp_path)
    arguments = ["bench", "benched.py:net", "--input", "f32[2,8]", "--ways", "ortlens", "--seconds", "0.01"]
    assert cli.main([*arguments, "-o", "b.ortlens", "--json"]) == 0
    streams = capsys.readouterr()
    assert [row["way"] for row in answered(streams.out)["rows"]] == ["eager", "ortlens"]
    assert "Saved to " in streams.err
    assert len(ortlens.load("b.ortlens").partitions) == 1
    assert cli.main(arguments) == 0
    assert capsys.readouterr().out.startswith("way         call      cpu  ratio  ratio_low  ratio_high")


@pytest.mark.slow
def test_several_callers_and_batches(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_two.py").write_text("def fixed(x):\n    return x.view(2, 8) + 1\n")
    monkeypatch.chdir(tmp_path)
    told = "--ways eager --seconds 0.01 --json --concurrency 2 --batch 2 3 --picture load.svg"
    assert cli.main(["bench", "of_two.py:fixed", "--input", "f32[2,8]", *told.split()]) == 0
    load = answered(capsys.readouterr().out)["load"]
    assert [(row["batch"], row["callers"]) for row in load] == [(2, "1 thread"), (2, "2 threads"), (2, "2 processes"), (3, "")]
    assert all(row["call_ns"] <= row["p90_ns"] <= row["p99_ns"] and row["items_per_s"] == 2 * row["calls_per_s"] for row in load[:3])
    assert load[2]["peak_bytes"] > 1.5 * load[0]["peak_bytes"] > 0
    assert load[3]["note"].startswith("batch 3: RuntimeError: shape '[2, 8]' is invalid")
    assert Path("load.svg").read_text().count("<circle") == 3


def test_the_exported_model_runs_on_the_providers_that_the_options_name() -> None:
    rows, _ = bench(torch.sin, (torch.randn(3),), {}, ways=["exported"], seconds=0.01, options={"preferred_execution_providers": ["None"]})
    assert "names 'None', which is not available" in rows[1].note
