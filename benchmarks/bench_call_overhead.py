"""What a call costs: a two-Linear MLP through each way of running it, interleaved in one process.

Prints a table: the median over rounds of the mean time of a call, and its ratio to `backend="inductor"`. One thread by
default, since torch's OpenMP pool can stall for milliseconds when the cores are busy.

Usage: python benchmarks/bench_call_overhead.py [--rounds 15] [--calls 2000] [--threads 1]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import statistics
import time
from typing import TYPE_CHECKING

import torch

from ortlens import Lens
from ortlens.backend.compiler import OrtBackend

if TYPE_CHECKING:
    from collections.abc import Callable


def candidates(model: torch.nn.Module) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """The ways to run the model, by name."""
    compiled = {
        "torch.compile, eager": "eager",
        "torch.compile, aot_eager": "aot_eager",
        "torch.compile, inductor": "inductor",
        "ortlens, nobody watching": OrtBackend(),
        "ortlens, under a Lens": Lens(),
    }
    ways = {name: _isolated(model, backend) for name, backend in compiled.items()}
    return {"eager": model, **ways}


def _isolated(model: torch.nn.Module, backend: object) -> Callable[[torch.Tensor], torch.Tensor]:
    """Compile a wrapper of its own for each backend: Dynamo would walk one list of compilations for all of them."""
    scope: dict[str, object] = {"model": model}
    exec("def call(x):\n    return model(x)\n", scope)  # noqa: S102 - a code object of its own is the point
    fast: Callable[[torch.Tensor], torch.Tensor] = torch.compile(scope["call"], backend=backend)  # type: ignore[call-overload]
    return fast


def measure(ways: dict[str, Callable[[torch.Tensor], torch.Tensor]], x: torch.Tensor, rounds: int, calls: int) -> dict[str, float]:
    """Median over rounds of the mean time of a call, in microseconds; the ways take turns within a round."""
    means: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, call in ways.items():
            started = time.perf_counter_ns()
            for _ in range(calls):
                call(x)
            means[name].append((time.perf_counter_ns() - started) / calls / 1000)
    return {name: statistics.median(values) for name, values in means.items()}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)).eval()
    x = torch.randn(4, 64)
    with torch.no_grad():
        ways = candidates(model)
        for call in ways.values():
            torch.testing.assert_close(call(x), model(x))
        figures = measure(ways, x, options.rounds, options.calls)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "onnxruntime", "ortlens"))
    print(f"Two-Linear MLP (64), batch 4, {options.threads} thread(s); {versions}")
    print(f"{'way':<28}{'us per call':>12}{'to inductor':>13}")
    for name, figure in figures.items():
        print(f"{name:<28}{figure:>12.1f}{figure / figures['torch.compile, inductor']:>12.2f}x")


if __name__ == "__main__":
    main()
