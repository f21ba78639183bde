"""One program across versions, providers, optimisation levels and runs: what differs, from which node on, in how small a model.

The program is made once, as ONNX models with the inputs of a call, and each side runs them in a process of its own, in turns with the
others. Where versions of PyTorch differ, each makes its own models.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from ortlens._shell import progress
from ortlens._versions import version_of
from ortlens.analysis.speed import MIN_ROUNDS, AbTiming, SpeedVerdict, median_interval
from ortlens.errors import UsageError
from ortlens.job.work import is_onnx_file
from ortlens.lens.profiling import profiles
from ortlens.lens.profiling.kernel_records import divided
from ortlens.studies import bisect_run
from ortlens.studies.apart import ProcessLimits, run_in_subprocess
from ortlens.studies.bisect_run import Settings
from ortlens.studies.environments import HERE, Environment, install, place_of
from ortlens.studies.first_difference import KINDS, Difference, Kind, Pair, SmallestModel, Traced, trace, worst
from ortlens.studies.programs import program_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ortlens.studies.apart import ProcessResult

_LIMITS = ProcessLimits(seconds=600.0)
_ROUND_S = 0.5  # of a side in a round
_UNSTEADY_RUNS = 20  # of models that return inner values, to find where runs differ
_WARM_SHARE = 5  # the first fifth of the runs fills caches and arenas


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """What varies. The first of several values belongs to the base; a single one is compared with what is installed."""

    onnxruntime: Sequence[str] = ()  # versions, or distributions with a version, such as `onnxruntime-gpu==1.31.1`
    torch: Sequence[str] = ()  # versions
    environments: Sequence[tuple[str, str]] = ()  # ready ones: names, and the Python of each, with onnxruntime and numpy
    providers: Sequence[str] = ()
    levels: Sequence[str] = ()
    folder: Path  # where versions are installed
    pip_args: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How many bytes more a process holds after each run: over all runs, and the 99 % interval over ten stretches of them."""

    per_run: float
    low: float
    high: float
    of: str  # `heap`, what malloc holds, or `resident`, the memory of the process, which the system gives in pages


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorKernels:
    """The kernels of one operator in a call, in ns; `low_ns` and `high_ns` by the fastest and the slowest stretch, if there are enough."""

    op_type: str
    provider: str
    count: int
    total_ns: int
    low_ns: int | None
    high_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SideResult:
    """One side, and how it differs from the base."""

    side: str
    is_base: bool = False  # the first side that runs
    versions: Mapping[str, str] = field(default_factory=dict)
    provider: str = ""
    level: str = ""
    status: str = "ok"  # else `uninstalled`, `refused` where a rewrite of ONNX Runtime breaks the model, or how its process ended
    reason: str = ""
    call_ns: int | None = None
    create_ns: int | None = None
    ratio: float | None = None  # times as long as the base
    ratio_low: float | None = None
    ratio_high: float | None = None
    verdict: SpeedVerdict = "unmeasured"
    runs: int = 0  # in one process, while its memory was read
    growth: Growth | None = None  # None for fewer than 26 runs, and where the system does not tell
    output: Difference | None = None  # the worst output against the base's
    first: Difference | None = None  # the first value that differs as much
    other_bits_from: str | None = None  # the node of the first value with other bits
    unsteady: Difference | None = None  # the worst output of the last run against the first, in one process
    unsteady_first: Difference | None = None  # the first value that differs so
    kernels: tuple[OperatorKernels, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bisection:
    """All sides, and the smallest model that shows the first difference."""

    target: str
    rows: tuple[SideResult, ...]
    smallest: SmallestModel | None = None
    smallest_side: str = ""

    @property
    def base(self) -> SideResult:
        """The side that the others are compared with."""
        return next(row for row in self.rows if row.is_base)

    @property
    def differs(self) -> bool:
        """Whether a side failed, has other results beyond rounding, or holds more memory with each run; a refused one never ran."""
        return any(
            row.status not in ("ok", "refused")
            or any(found is not None and found.kind == "differs" for found in (row.output, row.unsteady))
            or (row.growth is not None and row.growth.low > 0)
            for row in self.rows
        )


@dataclass(slots=True)
class _Side:
    name: str
    environment: Environment
    settings: Settings
    torch: Environment | None = None  # makes the models; None for those of the base
    row: SideResult = field(default_factory=lambda: SideResult(side=""))
    program: Mapping[str, Any] = field(default_factory=dict)
    rounds: list[int] = field(default_factory=list)
    answer: Mapping[str, Any] = field(default_factory=dict)  # of its first process
    folder: Path = field(default_factory=Path)

    @property
    def runs(self) -> bool:
        return self.row.status == "ok"

    @property
    def severity(self) -> int:
        """Rank what the first difference is; 0 without one."""
        return 0 if self.row.first is None else 1 + KINDS.index(self.row.first.kind)

    @property
    def models(self) -> list[tuple[str, str]]:
        return [(part["model"], part["feed"]) for part in self.program["parts"]]


def bisect(  # noqa: PLR0913 - the target of `ortlens bench`, and what varies
    target: str,
    inputs: Sequence[str],
    axes: Axes,
    *,
    folder: Path,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    runs: int = 200,
    seconds: float = 60.0,
) -> Bisection:
    """Run a target on each side and compare: results, time, kernels and memory; `folder` is for the models and values.

    Raises UsageError if nothing varies that can run: an unknown level, or a base that cannot be made.
    """
    if axes.torch and is_onnx_file(target):
        raise UsageError(
            f"--torch has no effect on {target}, which is made already; leave it out, or name the module that it was made from"
        )
    if unknown := [level for level in axes.levels if level not in bisect_run.LEVELS]:
        raise UsageError(f"there is no level {unknown[0]!r}; the levels are: {', '.join(bisect_run.LEVELS)}")
    sides = _sides(axes, folder)
    for side in sides:
        if side is sides[0] or (side.torch is not None and side.runs):
            _make_program(side, (target, tuple(inputs), seed, dict(options or {})), is_base=side is sides[0])
        elif side.torch is None:
            side.program = sides[0].program
    base = _time(sides, runs, seconds)
    cut: tuple[SmallestModel, _Side] | None = None
    cost_ns = profiles.measure_cost().in_event
    with progress("comparing", len(sides), "side") as step:
        for side in sides:
            cut = _compared(base, side, 0 if cut is None else cut[1].severity) or cut
            if side.runs:
                side.row = replace(side.row, kernels=_kernels(side, cost_ns), growth=_growth(side.answer))
            step(1)
    found = Bisection(target=target, rows=tuple(side.row for side in sides))
    return found if cut is None else replace(found, smallest=cut[0], smallest_side=cut[1].name)


def _sides(axes: Axes, folder: Path) -> list[_Side]:
    """List the sides, the base first, with the reason of those that cannot run."""
    installed: list[tuple[Environment, str]] = []
    wanted = [*map(partial(_requirement, "onnxruntime"), axes.onnxruntime), *map(partial(_requirement, "torch"), axes.torch)]
    with progress("installing", len(wanted), "version") as step:
        for requirement in wanted:
            installed.append(_environment(requirement, axes))
            step(1)
    runtimes, torches = installed[: len(axes.onnxruntime)], installed[len(axes.onnxruntime) :]
    runtimes += [(Environment(name=name, python=python), "") for name, python in axes.environments]
    facts = {environment.name: _examined(environment, refusal, folder) for environment, refusal in [(HERE, ""), *runtimes, *torches]}
    providers, levels = _with_base(axes.providers, "CPUExecutionProvider"), _with_base(axes.levels, "all")
    own = [environment for environment, _ in _with_base(runtimes, (HERE, ""))]
    maker = next((environment for environment, refusal in torches if not refusal), HERE) if len(torches) > 1 else HERE
    basic = Settings(provider=providers[0], level=levels[0], threads=torch.get_num_threads())
    able = [environment for environment in own if not facts[environment.name][1]] or own
    found = [(environment, basic, None if place else maker) for place, environment in enumerate(own)]
    found += [(environment, basic, environment) for environment, _ in torches if environment is not maker]
    for provider in providers[1:]:  # in the base's environment if that has it, else in the first one that has
        home = next((each for each in able if provider in facts[each.name][0].get("providers", ())), able[0])
        found.append((home, replace(basic, provider=provider), None))
    found += [(able[0], replace(basic, level=level), None) for level in levels[1:]]
    return [_side(*each, facts, folder / f"side{place}") for place, each in enumerate(found)]


def _with_base(values: Sequence[Any], base: Any) -> list[Any]:  # noqa: ANN401 - values of any axis
    """Put the base in front of a single value; of several, the first is the base."""
    return list(values) if len(values) > 1 else list(dict.fromkeys((base, *values)))


def _requirement(package: str, text: str) -> str:
    if text[:1].isdigit():
        return f"{package}=={text}"
    if text.startswith(package) and "==" in text:
        return text
    raise UsageError(f"--{package} {text}: write a version, such as 1.2.3, or {package}-NAME==VERSION for another distribution")


def _environment(requirement: str, axes: Axes) -> tuple[Environment, str]:
    """Install a requirement unless this process has it; return its environment, and why pip could not."""
    package, _, version = requirement.partition("==")
    if (version_of(package) or "").partition("+")[0] == version:
        return HERE, ""
    place = place_of(requirement, axes.folder)
    refusal = install(requirement, place, pip_args=axes.pip_args)
    return Environment(name=requirement.replace("==", " "), front=place), refusal


def _examined(environment: Environment, refusal: str, folder: Path) -> tuple[dict[str, Any], str, str]:
    """Return what an environment has; else the status and the reason."""
    if refusal:
        return {}, "uninstalled", refusal
    made = folder / f"look-{len(list(folder.iterdir()))}"
    made.mkdir()
    ended = _run(environment, bisect_run.examined, (), made)
    return (ended.value, "", "") if ended.status == "ok" else ({}, ended.status, ended.reason)


def _run(environment: Environment, function: Callable[..., Any], args: Sequence[Any], folder: Path) -> ProcessResult:
    (folder / "answer.json").unlink(missing_ok=True)
    return run_in_subprocess(function, args, limits=_LIMITS, folder=folder, environment=environment)


def _side(environment: Environment, settings: Settings, maker: Environment | None, facts: Mapping[str, Any], folder: Path) -> _Side:
    known, status, reason = facts[environment.name]
    folder.mkdir()
    versions = {"onnxruntime": known["onnxruntime"]} if known else {}
    words = [environment.name if environment is not HERE else f"onnxruntime {versions.get('onnxruntime', '')}"]
    words += [maker.name] if maker is not None and maker not in (HERE, environment) else []
    words += [settings.provider] if settings.provider != "CPUExecutionProvider" else []
    words += [f"level {settings.level}"] if settings.level != "all" else []
    name = ", ".join(words)
    row = SideResult(side=name, versions=versions, provider=settings.provider, level=settings.level, status=status or "ok", reason=reason)
    return _Side(name, environment, settings, maker, row, folder=folder)


def _make_program(side: _Side, what: tuple[Any, ...], *, is_base: bool) -> None:
    """Make the models of a side; the base's failure is the user's, that of another a row."""
    made = side.folder / "program"
    made.mkdir()
    ended = _run(side.torch or HERE, program_of, (*what, str(made)), made)
    if ended.status == "ok":
        side.program = ended.value
        side.row = replace(side.row, versions={**ended.value["versions"], **side.row.versions})
    elif is_base:
        raise UsageError(f"{what[0]} could not be run: {ended.reason}")
    else:
        side.row = replace(side.row, status=ended.status, reason=ended.reason)


def _time(sides: Sequence[_Side], runs: int, seconds: float) -> _Side:
    """Run all sides in rounds, each in a new process every time; the first one makes all `runs` and keeps values. Return the base."""
    deadline = time.monotonic() + seconds
    with progress("running in turns", MIN_ROUNDS, "round") as step:
        for number in range(MIN_ROUNDS):
            if number and time.monotonic() > deadline:
                break
            for side in [side for side in sides[:: -1 if number % 2 else 1] if side.runs]:
                _one_round(side, max(runs, 4), seconds if number == 0 else _ROUND_S)
            step(1)
    base = next((side for side in sides if side.runs), None)
    if base is None:
        raise UsageError(f"no side can run: {'; '.join(f'{side.name}: {side.row.reason}' for side in sides)}")
    base.row = replace(base.row, is_base=True)
    for side in filter(lambda side: side.runs, sides):
        facts = {"call_ns": round(median(side.rounds)), "create_ns": side.answer["create_ns"], "runs": len(side.answer["heap"])}
        if side is not base:
            timing = AbTiming(base.rounds, side.rounds)
            low, high = timing.interval
            facts |= {"ratio": timing.ratio, "ratio_low": low, "ratio_high": high, "verdict": timing.verdict}
        side.row = replace(side.row, **facts)
    return base


def _one_round(side: _Side, runs: int, seconds: float) -> None:
    made = side.folder / f"round{len(side.rounds)}"
    made.mkdir()
    ended = _run(side.environment, bisect_run.timed, (side.models, side.settings, str(made), runs, seconds), made)
    if ended.status != "ok":
        side.row = replace(side.row, status=ended.status, reason=ended.reason)
        return
    if "refused" in ended.value:
        side.row = replace(side.row, status="refused", reason=ended.value["refused"])
        return
    side.answer = side.answer or ended.value
    side.rounds.append(round(median(ended.value["times"])))


def _compared(base: _Side, side: _Side, cut_severity: int) -> tuple[SmallestModel, _Side] | None:
    """Compare results with the base's, and the last run with the first; find where a difference, or a failure, begins.

    Returns the smallest model that shows it, if it is worse than one of the given severity.
    """
    kind: Kind = "fails"
    if side.runs:
        own, theirs = side.answer["values"], base.answer["values"]
        if (unsteady := worst([(each["first"], each["last"]) for each in own])) is not None:
            traced = _traced(side, side, partial(_twice, side), unsteady.kind)
            side.row = replace(side.row, unsteady=unsteady, unsteady_first=None if traced is None else traced.first)
        if side is base:
            return None
        pairs = [(ours["first"], others["first"]) for ours, others in zip(theirs, own, strict=False)]
        output = worst(pairs if side.program is base.program else [(base.program["results"], side.program["results"])])
        side.row = replace(side.row, output=output)
        if output is None:
            return None
        kind = output.kind
    elif not side.program or not side.row.versions or side.row.status == "refused":
        return None
    wants_cut = side.program is base.program and 1 + KINDS.index(kind) > cut_severity
    found = _traced(base, side, partial(_both, base, side), kind, wants_cut=wants_cut)
    if found is not None:
        side.row = replace(side.row, first=found.first, other_bits_from=found.other_bits_from)
    return None if found is None or found.cut is None else (found.cut, side)


def _traced(base: _Side, side: _Side, pair: Pair, kind: Kind, *, wants_cut: bool = False) -> Traced | None:
    parts = zip(base.program["parts"], side.program["parts"], strict=False)
    found = (trace(ours, others, pair, kind, side.folder, wants_cut=wants_cut) for ours, others in parts)
    return next((each for each in found if each is not None), None)


def _both(base: _Side, side: _Side, ours: tuple[str, str], theirs: tuple[str, str]) -> tuple[Mapping[str, str], Mapping[str, str]]:
    return _values(base, ours), _values(side, theirs)


def _twice(side: _Side, ours: tuple[str, str], _: tuple[str, str]) -> tuple[Mapping[str, str], Mapping[str, str]]:
    found = _values(side, ours, _UNSTEADY_RUNS)
    return found, {**found, "first": found.get("last", "")}


def _values(side: _Side, model: tuple[str, str], runs: int = 1) -> Mapping[str, str]:
    """Run a model on a side; an `error` where the process does not survive."""
    made = side.folder / f"values{len(list(side.folder.iterdir()))}"
    made.mkdir()
    ended = _run(side.environment, bisect_run.values, (*model, side.settings, str(made), runs), made)
    found: Mapping[str, str] = ended.value if ended.status == "ok" else {"error": ended.reason}
    return found


def _growth(answer: Mapping[str, Any]) -> Growth | None:
    """Measure the memory per run; what `malloc` holds unless only the memory of the process grows, as where pages are mapped."""
    found = [growth for of in ("heap", "resident") if (growth := growth_of(answer[of], of)) is not None]
    return next((growth for growth in found if growth.low > 0), found[0] if found else None)


def growth_of(samples: Sequence[int], of: str) -> Growth | None:
    """Compute growth per run from the bytes after each run, over as many stretches as an interval needs; None for too few, or no data."""
    counted = samples[len(samples) // _WARM_SHARE :]
    if len(counted) <= 2 * MIN_ROUNDS or not any(counted):
        return None
    edges = [(len(counted) - 1) * place // MIN_ROUNDS for place in range(MIN_ROUNDS + 1)]
    steps = [(counted[stop] - counted[start]) / (stop - start) for start, stop in pairwise(edges)]
    low, high = median_interval(steps)
    return Growth(per_run=(counted[-1] - counted[0]) / (len(counted) - 1), low=low, high=high, of=of)


def _kernels(side: _Side, cost_ns: float) -> tuple[OperatorKernels, ...]:
    """Profile a side, and sum up its kernels by operator, the most expensive first; none where the profile fails."""
    made = side.folder / "profile"
    made.mkdir()
    ended = _run(side.environment, bisect_run.profiled, (side.models, side.settings, str(made)), made)
    rows = [row for answer in ended.value for row in _kernels_in(answer, cost_ns)] if ended.status == "ok" else []
    groups: dict[tuple[str, str], list[OperatorKernels]] = {}
    for row in rows:
        groups.setdefault((row.op_type, row.provider), []).append(row)
    return tuple(sorted(map(_sum, groups.values()), key=lambda row: -row.total_ns))


def _kernels_in(answer: Mapping[str, Any], cost_ns: float) -> Iterator[OperatorKernels]:
    try:
        read = profiles.read_profile(Path(answer["path"]), answer["groups"], {})
    except (OSError, ValueError, profiles.ProfileIncomplete):
        return
    plain = answer["plain"][1:]
    whole = round(profiles.quiet_mean(plain) * len(plain))
    times = divided([kernel.total_ns for kernel in read.kernels], [kernel.calls for kernel in read.kernels], whole, cost_ns)
    for kernel, own in zip(read.kernels, times, strict=True):
        scale = own / kernel.total_ns / len(plain) if kernel.total_ns else 0.0
        low, high = (None if edge is None else round(edge * scale) for edge in (kernel.low_ns, kernel.high_ns))
        yield OperatorKernels(
            op_type=kernel.op_type,
            provider=kernel.provider,
            count=round(kernel.calls / len(plain)),
            total_ns=round(own / len(plain)),
            low_ns=low,
            high_ns=high,
        )


def _sum(rows: Sequence[OperatorKernels]) -> OperatorKernels:
    low, high = (
        None if None in edge else sum(filter(None, edge)) for edge in zip(*((row.low_ns, row.high_ns) for row in rows), strict=True)
    )
    whole = sum(row.total_ns for row in rows)
    return replace(rows[0], count=sum(row.count for row in rows), total_ns=whole, low_ns=low, high_ns=high)
