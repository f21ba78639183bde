"""`tune()`: which options make a model faster here, measured in turns and verified. What was not measured is not recommended."""

from __future__ import annotations

import ast
import contextlib
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from ortlens import _torch
from ortlens._ort import CPU
from ortlens._os_errors import clear_os_errors
from ortlens._process import usable_cores
from ortlens._shell import progress
from ortlens.analysis.problems.break_rules import CONFIG
from ortlens.backend.api import OrtBackend
from ortlens.backend.basis.options import ExportOptions, OrtBackendOptions, named_providers
from ortlens.backend.observed import is_sized, session_options
from ortlens.errors import OrtLensError, UsageError
from ortlens.lens.explain import curried
from ortlens.lens.explain_torch import Generating, is_generate
from ortlens.lens.freeze import freeze
from ortlens.lens.freezing import call_text
from ortlens.lens.measuring.tried_changes import setting_of_line
from ortlens.lens.observing.time_budget import TimeBudget
from ortlens.studies.engine import LocalSide, measured, start
from ortlens.trace.records import SideResult, column, optional
from ortlens.trace.schema import frame_from_records, table_from_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import onnxruntime
    import pandas as pd

_MOST_ROUNDS = 40
_NOT_COPIED = "not tried: ONNX Runtime cannot copy the session options that were given, with their libraries of operators"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial(SideResult):
    """One setting that was tried, on top of those kept before; the last row, `all`, is what was kept against the options given."""

    option: str = column("The option; `call` for another way of calling, which is no option.")
    value: str = column("The value that was tried.")
    callers: int = column("How many threads call at the same time.", default=1)
    batch: int | None = optional("Leading size that its tensors were given.")
    verified: bool | None = column("Whether the results match eager; empty if it could not run.", default=None, brief=7)
    chosen: bool = column("Whether it is among the returned options.", default=False, brief=8)


TABLE = table_from_record("tune", Trial)  # the columns of the frame
_Best: TypeAlias = tuple[LocalSide, OrtBackendOptions]
_Given: TypeAlias = "tuple[tuple[Any, ...], Mapping[str, Any]]"


@dataclass(frozen=True, slots=True)
class _Setting:
    """A setting to try: changed options or, with advice on how to make it, another way of calling."""

    option: str
    value: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    dynamo: Mapping[str, Any] = field(default_factory=dict)  # settings of `torch._dynamo.config`
    make: Callable[[OrtBackendOptions], Callable[[], Any]] | None = None
    advice: str = ""
    why_not: str = ""

    @property
    def way(self) -> str:
        if self.option == "all":
            return "all that was kept"
        return self.value if self.option == "call" or "=" in self.value else f"{self.option}={self.value}"


@curried
def tune(
    target: Callable[..., Any],
    *,
    options: OrtBackendOptions | Mapping[str, Any] | None = None,
    budget_s: float = 60.0,
    settings: Sequence[str] | None = None,
    concurrency: int = 1,
) -> Callable[..., tuple[OrtBackendOptions, pd.DataFrame]]:
    """Try the options that may make a target faster, one after the other, each in turns with the best so far.

    A setting is kept if its results match eager and the whole 99 % interval of its time is below the best so far, by 3 % at least. In the
    end, all that was kept is measured once more against the options that were given: if that gains nothing, those are returned.

    Args:
        target: A function or module; called some hundred times, with gradients as the caller has set them.
        options: The options to begin with.
        budget_s: Time limit in seconds, compilation included; no trial begins after it, and what was not tried is listed so.
        settings: Lines of Python to try, as in the column `settings` of `lens.actions`. None: the options that may help.
        concurrency: How many threads call at the same time. Faster is what makes more calls per second for all of them together.

    Returns:
        A callable of the target's arguments that returns the options, and the frame of all trials, with the columns of
        `ortlens.studies.tune.Trial`.

    Raises:
        UsageError: The target cannot be called, nobody calls it, the budget is no time, or a line sets nothing that can be tried.
    """
    if not callable(target):
        raise UsageError(f"tune() takes a function or a module, not {type(target).__name__}")
    if concurrency < 1:
        raise UsageError(f"concurrency must be a number of callers from 1, not {concurrency}")
    TimeBudget(budget_s)  # raises now, and begins with the call
    given = OrtBackendOptions.from_any(options)

    @clear_os_errors
    def run(*args: Any, **kwargs: Any) -> tuple[OrtBackendOptions, pd.DataFrame]:  # noqa: ANN401 - those of the target
        chosen, trials = Tuning(target, (args, kwargs), TimeBudget(budget_s), (concurrency, None)).run(given, settings)
        return chosen, frame_from_records(TABLE, trials)

    return run


