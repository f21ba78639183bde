"""What a survey runs: cases, however they are written down, and one of them in its process."""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortlens.errors import UsageError
from ortlens.job.providers import register
from ortlens.job.targets import object_from_text
from ortlens.studies.child import answer, stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CAPTURE, JOURNAL, REPORT = "capture.ortlens", "journal", "report.html"
"""Files of the folder of a case; the journal is what a process leaves that does not live to save its capture."""

_ATTRIBUTE = "CASES"  # where a Python file has its cases when no other name is given
_FORMS = "a MODULE:NAME, a function or class, a tuple (function, arguments), or an ortlens.Case"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One model of a survey.

    Attributes:
        target: `MODULE:NAME` or `FILE.py:NAME`, or a function or class at the top of a module: an `nn.Module`, its class, any function to
            be compiled, or a function that returns the model, `(model, args)` or `(model, args, kwargs)`. It is imported by name in
            another process, so that a lambda, a module made here or a function of a notebook will not do.
        name: Name of the case; by default the target's.
        inputs: Arguments of the model as on the command line, `f32[1,3,224,224]` or `mask=bool[1,16]`, where the target does not return
            them itself.
        args: Arguments of the function that returns the model.
        kwargs: Likewise, by name.
        options: Options of the backend.
        backend: As for `ortlens.explain`.
        dynamic: Likewise.
        dry_run: Likewise.
        calls: Likewise.
        grad: Whether gradients are on, so that a training step's forward graph is compiled.
        seed: Set before the model and the inputs are made.
        time_limit: Seconds that the case may take; None for that of the survey.
        memory_limit: Bytes that its processes may hold; None for that of the survey.
    """

    target: str | Callable[..., Any]
    name: str = ""
    inputs: Sequence[str] = ()
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    backend: str = "ortlens"
    dynamic: bool | None = None
    dry_run: bool = False
    calls: int | None = None
    grad: bool = False
    seed: int = 0
    time_limit: float | None = None
    memory_limit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseExtras:
    """What is done with each case beyond compiling and calling it."""

    profile: bool = False
    verify: bool = False
    reports: bool = True
    libraries: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # of providers that the options name: paths and versions


_FIELDS = tuple(item.name for item in fields(Case))


def cases_from(cases: object, options: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None) -> list[Case]:
    """Bring cases into one form, and multiply them with options; options of a case win, and targets become texts.

    Takes a mapping from names to cases, or several cases: each a `Case`, a text, a callable, a tuple `(callable, args[, kwargs])`, or a
    mapping of the fields of `Case`.
    """
    if isinstance(cases, str):
        return cases_from_text(cases, options)
    named = cases.items() if isinstance(cases, Mapping) else ((None, case) for case in _several(cases))
    found = [_case(name, given) for name, given in named]
    if not found:
        raise UsageError("there are no cases")
    variants = [options] if isinstance(options, Mapping) else list(options or [{}])
    return _distinct([replace(case, options={**variant, **case.options}) for case in found for variant in variants])


def cases_from_text(text: str, options: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None) -> list[Case]:
    """Read the cases of `FILE.py[:NAME]`, `MODULE:NAME`, or the table `cases` of a TOML or JSON file, whose `options` give way."""
    path = Path(text).expanduser()
    if path.suffix in (".toml", ".json"):
        table = _table(path)
        if unknown := set(table) - {"cases", "options"}:
            raise UsageError(f"{path}: unknown entry {min(unknown)!r}; the entries are: cases, options")
        return cases_from(_in_folder(table.get("cases", {}), path), table.get("options") if options is None else options)
    held = object_from_text(text if ":" in text[2:] else f"{text}:{_ATTRIBUTE}")  # C:\cases.py
    return cases_from(held() if callable(held) and not isinstance(held, type) else held, options)


def _table(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        table = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as err:
        raise UsageError(f"{path} cannot be read: {err.strerror or err}") from err
    except ValueError as err:
        raise UsageError(f"{path} is no {path.suffix[1:].upper()}: {err}") from err
    if not isinstance(table, dict):
        raise UsageError(f"{path} holds {type(table).__name__}, not a table with the entry cases")
    return table


def _in_folder(cases: object, path: Path) -> object:
    """Resolve the targets `FILE.py:NAME` of a file from its folder."""
    if not isinstance(cases, dict):
        raise UsageError(f"{path}: cases must be a table of names, not {type(cases).__name__}")

    def placed(given: object) -> object:
        text = given if isinstance(given, str) else given.get("target") if isinstance(given, dict) else None
        if not isinstance(text, str) or ".py:" not in text:
            return given
        whole = str(path.resolve().parent / text)
        return whole if given is text else {**given, "target": whole} if isinstance(given, dict) else given

    return {name: placed(given) for name, given in cases.items()}


def _several(cases: object) -> Iterator[object]:
    if isinstance(cases, (Case, tuple)) and not (isinstance(cases, tuple) and cases and not callable(cases[0])):
        raise UsageError("survey() takes several cases: a mapping from names to cases, or a list of cases")
    if not isinstance(cases, Iterable):
        raise UsageError(f"survey() takes a mapping from names to cases, or a list of cases, not {type(cases).__name__}")
    return iter(cases)


def _case(name: str | None, given: object) -> Case:
    case = _written(given)
    partial = case.target if isinstance(case.target, functools.partial) else None
    text = text_from_target(case.target if partial is None else partial.func)
    label = case.name or text.rpartition(":")[2] if name is None else str(name)
    if isinstance(case.inputs, str):
        raise UsageError(f"case {label}: inputs must be a list of texts, not the text {case.inputs!r}")
    args = (*partial.args, *case.args) if partial is not None else tuple(case.args)
    kwargs = {**partial.keywords, **case.kwargs} if partial is not None else dict(case.kwargs)
    return replace(case, name=label, target=text, inputs=tuple(case.inputs), args=args, kwargs=kwargs, options=dict(case.options))


def _written(given: object) -> Case:
    if isinstance(given, Case):
        return given
    if isinstance(given, tuple) and len(given) in (2, 3) and callable(given[0]):
        args = given[1] if isinstance(given[1], (tuple, list)) else (given[1],)
        return Case(target=given[0], args=tuple(args), kwargs=dict(*given[2:]))
    if isinstance(given, Mapping):
        if unknown := set(given) - set(_FIELDS):
            raise UsageError(f"a case has no field {min(map(str, unknown))!r}; the fields are: {', '.join(_FIELDS)}")
        if "target" not in given:
            raise UsageError(f"a case needs a target: {dict(given)!r}")
        return Case(**given)
    if isinstance(given, str) or callable(given):
        return Case(target=given)
    raise UsageError(f"{given!r} is no case; a case is {_FORMS}")


def text_from_target(target: object) -> str:
    """Return the text by which another process finds a callable; raise `UsageError` where it cannot."""
    if isinstance(target, str):
        place, _, held = target.rpartition(":")
        return f"{Path(place).expanduser().absolute()}:{held}" if place.endswith(".py") else target
    name, module = getattr(target, "__qualname__", None), getattr(target, "__module__", None)
    if not isinstance(name, str) or not isinstance(module, str):
        raise UsageError(
            f"the target runs in a process of its own, which cannot be given an object of type {type(target).__name__}: "
            "write a function at the top of a module that returns it, and pass the function"
        )
    found: object = functools.reduce(lambda owner, part: getattr(owner, part, None), name.split("."), sys.modules.get(module))
    if "<" in name or found is not target:
        raise UsageError(f"{module}.{name} cannot be imported by its name in another process: define it at the top of a module")
    file = getattr(sys.modules[module], "__file__", None)
    if module != "__main__" and ("." in module or not file or "site-packages" in file or not file.endswith(".py")):
        return f"{module}:{name}"
    if file is None:
        raise UsageError(f"{name} is defined in a notebook or console, which another process cannot import: write it into a .py file")
    return f"{Path(file).absolute()}:{name}"


def _distinct(cases: Sequence[Case]) -> list[Case]:
    """Keep each case once; two of one name and the same options must be the same."""
    seen: dict[tuple[str, str], Case] = {}
    for case in cases:
        if seen.setdefault((case.name, repr(case.options)), case) != case:
            raise UsageError(f"two cases are named {case.name!r}; give one of them another name")
    return list(seen.values())


def measured(case: Case, extras: CaseExtras, folder: str) -> dict[str, Any]:
    """Measure a case, with its target as text, and return fields of `SurveyRow`; the capture is saved even if the model raises."""
    stage("importing torch")
    import torch

    stage("registering execution providers")
    for name, (path, _) in extras.libraries.items():
        register(name, path)

    from ortlens.analysis.answers.overview import figures_of
    from ortlens.job.request import Request, explained
    from ortlens.job.targets import call_from_text, inputs_from_texts
    from ortlens.lens.lens import Lens

    inputs = inputs_from_texts(case.inputs)
    stage("making the model and its inputs")
    torch.manual_seed(case.seed)
    target, args, kwargs = call_from_text(str(case.target), (tuple(case.args), case.kwargs))
    more, named = inputs.made(case.seed)
    asked: dict[str, Any] = {name: getattr(case, name) for name in ("backend", "options", "dry_run", "dynamic", "calls")}
    request = Request(no_grad=not case.grad, profile=extras.profile, verify=extras.verify, **asked)
    stage("compiling and calling")
    lens = Lens(case.backend, options=case.options or None, name=case.name, journal=Path(folder) / JOURNAL, dry_run=case.dry_run)
    try:
        explained(request, lens, target, ((*args, *more), {**kwargs, **named}))
    except BaseException:
        with contextlib.suppress(Exception):
            lens.save(Path(folder) / CAPTURE)
        raise
    stage("saving the capture")
    lens.save(Path(folder) / CAPTURE)
    figures = figures_of(lens.captured())
    answer(figures)
    if extras.reports:
        stage("writing the report")
        lens.report(Path(folder) / REPORT)
    return figures
