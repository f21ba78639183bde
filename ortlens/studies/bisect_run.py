"""What runs in the processes of a bisection. The program, ONNX models with their weights and inputs, is made in a process of its own.

For the others numpy and onnxruntime suffice, in whatever environment that is.
"""

from __future__ import annotations

import os
import sys
import time
from array import array
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from ortlens import _ort
from ortlens._ort import CPU
from ortlens._process import heap_bytes, resident_bytes
from ortlens.errors import SessionError, UsageError
from ortlens.job.providers import how_to_register, name_among, register
from ortlens.lens.observing.optimizers import LEVELS, breaking
from ortlens.studies.child import stage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import onnx

    from ortlens.job.targets import Inputs
    from ortlens.lens.lens import Lens
    from ortlens.lens.repro.case import ReproCase, Subject

_UNCOUNTED = 3  # runs that warm up
_PROFILED = 48  # most profiled runs, each in turns with a plain one
_PROFILE_NS = 2_000_000_000
_LARGE = 1 << 30  # bytes of a model whose weights go into a file of their own
_WITHOUT_ARRAY = ("bfloat16", "int4", "float8", "string", "seq", "map", "optional", "float4")  # in the types of values that stay unread


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the sessions of a side are made."""

    provider: str = CPU
    provider_options: Mapping[str, str] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)  # that are registered where the provider is not there: names and paths
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

    if name_among(settings.provider, onnxruntime.get_available_providers()) is None:
        for library in settings.libraries.items():
            register(*library)
    available = onnxruntime.get_available_providers()
    provider = name_among(settings.provider, available)
    if provider is None:
        only = f"{', '.join(available)}{how_to_register()}"
        raise UsageError(f"onnxruntime {onnxruntime.__version__} has no {settings.provider} here, only {only}")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    _ort.record_assignments(options)
    options.intra_op_num_threads = settings.threads
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, LEVELS[settings.level])
    if profile is not None:
        options.enable_profiling, options.profile_file_prefix = True, str(profile)
    chosen: dict[str, dict[str, str]] = {provider: dict(settings.provider_options)}
    chosen.setdefault(CPU, {})
    session = onnxruntime.InferenceSession(model, options, providers=list(chosen.items()), disabled_optimizers=list(without) or None)
    if session.get_providers()[0] != provider:
        raise UsageError(f"{provider} could not be used by onnxruntime {onnxruntime.__version__}: one of its libraries is missing")
    return session


def pieces_of(sessions: Sequence[Any]) -> int | None:
    """Count the subgraphs that the first provider of sessions compiled; None for one with kernels, and where ONNX Runtime does not tell."""
    provider = sessions[0].get_providers()[0]
    told = [each for session in sessions for each in _ort.assignments(session)]
    parts = [each for each in told if each.provider == provider]
    by_node = len(parts) > 1 and all(len(each.nodes) == 1 for each in parts)  # as providers with kernels are recorded
    return None if not told or provider == CPU or (by_node and _ort.listed_kernels(provider)) else len(parts)


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
    sessions = []
    for model, _ in models:
        try:
            sessions.append(session_of(model, settings))
        except Exception as error:
            names = breaking(partial(session_of, model, settings, None))
            if not names:
                raise
            return {"refused": f"{' and '.join(names)}, without which it loads. {error}"[:600]}
    calls = [_call_of(session, feed) for session, (_, feed) in zip(sessions, models, strict=True)]
    return {**_clocked(folder, calls, runs, seconds, began), "pieces": pieces_of(sessions)}


def called(folder: str, what: tuple[Any, ...], front: str, runs: int, seconds: float) -> dict[str, Any]:
    """Compile a target, told as to `program_of`, under a lens, and time its calls as `timed` does; save the capture.

    Memory is not judged, since the lens takes some. Raises `UsageError` if nothing was imported from the folder `front`.
    """
    import torch

    began = time.perf_counter_ns()
    lens, call = _compiled(*what)
    with torch.no_grad():
        found = _clocked(folder, [lambda: _arrays(call())], runs, seconds, began)
    if not any((getattr(module, "__file__", None) or "").startswith(front) for module in list(sys.modules.values())):
        raise UsageError("the program imports nothing of it, so that each version is the same to it; name a package that it imports")
    return {**found, "heap": [], "resident": [], "pieces": None, "capture": str(lens.save(Path(folder) / "capture.ortlens"))}


def _clocked(folder: str, calls: Sequence[Callable[[], Mapping[str, Any]]], runs: int, seconds: float, began: int) -> dict[str, Any]:
    stage("running")
    first = last = [call() for call in calls]
    first_ns = time.perf_counter_ns() - began
    deadline, clock = time.perf_counter_ns() + round(seconds * 1e9), time.perf_counter_ns
    times, cpu, heap, resident = (array("q", bytes(8 * runs)) for _ in range(4))  # in place: a list would grow while memory is watched
    count, process = 0, os.getpid()
    while count < runs and (count <= _UNCOUNTED or clock() < deadline):
        used, started = time.process_time_ns(), clock()
        last = [call() for call in calls]
        times[count], cpu[count] = clock() - started, time.process_time_ns() - used
        heap[count], resident[count] = heap_bytes() or 0, resident_bytes(process) or 0
        count += 1
    kept = [
        {name: write_values(made[place], Path(folder) / f"{place}-{name}.npz") for name, made in (("first", first), ("last", last))}
        for place in range(len(calls))
    ]
    skipped = min(_UNCOUNTED, count - 1)
    return {
        "first_ns": first_ns,
        "runs": count,
        "times": list(times[skipped:count]),
        "cpu_ns": round(median(cpu[skipped:count])),
        "heap": list(heap[:count]),
        "resident": list(resident[:count]),
        "values": kept,
    }


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


def program_of(folder: str, target: str | Callable[..., Any], inputs: Inputs, seed: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """Write the models of a target and their inputs; return their files, the lines that nodes come from, versions and results.

    The target is `MODULE:NAME`, an ONNX file, or what is to be compiled. Raises `UsageError` where nothing of it runs in ONNX Runtime.
    """
    from ortlens.job.request import is_onnx_file
    from ortlens.lens.repro.evidence import versions

    read: Any = _from_file if isinstance(target, str) and is_onnx_file(target) else _from_target
    return {**read(target, inputs, seed, options, Path(folder)), "versions": versions()}


def _from_file(file: str, inputs: Inputs, seed: int, options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    import onnx
    import onnxruntime

    from ortlens.lens.explain import explain
    from ortlens.lens.onnx_model.graph_records import user_line
    from ortlens.lens.onnx_model.source import source_of, with_names

    if options:
        raise UsageError("options of the backend have no effect on an ONNX model; leave out --option")
    if source_of(file).structure is None:
        raise UsageError(
            f"{file} is in ONNX Runtime's own format, of which no node can be cut out; give the .onnx file that it was made from"
        )
    args, kwargs = inputs.arrays(seed)
    stage("running the model")
    try:
        lens = explain(file, calls=1)(*args, **kwargs)
    except SessionError as error:  # maybe at this level of optimisation alone
        plain = onnxruntime.SessionOptions()
        plain.log_severity_level, plain.graph_optimization_level = 4, onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            lens = explain(file, calls=1, options={"ort_session_options": plain})(*args, **kwargs)
        except SessionError:
            raise error from error.__cause__
    model = with_names(onnx.load(file))
    places = {node.name: user_line(node) for node in model.graph.node}
    lines = {name: f"{Path(place).name}:{number}" for name, (place, number, _) in places.items() if place is not None}
    return {"parts": [_part(model, lens.inputs, folder, "model", lines)], "results": None}


def _compiled(target: str | Callable[..., Any], inputs: Inputs, seed: int, options: Mapping[str, Any]) -> tuple[Lens, partial[Any]]:
    """Return a lens, and the call that compiles the target under it."""
    import torch

    from ortlens import _torch
    from ortlens.job.targets import target_from_text
    from ortlens.lens.lens import Lens

    if isinstance(target, str):
        torch.manual_seed(seed)
        target = target_from_text(target)
    args, kwargs = inputs.made(seed)
    lens = Lens(options=dict(options) or None)
    stage("compiling")
    return lens, partial(_torch.compiled_apart(target, lens), *args, **kwargs)


def _arrays(results: Any) -> dict[str, Any]:  # noqa: ANN401 - of any target
    import torch

    from ortlens import _torch

    tensors = [each.detach().cpu() for each in _torch.tensors_of(results)]
    return {f"result {place}": (each.float() if each.dtype is torch.bfloat16 else each).numpy() for place, each in enumerate(tensors)}


def _from_target(target: str | Callable[..., Any], inputs: Inputs, seed: int, options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    import torch

    from ortlens.lens.repro.case import case_of
    from ortlens.lens.repro.evidence import subjects_of, values_seen

    lens, call = _compiled(target, inputs, seed, options)
    with torch.no_grad():
        results = call()
        stage("reading the models")
        targets = lens.compilations.targets
        graphs = [row.graph_id for row in lens.captured().graphs if row.partition_count]
        subjects = [subject for graph_id in graphs for subject in subjects_of(targets.graphs(), graph_id)]
        if not subjects:
            raise UsageError(
                f"nothing of {target if isinstance(target, str) else 'the target'} runs in ONNX Runtime; `ortlens explain` has the reasons"
            )
        seen = values_seen(targets, subjects, call.args, call.keywords)
        cases = [case_of(subject, seen[subject.name], real_inputs=True, weights=True, source=False) for subject in subjects]
    parts = [_part_of(case, subject, _lines(lens, subject), folder) for case, subject in zip(cases, subjects, strict=True)]
    return {"parts": parts, "results": write_values(_arrays(results), folder / "results.npz")}


def _lines(lens: Lens, subject: Subject) -> dict[str, str]:
    """Map the ONNX nodes of a partition to the user's lines, as far as they are known."""
    return {
        name: f"{Path(node.file).name}:{node.line}"
        for node in lens.captured().nodes
        if node.partition_id == subject.name and node.file is not None
        for name in node.onnx_nodes
    }