class Tuning:
    """One run of `tune`."""

    def __init__(self, target: Callable[..., Any], given: _Given, budget: TimeBudget, load: tuple[int, int | None] = (1, None)) -> None:
        """Begin with a call; what makes more calls per second for several callers together is faster. `load` has these, and the batch."""
        self._target, (self._args, self._kwargs), self._budget, self._load = target, given, budget, load
        self._expected = _torch.tensors_of(target(*self._args, **self._kwargs))
        self._trials: list[Trial] = []
        self._partitions = 0

    def run(self, given: OrtBackendOptions, lines: Sequence[str] | None = None) -> tuple[OrtBackendOptions, list[Trial]]:
        """Try the settings of some lines, or those that may help; return the options, and a row per trial."""
        candidates = [self._of_line(line) for line in lines or ()]
        base = self._side("given options", partial(self._compiled, given))
        base.start(self._expected)
        first = best = base, given
        if lines is None:
            if given.ort_session_options is not None:
                self._note(_Setting("ort_session_options", "other threads"), _NOT_COPIED)
            weights = list(self._target.state_dict().values()) if isinstance(self._target, torch.nn.Module) else []
            tensors = _torch.tensors_of((self._args, dict(self._kwargs), weights))
            candidates = [*_candidates(given, tensors, self._partitions), *self._calls()]
        with progress("tuning", len(candidates), "setting") as step:
            for candidate in candidates:
                best = self._tried(candidate, best)
                step(1)
        return self._confirmed(first, best)

    def _side(self, way: str, make: Callable[[], Callable[[], Any]], dynamo: Mapping[str, Any] | None = None) -> LocalSide:
        given, around = (self._target, self._args, self._kwargs), partial(_torch.dynamo_settings, dynamo or {})
        return LocalSide(name=way, make=make, given=given, around=around, callers=self._load[0])

    def _compiled(self, options: OrtBackendOptions, given: _Given | None = None) -> Callable[[], Any]:
        args, kwargs = given or (self._args, self._kwargs)
        backend = OrtBackend(options)
        compiler = partial(_torch.compiled_apart, backend=backend)
        compiled = Generating(self._target, compiler).compiled if is_generate(self._target) else compiler(self._target)
        call = partial(compiled, *args, **kwargs)
        call()
        self._partitions = self._partitions or sum(len(graph.runners) for graph in backend.compiler.graphs)
        return call

    def _of_line(self, line: str) -> _Setting:
        """Read a line of Python that sets an option, or something in `torch._dynamo.config`."""
        with contextlib.suppress(SyntaxError, ValueError, LookupError, AttributeError):
            if line.startswith(CONFIG) and (change := setting_of_line(line)) is not None:
                return _Setting("call", line, make=self._compiled, dynamo=change.settings)
            found = [node for node in ast.walk(ast.parse(line)) if isinstance(node, ast.keyword) and node.arg == "options"]
            for name, value in ast.literal_eval(found[0].value).items() if found else ():
                return _setting(name, value)
        raise UsageError(f"{line!r} sets no option and no setting of Dynamo that can be tried")

    def _calls(self) -> Iterator[_Setting]:
        """List other ways of calling, which are no options."""
        args, kwargs = self._args, self._kwargs
        tensors = _torch.tensors_of((args, dict(kwargs)))
        changes: list[tuple[str, Callable[[torch.Tensor], torch.Tensor], str]] = []
        if any(_is_image(tensor) for tensor in tensors):  # as many loaders make them
            changes.append(("channels_last inputs", _with_channels_last, "x.to(memory_format=torch.channels_last)"))
        if not all(tensor.is_contiguous() for tensor in tensors):
            changes.append(("contiguous inputs", torch.Tensor.contiguous, "x.contiguous(), made once for many calls"))
        for value, change, code in changes:
            given = _torch.map_tensors(change, (args, dict(kwargs)))
            yield _Setting("call", value, make=partial(self._compiled, given=given), advice=f"Pass {code}.")

        def frozen(options: OrtBackendOptions) -> Callable[[], Any]:
            return partial(freeze(self._target, *args, options=options, **kwargs), *args, **kwargs)

        why_not = "gradients are enabled" if torch.is_grad_enabled() else ""
        yield _Setting("call", "ortlens.freeze", make=frozen, advice=f"Call {call_text(self._target, args, kwargs)}.", why_not=why_not)

    def _tried(self, candidate: _Setting, best: _Best) -> _Best:
        """Try a candidate, and return the better one of it and the best so far."""
        why_not = candidate.why_not or (self._budget.over if self._budget.is_over() else "")
        if why_not:
            self._note(candidate, f"not tried: {why_not}")
            return best
        try:
            options = replace(best[1], **candidate.settings)
        except OrtLensError as error:  # options that exclude each other
            self._note(candidate, f"not tried: {error}")
            return best
        if candidate.make is None and options == best[1]:
            return best
        side = self._side(candidate.way, partial(candidate.make or self._compiled, options), candidate.dynamo)
        start([side], self._expected)
        row = self._against(best[0], side)
        keeps = bool(side.matches) and row.verdict == "faster" and candidate.make is None
        note = candidate.advice if row.verdict == "faster" else row.note
        self._add(candidate, replace(row, note="results differ from eager" if side.matches is False else note), side.matches, chosen=keeps)
        return (side, options) if keeps else best

    def _confirmed(self, first: _Best, best: _Best) -> tuple[OrtBackendOptions, list[Trial]]:
        """Measure everything that was kept against what was given; several comparisons find a difference by chance."""
        if best is first:
            return first[1], self._trials
        together = ", ".join(trial.way for trial in self._trials if trial.chosen)
        row = self._against(first[0], best[0])
        holds = row.verdict == "faster"
        if not holds:
            again = "did not hold when measured again"
            self._trials = [replace(trial, chosen=False, note=again) if trial.chosen else trial for trial in self._trials]
        self._add(_Setting("all", together), row, verified=True, chosen=holds)
        return (best if holds else first)[1], self._trials

    def _note(self, candidate: _Setting, reason: str) -> None:
        self._add(candidate, SideResult(way=candidate.way, verdict="unmeasured", status="skipped", note=reason))

    def _add(self, candidate: _Setting, row: SideResult, verified: bool | None = None, *, chosen: bool = False) -> None:  # noqa: FBT001 - a result
        if chosen:  # an option has one value
            self._trials = [replace(trial, chosen=trial.chosen and trial.option != candidate.option) for trial in self._trials]
        known = asdict(row) | {"way": candidate.way, "callers": self._load[0], "batch": self._load[1]}
        self._trials.append(Trial(**known, option=candidate.option, value=candidate.value, verified=verified, chosen=chosen))

    def _against(self, base: LocalSide, other: LocalSide) -> SideResult:
        sides = (base, other) if other.runs else (other,)  # nothing is timed against what could not start
        return measured(sides, most=_MOST_ROUNDS, is_over=self._budget.is_over)[-1]


