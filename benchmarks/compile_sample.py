"""One sample of `bench_compile.py`, in a process of its own: a request as JSON in, what was found as JSON out."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import onnxruntime  # noqa: F401 - before the clock starts, like the next three
import onnxscript  # noqa: F401
import torch
import torch._dynamo
import transformers  # noqa: F401
from measure import isolated
from models import build, dynamo_alone, exported_session

import ortlens

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Times = dict[str, float]
WAYS = ("ortlens", "export", "dynamo", "lens", "cached")
_TOLERANCE = 1e-4
_PHASES = ("dynamo_ns", "aot_ns", "partition_ns", "convert_ns", "optimize_ns", "session_ns", "compile_ns")


class Stopwatch:
    """Time since it was made: on the clock, and of the processor, which other work on the machine does not lengthen."""

    def __init__(self) -> None:
        """Start."""
        self._started = time.perf_counter(), time.process_time()

    def read(self) -> Times:
        """Seconds so far."""
        return {"s": time.perf_counter() - self._started[0], "cpu_s": time.process_time() - self._started[1]}


def through_ortlens(model: torch.nn.Module, x: torch.Tensor, backend: object = "ortlens") -> tuple[Times, torch.Tensor]:
    """Compile and call once."""
    watch = Stopwatch()
    result: torch.Tensor = isolated(model, backend)(x)
    return watch.read(), result


def through_export(model: torch.nn.Module, x: torch.Tensor) -> tuple[Times, torch.Tensor]:
    """Export, make a session and run it once; the times, and what it returned."""
    watch = Stopwatch()
    session = exported_session(model, x, torch.get_num_threads())
    (result,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    return watch.read(), torch.from_numpy(result)


def through_cache(model: torch.nn.Module, x: torch.Tensor, folder: str) -> tuple[Times, torch.Tensor]:
    """Compile and call once with a `cache_dir`; the times from the backend's entry on, and what the call returned."""
    backend = ortlens.OrtBackend({"cache_dir": folder})
    entered: list[Stopwatch] = []

    def clocked(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:  # noqa: ANN401 - as Dynamo hands them over
        entered.append(Stopwatch())
        return backend(module, inputs)

    result: torch.Tensor = isolated(model, clocked)(x)
    return entered[0].read(), result


def _warm_up(way: str, folder: str) -> None:
    """Send a tiny model the way that is to be measured."""
    tiny, x = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.GELU()).eval(), torch.randn(2, 8)
    _first_call(way, tiny, x, folder)
    if way == "lens":
        _first_call("ortlens", tiny, x, folder)
    torch.compiler.reset()


def _first_call(way: str, model: torch.nn.Module, x: torch.Tensor, folder: str) -> tuple[Times, torch.Tensor]:
    if way == "export":
        return through_export(model, x)
    if way == "cached":
        return through_cache(model, x, folder)
    if way == "dynamo":
        return through_ortlens(model, x, dynamo_alone)
    return through_ortlens(model, x, ortlens.Lens() if way == "lens" else "ortlens")


def pairs_under_a_lens(model: torch.nn.Module, x: torch.Tensor, rounds: int) -> dict[str, Any]:
    """Compile with a Lens and without in turns, each first every other time."""
    times: dict[str, list[Times]] = {"with": [], "without": []}
    lens = ortlens.Lens()
    through_ortlens(model, x)  # the first time costs more, whoever watches
    for turn in range(rounds):
        for name in sorted(times, reverse=turn % 2 == 1):
            torch.compiler.reset()
            if name == "with":
                lens = ortlens.Lens()
            times[name].append(through_ortlens(model, x, lens if name == "with" else "ortlens")[0])
    graphs = lens.graphs
    return {**times, "phases": {name: int(graphs[name].sum()) for name in _PHASES}}


def main(asked: Mapping[str, Any]) -> None:
    """Take the sample and print it as the last line."""
    torch.set_num_threads(asked["threads"])
    way, folder = asked["way"], asked.get("cache_dir", "")
    model, x = build(asked["model"], quick=asked["quick"])
    with torch.no_grad():
        expected = model(x)
        if asked.get("warm") or way == "lens":
            _warm_up(way, f"{folder}/tiny")
        if way == "lens":
            found = pairs_under_a_lens(model, x, asked["rounds"])
        else:
            found, result = _first_call(way, model, x, f"{folder}/model")
            torch.testing.assert_close(result, expected, atol=_TOLERANCE, rtol=_TOLERANCE)
    print(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
