"""What a reviewer reads on the changed line: each cause, and each limit that does not hold; as annotations of GitHub and as SARIF.

A remark has a place only where the file of the capture is this checkout's, with the recorded line in it; else it says why it has none.

Source: "Static Analysis Results Interchange Format (SARIF) Version 2.1.0", OASIS, and "SARIF support for code scanning" of GitHub, which
takes no result without a location and follows one by `primaryLocationLineHash`.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import quote

from ortlens.analysis.costs import slow_lines
from ortlens.analysis.problems.stream import RECORDED, RULES, problems_of
from ortlens.trace.records import same
from ortlens.trace.sources import is_own
from ortlens.units import counted, percent, time_from_ns
from ortlens.views.actions import KIND_WORDS, facts_of_action
from ortlens.views.verdict_text import remedy, verdict_name, verdict_sentence
from ortlens.views.wording import clipped, place, visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ortlens.analysis.answers.check import VerdictRow
    from ortlens.trace.records import Capture


Level: TypeAlias = Literal["error", "warning", "note"]
NoPlace: TypeAlias = Literal["unknown", "installed", "outside", "missing", "changed"]

NO_PLACE_WORDS: Mapping[NoPlace, str] = {
    "unknown": "the line, or the whole path of the file, is not recorded",
    "installed": "the line is in an installed library",
    "outside": "the file is not in this checkout",
    "missing": "the file is no longer in this checkout",
    "changed": "the line was another one when it was recorded",
}
_COMMANDS: Mapping[Level, str] = {"error": "error", "warning": "warning", "note": "notice"}
_MOST = 10  # annotations of one level that GitHub keeps of a step
_MOST_TEXT = 600
_LEVELS: Mapping[str, Level] = {"error": "error", "warning": "warning", "info": "note"}
_OF_LIMIT: Mapping[str, tuple[str, ...]] = {
    "max_breaks": ("break",),
    "max_recompiles": ("recompile",),
    "max_skipped": ("break",),
    "min_coverage": ("fallback", "nothing_runs", "provider_declined"),
    "max_pieces": ("provider_declined",),
    "max_abs_err": ("call_differs", "numbers_differ", "loses_accuracy", "fusion_changes_numbers"),
    "min_sqnr": ("call_differs",),
}
"""Rules whose remarks are what breaks a limit."""
_OF_BASELINE = {
    "breaks": "max_breaks",
    "recompiles": "max_recompiles",
    "functions": "max_skipped",
    "operators": "min_coverage",
    "results": "max_abs_err",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """One cause, or one limit that does not hold."""

    rule: str  # `kind` of a row of `lens.actions`, the name of the rule of a finding, `slow_line`, or `limit`
    level: Level
    title: str
    text: str
    recorded: str  # the place as recorded, shortened
    file: str | None = None  # path in the checkout, with slashes; None without a place
    line: int | None = None
    source: str = ""  # the line there
    no_place: NoPlace | None = None  # why there is none
    gain_ns: int | None = None  # as in `lens.actions`
    cost_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Checkout:
    """A folder of sources, in which remarks are placed."""

    root: Path

    def placed(self, remark: Remark, file: str | None, line: int | None, source: str | None) -> Remark:
        """Put a remark on a recorded line if the checkout has that line, else note why it has none."""
        if not file or line is None or not Path(file).is_absolute():
            return replace(remark, no_place="unknown")
        path, root = Path(file).resolve(), self.root.resolve()
        if not is_own(file):
            return replace(remark, no_place="installed")
        if root not in path.parents or any((folder / ".git").exists() for folder in path.parents if root in folder.parents):
            return replace(remark, no_place="outside")  # or in another checkout inside of this one
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return replace(remark, no_place="missing")
        if not 0 < line <= len(lines) or (source and lines[line - 1].strip() != source.strip()):
            return replace(remark, no_place="changed")
        return replace(remark, file=path.relative_to(root).as_posix(), line=line, source=lines[line - 1].strip())


def remarks_of(capture: Capture, rows: Sequence[VerdictRow], checkout: Checkout) -> list[Remark]:
    """List what there is to say about a capture, the most useful first; `rows` are the verdicts of a check, if there was one.

    What breaks a limit is an error; a limit that no remark explains has one of its own.
    """
    found = [*_causes(capture, checkout), *_slow(capture, checkout)]
    for row in rows:
        if not row.holds:
            found = _with_limit(found, row, checkout)
    return found


def _causes(capture: Capture, checkout: Checkout) -> Iterator[Remark]:
    for item in problems_of(capture):
        facts = facts_of_action(item, capture)
        is_finding = item.index is not None
        said = [item.title, facts["why"], facts["do"]] if is_finding else [facts["why"], facts["do"]]
        said += [counted(item.other_lines, "other line needs", "other lines need") + " the same change"] if item.other_lines else []
        said += [facts["gain"]] if item.confidence != "unknown" else []
        text = " ".join(map(_sentence, dict.fromkeys(part for part in said if part)))
        if facts["after"] is not None:
            text += f"\n- {facts['before']}" + (f"\n+ {facts['after']}" if facts["after"] else "")
        remark = Remark(
            rule=item.rule,
            level=_LEVELS[item.severity],
            title=clipped(item.title, 80) if is_finding else KIND_WORDS[item.kind],
            text=text,
            recorded=place(item.file, item.line, item.module),
            **same(item, "gain_ns", "cost_ns"),
        )
        yield checkout.placed(remark, item.file, item.line, item.source)


def _sentence(text: str) -> str:
    shown = clipped(text, _MOST_TEXT).rstrip(".")
    is_name = "." in shown.partition(" ")[0]  # of an operator
    return f"{shown if is_name else shown[:1].upper() + shown[1:]}."


def _slow(capture: Capture, checkout: Checkout) -> Iterator[Remark]:
    for item in slow_lines(capture):
        if not item.is_torch:  # what PyTorch runs there has a remark
            text = f"This line takes {time_from_ns(item.ns)} of a call in ONNX Runtime, {percent(item.share)}."
            remark = Remark(rule="slow_line", level="note", title="slow line", text=text, recorded=place(item.file, item.line))
            yield checkout.placed(replace(remark, cost_ns=item.ns), item.file, item.line, item.source)


def _with_limit(remarks: list[Remark], row: VerdictRow, checkout: Checkout) -> list[Remark]:
    """Make errors of the remarks that a broken limit is about; of a baseline only of those on the line of the first that is worse."""
    limit = verdict_name(row)
    text = f"{limit}: {verdict_sentence(replace(row, detail='') if row.verdict == 'failed' else row)}."
    kinds = _OF_LIMIT.get(_OF_BASELINE.get(row.subject, row.limit), ()) if row.verdict == "failed" else ()
    where = place(row.file, row.line)
    those = [item for item in remarks if item.rule in kinds and (row.limit != "baseline" or item.recorded == where)]
    if those:
        return [replace(item, level="error", text=f"{text} {item.text}") if item in those else item for item in remarks]
    about = f"{limit}: {verdict_sentence(row)}. To do: {remedy(row)}."
    own = Remark(rule="limit", level="error", title=f"{limit} does not hold", text=about, recorded=where)
    return [checkout.placed(own, row.file, row.line, None), *remarks]


def github_lines(remarks: Sequence[Remark]) -> Iterator[str]:
    """Yield the lines of a log that GitHub shows as annotations, and in words what has none.

    An error without a place is one of the whole job.
    Source: "Workflow commands for GitHub Actions", for the commands and what is escaped.
    """
    for level, command in _COMMANDS.items():
        shown = [item for item in remarks if item.level == level and (item.file is not None or level == "error")]
        for item in shown[:_MOST]:
            where = {} if item.file is None else {"file": item.file, "line": str(item.line)}
            given = ",".join(f"{name}={_property(text)}" for name, text in {**where, "title": f"ortlens: {item.title}"}.items())
            yield f"::{command} {given}::{_escaped(item.text)}"
        if more := shown[_MOST:]:
            yield f"ortlens: {counted(len(more), f'more {command}')} without an annotation: GitHub keeps {_MOST} of a step; see --sarif"
    for why, count in Counter(item.no_place for item in remarks if item.no_place is not None).items():
        those = dict.fromkeys(f"{item.title} at {item.recorded}" for item in remarks if item.no_place == why)
        yield f"ortlens: {counted(count, 'remark')} without a line here, since {NO_PLACE_WORDS[why]}: {'; '.join(those)}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return re.sub("[:,]", lambda sign: f"%{ord(sign[0]):02X}", _escaped(text))


_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_ROOT = "%SRCROOT%"

_ABOUT: Mapping[str, tuple[str, str]] = {
    "slow_line": (
        "This line takes much of a call in ONNX Runtime.",
        "What it computes is where less work, another data type or another algorithm saves most.",
    ),
    "limit": ("A limit of `ortlens check` does not hold.", "The model became worse than it was agreed to be, or nobody measured it."),
}
"""What is at the line, and why it matters, of the remarks that are no problems."""
_WRONG = ("call_differs", "numbers_differ", "loses_accuracy", "fusion_changes_numbers", "nonfinite_origin")


def sarif_log(remarks: Sequence[Remark], capture: Capture, checkout: Checkout, version: str) -> dict[str, Any]:
    """Make a log with one run: a result per remark that has a place, and a notification per remark that has none."""
    placed = [item for item in remarks if item.file is not None]
    rules = list(dict.fromkeys(item.rule for item in remarks))
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "ortlens", "version": version, "rules": [_rule(rule) for rule in rules]}},
                "automationDetails": {"id": f"ortlens/{visible(capture.name) or 'capture'}/"},
                "originalUriBaseIds": {_ROOT: {"uri": f"{checkout.root.resolve().as_uri()}/"}},
                "columnKind": "unicodeCodePoints",
                "invocations": [
                    {"executionSuccessful": True, "toolExecutionNotifications": [_notification(item) for item in remarks if item.no_place]}
                ],
                "results": [_result(item, rules, print_) for item, print_ in zip(placed, _fingerprints(placed), strict=True)],
            }
        ],
    }


def _rule(rule: str) -> dict[str, Any]:
    known = {item.name: (item.looks_for, item.hazard) for item in RULES.values()} | {name: (text, "") for name, text in RECORDED.items()}
    short, why = _ABOUT.get(rule) or known.get(rule, (rule, ""))
    return {
        "id": rule,
        "name": rule.title().replace("_", ""),
        "shortDescription": {"text": short},
        "fullDescription": {"text": f"{short} {why}".rstrip()},
        "help": {"text": f"{why or short} Each result says what to change; `ortlens show` and the report have the whole picture."},
        "defaultConfiguration": {"level": "error" if rule in ("limit", *_WRONG) else "note" if rule == "slow_line" else "warning"},
        "properties": {"tags": ["correctness" if rule in _WRONG else "performance"]},
    }


def _fingerprints(remarks: Sequence[Remark]) -> list[str]:
    """Identify results by rule and the text of their line, not by its number, which changes with every line above."""
    seen: Counter[str] = Counter()
    found = []
    for item in remarks:
        digest = hashlib.sha256(f"{item.rule}\n{item.source}".encode("utf-8", "surrogatepass")).hexdigest()[:16]
        seen[f"{item.file} {digest}"] += 1
        found.append(f"{digest}:{seen[f'{item.file} {digest}']}")
    return found


def _result(item: Remark, rules: Sequence[str], fingerprint: str) -> dict[str, Any]:
    location = {"artifactLocation": {"uri": quote(item.file or ""), "uriBaseId": _ROOT}, "region": {"startLine": item.line}}
    return {
        "ruleId": item.rule,
        "ruleIndex": rules.index(item.rule),
        "level": item.level,
        "message": {"text": item.text},
        "locations": [{"physicalLocation": location}],
        "partialFingerprints": {"primaryLocationLineHash": fingerprint},
        **(
            {"properties": known}
            if (known := {name: ns for name, ns in same(item, "gain_ns", "cost_ns").items() if ns is not None})
            else {}
        ),
    }


def _notification(item: Remark) -> dict[str, Any]:
    why = NO_PLACE_WORDS[item.no_place] if item.no_place else ""
    return {
        "level": item.level,
        "message": {"text": f"{item.recorded}: {item.text} There is no result, since {why}."},
        "associatedRule": {"id": item.rule},
    }
