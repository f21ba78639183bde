"""Verdicts of a check as text, as Markdown for a pull request, and as JUnit XML."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

from ortlens.units import counted, percent
from ortlens.views.wording import clipped, place, visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ortlens.analysis.answers.check import LimitName, Outcome, VerdictRow

_MARKS: Mapping[Outcome, str] = {"passed": "ok", "failed": "FAILED", "unmeasured": "not measured"}
_ICONS: Mapping[Outcome, str] = {"passed": "✅", "failed": "❌", "unmeasured": "⚠️"}
_DETAIL = 300

_REMEDIES: Mapping[LimitName, str] = {
    "max_breaks": "see the frame breaks for what to change at each place, or raise max_breaks",
    "max_recompiles": "see the frame recompiles for what to change, or raise max_recompiles",
    "max_skipped": "see the frame frames for what each runs and why, or raise max_skipped",
    "min_coverage": "see the frames frames and fallbacks for what PyTorch runs and why, or lower min_coverage",
    "max_pieces": "see the frames placements and nodes for what the provider declines and why, or change the limit",
    "max_abs_err": "see the frame numerics for the first value that differs, or raise max_abs_err",
    "min_sqnr": "see the frame numerics for the values that lose most, or lower min_sqnr",
    "max_slowdown": "compare both for what else changed, measure again, or raise max_slowdown",
    "baseline": "compare the captures for all that changed; if it is meant, save this capture as the new baseline",
}
_COUNTED: Mapping[LimitName, tuple[str, ...]] = {
    "max_breaks": ("graph break",),
    "max_recompiles": ("recompile",),
    "max_skipped": ("function runs uncompiled", "functions run uncompiled"),
    "max_pieces": ("piece",),
}
_MEASURE: Mapping[LimitName, str] = {
    "max_breaks": "record a call of the compiled function to its end",
    "max_recompiles": "record calls of the compiled function",
    "max_skipped": "record a call of the compiled function",
    "min_coverage": "record with the backend ortlens",
    "max_pieces": "record with the provider among preferred_execution_providers, in a dry run where it is not installed",
    "max_abs_err": "call lens.verify(), before saving if it is saved, or `ortlens explain --verify`",
    "min_sqnr": "call lens.verify() of an ONNX model with the path of another, its reference",
    "max_slowdown": "record at least 9 calls on both sides, as `ortlens explain --calls 20` does, on a machine with nothing else to do",
    "baseline": "record at least 9 calls on both sides, and verify both for results",
}


def verdict_sentence(row: VerdictRow) -> str:
    """Say what was found and what is allowed, without the name of the limit and without what to do."""
    if row.verdict == "unmeasured":
        return f"not measured: {clipped(row.detail, _DETAIL)}"
    where = f" ({place(row.file, row.line)})" if row.file else ""
    detail = clipped(row.detail, _DETAIL) + where if row.detail and row.verdict == "failed" else ""
    return _found(row) + (f": {detail}" if detail else "")


def _found(row: VerdictRow) -> str:
    value, allowed = row.value or 0.0, row.allowed or 0.0
    if row.limit in _COUNTED:
        return f"{counted(int(value), *_COUNTED[row.limit])}, {int(allowed):,} allowed"
    if row.limit == "min_coverage":
        where = f"of the nodes on {row.subject}" if row.subject else "in ONNX Runtime"
        return f"{percent(value)} {where}, at least {percent(allowed)} asked"
    if row.limit == "max_abs_err":
        size = "NaN, Inf or no comparable value" if math.isinf(value) else f"{value:.1e}"
        return f"largest difference from PyTorch {size}, {allowed:.1e} allowed"
    if row.limit == "min_sqnr":
        ratio = f"SQNR {value:.3g} dB" if math.isfinite(value) else "equal" if value > 0 else "NaN, Inf or another shape"
        return f"worst output: {ratio}, at least {allowed:g} dB asked"
    if row.limit == "max_slowdown" or row.subject == "times":
        found = f"up to {value:.2f}x as long as in the baseline" if value > 1 else "nothing slower than the baseline outside the noise"
        return f"{found}, {allowed:.2f}x allowed" if row.limit == "max_slowdown" else found
    return f"{int(value):,} worse than in the baseline"


def remedy(row: VerdictRow) -> str:
    """Say what to do about a limit that does not hold; empty where it passed."""
    limit = "max_pieces" if row.subject and row.limit == "min_coverage" else row.limit  # both are about a provider then
    return {"passed": "", "failed": _REMEDIES[limit], "unmeasured": _MEASURE[limit]}[row.verdict]


def verdict_name(row: VerdictRow) -> str:
    """Name the limit, and of the baseline what must not get worse: `max_breaks`, `baseline: operators`."""
    return f"{row.limit}: {row.subject}" if row.subject else row.limit


def failure_text(rows: Sequence[VerdictRow]) -> str:
    """Write the message of a check that failed: a line per limit that does not hold."""
    return "\n".join(f"{verdict_name(row)}: {verdict_sentence(row)}. To do: {remedy(row)}." for row in rows if not row.holds)


def verdicts_text(rows: Sequence[VerdictRow]) -> str:
    """Write verdicts for a terminal, with what to do below those that do not hold."""
    marks, names = max(len(_MARKS[row.verdict]) for row in rows), max(len(verdict_name(row)) for row in rows)
    lines = []
    for row in rows:
        lines.append(f"{_MARKS[row.verdict]:<{marks}}  {verdict_name(row):<{names}}  {verdict_sentence(row)}")
        if not row.holds:
            lines.append(f"{'':<{marks}}  {'':<{names}}  To do: {remedy(row)}")
    return "\n".join([*lines, "", conclusion(rows)])


def conclusion(rows: Sequence[VerdictRow]) -> str:
    """Sum all verdicts up in one sentence."""
    broken = sum(not row.holds for row in rows)
    if not broken:
        return f"Passed: {counted(len(rows), 'limit')}."
    return f"Failed: {broken} of {counted(len(rows), 'limit')} {'does' if broken == 1 else 'do'} not hold."


def verdicts_markdown(rows: Sequence[VerdictRow], name: str, comparison: str = "") -> str:
    """Write verdicts for a pull request or a job summary, with `comparison` folded below; texts from the capture are escaped."""
    lines = [f"### ortlens check: {_cell(clipped(name, 80) or 'unnamed capture')}", "", f"**{conclusion(rows)}**", ""]
    lines += ["| | limit | found | to do |", "|---|---|---|---|"]
    lines += [
        f"| {_ICONS[row.verdict]} | `{verdict_name(row)}` | {_cell(verdict_sentence(row))} | {_cell('' if row.holds else remedy(row))} |"
        for row in rows
    ]
    if comparison:
        lines += ["", "<details><summary>Compared with the baseline</summary>", "", "<pre>", escape(comparison), "</pre>", "", "</details>"]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return re.sub(r"([\\`*_\[\]|~#@])", r"\\\1", escape(visible(text)))


def verdicts_junit(rows: Sequence[VerdictRow], name: str) -> str:
    """Write verdicts as JUnit XML for CI systems; what was not measured fails where it was asked for, and is else skipped."""
    suite = quoteattr(f"ortlens check {visible(name)}".strip())
    broken = sum(not row.holds for row in rows)
    skipped = sum(row.holds and row.verdict == "unmeasured" for row in rows)
    head = f'tests="{len(rows)}" failures="{broken}" errors="0" skipped="{skipped}" time="0"'
    cases = [line for row in rows for line in _case(row, suite)]
    lines = ['<?xml version="1.0" encoding="utf-8"?>', f'<testsuites name="ortlens" {head}>', f"<testsuite name={suite} {head}>"]
    return "\n".join([*lines, *cases, "</testsuite>", "</testsuites>"]) + "\n"


def _case(row: VerdictRow, suite: str) -> list[str]:
    head = f'<testcase classname={suite} name={quoteattr(verdict_name(row))} time="0">'
    said = verdict_sentence(row)
    if row.verdict == "passed":
        return [head, f"<system-out>{escape(said)}</system-out>", "</testcase>"]
    if row.holds:
        return [head, f"<skipped message={quoteattr(said)}/>", "</testcase>"]
    kind = quoteattr(row.verdict)
    return [head, f"<failure type={kind} message={quoteattr(said)}>{escape(f'To do: {remedy(row)}')}</failure>", "</testcase>"]