def _part_of(case: ReproCase, subject: Subject, lines: dict[str, str], folder: Path) -> dict[str, Any]:
    import onnx
    import torch

    from ortlens.backend.basis.memory_order import raw_bytes

    if case.model is None:
        raise UsageError(f"{subject.name} has no ONNX model")
    given = {item["name"]: torch.tensor(item["value"]) for item in case.facts["inputs"] if "value" in item} | case.values
    for tensor in case.model.graph.initializer:
        if tensor.name in case.facts["frozen"]:
            tensor.ClearField("external_data")
            tensor.data_location = onnx.TensorProto.DEFAULT
            tensor.raw_data = raw_bytes(given[tensor.name])
    feed = {}
    for value in case.model.graph.input:
        if given[value.name].dtype is torch.bfloat16:
            raise UsageError(f"{subject.name} has an input of bfloat16, which no array of numpy holds; bisect it in float32")
        feed[value.name] = given[value.name].numpy()
    return _part(case.model, feed, folder, subject.name, lines)


def _part(model: onnx.ModelProto, feed: Mapping[str, Any], folder: Path, name: str, lines: dict[str, str]) -> dict[str, Any]:
    path = folder / f"{name}.onnx"
    save(model, path)
    return {"name": name, "model": str(path), "feed": write_values(feed, folder / f"{name}-inputs.npz"), "lines": lines}


def save(model: onnx.ModelProto, path: Path) -> str:
    """Write a model and return its path as text."""
    import onnx

    apart = sum(len(tensor.raw_data) for tensor in model.graph.initializer) > _LARGE
    onnx.save(model, path, save_as_external_data=apart, location=f"{path.name}.data" if apart else None)
    return str(path)
