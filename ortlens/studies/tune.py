"""`tune()`: which options make a model faster here, measured in turns and verified. What was not measured is not recommended."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ortlens import _torch
from ortlens._os_errors import clear_os_errors
from ortlens._process import usable_cores
from ortlens._shell import progress
from ortlens.analysis.speed import MIN_ROUNDS, AbTiming, SpeedVerdict
from ortlens.backend.api import OrtBackend
from ortlens.backend.basis.options import ExportOptions, OrtBackendOptions
from ortlens.backend.runtime import devices
from ortlens.backend.runtime.ab_timing import clocked_often, take_turns, waiting_for
from ortlens.backend.runtime.processor import exact_products
from ortlens.errors import UsageError
from ortlens.lens.freeze import freeze
from ortlens.lens.observing.time_budget import TimeBudget
from ortlens.lens.verify.compare_values import Tolerances, compare
from ortlens.trace.records import column

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import onnxruntime
    import pandas as pd

_MOST_ROUNDS = 40
_NOT_COPIED = "not tried: ONNX Runtime cannot copy the session options that were given, with their libraries of operators"
_NOTES: Mapping[SpeedVerdict, str] = {"slower": "slower", "same": "no difference outside the noise"}
_TOLERANCES = Tolerances(atol=0, rtol={torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2})


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One setting that was tried."""

    option: str = column("The option; `call` for another way of calling, which is no option.")
    value: str = column("The value that was tried.")
    ratio: float | None = column(
        "Times as long as with the given options: the median over the rounds; empty if not measured.", default=None
    )
    spread: float | None = column("Width of the 99 % interval of the ratio against the best options so far.", default=None)
    verified: bool | None = column("Whether the results match eager; empty if it could not run.", default=None)
    chosen: bool = column("Whether it is among the returned options.", default=False)
    note: str = column("Why it was not measured, or not chosen.", default="")


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A setting to try: changed options or, with advice on how to make it, another way of calling."""

    option: str
    value: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    make: Callable[[OrtBackendOptions], Callable[[], Any]] | None = None
    advice: str = ""
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class _Running:
    """A compiled target, and how many times as long it takes as with the options that were given."""

    call: Callable[[], Any]
    ratio: float
    options: OrtBackendOptions


def tune(
    target: Callable[..., Any], *, options: OrtBackendOptions | Mapping[str, Any] | None = None, budget_s: float = 60.0
) -> Callable[..., tuple[OrtBackendOptions, pd.DataFrame]]:
    """Try the options that may make a target faster, one after the other, each in turns with the best so far.

    A setting is kept if its results match eager and the whole 99 % interval of its time is below the best so far, by 3 % at least. In the
    end, all that was kept is measured once more against the options that were given: if that gains nothing, those are returned.

    Args:
        target: A function or module; called some hundred times, with gradients as the caller has set them.
        options: The options to begin with.
        budget_s: Time limit in seconds, compilation included; no trial begins after it, and what was not tried is listed so.

    Returns:
        A callable of the target's arguments that returns the options, and the frame of all trials, with the columns of
        `ortlens.studies.tune.Trial`.

    Raises:
        UsageError: The target cannot be called, or the budget is no time.
    """
    if not callable(target):
        raise UsageError(f"tune() takes a function or a module, not {type(target).__name__}")
    TimeBudget(budget_s)  # raises now, and begins with the call
    given = OrtBackendOptions.from_any(options)

    @clear_os_errors
    def run(*args: Any, **kwargs: Any) -> tuple[OrtBackendOptions, pd.DataFrame]:  # noqa: ANN401 - those of the target
        import pandas as pd

        chosen, trials = _Tuning(target, args, kwargs, TimeBudget(budget_s)).run(given)
        names = [each.name for each in fields(Trial)]
        return chosen, pd.DataFrame([asdict(trial) for trial in trials], columns=names)

    return run


class _Tuning:
    """One run of `tune`."""

    def __init__(self, target: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], budget: TimeBudget) -> None:
        self._target, self._args, self._kwargs = target, args, kwargs
        self._budget = budget
        self._expected = _torch.tensors_of(target(*args, **kwargs))
        self._wait = waiting_for(target, args, kwargs, self._expected)
        self._trials: list[Trial] = []
        self._partitions = 0
        self.tried = ""  # the option that is being tried

    def run(self, given: OrtBackendOptions) -> tuple[OrtBackendOptions, list[Trial]]:
        first = best = _Running(self._compiled(given), 1.0, given)
        if given.ort_session_options is not None:
            self._note(_Candidate("ort_session_options", "other threads"), note=_NOT_COPIED)
        weights = list(self._target.state_dict().values()) if isinstance(self._target, torch.nn.Module) else []
        tensors = _torch.tensors_of((self._args, dict(self._kwargs), weights))
        candidates = [*_candidates(given, tensors, self._partitions), *self._calls()]
        with progress("tuning", len(candidates), "setting") as step:
            for candidate in candidates:
                best = self._tried(candidate, best)
                step(1)
        return self._confirmed(first, best)

    def _compiled(self, options: OrtBackendOptions, given: tuple[tuple[Any, ...], Mapping[str, Any]] | None = None) -> Callable[[], Any]:
        args, kwargs = given or (self._args, self._kwargs)
        backend = OrtBackend(options)
        with _torch.quiet():
            compiled = _torch.compiled_apart(self._target, backend)
            call = partial(compiled, *args, **kwargs)
            call()
        self._partitions = self._partitions or sum(len(graph.runners) for graph in backend.compiler.graphs)
        return call

    def _calls(self) -> Iterator[_Candidate]:
        """List other ways of calling, which are no options."""
        args, kwargs = self._args, self._kwargs
        if any(_is_image(tensor) for tensor in _torch.tensors_of((args, dict(kwargs)))):  # as many loaders make them
            given = _torch.map_tensors(_with_channels_last, (args, dict(kwargs)))
            advice = "no option: pass x.to(memory_format=torch.channels_last)"
            yield _Candidate("call", "channels_last inputs", make=lambda options: self._compiled(options, given), advice=advice)

        def frozen(options: OrtBackendOptions) -> Callable[[], Any]:
            return partial(freeze(self._target, *args, options=options, **kwargs), *args, **kwargs)

        why_not = "gradients are enabled" if torch.is_grad_enabled() else ""
        yield _Candidate("call", "ortlens.freeze", make=frozen, advice="no option: call ortlens.freeze for it", why_not=why_not)

    def _tried(self, candidate: _Candidate, best: _Running) -> _Running:
        """Try a candidate, and return the better one of it and the best so far."""
        self.tried = candidate.option
        why_not = candidate.why_not or (self._budget.over if self._budget.is_over() else "")
        if why_not:
            self._note(candidate, note=f"not tried: {why_not}")
            return best
        try:
            options = replace(best.options, **candidate.settings)
            if candidate.make is None and options == best.options:
                return best
            call = (candidate.make or self._compiled)(options)
            verified = self._matches(call())
        except Exception as error:  # noqa: BLE001 - a setting that cannot run is a row with its reason
            self._note(candidate, note=f"{type(error).__name__}: {error}"[:200])
            return best
        timing = self._compared(best.call, call)
        made = _Running(call, best.ratio * timing.ratio, options)
        keeps = verified and timing.verdict == "faster" and candidate.make is None
        note = _NOTES.get(timing.verdict, candidate.advice) if verified else "results differ from eager"
        self._note(candidate, timing, ratio=made.ratio, verified=verified, chosen=keeps, note=note)
        return made if keeps else best

    def _confirmed(self, first: _Running, best: _Running) -> tuple[OrtBackendOptions, list[Trial]]:
        """Measure everything that was kept against what was given; several comparisons find a difference by chance."""
        if best is first:
            return first.options, self._trials
        self.tried = "all"
        timing = self._compared(first.call, best.call)
        holds = timing.verdict == "faster"
        together = " ".join(f"{trial.option}={trial.value}" for trial in self._trials if trial.chosen)
        if not holds:
            again = "did not hold when measured again"
            self._trials = [replace(trial, chosen=False, note=again) if trial.chosen else trial for trial in self._trials]
        self._note(_Candidate("all", together), timing, ratio=timing.ratio, verified=True, chosen=holds)
        return (best if holds else first).options, self._trials

    def _note(self, candidate: _Candidate, timing: AbTiming | None = None, **facts: Any) -> None:  # noqa: ANN401 - the fields of a trial
        if timing is not None:
            low, high = timing.interval
            facts["spread"] = high - low
        self._trials.append(Trial(option=candidate.option, value=candidate.value, **facts))

    def _matches(self, result: object) -> bool:
        given = _torch.tensors_of(result)
        if [(tensor.shape, tensor.dtype) for tensor in given] != [(tensor.shape, tensor.dtype) for tensor in self._expected]:
            return False
        return all(
            compare(ours, theirs, None, _TOLERANCES.of(ours.dtype)).agrees for ours, theirs in zip(given, self._expected, strict=True)
        )

    def _compared(self, base: Callable[[], Any], other: Callable[[], Any]) -> AbTiming:
        ways = clocked_often(base, self._wait), clocked_often(other, self._wait)
        return AbTiming(*take_turns(ways, fewest=MIN_ROUNDS, most=_MOST_ROUNDS, is_over=self._budget.is_over))


def _candidates(given: OrtBackendOptions, tensors: Sequence[torch.Tensor], partitions: int) -> list[_Candidate]:
    """List what may help, the most promising first."""
    found = [_setting("ort_session_options", made, text) for text, made in _threads()] if given.ort_session_options is None else []
    flipped = "auto" if given.freeze_weights is False else False
    found.append(_setting("freeze_weights", flipped))
    if flipped is False:  # else there are no constants to pack
        found.append(_setting("prepack_weights", not given.prepack_weights))
    found.append(_setting("preallocate_output", not given.preallocate_output))
    if any(devices.kind_of(tensor.device).calls is not None for tensor in tensors):
        found.append(_setting("cuda_graph", given.cuda_graph is not True))
    if given.min_partition_nodes > 1:
        found.append(_setting("min_partition_nodes", 1))
    if partitions > 1:
        found += [_setting("min_partition_nodes", least) for least in (4, 16)]
    narrow = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors} & {"bfloat16", "float16"})
    if narrow and not given.upcast:
        found.append(_setting("upcast", tuple(narrow)))
    exported = given.export_options or ExportOptions()
    found.append(_setting("export_options", replace(exported, opset_version=21), "opset_version=21"))
    if all(tensor.device.type == "cpu" for tensor in tensors):
        import onnxruntime

        names = [name for name in onnxruntime.get_available_providers() if name not in ("CPUExecutionProvider", "AzureExecutionProvider")]
        found += [_setting("preferred_execution_providers", (name,), name) for name in names]
    return found


def _setting(option: str, value: object, text: str = "") -> _Candidate:
    return _Candidate(option, text or str(value), {option: value})


def _is_image(tensor: torch.Tensor) -> bool:
    return tensor.dim() == 4 and tensor.is_floating_point() and tensor.is_contiguous() and tensor.shape[1] > 1  # noqa: PLR2004 - a batch of images


def _with_channels_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(memory_format=torch.channels_last) if _is_image(tensor) else tensor


def _threads() -> Iterator[tuple[str, onnxruntime.SessionOptions]]:
    """Yield session options with other threads than ortlens chooses."""
    import onnxruntime

    for count in sorted({1, torch.get_num_threads(), usable_cores()}):
        for spinning in (True, False) if count > 1 else (False,):
            made = onnxruntime.SessionOptions()
            made.log_severity_level = 4
            for entry in exact_products():
                made.add_session_config_entry(*entry)
            made.intra_op_num_threads = count
            made.add_session_config_entry("session.intra_op.allow_spinning", "1" if spinning else "0")
            text = f"intra_op_num_threads={count}" + ("" if count == 1 else ", spinning" if spinning else ", sleeping")
            yield text, made
