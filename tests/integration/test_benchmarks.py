"""Every benchmark runs and prints the figures that it names. What the figures are depends on the machine and fails nothing."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ortlens import OrtBackendOptions

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
MODELS = ("BERT", "GPT-2", "LLaMA", "ResNet")
FEW = ("geometric mean", "worst")
CLICKS = (
    "first paint",
    "ready",
    "open the graph",
    "open the tables",
    "open the table of calls",
    "sort it by time",
    "sort it by name",
    "open the timeline",
    "a frame of zooming the timeline",
    "draw the flame graph",
)

GRAPH: dict[str, tuple[str, ...]] = {
    "The graph of": ("opening view", "of it before the first frame", "opening view, clicked as the page was ready", "opening every group"),
    "A frame of panning": ("all of it in view", "to be read", "a third of that", "a tenth"),
}

# By script and start of a table's title: the names of its rows.
STEPS = (
    *(f"attention, StaticCache of {size}" for size in (64, 2048, 8192)),
    *(f"decode step, StaticCache of 2048{way}" for way in ("", ", frozen")),
    *(f"generate, {kind} cache" for kind in ("dynamic", "static")),
    *(f"EmbeddingBag, {count} bags" for count in (32, 256, 1024)),
    "DLRM",
    *(f"nn.{name}, eval" for name in ("TransformerEncoder", "MultiheadAttention")),
    "MLP, bfloat16 autocast",
    *(f"{name} step" for name in ("SGD", "SGD with momentum", "Adam", "AdamW")),
    "AdamW step, foreach",
    "Fourier neural operator",
)
EXPECTED: dict[str, dict[str, tuple[str, ...]]] = {
    "workloads": {
        "ortlens per step": tuple(f"{name}, to eager" for name in STEPS),
        "generate, to eager": ("generate, GPT2: dynamic", "generate, GPT2: static, 64"),
    },
    "call_overhead": {
        "Per call": ("ortlens above the floor", "ortlens under a Lens, against off"),
        "Every way": ("eager", "torch.compile, eager", "torch.compile, aot_eager", "ortlens", "ortlens under a Lens", "floor"),
        "inductor is not measured": (),
    },
    "models": {
        "ortlens to the exported model": (*MODELS, *FEW),
        "ortlens to eager": (*MODELS, *FEW),
        "frozen to the exported model": (*MODELS, *FEW),
        "frozen to eager": (*MODELS, *FEW),
        "inductor is not measured": (),
    },
    "compile": {
        "First call": ("BERT, warmed", "geometric mean, warmed", "BERT, warmed, Dynamo alone", "geometric mean, warmed, Dynamo alone"),
        "Compiling under a Lens": ("BERT",),
        "Where the time goes": ("BERT",),
        "Backend time with a filled cache_dir": ("BERT, first",),
        "Second process": ("BERT, ortlens", "BERT, dynamo", "BERT, frozen"),
    },
    "mixed": {"Two partitions and a fallback": ("custom operator, a product of matrices", "linalg.inv_ex, a factorisation")},
    "large_capture": {
        "Made up of records": ("all frames", "what_if()", "what_if(*ops)"),
        "Compiled in a dry run": ("all frames", "what_if()", "what_if(*ops)"),
    },
    "explorer": {
        "What the report of": ("report", "data in it, gzip", "packing the data", "writing the report", "widget, gzip"),
        **({"How soon the report of": CLICKS} if shutil.which("chromium") else {"Times are not measured": ()}),
    },
    "notebook": {
        "What a notebook weighs": (
            "code and style sheet, gzip, once per notebook",
            "loader, gzip, in each output",
            "ten outputs of the large capture",
            "ten outputs of recorded models",
        ),
        **(
            {"How soon JupyterLab shows": ("cell to screen, the first", "cell to screen, another of the same capture")}
            if shutil.which("chromium")
            else {"Times are not measured": ()}
        ),
    },
    "netron": {
        "What a page carries": (
            "the frame, once per page",
            *(f"a model of {nodes} nodes, without weights" for nodes in ("21", "147", "2,002")),
        ),
        "From the click": ("21 nodes", "147 nodes", "2,002 nodes") if shutil.which("chromium") else (),
    },
    "graph_view": GRAPH if shutil.which("chromium") else {"Nothing is measured": ()},
    "training": {f"A training step of {model}": ("ortlens to eager",) for model in ("GPT-2", "ResNet")},
    "live": {
        "A training loop": tuple(
            f"{where}, {what}"
            for where in ("terminal", "notebook")
            for what in ("with live() to without", "processor time of its threads per step")
        )
    },
    "verify": {"Every value compared": ("6 values",)},
    "growth": {
        "Layers: compile time": ("1 layers", "2 layers"),
        "Layers: what a call costs": ("1 layers", "2 layers"),
        "Number of weights": ("frozen", "compiled"),
        "Weights: memory": ("4 MB",),
        "Weights: the most that it takes": ("4 MB",),
        "Calls under a Lens": ("100 calls", "1,000 calls"),
    },
}


def bench(name: str, folder: Path, *options: str) -> tuple[str, dict[str, Any]]:
    """Run a benchmark for show: what it printed, and what it wrote."""
    file = folder / "made" / f"{name}.json"
    command = [sys.executable, str(FOLDER / f"bench_{name}.py"), "--quick", "--json", str(file), *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    made: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return done.stdout, made


def verdict_of(row: dict[str, Any]) -> str:
    if row["goal"] is None:
        return ""
    return "met" if row["value"] <= row["goal"] else "missed"


def test_every_benchmark_is_tested() -> None:
    assert {path.stem.removeprefix("bench_") for path in FOLDER.glob("bench_*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_tables_hold_the_rows_that_they_name(name: str, tmp_path: Path) -> None:
    printed, made = bench(name, tmp_path, "--no-inductor")
    assert "torch " in made["versions"]
    assert "onnxruntime " in made["versions"]
    for table, (start, names) in zip(made["tables"], EXPECTED[name].items(), strict=True):
        assert table["title"].startswith(start)
        if start.endswith("cache_dir") and "cache_dir" not in {field.name for field in dataclasses.fields(OrtBackendOptions)}:
            assert "no option cache_dir" in table["remarks"][0]
            continue
        assert tuple(row["name"] for row in table["rows"]) == names
        for row in table["rows"]:
            assert math.isfinite(row["value"])
            assert row["value"] > 0 or row["unit"] == "us", row  # what a Lens adds, in us, may drown in noise
            assert row["verdict"] == verdict_of(row)
            assert any(line.startswith(row["name"]) and row["verdict"] in line for line in printed.split("\n"))


COLUMNS = {"us", "us of the other", "ratio of minima", "ratio of CPU time", "us after another way", "ratio after another way"}


def test_times_of_calls_stand_beside_processor_time_and_the_first_call_after_another_way(tmp_path: Path) -> None:
    _, made = bench("training", tmp_path, "--no-inductor")
    assert made["busy"] in (True, False)
    for row in made["tables"][0]["rows"]:
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
@pytest.mark.parametrize("name", ["call_overhead", "training"])
def test_inductor_has_its_row(name: str, tmp_path: Path) -> None:
    _, made = bench(name, tmp_path)
    assert "ortlens to inductor" in [row["name"] for row in made["tables"][0]["rows"]]
    assert not [table for table in made["tables"] if "not measured" in table["title"]]
