"""What grows with the model and with use: layers, weights, calls.

Layers: compile time per node should stay the same (linear), and so should what a call costs beyond the session's run and
beyond the floor of Dynamo and AOTAutograd. Weights of one and the same computation: what a call takes more for
each of them, frozen and compiled. Weights: compile time and resident memory against their size, above 2 GB too,
each size in a process of its own. Calls: resident memory under a Lens should stay the same.

Usage: python benchmarks/bench_growth.py [--threads 1] [--quick] [--json FILE] [--parts layers count weights calls]
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from measure import Row, Table, called_with, floor_backend, isolated, parser_for, report, start, take_turns

import ortlens

if TYPE_CHECKING:
    import argparse

_FLAT = 1.10  # of figures that should not grow, for what a measurement of times is worth
_MEMORY_FLAT = 1.02
_TOLERANCE = 1e-4
_COMPILES = 3
_PARTS = ("layers", "count", "weights", "calls")
_MEGABYTE = 1e6
_PER_WEIGHT_US = 0.001
"""Nothing, for what a measurement of times is worth."""
_PEAK, _LARGE_MB = 1.02, 1000  # of less weight, code and the tables of a first call are a larger part


class Block(torch.nn.Module):
    """A layer with weights of every kind that a transformer has, and small, so that a call is mostly overhead."""

    def __init__(self, size: int) -> None:
        """Make a layer of `size` features."""
        super().__init__()
        self.norm, self.wide, self.narrow = torch.nn.LayerNorm(size), torch.nn.Linear(size, 4 * size), torch.nn.Linear(4 * size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A residual block."""
        result: torch.Tensor = x + self.narrow(torch.nn.functional.gelu(self.wide(self.norm(x))))
        return result


# -------------------------------------------------------------------------------------------------------------- layers


def with_layers(count: int, *, quick: bool) -> dict[str, float]:
    """Compile a model of `count` layers a few times, then time its calls."""
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(*(Block(16) for _ in range(count))).eval(), torch.randn(4, 16)
    seconds = []
    for _ in range(1 if quick else _COMPILES):
        torch.compiler.reset()
        lens = ortlens.Lens()
        started = time.perf_counter()
        fast = isolated(model, lens)
        result = fast(x)
        seconds.append(time.perf_counter() - started)
        torch.testing.assert_close(result, model(x), atol=_TOLERANCE, rtol=_TOLERANCE)
    floor = isolated(model, floor_backend())
    floor(x)
    turns = take_turns(called_with({"call": fast, "floor": floor}, x), quick=quick)
    run = float(lens.runs.run_ns.median()) / 1000
    call, bare = turns.median("call"), turns.median("floor")
    nodes = float(lens.graphs.node_count.sum())
    return {"nodes": nodes, "compile_s": statistics.median(seconds), "call": call, "run": run, "floor": bare, "ours": call - bare - run}


def layers_tables(*, quick: bool) -> list[Table]:
    """Growth with layers, to the smallest model."""
    counts = (1, 2) if quick else (2, 8, 32)
    with_layers(1, quick=True)  # registries that are built once per process
    found = {count: with_layers(count, quick=quick) for count in counts}
    least = found[counts[0]]
    compiling, calling = [], []
    for count, one in found.items():
        per_node, least_per_node = (each["compile_s"] / each["nodes"] * 1e3 for each in (one, least))
        detail = {"nodes": one["nodes"], "s": one["compile_s"], "ms per node": per_node}
        compiling.append(Row(name=f"{count} layers", value=per_node / least_per_node, goal=_FLAT, detail=detail))
        detail = {f"us {part}": one[part] for part in ("call", "run", "floor", "ours")}
        calling.append(Row(name=f"{count} layers", value=one["ours"] / least["ours"], goal=_FLAT, detail=detail))
    return [
        Table(title=f"Layers: compile time per node, to {counts[0]} layers", rows=compiling),
        Table(title=f"Layers: what a call costs beyond the session's run and the floor, to {counts[0]} layers", rows=calling),
    ]


# --------------------------------------------------------------------------------------------------- number of weights


class Summed(torch.nn.Module):
    """One product with the sum of many weights, which ONNX Runtime adds up when the session is created: the same call for any number."""

    def __init__(self, count: int) -> None:
        """Make `count` weights."""
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.randn(16, 16) / count for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product."""
        total = self.weights[0]
        for weight in self.weights[1:]:
            total = total + weight
        return x @ total


def with_count(count: int, *, quick: bool) -> dict[str, float]:
    """What a call takes with so many weights, in microseconds, frozen and compiled."""
    torch.compiler.reset()
    torch.manual_seed(0)
    model, x = Summed(count).eval(), torch.randn(4, 16)
    ways = {"frozen": ortlens.freeze(model, x), "compiled": isolated(model, "ortlens")}
    for way in ways.values():
        torch.testing.assert_close(way(x), model(x), atol=_TOLERANCE, rtol=_TOLERANCE)
    turns = take_turns(called_with(ways, x), quick=quick)
    return {name: turns.median(name) for name in ways}


def count_table(*, quick: bool) -> Table:
    """What each weight adds to a call, from the fewest to the most."""
    counts = (2, 20) if quick else (10, 100, 1000)
    found = {count: with_count(count, quick=quick) for count in counts}
    least, most = counts[0], counts[-1]
    rows = []
    for way, goal in (("frozen", _PER_WEIGHT_US), ("compiled", None)):
        slope = (found[most][way] - found[least][way]) / (most - least)
        detail = {f"us with {count}": one[way] for count, one in found.items()}
        rows.append(Row(name=way, value=slope, unit="us", goal=goal, detail=detail))
    return Table(title="Number of weights: what each adds to a call of the same computation", rows=rows)


# ---------------------------------------------------------------------------------------------------- weights and calls


def memory(which: str) -> float:
    """Memory of this process in megabytes, from Linux."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 / _MEGABYTE for line in lines if line.startswith(which))


