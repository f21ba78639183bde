"""Every benchmark runs and prints its figures. What the figures are depends on the machine and fails nothing."""

from __future__ import annotations

import importlib
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
NAMES = sorted(path.stem.removeprefix("bench_") for path in FOLDER.glob("bench_*.py"))
COLUMNS = {"us", "us of the other", "ratio of minima", "ratio of CPU time", "us after another way", "ratio after another way"}
NEEDS_CHROMIUM = {"graph_view"}
"""They measure nothing without it, and say so."""


def bench(name: str, folder: Path, *options: str) -> tuple[str, dict[str, Any]]:
    """Run a benchmark for show: what it printed, and what it wrote."""
    file = folder / "made" / f"{name}.json"
    command = [sys.executable, str(FOLDER / f"bench_{name}.py"), "--quick", "--json", str(file), *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    made: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return done.stdout, made


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_writes_and_prints_figures_with_their_verdicts(name: str, tmp_path: Path) -> None:
    printed, made = bench(name, tmp_path, "--no-inductor")
    assert "torch " in made["versions"]
    assert "onnxruntime " in made["versions"]
    rows = [row for table in made["tables"] for row in table["rows"]]
    assert rows or (name in NEEDS_CHROMIUM and not shutil.which("chromium"))
    for row in rows:
        assert math.isfinite(row["value"])
        assert row["value"] > 0 or row["unit"] == "us", row  # what a Lens adds, in us, may drown in noise
        assert row["verdict"] == ("" if row["goal"] is None else "met" if row["value"] <= row["goal"] else "missed")
        assert any(line.startswith(row["name"]) and row["verdict"] in line for line in printed.split("\n"))
        if name == "training":
            assert set(row["detail"]) >= COLUMNS
            assert all(row["detail"][column] > 0 for column in COLUMNS)


def test_the_first_call_of_a_turn_is_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
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


@pytest.mark.inductor
def test_inductor_has_its_row(tmp_path: Path) -> None:
    _, made = bench("call_overhead", tmp_path)
    assert "ortlens to inductor" in [row["name"] for row in made["tables"][0]["rows"]]
    assert not [table for table in made["tables"] if "not measured" in table["title"]]
