"""One model in several ways, in turns: eager, Inductor, ONNX Runtime through ortlens, frozen, and the exported model in a bare session."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

import torch

from ortlens import _torch
from ortlens._process import CoreWatch, at_cores, usable_cores
from ortlens._shell import progress
from ortlens._versions import registered_libraries
from ortlens.analysis.speed import MIN_ROUNDS, AbTiming
from ortlens.backend.api import OrtBackend
from ortlens.backend.basis.ab_timing import waiting_for
from ortlens.backend.basis.options import OrtBackendOptions
from ortlens.backend.observed import providers_for
from ortlens.errors import UsageError
from ortlens.job.providers import register
from ortlens.job.targets import inputs_from_texts, target_from_text
from ortlens.lens.freeze import freeze
from ortlens.lens.lens import Lens
from ortlens.lens.observing.time_budget import TimeBudget
from ortlens.studies.apart import StoppedError
from ortlens.studies.engine import LocalSide, ProcessSide, loaded, measured, per_second, start
from ortlens.trace.records import column, optional
from ortlens.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ortlens.studies.apart import ProcessResult
    from ortlens.trace.records import Capture, SideResult

WAYS = ("eager", "inductor", "ortlens", "frozen", "exported")  # what is measured by default
_MOST_ROUNDS = 200
_ENOUGH = 0.8  # of what the cores could bring
_ALONE = 1.25  # cores of a call whose sessions have one thread each, at most
_CLEARLY = 0.9  # times as long as a call of threads, one of processes at most
_FREE = 0.25  # cores that others may have


def bench(  # noqa: PLR0913 - those of `explain`, and what to measure
    target: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    ways: Sequence[str] = WAYS,
    seconds: float = 10.0,
    options: Mapping[str, Any] | None = None,
    name: str = "",
) -> tuple[tuple[SideResult, ...], Capture]:
    """Measure a model in several ways; eager is always one of them, as the base.

    Calls the target some hundred times, with gradients as the caller has set them, in ten rounds or more, however short `seconds` is. The
    rows are also among the capture's figures, as `ways`.
    """
    unknown = [way for way in ways if way not in WAYS]
    if unknown:
        raise UsageError(f"there is no way {unknown[0]!r}; the ways are: {', '.join(WAYS)}")
    lens = Lens(options=options, name=name)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        make = partial(made, target, args, kwargs, options, lens, Path(folder))
        sides = [LocalSide(name=way, make=partial(make, way), given=(target, args, kwargs)) for way in WAYS if way in ("eager", *ways)]
        start(sides)
        found = measured(sides, most=_MOST_ROUNDS, is_over=TimeBudget(seconds).is_over)
    capture = lens.captured()
    return found, replace(capture, figures=replace(capture.figures, ways=found))


def made(target: Any, args: Any, kwargs: Any, options: Any, backend: Any, folder: Path, way: str) -> Callable[[], Any]:  # noqa: ANN401, PLR0913, PLR0917 - what any way needs
    """Compile or export the target in a way; return the call."""
    if way == "exported":
        return _exported(target, args, kwargs, OrtBackendOptions.from_any(options), folder)
    if way == "frozen":
        return partial(freeze(target, *args, options=options, **kwargs), *args, **kwargs)
    return partial(target if way == "eager" else _torch.compiled_apart(target, backend if way == "ortlens" else way), *args, **kwargs)


def _exported(
    target: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], options: OrtBackendOptions, folder: Path
) -> Callable[[], Any]:
    """Make what one writes without ortlens: torch.onnx.export, and a session with default optimisations and as many threads as ours have.

    It runs on the providers that the options name, or on the devices of their session options, which then are the session's.
    """
    import onnxruntime

    tensors = _torch.tensors_of((args, kwargs))
    if any(tensor.device.type != "cpu" for tensor in tensors):
        raise UsageError("inputs on the CPU only")
    module = target if isinstance(target, torch.nn.Module) else torch.nn.Module()
    if module is not target:
        module.forward = lambda *given, **named: target(*given, **named)  # noqa: PLW0108 - builtins have no signature
    with torch.no_grad():
        program: Any = torch.onnx.export(module, args, kwargs=dict(kwargs), dynamo=True, verbose=False)
    path = folder / "exported.onnx"
    program.save(path)
    providers = providers_for(tensors, options)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = min(torch.get_num_threads(), usable_cores())
    session = onnxruntime.InferenceSession(path, settings if providers else options.ort_session_options, providers=providers)
    names = [item.name for item in session.get_inputs()]
    if len(names) != len(tensors):
        raise UsageError(f"the exported model has {len(names)} inputs for {len(tensors)} tensors")
    feeds = {name: tensor.detach().numpy() for name, tensor in zip(names, tensors, strict=True)}
    return lambda: [torch.from_numpy(value) for value in session.run(None, feeds)]


@dataclass(frozen=True, slots=True)
class Load:
    """A way of running a model, called by several at the same time; figures are empty where it failed."""

    way: str = column("Its name, as in the table of ways.", brief=1)
    batch: int | None = optional("Leading size of its tensors; empty without any.", brief=2)
    callers: str = column("Who calls at the same time, each again as soon as its last call has returned.", default="", brief=3)
    calls_per_s: float | None = optional("Calls per second of all callers: the median over the rounds.", brief=4)
    items_per_s: float | None = optional("The same times the batch.", brief=5)
    gain: float | None = optional("Times the calls per second of one caller: the median over the rounds.", brief=6)
    call_ns: int | None = optional("Time that half of the calls take at most.", unit="ns", brief=7)
    p90_ns: int | None = optional("Time that 90 % of them take at most.", unit="ns", brief=8)
    p99_ns: int | None = optional("The same for 99 %.", unit="ns", brief=9)
    cpu_ns: int | None = optional("CPU time of a call, in all threads of its process.", unit="ns", brief=10)
    peak_bytes: int | None = optional("The most memory that its processes held, mapped files apart.", unit="bytes", brief=11)
    note: str = column("Why it failed, or why `gain` is below four fifths of what the cores could bring.", default="")


def under_load(
    call: tuple[str, Sequence[str], int, Mapping[str, Any]],
    given: object,
    ways: Sequence[str],
    callers: Sequence[int],
    batches: Sequence[int],
) -> list[Load]:
    """Run ways with some batches and for some numbers of callers; a row for each number of callers, or a failure.

    `call` has the texts of a target and its inputs, the seed and the options, as other processes read them; `given` are its arguments as
    they are, whose leading size is the batch where there are no `batches`.
    """
    turns = [(1, 1), *(turn for count in sorted({*callers} - {1}) for turn in ((count, 1), (1, count)))]  # threads, processes
    with_batch(given, next(iter(batches), None))  # raises now
    what = *call, registered_libraries(), turns
    sizes: Sequence[int | None] = batches or [_leading_size(given)]
    cases = [(way, size) for way in ways for size in sizes]
    found: list[Load] = []
    with progress("calling from several", len(cases), "case") as step:
        for case in cases:
            found += _loads(case, what)
            step(1)
    return found


def _loads(case: tuple[str, int | None], given: tuple[Any, ...]) -> list[Load]:
    (way, batch), turns, stop = case, given[-1], threading.Event()

    def answer(place: int) -> ProcessResult | None:
        with contextlib.suppress(StoppedError):
            ended = ProcessSide(name=way, folder=Path(folder, str(place)), stop=stop).ask(served, place, case, given)
            if ended.status != "ok":
                stop.set()  # the others would wait for it
            return ended
        return None

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, ThreadPoolExecutor(turns[-1][1]) as pool:
        ended = [each for each in pool.map(answer, range(turns[-1][1])) if each is not None]
    if stop.is_set():
        return [Load(way, batch, note=next(f"batch {batch}: {each.reason}" for each in ended if each.reason))]
    rounds = {turn: [*zip(*(each.value[place] for each in ended[: turn[1]]), strict=True)] for place, turn in enumerate(turns)}
    rates = {turn: [sum(per_second(reading["times"]) for reading in each) for each in own] for turn, own in rounds.items()}
    others, own_cores = (median(reading[name] for (reading,) in rounds[1, 1]) for name in ("others", "cores"))
    found: list[Load] = []
    for (threads, several), own in rounds.items():
        mine, rivals = rates[threads, several], rates[1, threads * several]
        readings = [reading for each in own for reading in each]
        cuts = quantiles([ns for reading in readings for times in reading["times"] for ns in times] * 2, n=100, method="inclusive")
        p50, p90, p99 = (round(cuts[share - 1]) for share in (50, 90, 99))
        rate, gain = median(mine), median(more / alone for more, alone in zip(mine, rates[1, 1], strict=True))
        cpu_ns, peak = round(median(reading["cpu_ns"] for reading in readings)), sum(each.peak_bytes or 0 for each in ended[:several])
        callers = counted(several, "process", "processes") if several > 1 else counted(threads, "thread")
        row = Load(way, batch, callers, rate, batch and rate * batch, gain, p50, p90, p99, cpu_ns, peak or None)
        timing = AbTiming(*([round(1e9 / rate) for rate in each] for each in (mine, rivals)))
        found.append(replace(row, note=limit_of(row, timing, min(threads * several, usable_cores()), others, own_cores)))
    return found


def limit_of(row: Load, timing: AbTiming, cores: int, others: float, own_cores: float) -> str:
    """Say what keeps a row from a call per core, if it is far from it.

    It follows from turns with as many processes, the cores that others had, and those that one caller has alone.
    """
    if (row.gain or 0.0) >= _ENOUGH * cores:
        return ""
    if others > _FREE:
        return "other processes had some of the cores meanwhile; measure again on an idle machine"
    if own_cores < _ALONE and timing.verdict == "faster" and timing.ratio < _CLEARLY:
        return "Python's lock (GIL) limits its threads, of which one at a time holds it: as many processes make more calls"
    return "callers share cores, caches and memory; sessions with fewer threads leave more cores to each caller"


def served(folder: str, place: int, case: tuple[str, int | None], given: tuple[Any, ...]) -> list[list[dict[str, Any]]]:
    """Be one of the processes of a way, and call whenever it is among the callers; return the readings of each turn, by round."""
    text, inputs, seed, options, libraries, turns = given
    for name, (path, _) in libraries.items():
        register(name, path)
    torch.manual_seed(seed)
    target, readings = target_from_text(text), [list[Any]() for _ in turns]
    args, kwargs = with_batch(inputs_from_texts(inputs).made(seed), case[1])
    with torch.no_grad():
        call = made(target, args, kwargs, options, OrtBackend(options), Path(folder), case[0])
        wait = waiting_for(target, args, kwargs, call())
        for number, ((threads, processes), own) in enumerate([*zip(turns, readings, strict=True)] * MIN_ROUNDS, 1):
            Path(folder, "met").write_bytes(b"." * number)
            for other in range(turns[-1][1]):  # all begin together
                while not (met := Path(folder, "..", "..", str(other), "served0", "met")).exists() or met.stat().st_size < number:
                    time.sleep(0.001)
            if place < processes:
                watch = CoreWatch()
                times, cores, _ = at_cores(partial(loaded, call, wait, threads))
                others, _ = watch.shares() or (0.0, 0.0)
                own.append({"times": times, "cpu_ns": cores * 1e9 / per_second(times), "cores": cores, "others": others})
    return readings


def _leading_size(given: object) -> int | None:
    """Return the first dimension of the first tensor that has any; None without one."""
    return next((len(tensor) for tensor in _torch.tensors_of(given) if tensor.dim()), None)


def with_batch(given: Any, batch: int | None) -> Any:  # noqa: ANN401 - arguments
    """Make that the leading size of all tensors that share it: their rows, over and over; raise `UsageError` where none has any."""
    if batch is None:
        return given
    if (size := _leading_size(given)) is None:
        raise UsageError("--batch: no input has a dimension; give tensors, such as --input f32[1,256]")
    rows = torch.arange(batch) % (size or 1)
    return _torch.map_tensors(lambda each: each[rows] if each.shape[:1] == (size,) else each, given)
