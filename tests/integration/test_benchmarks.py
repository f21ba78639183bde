"""Every benchmark runs and prints its figures. What the figures are depends on the machine and fails nothing."""

import contextlib
import importlib
import io
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
NAMES = sorted(path.stem.removeprefix("bench_") for path in FOLDER.glob("bench_*.py"))
OPTIONS = {"call_overhead": (), "workloads": ("--no-inductor", "--only", "DLRM|autocast|Adam step|GPT2: static, 64")}
"""One benchmark measures Inductor too, and of the workloads a few show that they run: `make sweep-workloads` has all."""
COLUMNS = {"us", "us of the other", "ratio of minima", "ratio of CPU time", "us after another way", "ratio after another way"}
NEEDS_CHROMIUM = {"graph_view"}
"""They measure nothing without it, and say so."""


@pytest.fixture(autouse=True)
def _as_a_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Let a script find its neighbours, and leave the threads and the folder of this process as they were."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def sampled_here(command: list[str], run: Callable[..., Any] = subprocess.run, **options: Any) -> Any:  # noqa: ANN401 - as of subprocess
    """Take a sample in this process, except that of a second process, which must not have imported anything."""
    asked, printed = json.loads(command[2]), io.StringIO()
    if not asked.get("prepare", True):
        return run(command, **options)
    torch.compiler.reset()
    with contextlib.redirect_stdout(printed):
        importlib.import_module(Path(command[1]).stem).main(asked)
    return subprocess.CompletedProcess(command, 0, printed.getvalue(), "")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.inductor] if name == "call_overhead" else []) for name in NAMES])
def test_a_benchmark_writes_and_prints_figures_with_their_verdicts(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = OPTIONS.get(name, ("--no-inductor",))
    monkeypatch.setattr(sys, "argv", [f"bench_{name}.py", "--quick", "--json", f"made/{name}.json", *options])
    if name == "compile":
        monkeypatch.setattr(importlib.import_module("warm_sample"), "WAYS", ("file", "ortlens"))
        monkeypatch.setattr("subprocess.run", sampled_here)
    importlib.import_module(f"bench_{name}").main()
    printed = capsys.readouterr().out.split("\n")
    made = json.loads(Path(f"made/{name}.json").read_text(encoding="utf-8"))
    assert "torch " in made["versions"]
    assert "onnxruntime " in made["versions"]
    rows = [row for table in made["tables"] for row in table["rows"]]
    assert rows or (name in NEEDS_CHROMIUM and not shutil.which("chromium"))
    for row in rows:
        assert math.isfinite(row["value"])
        assert row["value"] > 0 or row["unit"] == "us", row  # what a Lens adds, in us, may drown in noise
        assert row["verdict"] == ("" if row["goal"] is None else "met" if row["value"] <= row["goal"] else "missed")
        assert any(line.startswith(row["name"]) and row["verdict"] in line for line in printed)
        if name == "training":
            assert set(row["detail"]) >= COLUMNS
            assert all(row["detail"][column] > 0 for column in COLUMNS)
    if name == "call_overhead":
        assert "ortlens to inductor" in [row["name"] for row in rows]
        assert not [table for table in made["tables"] if "not measured" in table["title"]]


def test_the_first_call_of_a_turn_is_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    measure = importlib.import_module("measure")
    called, clock = [""], [0]

    def takes(ns: int, name: str, *, more_after_another: int = 0) -> None:
        clock[0] += ns + (more_after_another if called[-1] != name else 0)
        called.append(name)

    monkeypatch.setattr(measure.time, "perf_counter_ns", lambda: clock[0])
    monkeypatch.setattr(measure.time, "process_time_ns", lambda: clock[0] // 2)
    ways = {"first": lambda: takes(200_000, "first", more_after_another=5_000_000), "second": lambda: takes(100_000, "second")}
    turns = measure.take_turns(ways, quick=True)
    assert turns.us == {"first": [200.0] * 3, "second": [100.0] * 3}
    assert turns.cpu_us == {"first": [100.0] * 3, "second": [50.0] * 3}
    assert turns.cold_us["second"] == [100.0] * 3
    assert max(turns.cold_us["first"]) == 5_200.0
    detail = turns.compared("row", "first", "second").detail
    assert (detail["ratio of CPU time"], detail["ratio after another way"]) == (2.0, 52.0)
