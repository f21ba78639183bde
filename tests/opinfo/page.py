"""Writes docs/operators.md from the outcomes that are kept: per operator, where it runs, why not, and how right it is."""

from __future__ import annotations

import collections
import platform
from datetime import datetime, timezone
from importlib import metadata
from typing import TYPE_CHECKING, Any

from tests.opinfo.exceptions import reason_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_HEAD = """# Operators

PyTorch's own operator database (`op_db` in `torch.testing._internal.common_methods_invocations`) through the backend. Each sample takes
three roads: static sizes, dynamic sizes, and training with the gradients of every input, in each element type that the operator and ONNX
Runtime's CPU provider have. Results, arguments after the call, and gradients are compared with eager. The tolerance is 2e-4 for float32,
1e-6 for float64, 2e-2 for float16, and zero for the others. `make opinfo` measures what is missing and writes this page.

"""
_CLASSES = {
    "whole": "right, whole in ONNX Runtime",
    "part": "right, some nodes in PyTorch",
    "torch": "right, all nodes in PyTorch",
    "excluded": "excluded, with a reason",
    "wrong": "wrong",
    "crash": "crash",
}
"""Column -> what it counts, in the order of the page."""

NUMBERS = "## Operations on numbers"
_NUMBERS = f"""{NUMBERS}

What programs compute from sizes, int arguments and data: operators and functions of Python, and torch's own on symbolic numbers. Each
is called with small, negative, zero and large numbers, past 2^31, 2^53 and 2^62, as an int argument, as a size, as `item()` of a tensor, in
an exported ONNX model and in a saved frozen callable. Numbers are compared exactly with Python's, exceptions by their type. *Part*: Python
computes a number that may need more than the 64 bits of a model's int, or a float, before the session runs, and the session takes it.
`make opinfo-numbers` measures this section anew.

"""
_EXCLUDED = {
    "declined": "a model without PyTorch is not made, or raises where an int needs more than 64 bits",
    "refused": "eager PyTorch raises for the sample",
    "control": "`torch.compile` with the backend `aot_eager` differs from eager too",
}
_MOST_REASONS = 2
_MOST_LETTERS = 160


def page(outcomes: Mapping[str, Sequence[Mapping[str, Any]]], known: Iterable[str], numbers: str = "") -> str:
    """Make the page."""
    rows = [row for found in outcomes.values() for row in found]
    missing = sorted(set(known) - {name for name, found in outcomes.items() if found})
    parts = [_HEAD + _versions(), _totals(rows, len(outcomes)), _by_type(rows), _excluded(outcomes), _operators(outcomes)]
    if numbers:
        parts.append(numbers)
    if missing:
        parts.append(f"## Not measured\n\nNo sample in these element types: {', '.join(f'`{name}`' for name in missing)}.")
    return "\n\n".join(parts) + "\n"


def numbers_section(outcomes: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Make the section of operations on numbers: as the other operators, under a heading of its own."""
    return _NUMBERS + _versions() + "\n\n" + _rows(outcomes)


def numbers_in(text: str) -> str:
    """The section of operations on numbers in a page; empty when there is none."""
    _, heading, rest = text.partition(NUMBERS)
    return heading + rest.partition("\n\n## ")[0].rstrip("\n")


def with_numbers(text: str, section: str) -> str:
    """A page with another section of operations on numbers; all else stays as it is."""
    if present := numbers_in(text):
        return text.replace(present, section)
    before, heading, after = text.rstrip("\n").partition("\n\n## Not measured")
    return f"{before}\n\n{section}{heading}{after}\n"


def _class(row: Mapping[str, Any]) -> str:
    return "excluded" if _why_excluded(row) else str(row["verdict"])


def _why_excluded(row: Mapping[str, Any]) -> str:
    """Why a case does not count: what eager or `aot_eager` does with it, or a difference for a stated reason; empty for all others."""
    verdict = str(row["verdict"])
    if verdict in _EXCLUDED:
        return _EXCLUDED[verdict]
    stated = reason_for(row["operator"], row["dtype"]) if verdict == "wrong" else None
    return "" if stated is None else f"[{stated.text}]({stated.link})"


def _counts(rows: Iterable[Mapping[str, Any]]) -> list[int]:
    counted = collections.Counter(_class(row) for row in rows)
    return [counted[name] for name in _CLASSES]


def _table(head: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    body = [f"| {' | '.join(str(cell) for cell in line)} |" for line in (head, ["---"] * len(head), *lines)]
    return "\n".join(body)


def _versions() -> str:
    packages = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "onnxruntime", "onnxscript", "ortlens"))
    today = datetime.now(tz=timezone.utc).date().isoformat()
    return f"Measured {today} with {packages}, Python {platform.python_version()}, {platform.machine()}, CPU provider."


def _totals(rows: Sequence[Mapping[str, Any]], operators: int) -> str:
    lines = [(f"**{len(rows):,}**", f"cases of {operators} operators")]
    lines += [(f"{count:,}", _CLASSES[name]) for name, count in zip(_CLASSES, _counts(rows), strict=True)]
    return "## Totals\n\n" + _table(("Cases", "Outcome"), lines)


def _by_type(rows: Sequence[Mapping[str, Any]]) -> str:
    """The counts per element type and road."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = collections.defaultdict(list)
    for row in rows:
        if row["dtype"]:
            groups[str(row["dtype"]), str(row["road"])].append(row)
    lines = [(*key, len(found), *_counts(found)) for key, found in groups.items()]
    return "## By element type and road\n\n" + _table(("Type", "Road", "Cases", *_CLASSES.values()), lines)


def _excluded(outcomes: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    lines = []
    for name, found in outcomes.items():
        for reason in dict.fromkeys(filter(None, map(_why_excluded, found))):
            cases = [row for row in found if _why_excluded(row) == reason]
            lines.append((f"`{name}`", len(cases), reason, _cell(cases[0]["detail"])))
    return "## Excluded cases\n\n" + _table(("Operator", "Cases", "Reason", "First difference"), lines)


def _operators(outcomes: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    return "## Operator by operator\n\n" + _rows(outcomes)


def _rows(outcomes: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    lines = [(f"`{name}`", len(found), *_counts(found), _why(found)) for name, found in outcomes.items() if found]
    short = ("whole", "part", "PyTorch", "excluded", "wrong", "crash")
    return _table(("Operator", "Cases", *short, "What stays in PyTorch, or differs, and why"), lines)


def _why(found: Sequence[Mapping[str, Any]]) -> str:
    """The most frequent reasons; what is wrong comes first."""
    bad = collections.Counter(row["detail"] for row in found if _class(row) in ("wrong", "crash"))
    left = collections.Counter(reason for row in found if row["verdict"] in ("part", "torch") for reason in row["detail"].split("; "))
    reasons = [reason for counted in (bad, left) for reason, _ in counted.most_common(_MOST_REASONS) if reason]
    return "; ".join(_cell(reason) for reason in reasons) or "-"


def _cell(text: str) -> str:
    """A text that does not end its cell of a table, and is not taken for HTML."""
    short = " ".join(text.split())
    short = short if len(short) <= _MOST_LETTERS else f"{short[:_MOST_LETTERS]} ..."
    return short.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_").replace("[", "\\[")
