"""One model in several ways, in turns: eager, Inductor, ONNX Runtime through ortlens, frozen, and the exported model in a bare session."""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ortlens import _torch
from ortlens._shell import progress
from ortlens.analysis.speed import MIN_ROUNDS, AbTiming
from ortlens.backend.runtime.ab_timing import clocked_often, take_turns, waiting_for
from ortlens.errors import UsageError
from ortlens.lens.freeze import freeze
from ortlens.lens.lens import Lens
from ortlens.lens.verify.compare_values import Tolerances, compare
from ortlens.trace.records import RunVariant

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ortlens.trace.records import Capture

WAYS = ("eager", "inductor", "ortlens", "frozen", "exported")  # what is measured by default
_MOST_ROUNDS = 200


@dataclass(frozen=True, slots=True)
class _Contender:
    """A way that runs, what its first call took, and how far its results are from eager's."""

    name: str
    call: Callable[[], Any]
    first_ns: int
    max_abs: float
    wait: Callable[[], None]  # for the devices of arguments and results


def bench(  # noqa: PLR0913 - those of `explain`, and what to measure
    target: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    ways: Sequence[str] = WAYS,
    seconds: float = 10.0,
    options: Mapping[str, Any] | None = None,
    name: str = "",
) -> tuple[tuple[RunVariant, ...], Capture]:
    """Measure a model in several ways; eager is always one of them, as the reference.

    Calls the target some hundred times, with gradients as the caller has set them, in ten rounds or more, however short `seconds` is. The
    rows are also among the capture's figures, as `ways`.
    """
    unknown = [way for way in ways if way not in WAYS]
    if unknown:
        raise UsageError(f"there is no way {unknown[0]!r}; the ways are: {', '.join(WAYS)}")
    lens = Lens(options=options, name=name)
    chosen = ["eager", *(way for way in WAYS[1:] if way in ways)]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        makers: Mapping[str, Callable[[], Callable[[], Any]]] = {
            "eager": lambda: lambda: target(*args, **kwargs),
            "inductor": lambda: partial(_torch.compiled_apart(target, "inductor"), *args, **kwargs),
            "ortlens": lambda: partial(_torch.compiled_apart(target, lens), *args, **kwargs),
            "frozen": lambda: partial(freeze(target, *args, options=options, **kwargs), *args, **kwargs),
            "exported": lambda: _exported(target, args, kwargs, folder),
        }
        running, failed = _started(chosen, makers, (target, args, kwargs))
        timed = [clocked_often(way.call, way.wait) for way in running]
        deadline = time.perf_counter_ns() + round(seconds * 1e9)
        with progress("timing in turns", _MOST_ROUNDS, "round") as step:
            times = take_turns(timed, fewest=MIN_ROUNDS, most=_MOST_ROUNDS, is_over=lambda: time.perf_counter_ns() > deadline, tell=step)
    rows = {way.name: _measured(way, AbTiming(times[0], own)) for way, own in zip(running, times, strict=True)}
    found = tuple(rows.get(way) or RunVariant(way=way, verdict="unmeasured", note=failed[way]) for way in chosen)
    capture = lens.captured()
    return found, replace(capture, figures=replace(capture.figures, ways=found))


def _started(
    chosen: Sequence[str], makers: Mapping[str, Callable[[], Callable[[], Any]]], given: tuple[Any, ...]
) -> tuple[list[_Contender], dict[str, str]]:
    """Make and call each way once; one that fails is left out, with the reason, but eager. `given` are the target and its arguments."""
    running: list[_Contender] = []
    failed: dict[str, str] = {}
    expected: Any = None
    with progress("compiling", len(chosen), "way") as step:
        for name in chosen:
            started = time.perf_counter_ns()
            try:
                with _torch.quiet():
                    call = makers[name]()
                    result = call()
                    wait = waiting_for(*given, result)  # a function may have its weights, or move its inputs, out of sight
                    wait()
            except Exception as err:
                if name == "eager":
                    raise
                failed[name] = f"{type(err).__name__}: {str(err).strip().splitlines()[0] if str(err).strip() else ''}"[:300]
                continue
            finally:
                step(1)
            first = time.perf_counter_ns() - started
            expected = result if name == "eager" else expected
            running.append(_Contender(name, call, first, _difference(expected, result), wait))
    return running, failed


def _difference(expected: Any, result: Any) -> float:  # noqa: ANN401 - results of any structure
    """Return the largest absolute difference of the tensors in two results; infinite where their number, shapes or kinds differ."""
    left, right = _torch.tensors_of(expected), _torch.tensors_of(result)
    if [(tensor.shape, tensor.is_complex()) for tensor in left] != [(tensor.shape, tensor.is_complex()) for tensor in right]:
        return math.inf
    found = [compare(second, first, None, Tolerances().of(first.dtype)) for first, second in zip(left, right, strict=True)]
    return max((math.inf if each.clashes else each.max_abs for each in found), default=0.0)


def _exported(target: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], folder: Path) -> Callable[[], Any]:
    """Make what one writes without ortlens: torch.onnx.export, and a session with default optimisations and torch's threads."""
    import onnxruntime

    tensors = _torch.tensors_of((args, kwargs))
    if any(tensor.device.type != "cpu" for tensor in tensors):
        raise UsageError("inputs on the CPU only")
    module = target if isinstance(target, torch.nn.Module) else _Function(target)
    with torch.no_grad():
        program: Any = torch.onnx.export(module, args, kwargs=dict(kwargs), dynamo=True, verbose=False)
    path = folder / "exported.onnx"
    program.save(path)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_inputs()]
    if len(names) != len(tensors):
        raise UsageError(f"the exported model has {len(names)} inputs for {len(tensors)} tensors")
    feeds = {name: tensor.detach().numpy() for name, tensor in zip(names, tensors, strict=True)}
    return lambda: [torch.from_numpy(value) for value in session.run(None, feeds)]


class _Function(torch.nn.Module):
    """A function as a module, for the exporter."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - those of the function
        return self._function(*args, **kwargs)


def _measured(way: _Contender, timing: AbTiming) -> RunVariant:
    low, high = timing.interval
    return RunVariant(
        way=way.name,
        verdict="reference" if way.name == "eager" else timing.verdict,
        call_ns=timing.other_ns,
        ratio=timing.ratio,
        ratio_low=low,
        ratio_high=high,
        first_ns=way.first_ns,
        max_abs=way.max_abs,
        rounds=timing.rounds,
    )
