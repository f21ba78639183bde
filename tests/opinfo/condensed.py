"""Condense outcomes to the figures of docs/data/operators.json: per operator, where it runs, why not, and how right it is."""

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.figures import measured_with
from tests.opinfo.exceptions import reason_for

Rows = Sequence[Mapping[str, Any]]

_PACKAGES = ("torch", "onnxruntime", "onnxscript", "ortlens")
_CLASSES = ("whole", "part", "torch", "excluded", "wrong", "crash")
_EXCLUDED = ("declined", "refused", "control")
_MOST_REASONS = 2
_MOST_LETTERS = 160


def condensed(outcomes: Mapping[str, Rows], known: Iterable[str]) -> dict[str, Any]:
    measured = {name: rows for name, rows in outcomes.items() if rows}
    return {
        "measured": measured_with(*_PACKAGES),
        "by_type": _by_type(row for rows in measured.values() for row in rows if row["dtype"]),
        "excluded": [excluded for name, rows in measured.items() for excluded in _excluded(name, rows)],
        "operators": _by_operator(measured),
        "missing": sorted(set(known) - set(measured)),
    }


def condensed_numbers(outcomes: Mapping[str, Rows]) -> dict[str, Any]:
    return {"numbers_measured": measured_with(*_PACKAGES), "numbers": _by_operator(outcomes)}


def _by_operator(outcomes: Mapping[str, Rows]) -> dict[str, dict[str, Any]]:
    return {name: {**_counts(rows), **({"reasons": reasons} if (reasons := _reasons(rows)) else {})} for name, rows in outcomes.items()}


def _by_type(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    groups = collections.defaultdict(list)
    for row in rows:
        groups[row["dtype"], row["road"]].append(row)
    return [{"dtype": dtype, "road": road, **_counts(group)} for (dtype, road), group in groups.items()]


def _excluded(name: str, rows: Rows) -> list[dict[str, Any]]:
    cases = collections.defaultdict(list)
    for row in rows:
        if why := _why_excluded(row):
            cases[why].append(_short(row["detail"]))
    return [{"operator": name, "cases": len(details), **dict(why), "detail": details[0]} for why, details in cases.items()]


def _why_excluded(row: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """What eager or `aot_eager` does with a case, or the stated reason for a difference; empty for a case that counts."""
    if row["verdict"] in _EXCLUDED:
        return (("why", row["verdict"]),)
    stated = reason_for(row["operator"], row["dtype"]) if row["verdict"] == "wrong" else None
    return () if stated is None else (("why", stated.text), ("link", stated.link))


def _class(row: Mapping[str, Any]) -> str:
    return "excluded" if _why_excluded(row) else str(row["verdict"])


def _counts(rows: Rows) -> dict[str, int]:
    counted = collections.Counter(map(_class, rows))
    return {name: counted[name] for name in _CLASSES if counted[name]}


def _reasons(rows: Rows) -> list[str]:
    """List the most frequent reasons; what is wrong comes first."""
    bad = collections.Counter(row["detail"] for row in rows if _class(row) in ("wrong", "crash"))
    left = collections.Counter(reason for row in rows if row["verdict"] in ("part", "torch") for reason in row["detail"].split("; "))
    return [_short(reason) for counted in (bad, left) for reason, _ in counted.most_common(_MOST_REASONS) if reason]


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_LETTERS else f"{line[:_MOST_LETTERS]} ..."