def _candidates(given: OrtBackendOptions, tensors: Sequence[torch.Tensor], partitions: int) -> list[_Setting]:
    """List what may help, the most promising first."""
    named = [name for _, name, _ in named_providers(given, "preferred_execution_providers")]
    found = [_setting("preferred_execution_providers", (CPU,), CPU)] if named and named[0] != CPU else []
    if given.ort_session_options is None:
        found += [_setting("ort_session_options", made, text) for text, made in _threads()]
    flipped = "auto" if given.freeze_weights is False else False
    found.append(_setting("freeze_weights", flipped))
    if flipped is False:  # else there are no constants to pack
        found.append(_setting("prepack_weights", not given.prepack_weights))
    found.append(_setting("preallocate_output", not given.preallocate_output))
    if any(is_sized(tensor) for tensor in tensors):
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

        others = [name for name in onnxruntime.get_available_providers() if name not in (CPU, "AzureExecutionProvider", *named)]
        found += [_setting("preferred_execution_providers", (name,), name) for name in others]
    return found


def _setting(option: str, value: object, text: str = "") -> _Setting:
    return _Setting(option, text or str(value), {option: value})


def _is_image(tensor: torch.Tensor) -> bool:
    return tensor.dim() == 4 and tensor.is_floating_point() and tensor.is_contiguous() and tensor.shape[1] > 1  # noqa: PLR2004 - a batch of images


def _with_channels_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(memory_format=torch.channels_last) if _is_image(tensor) else tensor


def _threads() -> Iterator[tuple[str, onnxruntime.SessionOptions]]:
    """Yield session options with other threads than ortlens chooses."""
    for count in sorted({1, torch.get_num_threads(), usable_cores()}):
        for spinning in (True, False) if count > 1 else (False,):
            text = f"intra_op_num_threads={count}" + ("" if count == 1 else ", spinning" if spinning else ", sleeping")
            yield text, session_options(count, spinning=spinning)
