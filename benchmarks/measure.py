"""What every benchmark shares: ways that take turns in one process, ratios of their times, and one aligned table.

The ways of a comparison take turns, round by round, so that what else the machine does meets all of them alike. A ratio
is the median over rounds of the ratio within a round; the ratio of the fastest rounds stands beside it. A goal is
printed with "met" or "missed", and nothing fails when it is missed: timings depend on the machine.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import json
import os
import pathlib
import platform
import shutil
import statistics
import sysconfig
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ortlens.backend.basis import ab_timing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_PACKAGES = ("ortlens", "torch", "onnxruntime", "onnx", "onnxscript", "transformers")
_IDLE_LOAD = 0.5  # beyond the threads of the benchmark itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure of a table.

    Attributes:
        name: What was measured.
        value: The figure, in `unit`.
        unit: `x` for a ratio, else the unit's sign.
        goal: The largest value that meets the goal, in the same unit; None where a figure is only reported.
        detail: What the figure was made from, by column; the columns say their units.
    """

    name: str
    value: float
    unit: str = "x"
    goal: float | None = None
    detail: Mapping[str, float] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """`met` or `missed`, computed from the figure; empty without a goal."""
        return "" if self.goal is None else "met" if self.value <= self.goal else "missed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Figures under one title, and remarks below them, such as why some are missing."""

    title: str
    rows: Sequence[Row] = ()
    remarks: Sequence[str] = ()


def parser_for(description: str | None, *, threads: int = 1) -> argparse.ArgumentParser:
    """The options that every benchmark takes."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--threads", type=int, default=threads, help=f"threads of torch and of ONNX Runtime alike (default {threads})")
    parser.add_argument("--quick", action="store_true", help="tiny sizes and few rounds: shows that it works, the figures mean nothing")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the tables there as well")
    parser.add_argument("--no-inductor", action="store_true", help="leave Inductor out; it is left out where it cannot compile")
    return parser


def report(what: str, tables: Sequence[Table], options: argparse.Namespace) -> None:
    """Print the tables under a head that says what was measured where; write them as JSON where asked."""
    busy = hasattr(os, "getloadavg") and os.getloadavg()[0] > options.threads + _IDLE_LOAD
    head = {"benchmark": what, "threads": options.threads, "quick": options.quick, **_environment(), "busy": busy}
    print(f"{what}; threads: {options.threads}{'; --quick: figures mean nothing' if options.quick else ''}")
    print("\n".join(f"{name}: {value}" for name, value in _environment().items()))
    if busy:
        print("the machine is busy with other work: do not trust the figures")
    print("\n".join(line for table in tables for line in ("", *_lines(table))))
    if options.json:
        made = [
            {"title": table.title, "rows": [{**_plain(row), "verdict": row.verdict} for row in table.rows], "remarks": list(table.remarks)}
            for table in tables
        ]
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({**head, "tables": made}, indent=1) + "\n", encoding="utf-8")


def _plain(row: Row) -> dict[str, Any]:
    return {"name": row.name, "value": row.value, "unit": row.unit, "goal": row.goal, "detail": dict(row.detail)}


def _environment() -> dict[str, str]:
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES)
    load = f", load {os.getloadavg()[0]:.2f}" if hasattr(os, "getloadavg") else ""
    return {"versions": f"{versions}, Python {platform.python_version()}", "machine": f"{processor()}, {os.cpu_count()} cores{load}"}


def processor() -> str:
    """The processor's name; `platform.processor()` is empty on most Linux systems."""
    listed = pathlib.Path("/proc/cpuinfo")
    lines = listed.read_text(encoding="utf-8").splitlines() if listed.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _lines(table: Table) -> list[str]:
    if not table.rows:
        return [table.title, *table.remarks]
    columns = list(dict.fromkeys(name for row in table.rows for name in row.detail))
    cells = [["", "figure", "goal", "", *columns]]
    for row in table.rows:
        figure, goal = (f"{value:.3f}{'' if row.unit in 'x%' else ' '}{row.unit}" for value in (row.value, row.goal or 0))
        goal = "" if row.goal is None else f"<= {goal}"
        cells.append([row.name, figure, goal, row.verdict, *(_number(row.detail.get(column)) for column in columns)])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [table.title, *(_aligned(line, widths) for line in cells), *table.remarks]


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Texts to the left, numbers to the right."""
    texts = (0, 3)
    padded = (cell.ljust(w) if i in texts else cell.rjust(w) for i, (cell, w) in enumerate(zip(cells, widths, strict=True)))
    return "  ".join(padded).rstrip()


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


# ---------------------------------------------------------------------------------------------------------- measuring


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Times of a call per way and round, in microseconds.

    Attributes:
        us: Mean of the calls of a turn but the first, on the clock.
        cpu_us: Likewise, of the processor, all threads of the process.
        cold_us: The first call of a turn: another way ran just before, so caches hold what is that way's.
    """

    us: Mapping[str, Sequence[float]]
    cpu_us: Mapping[str, Sequence[float]]
    cold_us: Mapping[str, Sequence[float]]

    def median(self, way: str) -> float:
        """Median over rounds of the mean time of a call, in microseconds."""
        return statistics.median(self.us[way])

    def ratio(self, way: str, to: str) -> float:
        """Median over rounds of the ratio within a round: a slow spell of the machine meets both."""
        return _ratio(self.us, way, to)

    def ratio_of_minima(self, way: str, to: str) -> float:
        """Ratio of the fastest rounds."""
        return min(self.us[way]) / min(self.us[to])

    def difference(self, way: str, to: str) -> float:
        """Median over rounds of the difference within a round, in microseconds."""
        return statistics.median(a - b for a, b in zip(self.us[way], self.us[to], strict=True))

    def compared(self, name: str, way: str, to: str, *, goal: float | None = None) -> Row:
        """The ratio of one way to another, as a row."""
        detail = {
            "us": self.median(way),
            "us of the other": self.median(to),
            "ratio of minima": self.ratio_of_minima(way, to),
            "ratio of CPU time": _ratio(self.cpu_us, way, to),
            "us after another way": statistics.median(self.cold_us[way]),
            "ratio after another way": _ratio(self.cold_us, way, to),
        }
        return Row(name=name, value=self.ratio(way, to), goal=goal, detail=detail)


