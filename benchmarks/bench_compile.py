"""The first call: `torch.compile(backend="ortlens")` against `torch.onnx.export`, a session and its first run.

Every sample is a process of its own, which imports everything and runs the model eagerly before the clock starts; the ways
take turns. "first" is the first model of its process; "warmed" comes after another, tiny model went the same way, so
that registries which are built once per process are not counted. What a Lens adds is measured in one process, where
compilations with and without one take turns.

Usage: python benchmarks/bench_compile.py [--threads 1] [--quick] [--json FILE] [--models BERT GPT-2] [--samples 3]
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import compile_sample
import warm_sample
from measure import Row, Table, geomean, parser_for, report, why_no_inductor
from models import MODELS

from ortlens import OrtBackendOptions

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from compile_sample import Times

_GOAL, _LENS, _CACHE, _SECOND = 0.65, 1.05, 0.35, 1.5
_STATES = {"warmed": True, "first": False}


def sample(options: argparse.Namespace, way: str, model: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - what JSON holds
    """One sample in a process of its own."""
    return json.loads(_last_line(compile_sample.__file__, {**_asked(options, way, model), **more}))  # type: ignore[no-any-return]


def _asked(options: argparse.Namespace, way: str, model: str) -> dict[str, Any]:
    return {"way": way, "model": model, "threads": options.threads, "quick": options.quick}


def _last_line(script: str, asked: Mapping[str, Any], **more: str) -> str:
    """Run a script in a process of its own, with more variables in its environment; the last line that it printed, if any."""
    # Without byte code on disk, compiling ortlens's own sources would count as work of the first model.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | more
    command = [sys.executable, script, json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(f"{asked} failed with status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return (done.stdout.splitlines() or [""])[-1]


def against_export(options: argparse.Namespace) -> Table:
    """First calls against the exporter, a row per model and state, and their geometric means."""
    times: dict[tuple[str, str, str], list[Times]] = {}
    states = {"warmed": True} if options.quick else _STATES
    for _ in range(options.samples):
        for state, warm in states.items():
            for model in options.models:
                for way in ("ortlens", "dynamo", "export"):
                    times.setdefault((state, model, way), []).append(sample(options, way, model, warm=warm))
    rows = []
    for state in states:
        ours = [
            _compared(f"{model}, {state}", times[state, model, "ortlens"], times[state, model, "export"], _GOAL) for model in options.models
        ]
        floor = [
            _compared(f"{model}, {state}, Dynamo alone", times[state, model, "dynamo"], times[state, model, "export"], None)
            for model in options.models
        ]
        rows += [*ours, Row(name=f"geometric mean, {state}", value=geomean([row.value for row in ours]), goal=_GOAL)]
        rows += [*floor, Row(name=f"geometric mean, {state}, Dynamo alone", value=geomean([row.value for row in floor]))]
    remark = "Dynamo alone: a backend that returns the graph as it is; no backend of torch.compile can be faster"
    return Table(title="First call: ortlens to torch.onnx.export, session and first run", rows=rows, remarks=[remark])


def _compared(name: str, ours: Sequence[Times], others: Sequence[Times], goal: float | None) -> Row:
    own, other, own_cpu, other_cpu = (statistics.median(one[key] for one in many) for key in ("s", "cpu_s") for many in (ours, others))
    return Row(
        name=name, value=own / other, goal=goal, detail={"s": own, "s of the other": other, "ratio of CPU time": own_cpu / other_cpu}
    )


def under_a_lens(options: argparse.Namespace) -> list[Table]:
    """What a Lens adds to a compilation, and from its frames where the time goes."""
    found = {model: sample(options, "lens", model, rounds=1 if options.quick else 5) for model in options.models}
    added = [_compared(model, one["with"], one["without"], _LENS) for model, one in found.items()]
    phases = [_phases(model, one["phases"]) for model, one in found.items()]
    return [
        Table(title="Compiling under a Lens against without", rows=added),
        Table(title="Where the time goes: the backend's own share of compile_ns, and the phases in ms, under a Lens, warmed", rows=phases),
    ]


def _phases(model: str, ns: Mapping[str, int]) -> Row:
    rest = ns["compile_ns"] - ns["dynamo_ns"] - ns["aot_ns"]
    detail = {name.removesuffix("_ns"): value / 1e6 for name, value in ns.items()}
    return Row(name=model, value=100 * rest / ns["compile_ns"], unit="%", detail=detail)


def with_a_cache(options: argparse.Namespace) -> Table:
    """From the backend's entry to the first result: a filled `cache_dir` against an empty one, each in a new process."""
    title = "Backend time with a filled cache_dir to an empty one"
    if "cache_dir" not in {field.name for field in dataclasses.fields(OrtBackendOptions)}:
        return Table(title=title, remarks=["not measured: this version of ortlens has no option cache_dir"])
    states = {"first": False} if options.quick else _STATES
    times: dict[tuple[str, str, str], list[Times]] = {}
    for _ in range(options.samples):
        for state, warm in states.items():
            for model in options.models:
                with tempfile.TemporaryDirectory() as folder:
                    for content in ("empty", "filled"):
                        took = sample(options, "cached", model, warm=warm, cache_dir=folder)
                        times.setdefault((state, model, content), []).append(took)
    rows = [
        _compared(f"{model}, {state}", times[state, model, "filled"], times[state, model, "empty"], _CACHE)
        for state in states
        for model in options.models
    ]
    return Table(title=title, rows=rows)


def second_process(options: argparse.Namespace) -> Table:
    """A process that finds what an earlier one prepared, from `import torch` to the first answer, to loading a saved ONNX file."""
    why_not = why_no_inductor(options)
    ways = [way for way in warm_sample.WAYS if way != "inductor" or not why_not]
    rows = []
    for model in options.models:
        times: dict[str, list[Times]] = {way: [] for way in ways}
        with tempfile.TemporaryDirectory() as folder:
            caches = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
            for turn in range(options.samples + 1):
                for way in ways:
                    asked = {**_asked(options, way, model), "folder": folder, "prepare": turn == 0}
                    printed = _last_line(warm_sample.__file__, asked, **caches)
                    if turn:
                        times[way].append(json.loads(printed))
        rows += [_compared(f"{model}, {way}", times[way], times["file"], _SECOND) for way in ways if way != "file"]
    remarks = [
        "the first import of onnxruntime, and of Dynamo, is part of each figure; the model is built before",
        *filter(None, [why_not]),
    ]
    return Table(title="Second process: to a saved ONNX file in a bare session", rows=rows, remarks=remarks)


def main() -> None:
    """Run and print."""
    parser = parser_for(__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, help="which models (default: all of them; with --quick the first)")
    parser.add_argument("--samples", type=int, help="processes per figure (default 3; with --quick 1)")
    options = parser.parse_args()
    options.models = options.models or MODELS[: 1 if options.quick else None]
    options.samples = options.samples or (1 if options.quick else 3)
    tables = [against_export(options), *under_a_lens(options), with_a_cache(options), second_process(options)]
    report("Compile time", tables, options)


if __name__ == "__main__":
    main()