def with_weights(megabytes: int) -> dict[str, float]:
    """Compile and call a model of four Linear layers of so much weight."""
    size = max(1, round((megabytes * _MEGABYTE / 4 / 4) ** 0.5))
    tiny = torch.nn.Linear(4, 4).eval()
    isolated(tiny, "ortlens")(torch.randn(1, 4))  # code that is loaded once per process
    model, x = torch.nn.Sequential(*(torch.nn.Linear(size, size, bias=False) for _ in range(4))).eval(), torch.randn(1, size)
    expected = model(x)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak starts anew
    before, started = memory("VmRSS"), time.perf_counter()
    result = isolated(model, "ortlens")(x)
    seconds = time.perf_counter() - started
    torch.testing.assert_close(result, expected, atol=_TOLERANCE, rtol=_TOLERANCE)
    weight = sum(parameter.nbytes for parameter in model.parameters()) / _MEGABYTE
    return {"weight_mb": weight, "compile_s": seconds, "kept_mb": memory("VmRSS") - before, "peak_mb": memory("VmHWM") - before}


def with_calls(counts: list[int]) -> dict[str, float]:
    """Call a small model under a Lens many times."""
    model, x = torch.nn.Linear(4, 4).eval(), torch.randn(1, 4)
    lens = ortlens.Lens()
    fast, done, resident = isolated(model, lens), 0, {}
    for count in counts:
        for _ in range(count - done):
            fast(x)
        done = count
        resident[str(count)] = memory("VmRSS")
    assert int(lens.sessions.calls.sum()) == done, "the Lens lost calls"
    return resident


def apart(part: str, argument: object, threads: int) -> dict[str, Any]:
    """Measure in a process of its own: memory that an earlier measurement freed would be taken for free."""
    command = [sys.executable, __file__, "--sample", json.dumps([part, argument, threads])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{part} {argument} failed with status {done.returncode}\n{done.stdout}\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def answer(asked: str) -> None:
    """Measure as `apart` asks and print the answer as the last line."""
    part, argument, threads = json.loads(asked)
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    with torch.no_grad():
        print(json.dumps(with_weights(argument) if part == "weights" else with_calls(argument)))


def weights_tables(*, quick: bool, threads: int) -> list[Table]:
    """Growth with weights: memory kept and peak to the weights' size, each with the seconds that compiling took."""
    sizes = (4,) if quick else (10, 100, 1000, 2200)
    found = {size: apart("weights", size, threads) for size in sizes}
    kept = [Row(name=f"{size} MB", value=max(one["kept_mb"], 0) / one["weight_mb"], detail=one) for size, one in found.items()]
    peak = [
        Row(name=f"{size} MB", value=one["peak_mb"] / max(one["kept_mb"], 1), goal=_PEAK if size >= _LARGE_MB else None, detail=one)
        for size, one in found.items()
    ]
    return [
        Table(title="Weights: memory that compiling and a first call keep, beyond the weights, to the weights", rows=kept),
        Table(title="Weights: the most that it takes meanwhile, to what it keeps", rows=peak),
    ]


def calls_tables(*, quick: bool, threads: int) -> list[Table]:
    """Growth with calls: resident memory to that after the first count."""
    counts = [100, 1000] if quick else [1_000, 10_000, 100_000, 1_000_000]
    resident = apart("calls", counts, threads)
    least = resident[str(counts[0])]
    rows = [Row(name=f"{int(count):,} calls", value=mb / least, goal=_MEMORY_FLAT, detail={"MB": mb}) for count, mb in resident.items()]
    return [Table(title=f"Calls under a Lens: resident memory, to {counts[0]:,} calls", rows=rows)]


def tables_of(options: argparse.Namespace) -> list[Table]:
    """The tables that were asked for; memory is read from Linux's own files."""
    tables = layers_tables(quick=options.quick) if "layers" in options.parts else []
    if "count" in options.parts:
        tables.append(count_table(quick=options.quick))
    if not Path("/proc/self/clear_refs").exists():
        return [*tables, Table(title="weights and calls are not measured: memory is read from Linux's /proc")]
    if "weights" in options.parts:
        tables += weights_tables(quick=options.quick, threads=options.threads)
    if "calls" in options.parts:
        tables += calls_tables(quick=options.quick, threads=options.threads)
    return tables


def main() -> None:
    """Run and print."""
    parser = parser_for(__doc__)
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=_PARTS)
    parser.add_argument("--sample", help="for the processes that this command starts")
    options = parser.parse_args()
    if options.sample:
        answer(options.sample)
        return
    start(options)
    with torch.no_grad():
        tables = tables_of(options)
    report("Growth", tables, options)


if __name__ == "__main__":
    main()
