"""The JSON Schema of what `--json` of each command prints, made from the records and dataclasses that it is made of."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ortlens.analysis.answers.check import VerdictRow
from ortlens.analysis.answers.overview import FACTS, Fact, SurveyRow
from ortlens.analysis.compare.changes import Change
from ortlens.analysis.compare.durations import Timing
from ortlens.analysis.compare.kernels import KernelTime
from ortlens.cli.commands import answer
from ortlens.doctor import Check
from ortlens.studies.bench import Load
from ortlens.studies.bisect import Bisection
from ortlens.studies.compare_models import ModelComparison
from ortlens.studies.tune import Trial
from ortlens.trace.records import ActionRow, SideResult
from ortlens.trace.schema import SHOWN_TABLES
from ortlens.views.live import LiveFigures

_SIMPLE: Mapping[object, object] = {str: "string", int: "integer", bool: "boolean", float: ["number", "null"], types.NoneType: "null"}
_COMMENT = re.compile(r"^    (\w+): .*?  # (.+)$", flags=re.MULTILINE)
_UNITS = {"_ns": "ns", "_bytes": "bytes", "_per_s": "1/s", "_s": "s"}

_RECOMMENDED = {"recommendations": tuple[ActionRow, ...]}
_OVERVIEW: Mapping[str, Any] = {**FACTS, **_RECOMMENDED}
_CAPTURE = {"name": str, "backend": str, "created": str}

ANSWERS: Mapping[str, tuple[type[Any] | None, Mapping[str, Any]]] = {
    "explain": (None, _OVERVIEW),
    "run": (None, _OVERVIEW),
    "demo": (None, {**_OVERVIEW, "is_match": bool, "calls": int, "max_abs_difference": float}),
    "show": (None, _OVERVIEW),
    "report": (None, {"report": str}),
    "export": (None, {"folder": str, "files": tuple[str, ...]}),
    "compare": (
        None,
        {
            "is_worse": bool,
            "verdict": str,
            "before": _CAPTURE,
            "after": _CAPTURE,
            "times": tuple[Timing, ...],
            "kernels": tuple[KernelTime, ...],
            "changes": tuple[Change, ...],
        },
    ),
    "compare_models": (ModelComparison, {"ok": bool, "verdicts": tuple[VerdictRow, ...]}),
    "check": (None, {"ok": bool, "capture": str, "verdicts": (VerdictRow, {"message": str, "to_do": str}), **_RECOMMENDED}),
    "bench": (None, {"rows": tuple[SideResult, ...], "load": tuple[Load, ...], **_RECOMMENDED}),
    "tune": (None, {"rows": tuple[Trial, ...]}),
    "survey": (None, {"rows": tuple[SurveyRow, ...]}),
    "watch": (LiveFigures, {}),
    "bisect": (Bisection, {"differs": bool}),
    "doctor": (None, {"ready": bool, "checks": tuple[Check, ...]}),
}
"""Name of an answer -> the dataclass whose fields it has, and its other keys: types, objects, or a list of records with further keys."""


def json_schema() -> dict[str, Any]:
    """Make one schema for all answers; which one it is says its key `schema`."""
    defs: dict[str, Any] = {}
    answers = [_answer(name, _keys(base, more, defs)) for name, (base, more) in ANSWERS.items()]
    for name, table in SHOWN_TABLES.items():
        rows = {"type": "array", "items": _reference(table.record, defs)}
        answers.append(_answer("table", {"table": {"const": name}, "rows": rows}))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What `--json` of the commands of ortlens prints",
        "description": "`unit` is that of a number: ns, bytes, s. A number that is infinite or NaN is null.",
        "anyOf": answers,
        "$defs": dict(sorted(defs.items())),
    }


def _answer(name: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    return {"title": name, **_object({"schema": {"const": answer(name, {})["schema"]}, **keys})}


def _object(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(keys), "required": list(keys)}


def _keys(base: type[Any] | None, more: Mapping[str, Any], defs: dict[str, Any]) -> dict[str, Any]:
    found = {} if base is None else _fields(base, defs)
    for name, kind in more.items():
        if isinstance(kind, Fact):
            found[name] = {**_from_type(kind.type, defs), **_about(name, kind.meaning)}
        elif isinstance(kind, dict):
            found[name] = _object(_keys(None, kind, defs))
        elif isinstance(kind, tuple):
            found[name] = {"type": "array", "items": _object(_keys(kind[0], kind[1], defs))}
        else:
            found[name] = _from_type(kind, defs)
    return found


def _fields(record: type[Any], defs: dict[str, Any]) -> dict[str, Any]:
    hints, said = _hints(record), dict(_COMMENT.findall(inspect.getsource(record)))
    found = {}
    for spec in fields(record):
        about = _about(spec.name, spec.metadata.get("meaning") or said.get(spec.name), spec.metadata.get("unit"))
        found[spec.name] = {**_from_type(hints[spec.name], defs), **about}
    return found


def _about(name: str, meaning: str | None, unit: str | None = None) -> dict[str, str]:
    unit = unit or next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")
    return {key: text for key, text in (("description", meaning), ("unit", unit)) if text}


def _from_type(kind: Any, defs: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - annotations have no common type
    if kind in _SIMPLE:
        return {"type": _SIMPLE[kind]}
    if is_dataclass(kind) and isinstance(kind, type):
        return _reference(kind, defs)
    if get_origin(kind) is Literal:
        return {"enum": list(get_args(kind))}
    return {} if kind is Any else _from_generic(kind, [_from_type(item, defs) for item in get_args(kind) if item is not Ellipsis])


def _from_generic(kind: Any, inner: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: ANN401 - as above
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return {"anyOf": inner}
    if origin is tuple and Ellipsis not in get_args(kind):
        return {"type": "array", "prefixItems": inner, "minItems": len(inner), "maxItems": len(inner)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": inner[1]}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return {"type": "array", "items": inner[0]}
    raise TypeError(f"no schema for {kind}")


def _reference(record: type[Any], defs: dict[str, Any]) -> dict[str, Any]:
    name = record.__name__ if record.__module__ != "ortlens.studies.bisect" else f"Bisect{record.__name__}"  # it has a Kernel, too
    if name not in defs:
        defs[name] = {}  # for a record that holds its own kind
        defs[name] = {"description": (record.__doc__ or "").splitlines()[0], **_object(_fields(record, defs))}
    return {"$ref": f"#/$defs/{name}"}


def _hints(record: type[Any]) -> dict[str, Any]:
    """Resolve the annotations of a dataclass, of which some are imported for type checkers alone."""
    names: dict[str, Any] = {}
    for home in filter(is_dataclass, record.__mro__):
        module = importlib.import_module(home.__module__)
        names |= _for_checkers(module) | vars(module)
    return get_type_hints(record, globalns=names)


@cache
def _for_checkers(module: types.ModuleType) -> dict[str, Any]:
    body = ast.parse(inspect.getsource(module)).body
    blocks = [part for part in body if isinstance(part, ast.If) and isinstance(part.test, ast.Name) and part.test.id == "TYPE_CHECKING"]
    imports = [line for block in blocks for line in block.body if isinstance(line, ast.ImportFrom) and line.module]
    return {
        name.asname or name.name: getattr(importlib.import_module(line.module or ""), name.name) for line in imports for name in line.names
    }
