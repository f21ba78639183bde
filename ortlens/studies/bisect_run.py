"""What runs in the process of one side of a bisection, in whatever environment that is: numpy and onnxruntime suffice."""

from __future__ import annotations

import os
import time
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortlens._process import heap_bytes, resident_bytes
from ortlens.errors import UsageError
from ortlens.lens.observing.optimizers import LEVELS, breaking
from ortlens.studies.child import stage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_UNCOUNTED = 3  # runs that warm up
_PROFILED = 48  # most profiled runs, each in turns with a plain one
_PROFILE_NS = 2_000_000_000
_WITHOUT_ARRAY = ("bfloat16", "int4", "float8", "string", "seq", "map", "optional", "float4")  # in the types of values that stay unread


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the sessions of a side are made."""

    provider: str = "CPUExecutionProvider"
    level: str = "all"
    threads: int = 1


def examined(_folder: str) -> dict[str, Any]:
    """Look at what is installed: the version of ONNX Runtime, and its providers."""
    import onnxruntime

    return {"onnxruntime": onnxruntime.__version__, "providers": onnxruntime.get_available_providers()}


def session_of(model: str, settings: Settings, profile: Path | None = None, without: Sequence[str] = ()) -> Any:  # noqa: ANN401 - onnxruntime has no types
    """Make a session, without some rewrites.

    Raise `UsageError` where the provider is missing or cannot be used, in which case ONNX Runtime goes on without it.
    """
    import onnxruntime

    available = onnxruntime.get_available_providers()
    if settings.provider not in available:
        raise UsageError(f"onnxruntime {onnxruntime.__version__} has no {settings.provider} here, only {', '.join(available)}")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = settings.threads
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, LEVELS[settings.level])
    if profile is not None:
        options.enable_profiling, options.profile_file_prefix = True, str(profile)
    providers = list(dict.fromkeys((settings.provider, "CPUExecutionProvider")))
    session = onnxruntime.InferenceSession(model, options, providers=providers, disabled_optimizers=list(without) or None)
    if session.get_providers()[0] != settings.provider:
        raise UsageError(f"{settings.provider} could not be used by onnxruntime {onnxruntime.__version__}: one of its libraries is missing")
    return session


def values(folder: str, model: str, feed: str, settings: Settings, runs: int) -> dict[str, str]:
    """Run a model on its inputs, and write the outputs of the first and of the last run; an `error` where it fails."""
    stage(f"running {Path(model).name}")
    try:
        call = _call_of(session_of(model, settings), feed)
        results = {"first": call()}
        for _ in range(runs - 1):
            results["last"] = call()
    except Exception as error:  # noqa: BLE001 - a version may raise whatever it likes; that is an answer
        return {"error": f"{type(error).__name__}: {error}"[:600]}
    return {name: write_values(result, Path(folder) / f"{name}.npz") for name, result in results.items()}


def timed(folder: str, models: Sequence[tuple[str, str]], settings: Settings, runs: int, seconds: float) -> dict[str, Any]:
    """Time a call, which runs the models one after the other, and read the memory of the process after each; keep first and last values.

    If a rewrite of ONNX Runtime breaks a model, so that no session can be made, the answer is a sentence, `refused`.
    """
    stage("creating the sessions")
    began = time.perf_counter_ns()
    calls = []
    for model, feed in models:
        session, broken = _session_or_why(model, settings)
        if session is None:
            return {"refused": broken}
        calls.append(_call_of(session, feed))
    stage("running")
    first = last = [call() for call in calls]
    first_ns = time.perf_counter_ns() - began
    deadline, clock = time.perf_counter_ns() + round(seconds * 1e9), time.perf_counter_ns
    times, heap, resident = (array("q", bytes(8 * runs)) for _ in range(3))  # in place: a list would grow while memory is watched
    count, process = 0, os.getpid()
    while count < runs and (count <= _UNCOUNTED or clock() < deadline):
        started = clock()
        last = [call() for call in calls]
        times[count] = clock() - started
        heap[count], resident[count] = heap_bytes() or 0, resident_bytes(process) or 0
        count += 1
    kept = [
        {name: write_values(made[place], Path(folder) / f"{place}-{name}.npz") for name, made in (("first", first), ("last", last))}
        for place in range(len(models))
    ]
    skipped = min(_UNCOUNTED, count - 1)
    return {
        "first_ns": first_ns,
        "times": list(times[skipped:count]),
        "heap": list(heap[:count]),
        "resident": list(resident[:count]),
        "values": kept,
    }


def _session_or_why(model: str, settings: Settings) -> tuple[Any, str]:
    """Make a session; None, and the rewrites to blame, where these break the model."""
    try:
        return session_of(model, settings), ""
    except Exception as error:
        names = breaking(lambda without: session_of(model, settings, without=without))
        if not names:
            raise
        return None, f"{' and '.join(names)}, without which it loads. {error}"[:600]


def profiled(folder: str, models: Sequence[tuple[str, str]], settings: Settings) -> list[dict[str, Any]]:
    """Run each model in turns with and without the profiler; return where the profile is, the times, and which runs count."""
    found = []
    for place, (model, feed) in enumerate(models):
        stage(f"profiling {Path(model).name}")
        session = session_of(model, settings, Path(folder) / f"profile{place}")
        plain, watched = _call_of(session_of(model, settings), feed), _call_of(session, feed)
        turns: list[int] = []
        deadline = time.perf_counter_ns() + _PROFILE_NS
        while len(turns) <= _PROFILED and (len(turns) < _UNCOUNTED or time.perf_counter_ns() < deadline):
            started = time.perf_counter_ns()
            plain()
            turns.append(time.perf_counter_ns() - started)
            watched()
        found.append({"path": session.end_profiling(), "plain": turns, "groups": [None, *[0] * (len(turns) - 1)]})
    return found


def _call_of(session: Any, feed: str) -> Any:  # noqa: ANN401 - onnxruntime has no types
    values, wanted = read_values(feed), {value.name for value in session.get_inputs()}
    given = {name: value for name, value in values.items() if name in wanted}
    names = [value.name for value in session.get_outputs() if not any(kind in value.type for kind in _WITHOUT_ARRAY)]
    return lambda: dict(zip(names, session.run(names or None, given), strict=False))  # without names, all are returned


def write_values(values: Mapping[str, Any], path: Path) -> str:
    """Write arrays by name, whatever the names are, and return the path as text."""
    import numpy as np

    np.savez(path, *values.values(), names=np.array(list(values), dtype=str))
    return str(path)


def read_values(path: str) -> dict[str, Any]:
    """Read what `write_values` wrote."""
    import numpy as np

    with np.load(path) as file:
        return {str(name): file[f"arr_{place}"] for place, name in enumerate(file["names"])}