def _ratio(us: Mapping[str, Sequence[float]], way: str, to: str) -> float:
    return statistics.median(a / b for a, b in zip(us[way], us[to], strict=True))


def called_with(ways: Mapping[str, Callable[..., object]], x: torch.Tensor) -> dict[str, Callable[[], object]]:
    """The same ways as functions of nothing."""
    return {name: functools.partial(call, x) for name, call in ways.items()}


def take_turns(ways: Mapping[str, Callable[[], object]], *, quick: bool, rounds: int = 31, turn_ms: float = 60) -> Turns:
    """Time ways that take turns, each round in another order."""
    rounds, turn_ms = (3, 2) if quick else (rounds, turn_ms)
    waits = {name: ab_timing.waiting_for(call()) for name, call in ways.items()}
    slowest = max(_turn_us(call, waits[name], 3)[0] for name, call in ways.items())
    calls = max(2, round(turn_ms * 1000 / slowest))
    turns = [functools.partial(_turn_us, call, waits[name], calls) for name, call in ways.items()]
    readings = dict(zip(ways, ab_timing.take_turns(turns, fewest=rounds, most=rounds, is_over=lambda: True), strict=True))
    us, cpu_us, cold_us = ({name: [each[place] for each in own] for name, own in readings.items()} for place in range(3))
    return Turns(us=us, cpu_us=cpu_us, cold_us=cold_us)


def _turn_us(call: Callable[[], object], wait: Callable[[], None], calls: int) -> tuple[float, float, float]:
    """Mean time and processor time of a call after the first, and the first: it finds the caches and thread pools of the way before."""
    entered = time.perf_counter_ns()
    call()
    wait()
    started, started_cpu = time.perf_counter_ns(), time.process_time_ns()
    for _ in range(calls):
        call()
    wait()
    ended, ended_cpu = time.perf_counter_ns(), time.process_time_ns()
    # A clock of the processor that ticks slowly may see no time at all in short turns.
    return (ended - started) / calls / 1000, max(ended_cpu - started_cpu, 1) / calls / 1000, (started - entered) / 1000


# ------------------------------------------------------------------------------------------------------------ the ways


def isolated(target: Callable[..., Any], backend: object) -> Callable[..., Any]:
    """Compile a wrapper of its own for each backend: Dynamo would walk one list of compilations for all of them."""
    scope: dict[str, Any] = {"target": target}
    exec("def call(x):\n    return target(x)\n", scope)  # noqa: S102 - a code object of its own is the point
    fast: Callable[..., Any] = torch.compile(scope["call"], backend=backend)  # type: ignore[call-overload]
    return fast


def floor_backend() -> Callable[..., Any]:
    """Dynamo and AOTAutograd around nothing: the compiled function returns outputs that were made at its first call."""
    from torch._dynamo.backends.common import aot_autograd

    def compiler(module: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[[list[Any]], list[Any]]:
        kept: list[Any] = []

        def run(args: list[Any]) -> list[Any]:
            if not kept:
                kept.extend(module(*args))
            args.clear()
            return list(kept)

        run._boxed_call = True  # type: ignore[attr-defined]  # the mark AOTAutograd looks for
        return run

    backend: Callable[..., Any] = aot_autograd(fw_compiler=compiler)
    return backend


def why_no_inductor(options: argparse.Namespace) -> str:
    """Why Inductor is not measured; empty when it is."""
    if options.no_inductor:
        return "inductor is not measured: --no-inductor"
    compiler = any(shutil.which(name) for name in ("c++", "g++", "clang++"))
    headers = (pathlib.Path(sysconfig.get_path("include")) / "Python.h").is_file()
    missing = [name for name, here in (("a C++ compiler", compiler), ("Python.h", headers)) if not here]
    return f"inductor is not measured: it needs {' and '.join(missing)}" if missing else ""


def start(options: argparse.Namespace) -> None:
    """Set what a measurement depends on: threads and random numbers."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)


def geomean(values: Sequence[float]) -> float:
    """Geometric mean of positive numbers, of which there is at least one."""
    return statistics.geometric_mean(values)
