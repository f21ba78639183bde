"""One program across versions, providers, optimisation levels and runs: what differs, from which node on, in how small a model.

The program is made once, as ONNX models with the inputs of a call, and each side runs them in a process of its own, in turns with the
others. Where versions of PyTorch differ, each makes its own models; where those of another package do, each compiles the program itself.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

import torch

from ortlens._ort import CPU
from ortlens._os_errors import clear_os_errors
from ortlens._process import usable_cores
from ortlens._shell import progress
from ortlens._versions import require, version_of
from ortlens.analysis.answers.overview import figures_of
from ortlens.analysis.compare.changes import changes_of
from ortlens.analysis.compare.pairing import paired
from ortlens.analysis.index import grouped
from ortlens.analysis.speed import MIN_ROUNDS, median_interval
from ortlens.errors import UsageError
from ortlens.job.providers import name_among, provider_from_text, text_from_provider
from ortlens.job.request import is_onnx_file
from ortlens.job.targets import Inputs
from ortlens.lens.observing.optimizers import LEVELS
from ortlens.lens.profiling import profiles
from ortlens.lens.profiling.kernel_records import divided
from ortlens.lens.repro.evidence import checked_folder
from ortlens.studies import bisect_run
from ortlens.studies.bisect_run import Settings
from ortlens.studies.bisect_text import write_issue
from ortlens.studies.cases import text_from_target
from ortlens.studies.engine import ProcessSide, measured
from ortlens.studies.environments import HERE, Environment, default_folder, install, place_of
from ortlens.studies.first_difference import KINDS, Difference, Kind, Search, SmallestModel, Traced, worst
from ortlens.trace import store
from ortlens.trace.records import SideResult, column, optional

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pandas as pd

    from ortlens.analysis.compare.changes import Change

_ROUND_S = 0.5  # of a side in a round
_UNSTEADY_RUNS = 20  # of models that return inner values, to find where runs differ
_WARM_SHARE = 5  # the first fifth of the runs fills caches and arenas


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """What varies. The first of several values belongs to the base; a single one is compared with what is installed."""

    onnxruntime: Sequence[str] = ()  # versions, or distributions with a version, such as `onnxruntime-gpu==1.31.1`
    torch: Sequence[str] = ()  # versions
    package: Sequence[str] = ()  # any other one: its name, then versions or paths of wheels; then nothing else varies
    environments: Sequence[tuple[str, str]] = ()  # ready ones: names, and the Python of each, with onnxruntime and numpy
    providers: Sequence[tuple[str, Mapping[str, str]]] = ()  # names and options
    provider: tuple[str, Mapping[str, str]] = (CPU, {})  # of the base, where there are not several
    libraries: Mapping[str, str] = field(default_factory=dict)  # for providers other than the CPU's: names and paths
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
class BisectedSide(SideResult):
    """One side of a bisection, and how it differs from the base, which is the first side that runs."""

    versions: Mapping[str, str] = column("Versions of the packages that it runs with.", default_factory=dict)
    provider: str = column("Execution provider.", default="")
    provider_options: Mapping[str, str] = column("Its options.", default_factory=dict)
    pieces: int | None = optional(
        "Subgraphs that it compiled; empty for a provider with kernels, and where ONNX Runtime does not tell.", brief=2
    )
    level: str = column("Level of optimisation.", default="")
    runs: int = column("Runs in one process, while its memory was read.", default=0)
    results: Literal["", "same bits", "rounding", "differs"] = column("The worst result against that of the base.", default="", brief=7)
    growth_bytes: int | None = optional(
        "Memory that its process holds more after each run; 0 where the interval includes none, empty where it was not measured.",
        unit="bytes",
        brief=8,
    )
    growth: Growth | None = optional("The same with its 99 % interval; empty for fewer than 26 runs, and where the system does not tell.")
    output: Difference | None = optional("The worst output against that of the base; empty where all have the same bits.")
    first: Difference | None = optional("The first value that differs as much.")
    other_bits_from: str | None = optional("The node of the first value with other bits.")
    unsteady: Difference | None = optional("The worst output of the last run against the first, in one process.")
    unsteady_first: Difference | None = optional("The first value that differs so.")
    breaks: int | None = optional("Graph breaks; empty where no versions of a package are compared.", brief=7)
    recompiles: int | None = optional("Recompiles; likewise.", brief=7)
    compile_ns: int | None = optional("Time of compiling; likewise.", unit="ns", brief=7)
    changes: tuple[Change, ...] = column("Other breaks, recompiles and uncompiled functions than the base has.", default=())
    kernels: tuple[OperatorKernels, ...] = column("Kernels of a call by operator, the most expensive first.", default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Bisection:
    """All sides, and the smallest model that shows the first difference."""

    target: str
    rows: tuple[BisectedSide, ...]
    smallest: SmallestModel | None = None
    smallest_side: str = ""

    @property
    def base(self) -> BisectedSide:
        """The side that the others are compared with."""
        return next(row for row in self.rows if row.verdict == "reference")

    @property
    def frame(self) -> pd.DataFrame:
        """The sides as a frame; what a column such as `first` nests is a mapping there."""
        frame: pd.DataFrame = require("pandas", "Bisection.frame").DataFrame(list(self.rows))
        return frame

    @property
    def differs(self) -> bool:
        """Whether a side failed, has other results beyond rounding, more breaks or recompiles, or holds more memory with each run."""
        return any(
            row.status not in ("ok", "refused")  # a refused one never ran
            or any(found is not None and found.kind == "differs" for found in (row.output, row.unsteady))
            or (row.growth is not None and row.growth.low > 0)
            or any(change.effect == "worse" for change in row.changes)
            for row in self.rows
        )


@dataclass(slots=True, eq=False, kw_only=True)
class _SettingsSide(ProcessSide):
    settings: Settings
    maker: Environment | None  # of torch, makes the models; None for those of the base
    versions: Mapping[str, str]
    count: int = 0  # runs in its first process
    seconds: float = 0.0  # time for them
    program: Mapping[str, Any] = field(default_factory=lambda: {"parts": ()})
    question: tuple[Any, ...] = ()  # what a process runs, and its arguments but for how often
    answer: Mapping[str, Any] = field(default_factory=dict)  # of its first process
    found: dict[str, Any] = field(default_factory=dict)  # fields of its row

    @property
    def severity(self) -> int:
        """Rank what the first difference is; 0 without one."""
        return 1 + KINDS.index(self.found["first"].kind) if self.found.get("first") else 0

    @property
    def models(self) -> list[tuple[str, str]]:
        return [(part["model"], part["feed"]) for part in self.program["parts"]]

    def round(self) -> int | None:
        """Run the program in a new process; the first one makes all runs, and keeps values."""
        if not self.runs:
            return None
        ended = self.ask(*self.question, self.count, _ROUND_S if self.answer else self.seconds)
        if ended.status != "ok":
            self.fail(ended.status, ended.reason)
            return None
        if "refused" in ended.value:
            self.fail("refused", ended.value["refused"])
            return None
        self.answer = self.answer or ended.value
        self.first_ns = self.answer["first_ns"]
        self.used.append((ended.value["cpu_ns"], 0))
        times: list[int] = ended.value["times"]
        return round(median(times))


@clear_os_errors
def bisect(  # noqa: PLR0913 - the options of the command
    target: str | os.PathLike[str] | Callable[..., Any],
    /,
    *args: Any,  # noqa: ANN401 - those of the target
    onnxruntime: Sequence[str] = (),
    torch: Sequence[str] = (),
    package: Sequence[str] = (),
    providers: Sequence[str | tuple[str, Mapping[str, str]]] = (),
    levels: Sequence[str] = (),
    environments: Sequence[tuple[str, str]] = (),
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    runs: int = 200,
    seconds: float = 60.0,
    folder: str | os.PathLike[str] | None = None,
    pip_args: Sequence[str] = (),
    **kwargs: Any,  # noqa: ANN401 - as above
) -> Bisection:
    """Run a model across versions, providers, optimisation levels and runs: what differs, from which node on, in how small a model.

    Each side runs in processes of its own; the first of several values belongs to the base, a single one is compared with what is here.

    Args:
        target: An ONNX file, a function or module, which this process compiles as it is, or `MODULE:NAME`, which another one imports.
        *args: Arguments of the target: tensors of any shape, or arrays for an ONNX file; other values as calls take them.
        onnxruntime: Versions of onnxruntime, or `DISTRIBUTION==VERSION`.
        torch: Versions of PyTorch. Each makes the models anew, so that another process must be able to import the target.
        package: Name of any other package, then versions or paths of wheels, as `("transformers", "5.5.3", "5.6.1")`. Under each, the
            program is compiled, and breaks, recompiles, times and results are compared; the target must be one that can be imported.
        providers: Execution providers, as `"CPU"`, `"ggml:threads=4"` or a name with a mapping of options.
        levels: Optimisation levels: `disable`, `basic`, `extended`, `layout`, `all`.
        environments: Ready environments: a name and the path of its Python each.
        options: Options of the backend.
        seed: Set before the target is imported by its name.
        runs: Runs in one process, to compare the last with the first.
        seconds: Time for ten rounds of all sides in turns.
        folder: Where a text for an issue is written, with the smallest model that differs. None: into a new temporary folder, if there is
            such a model.
        pip_args: Further arguments of `pip install`.
        **kwargs: Arguments by name; one that has the name of a setting goes by place.

    Returns:
        The sides as `rows` and as `frame`, whether they differ, and the `smallest` model, if any: files `model`, `inputs`, `expected`.

    Raises:
        UsageError: Nothing varies that can run, a package is not imported, or another process cannot import a target that it must.
    """
    if not callable(target) and not isinstance(target, (str, os.PathLike)):
        raise UsageError(f"bisect() takes an ONNX file, MODULE:NAME, a function or a module, not {type(target).__name__}")
    kept = None if folder is None else checked_folder(Path(folder).expanduser().absolute())
    found = os.fspath(target) if not callable(target) else text_from_target(target) if torch or package else target
    on = [provider_from_text(each) if isinstance(each, str) else each for each in providers]
    varied: dict[str, Any] = {"torch": torch, "package": package, "levels": levels, "environments": environments, "pip_args": pip_args}
    axes = Axes(onnxruntime=onnxruntime, providers=on, folder=default_folder(), **varied)
    inputs = Inputs(positional=args, named=tuple(kwargs.items()))
    with tempfile.TemporaryDirectory(prefix="ortlens-bisect-", ignore_cleanup_errors=True) as work:
        result = bisected(found, inputs, axes, folder=Path(work), seed=seed, options=options, runs=runs, seconds=seconds)
        if kept is None and result.smallest is not None:
            kept = Path(tempfile.mkdtemp(prefix="ortlens-bisect-"))
        return result if kept is None else write_issue(result, kept, f"ortlens.bisect({result.target}, ...)")


def bisected(  # noqa: PLR0913 - the target of `ortlens bench`, and what varies
    target: str | Callable[..., Any],
    inputs: Inputs,
    axes: Axes,
    *,
    folder: Path,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    runs: int = 200,
    seconds: float = 60.0,
) -> Bisection:
    """Do what `bisect` does; `folder` is for the models and values.

    Raises UsageError if nothing varies that can run: an unknown level, or a base that cannot be made.
    """
    if (axes.torch or axes.package) and isinstance(target, str) and is_onnx_file(target):
        given = "--torch" if axes.torch else "--package"
        raise UsageError(f"{given} has no effect on {target}, which is made already; leave it out, or name the module it was made from")
    if unknown := [level for level in axes.levels if level not in LEVELS]:
        raise UsageError(f"there is no level {unknown[0]!r}; the levels are: {', '.join(LEVELS)}")
    sides, what = _sides(axes, folder), (target, inputs, seed, dict(options or {}))
    for side in sides:
        side.count, side.seconds = max(runs, 4), seconds
        if axes.package:
            side.question = bisect_run.called, what, str(side.environment.front or "")
        elif side is sides[0] or (side.maker is not None and side.runs):
            _make_program(side, what, is_base=side is sides[0])
        elif side.maker is None:
            side.program = sides[0].program
        side.question = side.question or (bisect_run.timed, side.models, side.settings)
    deadline = time.monotonic() + seconds
    rows = measured(sides, fewest=1, most=MIN_ROUNDS, is_over=lambda: time.monotonic() > deadline, shown="running in turns")
    base = next((side for side in sides if side.runs), None)
    if base is None:
        raise UsageError(f"no side can run: {'; '.join(f'{side.name}: {side.note}' for side in sides)}")
    cut: tuple[SmallestModel, _SettingsSide] | None = None
    cost_ns = profiles.measure_cost().in_event
    with progress("comparing", len(sides), "side") as step:
        for side in sides:
            cut = _compared(base, side, 0 if cut is None else cut[1].severity) or cut
            if side.runs:
                growth = _growth(side.answer)
                grown = None if growth is None else max(round(growth.per_run), 0) if growth.low > 0 else 0
                side.found |= {"kernels": _kernels(side, cost_ns), "growth": growth, "growth_bytes": grown}
                side.found |= {name: side.answer[name] for name in ("runs", "pieces")}
            step(1)
    _compare_captures(base, sides)
    name = target if isinstance(target, str) else getattr(target, "__name__", type(target).__name__)
    found = Bisection(target=name, rows=tuple(_row(side, row) for side, row in zip(sides, rows, strict=True)))
    return found if cut is None else replace(found, smallest=cut[0], smallest_side=cut[1].name)


def _row(side: _SettingsSide, row: SideResult) -> BisectedSide:
    more = {"versions": side.versions, **{name: getattr(side.settings, name) for name in ("provider", "provider_options", "level")}}
    return BisectedSide(**asdict(row) | more | side.found)


def _sides(axes: Axes, folder: Path) -> list[_SettingsSide]:
    """List the sides, the base first, with the reason of those that cannot run."""
    installed: list[tuple[Environment, str]] = []
    name, *versions = axes.package or ("onnxruntime", *axes.onnxruntime)
    here = _package_here(axes) if axes.package else HERE
    wanted = [*map(partial(_requirement, name), versions), *map(partial(_requirement, "torch"), axes.torch)]
    with progress("installing", len(wanted), "version") as step:
        for requirement in wanted:
            installed.append(_environment(requirement, axes, here))
            step(1)
    runtimes, torches = installed[: len(versions)], installed[len(versions) :]
    runtimes += [(Environment(name=name, python=python), "") for name, python in axes.environments]
    facts = {environment.name: _examined(environment, refusal, folder) for environment, refusal in [(here, ""), *runtimes, *torches]}
    names = [CPU, *(name for own, _, _ in facts.values() for name in own.get("providers", ()))]
    base, *more = [_on(name_among(name, names) or name, each, axes.libraries) for name, each in (axes.provider, *axes.providers)]
    providers, levels = _with_base(more, base), _with_base(axes.levels, "all")
    own = [environment for environment, _ in _with_base(runtimes, (here, ""))]
    maker = next((environment for environment, refusal in torches if not refusal), HERE) if len(torches) > 1 else HERE
    basic = replace(providers[0], level=levels[0])
    able = [environment for environment in own if not facts[environment.name][1]] or own
    found = [(environment, basic, None if place else maker) for place, environment in enumerate(own)]
    found += [(environment, basic, environment) for environment, _ in torches if environment is not maker]
    for provider in providers[1:]:  # in the base's environment if that has it, else in the first one that has
        home = next((each for each in able if provider.provider in facts[each.name][0].get("providers", ())), able[0])
        found.append((home, replace(provider, level=levels[0]), None))
    found += [(able[0], replace(basic, level=level), None) for level in levels[1:]]
    return [_side(*each, facts, folder / f"side{place}") for place, each in enumerate(found)]


def _package_here(axes: Axes) -> Environment:
    """Check what varies beside a package, and how many versions are given; return the environment of this process under their name."""
    name, *versions = axes.package
    others = axes.onnxruntime, axes.torch, axes.environments, axes.providers, axes.levels
    if any(others) or name_among(axes.provider[0], [CPU]) is None:
        raise UsageError("--package is compared alone; leave out other versions, providers, levels and environments")
    if not versions or (len(versions) == 1 and version_of(name) is None):
        raise UsageError(f"--package {' '.join(axes.package)}: write two versions or wheels; one will do where {name} is installed")
    return Environment(name=f"{name} {version_of(name)}")


def _compare_captures(base: _SettingsSide, sides: Sequence[_SettingsSide]) -> None:
    """Note what the captures of sides came to, and what differs from that of the base."""
    for side in sides:
        if "capture" in side.answer:
            first, own = (store.load(each.answer["capture"]) for each in (base, side))
            changes = [each for each in changes_of(first, own, paired(first, own)) if each.kind in ("break", "recompile", "function")]
            side.found |= {"changes": tuple(changes), **{name: figures_of(own)[name] for name in ("breaks", "recompiles", "compile_ns")}}


def _on(name: str, settings: Mapping[str, str], libraries: Mapping[str, str]) -> Settings:
    same = name_among(name, libraries)  # else one of them may have a provider of another name
    own = {} if name == CPU else libraries if same is None else {same: libraries[same]}
    return Settings(provider=name, provider_options=settings, libraries=own, threads=min(torch.get_num_threads(), usable_cores()))


def _with_base(values: Sequence[Any], base: Any) -> list[Any]:  # noqa: ANN401 - values of any axis
    """Put the base in front of a single value; of several, the first is the base."""
    return list(values) if len(values) > 1 else [base, *(value for value in values if value != base)]


def _requirement(package: str, text: str) -> str:
    if text.endswith(".whl") and Path(text).expanduser().is_file():
        return str(Path(text).expanduser().absolute())
    if text[:1].isdigit():
        return f"{package}=={text}"
    if text.startswith(package) and "==" in text:
        return text
    raise UsageError(f"{package} {text}: write a version, such as 1.2.3, the path of a wheel, or {package}-NAME==VERSION of another build")


def _environment(requirement: str, axes: Axes, here: Environment) -> tuple[Environment, str]:
    """Install a requirement unless this process has it; return its environment, and why pip could not."""
    package, _, version = requirement.partition("==")
    if version and (version_of(package) or "").partition("+")[0] == version:
        return here, ""
    label = unique = requirement
    if requirement.endswith(".whl"):
        wheel = Path(requirement)
        label, unique = "==".join(wheel.name.split("-")[:2]), f"{wheel.name}-{wheel.stat().st_mtime_ns}"  # it may be built again
    place = place_of(unique, axes.folder)
    refusal = install(requirement, place, pip_args=axes.pip_args)
    return Environment(name=label.replace("==", " "), front=place), refusal


def _examined(environment: Environment, refusal: str, folder: Path) -> tuple[dict[str, Any], str, str]:
    """Return what an environment has; else the status and the reason."""
    if refusal:
        return {}, "uninstalled", refusal
    ended = ProcessSide(name=environment.name, folder=folder / f"look{len(list(folder.iterdir()))}").ask(
        bisect_run.examined, environment=environment
    )
    return (ended.value, "", "") if ended.status == "ok" else ({}, ended.status, ended.reason)


def _side(environment: Environment, settings: Settings, maker: Environment | None, facts: Mapping[str, Any], folder: Path) -> _SettingsSide:
    known, status, reason = facts[environment.name]
    versions = {"onnxruntime": known["onnxruntime"]} if known else {}
    words = [environment.name if environment is not HERE else f"onnxruntime {versions.get('onnxruntime', '')}"]
    words += [maker.name] if maker is not None and maker not in (HERE, environment) else []
    on = text_from_provider(settings.provider, settings.provider_options)
    words += [on] if on != CPU else []
    words += [f"level {settings.level}"] if settings.level != "all" else []
    return _SettingsSide(
        name=", ".join(words),
        status=status or "ok",
        note=reason,
        folder=folder,
        environment=environment,
        settings=settings,
        maker=maker,
        versions=versions,
    )


def _make_program(side: _SettingsSide, what: tuple[Any, ...], *, is_base: bool) -> None:
    """Make the models of a side, in this process if the target is of it; the base's failure is the user's, that of another a row."""
    if callable(what[0]):
        side.folder.mkdir()
        side.program = bisect_run.program_of(str(side.folder), *what)
    elif (ended := side.ask(bisect_run.program_of, *what, environment=side.maker or HERE)).status == "ok":
        side.program = ended.value
    elif is_base:
        raise UsageError(f"{what[0]} could not be run: {ended.reason}")
    else:
        side.fail(ended.status, ended.reason)
    side.versions = {**side.program.get("versions", {}), **side.versions}


def _compared(base: _SettingsSide, side: _SettingsSide, cut_severity: int) -> tuple[SmallestModel, _SettingsSide] | None:
    """Compare results with the base's, and the last run with the first; find where a difference, or a failure, begins.

    Returns the smallest model that shows it, if it is worse than one of the given severity.
    """
    kind: Kind = "fails"
    if side.runs:
        own, theirs = side.answer["values"], base.answer["values"]
        if (unsteady := worst([(each["first"], each["last"]) for each in own])) is not None:
            traced = _traced(side, side, unsteady.kind)
            side.found |= {"unsteady": unsteady, "unsteady_first": None if traced is None else traced.first}
        if side is base:
            return None
        pairs = [(ours["first"], others["first"]) for ours, others in zip(theirs, own, strict=False)]
        output = worst(pairs if side.program == base.program else [(base.program["results"], side.program["results"])])
        side.found |= {"output": output, "results": "same bits" if output is None else output.kind}
        side.found["max_abs"] = 0.0 if output is None else output.max_abs
        if output is None:
            return None
        kind = output.kind
    elif not side.program["parts"] or not side.versions or side.status == "refused":
        return None
    wants_cut = side.program == base.program and 1 + KINDS.index(kind) > cut_severity
    found = _traced(base, side, kind, wants_cut=wants_cut)
    if found is not None:
        side.found |= {"first": found.first, "other_bits_from": found.other_bits_from}
    return None if found is None or found.cut is None else (found.cut, side)


def _traced(base: _SettingsSide, side: _SettingsSide, kind: Kind, *, wants_cut: bool = False) -> Traced | None:
    parts = zip(base.program["parts"], side.program["parts"], strict=False)
    found = (Search(ours, others, partial(_both, base, side), kind, side.folder).trace(wants_cut=wants_cut) for ours, others in parts)
    return next((each for each in found if each is not None), None)


def _both(
    base: _SettingsSide, side: _SettingsSide, ours: tuple[str, str], theirs: tuple[str, str]
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Run a model on two sides. On one against itself, the last of several runs stands for the other."""
    if side is not base:
        return _values(base, ours), _values(side, theirs)
    found = _values(side, ours, _UNSTEADY_RUNS)
    return found, {**found, "first": found.get("last", "")}


def _values(side: _SettingsSide, model: tuple[str, str], runs: int = 1) -> Mapping[str, str]:
    """Run a model on a side; an `error` where the process does not survive."""
    ended = side.ask(bisect_run.values, *model, side.settings, runs)
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


def _kernels(side: _SettingsSide, cost_ns: float) -> tuple[OperatorKernels, ...]:
    """Profile a side, and sum up its kernels by operator, the most expensive first; none where the profile fails."""
    if not side.models:
        return ()
    ended = side.ask(bisect_run.profiled, side.models, side.settings)
    rows = [row for answer in ended.value for row in _kernels_in(answer, cost_ns)] if ended.status == "ok" else []
    groups = grouped(((row.op_type, row.provider), row) for row in rows)
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
